"""The public names: load a target and a draft, generate as a stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from loops.tiny_models import VOCABULARY, greedy_reference
from mlx_loops.tiny_mlx import ConstantDraft, OracleDraft, tiny_draft

from dflash.mlx_decoding import decode
from dflash.model_mlx import DFlashDraftModel, load, load_draft, stream_generate


class Letters:
    """A tokenizer of 64 tokens: a letter each, but three that are the bytes of one character, and one special."""

    bos_token, eos_token_id = None, 2
    BYTES = "☃".encode()

    def __init__(self, split: tuple[int, int, int] = (60, 61, 62)) -> None:
        self.split = dict(zip(split, self.BYTES, strict=True))

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        kept = [token for token in token_ids if token != self.eos_token_id or not skip_special_tokens]
        pieces = [bytes([self.split.get(token, 0x40 + token % 32)]) for token in kept]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) % VOCABULARY for letter in text]


def responses(model: Any, draft: Any, tokenizer: Any, prompt: Any, **options: Any) -> list[Any]:
    return list(stream_generate(model, draft, tokenizer, prompt, **options))


def test_a_loaded_pair_streams_what_plain_decoding_says(any_pair: SimpleNamespace) -> None:
    model, tokenizer = load(any_pair.target)
    draft = load_draft(str(any_pair.draft))
    assert isinstance(draft, DFlashDraftModel)
    assert tokenizer.eos_token_ids == {2, 5}  # generation_config names both
    prompt = "<bos> <user> what is one plus two <eos> <assistant>"
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    reference = greedy_reference(any_pair.model, ids, 15)
    ends = [index for index, token in enumerate(reference) if token in (2, 5)]
    wanted = reference[: ends[0] + 1] if ends else reference
    for given in (prompt, ids):
        for chosen in (draft, None):
            found = responses(model, chosen, tokenizer, given, max_tokens=15)
            assert [token for response in found for token in response.tokens] == wanted
            text = "".join(response.text for response in found)
            assert text == tokenizer.decode(wanted, skip_special_tokens=True)
            assert found[-1].finish_reason == ("stop" if ends else "length")
            assert {response.finish_reason for response in found[:-1]} <= {None}


def test_every_record_counts_itself_and_all_before(case: SimpleNamespace) -> None:
    """Fault U14: neither the prefill nor the end has a place among the accepted; cut tokens are not delivered."""
    draft: Any = OracleDraft(case.model, case.prompt, case.reference, [1, 3, 4])
    found = responses(case.model, draft, Letters(), case.prompt, max_tokens=9, block_size=5)
    assert [len(response.tokens) for response in found] == [1, 2, 4, 2]
    assert [response.accepted for response in found] == [None, 1, 3, 4]  # the last five are cut to two
    assert [response.generation_tokens for response in found] == [1, 3, 7, 9]
    assert sum((response.tokens for response in found), ()) == tuple(case.reference[:9])
    assert {response.prompt_tokens for response in found} == {len(case.prompt)}
    assert found[0].generation_tps is None
    assert all(response.generation_tps > 0 and response.prompt_tps > 0 for response in found[1:])
    assert all(response.peak_memory > 0 for response in found)
    accepted = [response.accepted for response in found if response.accepted is not None]
    assert decode(case.model, draft, case.prompt, 9, None, block_size=5).step_num_accepted == tuple(accepted)
    plain = responses(case.model, None, Letters(), case.prompt, max_tokens=4)
    assert [(response.tokens, response.accepted) for response in plain] == [
        ((token,), None) for token in case.reference[:4]
    ]


@pytest.mark.parametrize("script", [[0], [1], [2], [4]])
def test_a_character_of_several_tokens_comes_whole(case: SimpleNamespace, script: list[int]) -> None:
    tokenizer = Letters(tuple(case.reference[3:6]))  # type: ignore[arg-type]
    draft: Any = OracleDraft(case.model, case.prompt, case.reference, script)
    found = responses(case.model, draft, tokenizer, case.prompt, max_tokens=9, block_size=5)
    texts = [response.text for response in found]
    assert "".join(texts) == tokenizer.decode(case.reference[:9])
    assert "☃" in "".join(texts)
    assert not any("\ufffd" in text for text in texts)
    # An answer that ends in half a character says so, once, at its end.
    cut = responses(case.model, draft, tokenizer, case.prompt, max_tokens=5, block_size=5)
    assert "".join(response.text for response in cut) == tokenizer.decode(case.reference[:5])
    assert cut[-1].text.endswith("\ufffd")


@pytest.mark.parametrize("index", [0, 1, 4, 7])
def test_a_mask_id_in_the_answer_stays_in_its_text(case: SimpleNamespace, index: int) -> None:
    """Fault 15: what is cut is cut by its place."""
    mask = case.reference[index]
    config = tiny_draft(dflash_config={"mask_token_id": mask, "target_layer_ids": [0, 2]}).config
    draft: Any = ConstantDraft(case.model, mask, config)
    found = responses(case.model, draft, Letters(), case.prompt, max_tokens=9, block_size=4)
    assert [token for response in found for token in response.tokens] == case.reference[:9]
    assert "".join(response.text for response in found) == Letters().decode(case.reference[:9])


def test_the_baseline_says_what_users_of_mlx_lm_have(case: SimpleNamespace) -> None:
    from mlx_lm.generate import generate_step

    theirs = [token for token, _ in generate_step(mx.array(case.prompt), case.model, max_tokens=20)]
    assert decode(case.model, None, case.prompt, 20, None).output_ids == tuple(theirs)
