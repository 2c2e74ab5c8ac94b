"""Greedy output is plain greedy decoding's, whatever the draft proposes and wherever the output ends."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from loops.tiny_models import MASK_ID, NUM_DISTINCT, VOCABULARY, tiny_config
from mlx_loops.tiny_mlx import (
    ConstantDraft,
    OracleDraft,
    case_with_distinct_tokens,
    greedy_reference,
    tiny_draft,
    tiny_target,
)

from dflash.decoded import Decoded
from dflash.errors import DraftError, RequestError, UsageError
from dflash.mlx_decoding import decode, decode_steps
from dflash.mlx_target import MLXTarget

BLOCK_SIZES = (2, 5, 16)


def drafted(
    case: SimpleNamespace, draft: Any, limit: int, stops: Sequence[int], block_size: int, **options: Any
) -> Decoded:
    decoded = decode(case.model, draft, case.prompt, limit, stops, block_size=block_size, **options)
    check_counts(decoded)
    return decoded


def check_counts(decoded: Decoded) -> None:
    """The identities that hold for every request with a draft."""
    num_delivered, block_size = sum(decoded.step_num_tokens), decoded.block_size
    assert block_size is not None
    assert num_delivered + 1 == len(decoded.output_ids)
    assert decoded.num_decode_steps == len(decoded.step_gaps_ns) == len(decoded.step_num_accepted)
    counts = decoded.acceptance_histogram
    assert sum(counts) == decoded.num_decode_steps == sum(decoded.acceptance_histogram_untrimmed)
    assert sum(length * count for length, count in enumerate(counts, 1)) == num_delivered
    for delivered, accepted in zip(decoded.step_num_tokens, decoded.step_num_accepted, strict=True):
        assert 1 <= delivered <= accepted + 1 <= block_size
    for delivered, accepted in zip(decoded.step_num_tokens[:-1], decoded.step_num_accepted[:-1], strict=True):
        assert delivered == accepted + 1  # only the last step is ever cut
    assert decoded.num_draft_tokens == (block_size - 1) * decoded.num_decode_steps


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_limit_and_stop_in_every_slot(case: SimpleNamespace, block_size: int) -> None:
    draft = OracleDraft(case.model, case.prompt, case.reference, [block_size - 1])
    for index in range(min(block_size + 2, NUM_DISTINCT)):
        wanted = tuple(case.reference[: index + 1])
        cut = drafted(case, draft, index + 1, (), block_size)
        assert (cut.output_ids, cut.finish_reason) == (wanted, "length")
        stopped = drafted(case, draft, 24, [wanted[-1]], block_size)
        assert (stopped.output_ids, stopped.finish_reason) == (wanted, "stop")
        for decoded in (cut, stopped):
            assert decoded.num_decode_steps == -(-index // block_size)  # all accepted: ceil((n-1) / B)
            assert set(decoded.step_num_accepted) <= {block_size - 1}


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_every_step_accepts_what_the_script_says(case: SimpleNamespace, block_size: int) -> None:
    half = block_size // 2
    for script in ([0, block_size - 1], [half, 0, block_size - 1, 1]):
        draft = OracleDraft(case.model, case.prompt, case.reference, script)
        decoded = drafted(case, draft, 25, (), block_size)
        assert decoded.output_ids == tuple(case.reference[:25])
        assert decoded.step_num_accepted == tuple((script * 25)[: decoded.num_decode_steps])


@pytest.mark.parametrize("first", [0, 1, 3])
def test_stop_and_limit_in_every_slot_of_a_later_block(case: SimpleNamespace, first: int) -> None:
    draft = OracleDraft(case.model, case.prompt, case.reference, [first, 4])
    for index in range(first + 2, first + 7):  # the slots of the second block of 5
        wanted = tuple(case.reference[: index + 1])
        assert drafted(case, draft, 30, [wanted[-1]], 5).output_ids == wanted
        both = drafted(case, draft, index + 1, [wanted[-1]], 5)
        assert (both.output_ids, both.finish_reason) == (wanted, "stop")
        assert both.step_num_tokens == (first + 1, index - first - 1)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_random_drafts_change_nothing(case: SimpleNamespace, block_size: int) -> None:
    decoded = drafted(case, tiny_draft(seed=block_size), 18, (), block_size)
    assert decoded.output_ids == tuple(case.reference[:18])


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("proposal", ["wrong", "stop", "mask", "repeat"])
def test_adversarial_drafts_change_nothing(case: SimpleNamespace, block_size: int, proposal: str) -> None:
    stop = case.reference[9]
    draft: Any = OracleDraft(case.model, case.prompt, case.reference, [0])
    if proposal != "wrong":
        token = {"stop": stop, "mask": MASK_ID, "repeat": case.reference[0]}[proposal]
        draft = ConstantDraft(case.model, token)
    decoded = drafted(case, draft, 25, [stop], block_size)
    assert (decoded.output_ids, decoded.finish_reason) == (tuple(case.reference[:10]), "stop")
    if proposal == "wrong":
        assert decoded.num_decode_steps == 9
        assert decoded.num_accepted_tokens == 0


def test_plain_decoding_is_the_reference(case: SimpleNamespace) -> None:
    plain = decode(case.model, None, case.prompt, 25, None)
    assert (plain.output_ids, plain.finish_reason) == (tuple(case.reference[:25]), "length")
    assert plain.step_num_tokens == (1,) * 24
    assert (plain.block_size, plain.step_num_accepted, plain.num_draft_tokens) == (None, (), 0)
    for index in (0, 1, 9):
        stopped = decode(case.model, None, case.prompt, 25, [case.reference[index]])
        assert (stopped.output_ids, stopped.finish_reason) == (tuple(case.reference[: index + 1]), "stop")


def test_one_token_needs_no_decode_step(case: SimpleNamespace) -> None:
    first = case.reference[0]
    draft = OracleDraft(case.model, case.prompt, case.reference, [1])
    for limit, stops, reason in ((1, [], "length"), (1, [first], "stop"), (9, [first], "stop")):
        for decoded in (
            drafted(case, draft, limit, stops, 5),
            decode(case.model, None, case.prompt, limit, stops),
        ):
            assert (decoded.output_ids, decoded.finish_reason) == ((first,), reason)
            assert decoded.num_decode_steps == 0
            assert decoded.last_ns == decoded.first_ns
        assert draft.num_calls == 0


@pytest.mark.parametrize("index", [0, 3, 5])
def test_a_mask_id_in_the_output_stays(case: SimpleNamespace, index: int) -> None:
    settings = {"mask_token_id": case.reference[index], "target_layer_ids": [0, 2]}
    for draft in (
        ConstantDraft(case.model, case.reference[index], tiny_config(dflash_config=settings)),
        tiny_draft(dflash_config=settings),
    ):
        assert drafted(case, draft, 9, (), 5).output_ids == tuple(case.reference[:9])


def test_a_stop_token_in_the_prompt_stops_nothing(case: SimpleNamespace) -> None:
    stop = case.prompt[2]
    wanted = case.reference[:20]
    if stop in wanted:
        wanted = wanted[: wanted.index(stop) + 1]
    assert drafted(case, tiny_draft(), 20, [stop], 5).output_ids == tuple(wanted)


def test_a_long_prompt_in_several_parts_leaves_nothing_for_the_short_one(
    case: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash.mlx_decoding.PREFILL_STEP", 16)
    mx.random.seed(7)
    long_prompt = mx.random.randint(0, VOCABULARY, (45,)).tolist()
    draft, target, fresh = tiny_draft(), MLXTarget(case.model), tiny_target(case.kind, case.seed)
    for prompt in (long_prompt, long_prompt[:1], long_prompt[:3]):
        decoded = decode(target, draft, prompt, 6, None, block_size=5)
        alone = decode(fresh, tiny_draft(), prompt, 6, None, block_size=5)
        assert decoded.output_ids == alone.output_ids == tuple(greedy_reference(case.model, prompt, 6))
        assert decoded.step_num_accepted == alone.step_num_accepted


def test_every_moment_is_stamped_once(case: SimpleNamespace) -> None:
    """A clock that counts its readings: sent, first, then one a step; ids are handed on in between."""
    for draft, script in (
        (None, ()),
        (OracleDraft(case.model, case.prompt, case.reference, [1, 3]), (2, 4, 2, 1)),
    ):
        readings = iter(range(100, 1000, 10))
        handed: list[tuple[int, ...]] = []
        decoded = decode(
            case.model,
            draft,
            case.prompt,
            10,
            None,
            block_size=5,
            clock=lambda readings=readings: next(readings),
            on_tokens=handed.append,
        )
        assert (decoded.sent_ns, decoded.first_ns) == (100, 110)
        assert decoded.step_gaps_ns == (10,) * decoded.num_decode_steps
        assert decoded.last_ns == 110 + 10 * decoded.num_decode_steps
        assert [len(ids) for ids in handed] == [1, *(script or (1,) * 9)]
        assert sum(handed, ()) == decoded.output_ids


def test_what_cannot_be_decoded_is_refused() -> None:
    model, draft = tiny_target("qwen3"), tiny_draft()
    with pytest.raises(RequestError, match="no token"):
        decode(model, draft, [], 5, None)
    for chosen in (None, draft):
        for outside in (VOCABULARY, -1):  # of which MLX says nothing
            with pytest.raises(RequestError, match=f"holds token id {outside}, .* vocabulary is 0 to 63"):
                decode(model, chosen, [5, outside, 7], 5, None)
        with pytest.raises(UsageError, match="max_new_tokens is 0"):
            decode(model, chosen, [1], 0, None)
        with pytest.raises(UsageError, match="temperature 0"):
            decode(model, chosen, [1], 5, None, 0.0, top_k=1)
    with pytest.raises(DraftError, match="above 16"):
        decode_steps(model, draft, [1], 5, None, block_size=17)
    with pytest.raises(DraftError, match="made for a target of 6 blocks, the target has 4"):
        decode_steps(model, tiny_draft(num_target_layers=6), [1], 5, None)
    forced = decode(model, draft, [1, 2], 9, None, block_size=20, force_block_size=True)
    assert list(forced.output_ids) == greedy_reference(model, [1, 2], 9)


@pytest.mark.slow
def test_compiled_kernels_change_no_token() -> None:
    """As users run it: the gated delta net is the target with the most compiled parts."""
    if shutil.which("g++") is None and not mx.is_available(mx.gpu):
        pytest.skip("no g++, with which MLX compiles on a CPU")
    case = case_with_distinct_tokens("qwen3_5")
    mx.enable_compile()
    try:
        draft = OracleDraft(case.model, case.prompt, case.reference, [2, 0, 4])
        assert drafted(case, draft, 12, (), 5).output_ids == tuple(case.reference[:12])
        plain = decode(case.model, None, case.prompt, 12, None)
        assert plain.output_ids == tuple(case.reference[:12])
    finally:
        mx.disable_compile()
