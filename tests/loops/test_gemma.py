"""Gemma targets: embeddings that their own module scales, windows, and blocks that share keys and values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loops.test_greedy import drafted
from loops.tiny_models import HIDDEN, MASK_ID, OracleDraft, greedy_reference, tiny_draft, tiny_target

from dflash.decoding import dflash_generate, plain_generate
from dflash.target import FeatureTap, Target

PROMPT = [5, 9, 20, 33, 41, 8, 7]


@pytest.fixture(scope="module", params=["gemma3", "gemma4"])
def gemma_case(request: pytest.FixtureRequest) -> SimpleNamespace:
    model = tiny_target(request.param)
    return SimpleNamespace(model=model, prompt=PROMPT, reference=greedy_reference(model, PROMPT, 30))


def test_the_draft_is_given_the_rows_of_the_embedding_as_they_are_stored(gemma_case: SimpleNamespace) -> None:
    """Gemma's module multiplies them by the root of the hidden size; the draft's config says its own factor."""
    draft = tiny_draft()
    given: list[torch.Tensor] = []
    draft.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].clone()))
    dflash_generate(draft, gemma_case.model, PROMPT, 6, None, block_size=4)
    embedding = gemma_case.model.get_input_embeddings()
    block = torch.tensor([gemma_case.reference[0], *[MASK_ID] * 3])
    assert torch.equal(given[0][0], embedding.weight[block])
    assert not torch.allclose(given[0][0], embedding(block))


@pytest.mark.parametrize("script", [None, [3, 0, 1]])
def test_windows_and_shared_keys_change_no_token(
    gemma_case: SimpleNamespace, script: list[int] | None
) -> None:
    """The draft reads a block that writes no keys of its own, which Gemma 4 would compute for the last token only."""
    draft: Any = tiny_draft()
    if script is not None:
        draft = OracleDraft(gemma_case.model, PROMPT, gemma_case.reference, script)
    decoded = drafted(gemma_case, draft, 20, (), 5)
    assert decoded.output_ids == tuple(gemma_case.reference[:20])
    if script is not None:
        assert decoded.step_num_accepted == tuple((script * 9)[: decoded.num_decode_steps])
    plain = plain_generate(gemma_case.model, PROMPT, 20, None)
    assert isinstance(plain, torch.Tensor)
    assert plain[0].tolist() == [*PROMPT, *decoded.output_ids]


def test_the_features_of_every_block_are_those_of_all_positions(gemma_case: SimpleNamespace) -> None:
    target = Target(gemma_case.model)
    ids = torch.tensor([PROMPT])
    with torch.inference_mode(), FeatureTap(target, (0, 2)) as tap:
        logits = target.forward(ids, target.new_cache(20), num_logits=1, has_tap=True)
        features = tap.features(len(PROMPT))
        wanted = gemma_case.model(input_ids=ids, output_hidden_states=True)
    hidden = torch.cat((wanted.hidden_states[1], wanted.hidden_states[3]), dim=-1)
    torch.testing.assert_close(features, hidden)
    torch.testing.assert_close(logits, wanted.logits[0, -1:])
    assert features.shape == (1, len(PROMPT), 2 * HIDDEN)
