"""Greedy output is plain greedy decoding's, whatever the draft proposes and wherever the output ends."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loops.tiny_models import (
    MASK_ID,
    NUM_DISTINCT,
    VOCABULARY,
    ConstantDraft,
    OracleDraft,
    greedy_reference,
    tiny_config,
    tiny_draft,
    tiny_target,
)

from dflash.decoded import Decoded
from dflash.decoding import dflash_generate, plain_generate
from dflash.errors import DraftError, RequestError, UsageError
from dflash.target import Target


def drafted(
    case: SimpleNamespace, draft: Any, limit: int, stops: Sequence[int], block_size: int, **options: Any
) -> Decoded:
    decoded = dflash_generate(
        draft, case.model, case.prompt, limit, stops, block_size=block_size, return_stats=True, **options
    )
    check_counts(decoded)
    return decoded


def check_counts(decoded: Decoded) -> None:
    """The identities that hold for every request with a draft."""
    num_delivered, block_size = sum(decoded.step_num_tokens), decoded.block_size
    assert block_size is not None
    assert num_delivered + 1 == len(decoded.output_ids)
    assert decoded.num_decode_steps == len(decoded.step_gaps_ns) == len(decoded.step_num_accepted)
    assert sum(decoded.acceptance_histogram) == decoded.num_decode_steps
    assert (
        sum(length * count for length, count in enumerate(decoded.acceptance_histogram, 1)) == num_delivered
    )
    assert len(decoded.acceptance_histogram) == len(decoded.acceptance_histogram_untrimmed) == block_size
    assert sum(decoded.acceptance_histogram_untrimmed) == decoded.num_decode_steps
    for delivered, accepted in zip(decoded.step_num_tokens, decoded.step_num_accepted, strict=True):
        assert 1 <= delivered <= accepted + 1 <= block_size
    for delivered, accepted in zip(decoded.step_num_tokens[:-1], decoded.step_num_accepted[:-1], strict=True):
        assert delivered == accepted + 1  # only the last step is ever cut
    assert decoded.num_draft_tokens == (block_size - 1) * decoded.num_decode_steps


@pytest.mark.parametrize("block_size", range(2, 17))
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


@pytest.mark.parametrize("block_size", range(2, 17))
def test_every_step_accepts_what_the_script_says(case: SimpleNamespace, block_size: int) -> None:
    half = block_size // 2
    for script in ([0], [0, block_size - 1], [half, 0, block_size - 1, 1]):
        draft = OracleDraft(case.model, case.prompt, case.reference, script)
        decoded = drafted(case, draft, 25, (), block_size)
        assert decoded.output_ids == tuple(case.reference[:25])
        repeated = (script * 25)[: decoded.num_decode_steps]
        assert decoded.step_num_accepted == tuple(repeated)
        assert sum(accepted + 1 for accepted in repeated[:-1]) < 24 <= sum(repeated) + len(repeated)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_stop_and_limit_in_every_slot_of_a_later_block(case: SimpleNamespace, first: int) -> None:
    draft = OracleDraft(case.model, case.prompt, case.reference, [first, 4])
    for index in range(first + 2, first + 7):  # the slots of the second block of 5
        wanted = tuple(case.reference[: index + 1])
        assert drafted(case, draft, 30, [wanted[-1]], 5).output_ids == wanted
        assert drafted(case, draft, index + 1, (), 5).output_ids == wanted
        both = drafted(case, draft, index + 1, [wanted[-1]], 5)
        assert (both.output_ids, both.finish_reason) == (wanted, "stop")
        assert both.step_num_tokens == (first + 1, index - first - 1)


@pytest.mark.parametrize("block_size", [2, 5, 16])
@pytest.mark.parametrize("seed", [0, 1])
def test_random_drafts_change_nothing(case: SimpleNamespace, block_size: int, seed: int) -> None:
    decoded = drafted(case, tiny_draft(seed), 25, (), block_size)
    assert decoded.output_ids == tuple(case.reference[:25])


@pytest.mark.parametrize("block_size", [2, 5, 16])
@pytest.mark.parametrize("proposal", ["wrong", "stop", "mask", "repeat"])
def test_adversarial_drafts_change_nothing(case: SimpleNamespace, block_size: int, proposal: str) -> None:
    stop = case.reference[13]
    draft: Any = OracleDraft(case.model, case.prompt, case.reference, [0])
    if proposal != "wrong":
        token = {"stop": stop, "mask": MASK_ID, "repeat": case.reference[0]}[proposal]
        draft = ConstantDraft(case.model, token)
    decoded = drafted(case, draft, 25, [stop], block_size)
    assert (decoded.output_ids, decoded.finish_reason) == (tuple(case.reference[:14]), "stop")
    if proposal == "wrong":
        assert decoded.num_decode_steps == 13
        assert decoded.num_accepted_tokens == 0


def test_plain_decoding_is_the_reference(case: SimpleNamespace) -> None:
    plain = plain_generate(case.model, case.prompt, 25, None, return_stats=True)
    assert (plain.output_ids, plain.finish_reason) == (tuple(case.reference[:25]), "length")
    assert plain.step_num_tokens == (1,) * 24
    assert (plain.block_size, plain.step_num_accepted, plain.num_draft_tokens) == (None, (), 0)
    assert (plain.draft_ns, plain.verify_ns) == (None, None)
    for index in range(NUM_DISTINCT):
        stopped = plain_generate(case.model, case.prompt, 25, [case.reference[index]], return_stats=True)
        assert (stopped.output_ids, stopped.finish_reason) == (tuple(case.reference[: index + 1]), "stop")


@pytest.mark.parametrize("block_size", [2, 16])
def test_one_token_needs_no_decode_step(case: SimpleNamespace, block_size: int) -> None:
    first = case.reference[0]
    draft = OracleDraft(case.model, case.prompt, case.reference, [1])
    for limit, stops, reason in ((1, [], "length"), (1, [first], "stop"), (9, [first], "stop")):
        for decoded in (
            drafted(case, draft, limit, stops, block_size),
            plain_generate(case.model, case.prompt, limit, stops, return_stats=True),
        ):
            assert (decoded.output_ids, decoded.finish_reason) == ((first,), reason)
            assert decoded.num_decode_steps == 0
            assert decoded.last_ns == decoded.first_ns
        assert draft.num_calls == 0


def test_the_first_of_several_stop_ids_ends_the_output(case: SimpleNamespace) -> None:
    stops = [case.reference[index] for index in (12, 6, 9)]
    draft = OracleDraft(case.model, case.prompt, case.reference, [4])
    assert drafted(case, draft, 25, stops, 5).output_ids == tuple(case.reference[:7])
    assert plain_generate(case.model, case.prompt, 25, stops, return_stats=True).output_ids == tuple(
        case.reference[:7]
    )


@pytest.mark.parametrize("index", [0, 3, 5])
def test_a_mask_id_in_the_output_stays(case: SimpleNamespace, index: int) -> None:
    settings = {"mask_token_id": case.reference[index], "target_layer_ids": [0, 2]}
    for draft in (
        ConstantDraft(case.model, case.reference[index], tiny_config(dflash_config=settings)),
        tiny_draft(dflash_config=settings),
    ):
        assert drafted(case, draft, 20, (), 5).output_ids == tuple(case.reference[:20])


def test_a_stop_token_in_the_prompt_stops_nothing(case: SimpleNamespace) -> None:
    stop = case.prompt[2]
    wanted = case.reference[:20]
    if stop in wanted:
        wanted = wanted[: wanted.index(stop) + 1]
    assert drafted(case, tiny_draft(), 20, [stop], 5).output_ids == tuple(wanted)


@pytest.mark.parametrize("block_size", [2, 5, 16])
def test_a_long_prompt_leaves_nothing_for_the_short_one(case: SimpleNamespace, block_size: int) -> None:
    generator = torch.Generator().manual_seed(7)
    long_prompt = torch.randint(0, VOCABULARY, (60,), generator=generator).tolist()
    draft, target = tiny_draft(), Target(case.model)
    for prompt in (long_prompt, long_prompt[:3]):
        decoded = dflash_generate(draft, target, prompt, 12, None, block_size=block_size, return_stats=True)
        alone = dflash_generate(
            tiny_draft(),
            tiny_target(case.kind, case.seed),
            prompt,
            12,
            None,
            block_size=block_size,
            return_stats=True,
        )
        assert decoded.output_ids == alone.output_ids == tuple(greedy_reference(case.model, prompt, 12))
        assert decoded.step_num_accepted == alone.step_num_accepted


def test_the_tensor_form_holds_prompt_and_output(case: SimpleNamespace) -> None:
    wanted = [[*case.prompt, *case.reference[:9]]]
    for prompt in (torch.tensor([case.prompt]), torch.tensor(case.prompt), case.prompt):
        assert dflash_generate(tiny_draft(), case.model, prompt, 9, None).tolist() == wanted
        assert plain_generate(case.model, prompt, 9, None).tolist() == wanted


def test_every_moment_is_stamped_once(case: SimpleNamespace) -> None:
    """A clock that counts its readings: sent, first, then one a step; ids are handed on in between."""
    readings = iter(range(100, 1000, 10))
    handed: list[tuple[int, ...]] = []
    draft = OracleDraft(case.model, case.prompt, case.reference, [1, 3])
    decoded = drafted(case, draft, 10, (), 5, clock=lambda: next(readings), on_tokens=handed.append)
    assert (decoded.sent_ns, decoded.first_ns) == (100, 110)
    assert decoded.step_gaps_ns == (10,) * decoded.num_decode_steps
    assert decoded.last_ns == 110 + 10 * decoded.num_decode_steps
    assert [len(ids) for ids in handed] == [1, *decoded.step_num_tokens] == [1, 2, 4, 2, 1]
    assert sum(handed, ()) == decoded.output_ids
    assert decoded.draft_ns is not None
    assert decoded.draft_ns > 0
    assert decoded.verify_ns is not None
    assert decoded.verify_ns > 0


def test_what_cannot_be_decoded_is_refused(case: SimpleNamespace) -> None:
    draft = tiny_draft()
    with pytest.raises(RequestError, match="holds token id 64, and the target's vocabulary is 0 to 63"):
        dflash_generate(tiny_draft(), tiny_target("qwen3"), [5, VOCABULARY], 5, None)
    with pytest.raises(RequestError, match="no token"):
        dflash_generate(draft, case.model, [], 5, None)
    with pytest.raises(RequestError, match="no token"):
        plain_generate(case.model, torch.empty((1, 0), dtype=torch.long), 5, None)
    with pytest.raises(UsageError, match="2 rows"):
        dflash_generate(draft, case.model, torch.ones((2, 3), dtype=torch.long), 5, None)
    for generate in (plain_generate, lambda *given: dflash_generate(draft, *given)):
        with pytest.raises(UsageError, match="max_new_tokens is 0"):
            generate(case.model, [1], 0, None)
    with pytest.raises(UsageError, match="temperature 0"):
        dflash_generate(draft, case.model, [1], 5, None, 0.0, top_k=1)
    with pytest.raises(DraftError, match="above 16"):
        dflash_generate(draft, case.model, [1], 5, None, block_size=17)


def test_a_forced_block_above_the_trained_one_changes_nothing(case: SimpleNamespace) -> None:
    decoded = drafted(case, tiny_draft(), 20, (), 20, force_block_size=True)
    assert decoded.output_ids == tuple(case.reference[:20])
