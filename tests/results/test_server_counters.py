from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_run import MS, cell
from made_up_server_run import BLOCK_SIZE, server_request, window_of

from dflash.results import acceptance_metrics
from dflash.results.records import Arm, WindowRecord
from dflash.results.server_counters import (
    Mismatch,
    cache_mark,
    cached_prompt_share,
    count_server,
    own_total,
)

ARM = cell(Arm("dflash", BLOCK_SIZE), "a", on_server=True)
BASELINE = cell(Arm("baseline"), "b", on_server=True)
ACCEPTED = (3, 1, 0, 3)  # the last step is cut: 1 + 4 + 2 + 1 + 3 = 11 of 12 tokens
NUM_TOKENS = 11


def requests(num=6, **changes):
    """Three requests in each of two blocks, exactly as they are counted."""
    members = [
        server_request("a", i, i * 1000 * MS, ACCEPTED, NUM_TOKENS, block=i // 3)[0] for i in range(num)
    ]
    return [replace(members[0], **changes), *members[1:]]


def windows(records, **changes):
    """A window per block; the first is changed."""
    blocks = sorted({record.block for record in records})
    found = [window_of(ARM, block, [r for r in records if r.block == block]) for block in blocks]
    return [replace(found[0], **changes), *found[1:]]


def test_equal_counts_are_reconciled():
    records = requests()
    counts = count_server(records, windows(records))
    assert counts.verdict == "reconciled"
    assert counts.mismatches == ()
    assert (counts.num_covered, counts.num_completed) == (6, 6)
    assert counts.own == {
        "num_generation_tokens": 66,
        "num_requests": 6,
        "num_drafts": 24,
        "num_draft_tokens": 72,
        "num_accepted_tokens": 42,
    }
    assert counts.total("num_drafts") == 24


def test_acceptance_from_counters_is_that_of_the_requests():
    records = requests()
    counts = count_server(records, windows(records))
    assert counts.acceptance_length_untrimmed() == 1 + 42 / 24
    assert counts.acceptance_length_untrimmed() == acceptance_metrics.acceptance_length_untrimmed(records)
    assert counts.acceptance_rate() == acceptance_metrics.acceptance_rate(records)
    assert counts.acceptance_rate_per_position() == acceptance_metrics.acceptance_rate_per_position(records)
    assert acceptance_metrics.acceptance_length(records) == 60 / 24  # delivered: the last step was cut
    assert counts.acceptance_length() is None


def test_an_engine_that_counts_verify_calls_gives_the_delivered_form():
    """SGLang: (generation tokens - requests) / verify calls, and no untrimmed form."""
    records = requests()
    found = [
        replace(
            window, num_accepted_tokens=None, num_draft_tokens=None, num_accepted_tokens_per_position=None
        )
        for window in windows(records)
    ]
    counts = count_server(records, found)
    assert counts.acceptance_length() == acceptance_metrics.acceptance_length(records)
    assert counts.acceptance_length_untrimmed() is None
    assert counts.acceptance_rate() is None
    assert counts.acceptance_rate_per_position() is None
    assert counts.verdict == "reconciled"


def test_the_recorded_sglang_counters_give_length_one():
    window = WindowRecord("a", counters="settled", num_drafts=114, num_generation_tokens=120, num_requests=6)
    counts = count_server(requests(3), [window])
    assert counts.acceptance_length() == 1.0


def test_the_recorded_vllm_counters():
    """Self-draft of four prompts: 37 drafts of 3 tokens, all accepted."""
    window = WindowRecord(
        "a",
        counters="settled",
        num_drafts=37,
        num_draft_tokens=111,
        num_accepted_tokens=111,
        num_accepted_tokens_per_position=(37, 37, 37),
    )
    counts = count_server(requests(3), [window])
    assert counts.acceptance_length_untrimmed() == 4.0
    assert counts.acceptance_rate_per_position() == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("name", ["num_generation_tokens", "num_requests"])
def test_more_than_our_own_requests_make_is_someone_elses(name):
    records = requests()
    found = windows(records)
    found[0] = replace(found[0], **{name: getattr(found[0], name) + 5, "num_drafts": found[0].num_drafts + 2})
    counts = count_server(records, found)
    assert counts.verdict == "contaminated"
    own = own_total(records[:3], name)
    assert counts.mismatches == (Mismatch(name, own + 5, own), Mismatch("num_drafts", 14, 12))


def test_fewer_than_our_own_requests_make_is_never_traffic():
    records = requests()
    found = windows(records)
    found[0] = replace(found[0], num_generation_tokens=7, num_requests=30)
    assert count_server(records, found).verdict == "too_low"


def test_our_own_tokens_with_other_drafts_accuse_nobody():
    records = requests()
    counts = count_server(records, windows(records, num_drafts=13))
    assert counts.verdict == "unlike"
    assert counts.mismatches == (Mismatch("num_drafts", 13, 12),)


def test_too_much_in_one_block_does_not_make_up_for_too_little_in_another():
    records = requests()
    first, second = windows(records)
    tokens = first.num_generation_tokens
    first = replace(first, num_generation_tokens=tokens + 9)
    second = replace(second, num_generation_tokens=tokens - 9)
    assert count_server(records, [first, second]).verdict == "contaminated"


@pytest.mark.parametrize("reason", ["error", "cancelled"])
def test_with_a_request_that_did_not_complete_more_is_not_checkable(reason):
    records = requests(finish_reason=reason)
    counts = count_server(records, windows(requests()))  # it had been made in full
    assert counts.verdict == "not_checkable"
    assert counts.num_not_completed == 1
    assert Mismatch("num_generation_tokens", 33, 22) in counts.mismatches


def test_with_a_request_that_did_not_complete_less_is_still_wrong():
    records = requests(finish_reason="error")
    counts = count_server(records, windows(records, num_generation_tokens=3))
    assert counts.verdict == "too_low"


@pytest.mark.parametrize("state", ["reset", "missing", "unreadable"])
def test_counters_that_are_not_known_give_nothing(state):
    records = requests(3)
    lost = WindowRecord("a", counters=state, counters_reason="HTTP 404")
    counts = count_server(records, [lost])
    assert counts.verdict == state
    assert counts.reasons == ("HTTP 404",)
    assert counts.acceptance_length_untrimmed() is None
    assert counts.acceptance_rate() is None
    assert counts.total("num_drafts") is None
    assert counts.num_covered == 0


def test_a_reset_in_one_block_leaves_the_other_and_says_what_it_covers():
    records = requests()
    second = windows(records)[1]
    lost = WindowRecord("a", block=0, counters="reset")
    counts = count_server(records, [lost, second])
    assert counts.verdict == "reset"
    assert counts.acceptance_length_untrimmed() == 1 + second.num_accepted_tokens / second.num_drafts
    assert (counts.num_covered, counts.num_completed) == (3, 6)
    assert counts.own["num_requests"] == 3


def test_no_drafts_give_no_length_instead_of_one():
    records = requests(3)
    counts = count_server(records, windows(records, num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0))
    assert counts.acceptance_length_untrimmed() is None
    assert counts.acceptance_rate() is None
    assert counts.acceptance_rate_per_position() is None


def test_counters_that_still_moved_are_not_reconciled():
    records = requests()
    assert count_server(records, windows(records, counters="unsettled")).verdict == "unsettled"


def test_answers_that_tell_no_counts_leave_tokens_and_requests_to_compare():
    untold = [
        replace(record, num_verify_steps=None, num_draft_tokens=None, num_accepted_tokens=None)
        for record in requests()
    ]
    counts = count_server(untold, windows(requests()))
    assert counts.verdict == "reconciled"
    assert set(counts.own) == {"num_generation_tokens", "num_requests"}
    assert counts.acceptance_length_untrimmed() == 1 + 42 / 24
    assert acceptance_metrics.acceptance_length_untrimmed(untold) is None


def test_a_baseline_is_checked_by_its_tokens():
    records = [server_request("b", i, 0, None, 9)[0] for i in range(3)]
    window = window_of(BASELINE, 0, records)
    assert count_server(records, [window]).verdict == "reconciled"
    foreign = replace(window, num_generation_tokens=28)
    assert count_server(records, [foreign]).verdict == "contaminated"


def test_nothing_in_common_is_not_checkable():
    records = [replace(record, num_output_tokens=None, num_verify_steps=None) for record in requests(3)]
    window = WindowRecord("a", counters="settled", num_generation_tokens=33, num_drafts=12)
    assert count_server(records, [window]).verdict == "not_checkable"


def test_without_a_window_counters_are_missing():
    counts = count_server(requests(), [])
    assert (counts.verdict, counts.windows, counts.own) == ("missing", (), {})


def test_a_block_that_was_run_again_is_not_counted():
    """A process that died left a window; its requests were run again under the next one."""
    records = [replace(record, segment=1) for record in requests(3)]
    found = [
        window_of(ARM, 0, requests(3), segment=0),
        window_of(ARM, 0, records, segment=1),
    ]
    counts = count_server(records, found)
    assert counts.verdict == "reconciled"
    assert len(counts.windows) == 1
    assert counts.total("num_requests") == 3


def test_requests_that_a_later_process_ran_again_make_the_block_uncheckable_not_contaminated():
    records = requests()
    found = windows(records)
    again = [*records[1:], replace(records[0], segment=1, block=2)]
    found.append(window_of(ARM, 2, again[-1:], segment=1))
    counts = count_server(again, found)
    assert counts.verdict == "not_checkable"
    assert counts.num_not_completed == 0


def test_a_resumed_run_whose_blocks_stand_is_reconciled():
    records = [*requests(3), *(replace(record, segment=1) for record in requests()[3:])]
    found = [window_of(ARM, 0, records[:3]), window_of(ARM, 1, records[3:], segment=1)]
    assert count_server(records, found).verdict == "reconciled"


@pytest.mark.parametrize(
    ("states", "together"),
    [
        (("reset", "reset"), "reset"),
        (("off", "off"), "off"),
        (("reset", "off"), "reset"),
        (("reset", "unknown"), "unknown"),
    ],
)
def test_the_state_of_the_prefix_cache_is_the_worst_of_all_blocks(states, together):
    records = requests()
    found = [replace(w, prefix_cache=s) for w, s in zip(windows(records), states, strict=True)]
    assert count_server(records, found).prefix_cache == together


def test_the_cached_share_is_over_tokens_and_known_of_all_requests_or_not_at_all():
    records = [
        server_request("a", 0, 0, ACCEPTED, NUM_TOKENS, num_prompt_tokens=100, num_cached_tokens=0)[0],
        server_request("a", 1, 0, ACCEPTED, NUM_TOKENS, num_prompt_tokens=300, num_cached_tokens=80)[0],
    ]
    assert cached_prompt_share(records) == 0.2
    assert cached_prompt_share([records[0], replace(records[1], num_cached_tokens=None)]) is None
    assert cached_prompt_share([replace(records[1], finish_reason="error"), records[0]]) == 0.0
    assert cached_prompt_share([]) is None


@pytest.mark.parametrize(
    ("share", "state", "mark"),
    [
        (0.4, "unknown", "cached"),
        (0.4, "reset", "cached"),  # emptied before, yet prompts share their beginnings
        (0.0, "unknown", None),  # the answers say that nothing was cached
        (None, "unknown", "cache_unknown"),
        (None, "off", None),
        (None, "reset", None),
        (None, None, None),  # in process
    ],
)
def test_what_stands_beside_a_ttft(share, state, mark):
    assert cache_mark(share, state) == mark


def test_loop_lag_is_that_of_the_worst_block():
    records = requests()
    found = windows(records, loop_lag_p99_ns=7, loop_lag_max_ns=9)
    found[1] = replace(found[1], loop_lag_p99_ns=3, loop_lag_max_ns=50)
    assert count_server(records, found).loop_lag_ns() == (7, 50)
    assert count_server(records, []).loop_lag_ns() == (None, None)


def test_a_stretch_of_an_earlier_process_is_checked_where_nothing_of_it_was_run_again():
    """The second block was run by a later process; the first one is whole, and what it counted is someone else's."""
    records = [replace(record, segment=record.block) for record in requests()]
    found = [replace(window, segment=window.block, num_own_requests=3) for window in windows(records)]
    found[0] = replace(found[0], num_generation_tokens=40, num_requests=4)
    assert count_server(records, found).verdict == "contaminated"
    assert count_server(records[1:], found).verdict == "not_checkable"  # one of its requests was run again
    unknown = [replace(window, num_own_requests=None) for window in found]
    assert count_server(records, unknown).verdict == "not_checkable"
