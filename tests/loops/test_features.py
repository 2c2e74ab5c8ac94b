"""A feature is what leaves a block; `fc` comes before the norm; no hook outlives its generation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loops.tiny_models import HIDDEN, KINDS, NUM_LAYERS, VOCABULARY, tiny_config, tiny_draft, tiny_target

from dflash.decoding import dflash_generate
from dflash.draft_config import check_target
from dflash.errors import DraftError, ModelError
from dflash.model import extract_context_feature
from dflash.target import FeatureTap, Target, find_layers


def num_hooks(model: Any) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("layer_ids", [(0, 2), (2, 0), (1,), (0, 1, 2)])
def test_a_feature_is_what_leaves_its_block(case: SimpleNamespace, layer_ids: tuple[int, ...]) -> None:
    target = Target(case.model)
    ids = torch.tensor([case.prompt])
    by_hand: dict[int, torch.Tensor] = {}
    handles = [
        layer.register_forward_hook(lambda _, __, output, index=index: by_hand.update({index: output}))
        for index, layer in enumerate(case.model.model.layers)
    ]
    with torch.inference_mode(), FeatureTap(target, layer_ids) as tap:
        hidden_states = case.model(input_ids=ids, output_hidden_states=True).hidden_states
        features = tap.features(len(case.prompt))
        fewer = tap.features(3)
    for handle in handles:
        handle.remove()
    assert len(hidden_states) == NUM_LAYERS + 1
    assert features.shape == (1, len(case.prompt), len(layer_ids) * HIDDEN)
    assert torch.equal(features, torch.cat([by_hand[index] for index in layer_ids], dim=-1))
    assert torch.equal(features, extract_context_feature(hidden_states, layer_ids))
    assert torch.equal(fewer, features[:, :3])
    # One off in either direction is another feature.
    assert not torch.equal(features[..., :HIDDEN], hidden_states[layer_ids[0]])


def test_the_last_block_is_refused() -> None:
    hidden_states = [torch.zeros(1, 3, HIDDEN)] * (NUM_LAYERS + 1)
    assert extract_context_feature(hidden_states, [NUM_LAYERS - 2]).shape == (1, 3, HIDDEN)
    for layer_id in (NUM_LAYERS - 1, NUM_LAYERS, -1):
        with pytest.raises(ValueError, match=f"block {layer_id} cannot be read of a target with 4 blocks"):
            extract_context_feature(hidden_states, [0, layer_id])
    shape = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "num_layers": NUM_LAYERS}
    for layer_id in (NUM_LAYERS - 1, NUM_LAYERS):
        config = tiny_config(dflash_config={"mask_token_id": 63, "target_layer_ids": [0, layer_id]})
        with pytest.raises(DraftError, match=f"reads target block {layer_id}, .* 0 to 2 can be read"):
            check_target(config, **shape)
    check_target(tiny_config(), **shape)


def test_the_loop_hands_over_features_of_committed_tokens_only(case: SimpleNamespace) -> None:
    """What the draft is given, put together, is the feature of prompt and output in one plain forward."""
    draft, given = tiny_draft(), []
    draft.register_forward_pre_hook(lambda _, inputs: given.append(inputs[1].clone()))
    dflash_generate(draft, case.model, case.prompt, 20, None, block_size=5)
    features = torch.cat(given, dim=1)  # [1, committed, 2 * hidden]
    ids = [*case.prompt, *case.reference][: features.shape[1]]
    with torch.inference_mode():
        hidden_states = case.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    assert len(given) > 1
    assert given[0].shape[1] == len(case.prompt)
    torch.testing.assert_close(features, extract_context_feature(hidden_states, (0, 2)), atol=2e-4, rtol=1e-4)


def test_fc_comes_before_the_norm() -> None:
    draft, seen = tiny_draft(), []
    draft.layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    features = torch.randn(1, 6, 2 * HIDDEN, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        draft(torch.zeros(1, 3, HIDDEN), features, draft.new_cache(9))
        projected = features @ draft.fc.weight.T
        root_mean_square = (projected.pow(2).mean(dim=-1, keepdim=True) + draft.config.rms_norm_eps).sqrt()
        wanted = projected / root_mean_square * draft.hidden_norm.weight
        norm_of_features = features / (features.pow(2).mean(dim=-1, keepdim=True) + 1e-6).sqrt()
        other_way_round = (norm_of_features @ draft.fc.weight.T) * draft.hidden_norm.weight
    torch.testing.assert_close(seen[0], wanted, atol=1e-5, rtol=1e-5)
    assert (seen[0] - other_way_round).abs().max() > 0.1


def test_hooks_are_gone_after_a_generation_and_after_an_exception(
    case: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = num_hooks(case.model)  # transformers leaves hooks of its own after output_hidden_states
    dflash_generate(tiny_draft(), case.model, case.prompt, 9, None, block_size=4)
    assert num_hooks(case.model) == before

    calls, forward = [], case.model.model.layers[3].mlp.forward

    def fails_later(*given: Any) -> Any:
        calls.append(num_hooks(case.model))
        if len(calls) == 3:
            raise MemoryError("made up")
        return forward(*given)

    monkeypatch.setattr(case.model.model.layers[3].mlp, "forward", fails_later)
    with pytest.raises(MemoryError, match="made up"):
        dflash_generate(tiny_draft(), case.model, case.prompt, 40, None, block_size=4)
    assert calls == [before + 2] * 3
    assert num_hooks(case.model) == before
    monkeypatch.undo()
    ids = dflash_generate(tiny_draft(), case.model, case.prompt, 9, None, block_size=4)
    assert ids[0].tolist() == [*case.prompt, *case.reference[:9]]


def test_a_second_draft_reads_its_own_blocks(case: SimpleNamespace) -> None:
    """One target, two drafts with other layer ids, in turn: nothing of the first is left."""
    target, accepted = Target(case.model), []
    for layer_ids in ([0, 2], [1, 2], [0, 2]):
        draft = tiny_draft(dflash_config={"mask_token_id": 63, "target_layer_ids": layer_ids})
        given: list[torch.Tensor] = []
        draft.register_forward_pre_hook(lambda _, inputs, given=given: given.append(inputs[1].clone()))
        dflash_generate(draft, target, case.prompt, 12, None, block_size=5)
        accepted.append(given[0])
    assert torch.equal(accepted[0], accepted[2])
    assert not torch.equal(accepted[0], accepted[1])


def test_features_without_a_forward_are_refused(case: SimpleNamespace) -> None:
    with FeatureTap(Target(case.model), (0, 2)) as tap, pytest.raises(ModelError, match="did not pass"):
        tap.features(1)


def test_features_that_are_not_of_each_position_are_refused() -> None:
    """Some targets keep several streams, or leave out positions that no logit needs."""
    model = tiny_target("qwen3")
    ids = torch.tensor([[5, 9, 20]])
    for change in (lambda hidden: hidden[None], lambda hidden: hidden[:, -1:]):
        with FeatureTap(Target(model), (0, 2)) as tap:
            model(input_ids=ids)
            tap._captured[1] = change(tap._captured[0])
            with pytest.raises(ModelError, match="no hidden state for each position"):
                tap.features(3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_is_found_by_structure(kind: str) -> None:
    model = tiny_target(kind, tied=True)
    target = Target(model)
    assert (target.hidden_size, target.vocab_size, len(target.layers)) == (HIDDEN, VOCABULARY, NUM_LAYERS)
    assert target.layers is model.model.layers
    assert target.head.weight is target.embedding.weight is model.model.embed_tokens.weight


def test_what_is_no_target_is_refused() -> None:
    model = tiny_target("llama")
    with pytest.raises(ModelError, match="no single list of 5 decoder blocks"):
        find_layers(model, 5)
    model.config.layer_types = ["full_attention"] * 3 + ["linear_attention"]
    with pytest.raises(ModelError, match="linear_attention"):
        Target(model)
    headless = tiny_target("llama").model
    with pytest.raises(ModelError, match="LM head"):
        Target(headless)
