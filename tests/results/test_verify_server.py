from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_run import MS, cell, workload
from made_up_server_run import BLOCK_SIZE, server_request, window_of

from dflash.results.arrivals import collect_arrivals
from dflash.results.cell_metrics import arm_metrics
from dflash.results.load_metrics import LoadFacts, load_metrics
from dflash.results.measured import Measured
from dflash.results.records import Arm, WindowRecord
from dflash.results.server_counters import count_server
from dflash.results.verify import check_cell
from dflash.results.verify_server import check_load

ARM = cell(Arm("dflash", BLOCK_SIZE), "a", on_server=True, workload=workload(num_prompts=6, concurrency=2))
ACCEPTED = (3, 1, 0, 3, 2, 2) * 6


def exchange(num=6, **changes):
    """Requests two at a time with their chunks; the first is changed."""
    found = [server_request("a", i, (i // 2) * 3000 * MS, ACCEPTED, 103) for i in range(num)]
    return [
        (replace(found[0][0], **changes), found[0][1]),
        *((record, chunk) for record, chunk, _ in found[1:]),
    ]


def findings(pairs, place=ARM, windows=None, stamped_by=None, **window_changes):
    records = [record for record, _ in pairs]
    if windows is None:
        windows = [window_of(place, 0, [record for record, _ in exchange()], **window_changes)]
    facts = LoadFacts(
        collect_arrivals({"a": records}, [chunk for _, chunk in pairs])["a"],
        count_server(records, windows),
        stamped_by=stamped_by,
    )
    values = arm_metrics(place, records) | load_metrics(place, records, facts)
    return {finding.code: finding for finding in check_load(place, records, Measured(values), facts)}


def test_a_healthy_load_has_no_findings():
    assert findings(exchange()) == {}
    assert check_cell(ARM, [record for record, _ in exchange()]) == ()


def test_foreign_traffic_is_named_with_both_numbers():
    found = findings(exchange(), num_generation_tokens=700)["counters_contaminated"]
    assert found.severity == "error"
    assert "generation tokens 700 where our own requests make 618" in found.sentence
    assert "Someone else used the server" in found.sentence


def test_counters_below_our_own_requests_are_no_traffic():
    found = findings(exchange(), num_generation_tokens=600)["counters_too_low"]
    assert found.severity == "error"
    assert "generation tokens 600 where our own requests make 618" in found.sentence
    assert "someone else" not in found.sentence.lower()


def test_drafts_unlike_those_of_the_answers():
    found = findings(exchange(), num_draft_tokens=9)["counters_too_low"]
    assert "draft tokens 9" in found.sentence
    found = findings(exchange(), num_draft_tokens=9999)["counters_unlike"]
    assert "are our own, but its drafts" in found.sentence


def test_a_failed_request_makes_it_not_checkable():
    found = findings(exchange(finish_reason="error"))["counters_not_checkable"]
    assert found.severity == "info"
    assert "1 request did not complete" in found.sentence
    assert "generation tokens 618 where our own requests make 515" in found.sentence


@pytest.mark.parametrize(
    ("state", "severity", "words"),
    [
        ("reset", "error", "began anew in 1 block of load (of 1): it was restarted"),
        ("unreadable", "warning", "could not be read"),
        ("missing", "info", "shows no counters"),
    ],
)
def test_counters_that_are_not_known_are_said(state, severity, words):
    window = WindowRecord("a", counters=state, counters_reason="HTTP 404 from /metrics", prefix_cache="off")
    found = findings(exchange(), windows=[window])
    assert set(found) == {f"counters_{state}"}
    assert found[f"counters_{state}"].severity == severity
    assert words in found[f"counters_{state}"].sentence
    assert "HTTP 404 from /metrics" in found[f"counters_{state}"].sentence


def test_moving_counters_are_said():
    assert "still moved" in findings(exchange(), counters="unsettled")["counters_unsettled"].sentence


def test_blocks_that_never_ended_are_said():
    found = findings(exchange(), windows=[])
    assert "No stretch of load came to its end" in found["counters_missing"].sentence


def test_counters_of_a_part_are_said():
    pairs = exchange()
    pairs = [(replace(record, block=i // 3), chunk) for i, (record, chunk) in enumerate(pairs)]
    first = window_of(ARM, 0, [record for record, _ in pairs[:3]])
    found = findings(pairs, windows=[first, WindowRecord("a", block=1, counters="reset", prefix_cache="off")])
    assert "stand for 3 of the 6 completed requests" in found["counters_not_complete"].sentence


@pytest.mark.parametrize(
    ("p99_ns", "most_ns", "is_said"),
    [
        (200_000, 4_900_000, False),
        (200_000, 5_000_000, False),
        (200_000, 5_100_000, True),
        (6_000_000, None, True),
        (None, None, False),
    ],
)
def test_a_late_event_loop_is_said(p99_ns, most_ns, is_said):
    found = findings(exchange(), loop_lag_p99_ns=p99_ns, loop_lag_max_ns=most_ns)
    assert ("event_loop_lag" in found) == is_said
    if is_said:
        assert found["event_loop_lag"].severity == "warning"
        assert "inflated" in found["event_loop_lag"].sentence


def test_a_late_event_loop_inflates_no_latency_that_the_kernel_stamps():
    once = {"loop_lag_p99_ns": 200_000, "loop_lag_max_ns": 31 * MS}
    found = findings(exchange(), stamped_by="kernel", **once)["event_loop_lag"]
    assert found.severity == "info"
    assert "latencies hold" in found.sentence
    often = {"loop_lag_p99_ns": 6 * MS, "loop_lag_max_ns": 31 * MS}
    assert findings(exchange(), stamped_by="kernel", **often)["event_loop_lag"].severity == "warning"
    assert "inflated" in findings(exchange(), stamped_by="event loop", **once)["event_loop_lag"].sentence


def test_a_late_event_loop_is_one_sentence_for_all_arms_with_a_mend_that_there_is():
    lags = [{"loop_lag_p99_ns": MS, "loop_lag_max_ns": most * MS} for most in (9, 31)]
    assert len({findings(exchange(), **lag)["event_loop_lag"] for lag in lags}) == 1
    alone = replace(ARM, workload=workload(num_prompts=6, concurrency=1))
    open_loop = replace(ARM, workload=workload(num_prompts=6, concurrency=9, request_rate=2.0))
    for place, mend in (
        (ARM, "free cores or a lower concurrency."),
        (alone, "Use a machine with free cores."),
        (open_loop, "free cores or a lower --request-rate."),
    ):
        assert findings(exchange(), place, **lags[0])["event_loop_lag"].sentence.endswith(mend)


def test_prompts_from_the_prefix_cache_are_said_with_their_share():
    found = findings(exchange(num_cached_tokens=32))
    assert (
        "12.5 % of the prompt tokens came from the server's prefix cache" in found["prompts_cached"].sentence
    )


def test_a_prefix_cache_that_nobody_knows_of_is_said():
    unknown = [(replace(record, num_cached_tokens=None), chunk) for record, chunk in exchange()]
    assert "prefix_cache_unknown" in findings(unknown, prefix_cache="unknown")
    assert findings(unknown, prefix_cache="reset") == {}
    assert findings(exchange(), prefix_cache="unknown") == {}  # each answer says 0


def test_refusals_before_an_answer_are_said():
    found = findings(exchange(num_retries=3))["retried_requests"]
    assert "1 of 6 requests were refused at first (3 refusals)" in found.sentence


def test_requests_sent_late_are_said_in_an_open_loop_alone():
    late = [(replace(record, due_ns=record.sent_ns - 30 * MS), chunk) for record, chunk in exchange()]
    open_loop = replace(ARM, workload=workload(num_prompts=6, concurrency=2, request_rate=2.0))
    found = findings(late, open_loop)["requests_queued"]
    assert "30.0 ms after they were due on average (p99 30.0 ms)" in found.sentence
    assert "requests_queued" not in findings(late)
    in_time = [(replace(record, due_ns=record.sent_ns - MS), chunk) for record, chunk in exchange()]
    assert findings(in_time, open_loop) == {}


def test_whose_fault_a_late_sending_is():
    """The server was once blamed where no request had to wait for a place, and the client was late."""
    late = [(replace(record, due_ns=record.sent_ns - 30 * MS), chunk) for record, chunk in exchange()]

    def sentence(concurrency, **lag):
        load = workload(num_prompts=6, concurrency=concurrency, request_rate=2.0)
        return findings(late, replace(ARM, workload=load), **lag)["requests_queued"].sentence

    full = sentence(2, loop_lag_p99_ns=MS, loop_lag_max_ns=4 * MS)
    assert "all 2 places of --concurrency were taken: the load is above what the server takes" in full
    assert "this process" not in full
    free = sentence(3, loop_lag_p99_ns=25 * MS, loop_lag_max_ns=40 * MS)
    assert (
        "a place was always free, so it was this process that was late (its event loop by up to 40.0" in free
    )
    assert "above what the server takes" not in free
    either = sentence(2, loop_lag_p99_ns=25 * MS, loop_lag_max_ns=40 * MS)
    assert "all 2 places" in either
    assert "or this process was late itself" in either


def test_chunks_that_hold_more_than_the_usage_are_an_error():
    found = findings(exchange(num_output_tokens=50))
    assert found["chunks_do_not_add_up"].severity == "error"


def untold(pairs):
    return [
        (
            replace(
                record,
                num_decode_steps=None,
                num_verify_steps=None,
                num_draft_tokens=None,
                num_accepted_tokens=None,
                acceptance_histogram_untrimmed=None,
            ),
            chunk,
        )
        for record, chunk in pairs
    ]


def test_low_acceptance_is_found_by_counters_where_answers_do_not_tell():
    found = findings(untold(exchange()), num_accepted_tokens=4)
    assert "by the server's counters, is 1.02" in found["low_acceptance_length"].sentence
    assert findings(untold(exchange())) == {}


def test_an_arm_that_never_drafts_is_found():
    found = findings(untold(exchange()), num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0)
    assert "Not one step had a draft" in found["never_drafted"].sentence
    baseline = cell(Arm("baseline"), "a", on_server=True, workload=ARM.workload)
    assert "never_drafted" not in findings(untold(exchange()), baseline)


def test_an_arm_whose_acceptance_nobody_tells_is_said():
    missing = [WindowRecord("a", counters="missing", prefix_cache="off")]
    assert "--metrics-url" in findings(untold(exchange()), windows=missing)["acceptance_unknown"].sentence
    assert "acceptance_unknown" not in findings(exchange(), windows=missing)
    assert "acceptance_unknown" not in findings(untold(exchange()))
    baseline = cell(Arm("baseline"), "a", on_server=True, workload=ARM.workload)
    assert "acceptance_unknown" not in findings(untold(exchange()), baseline, windows=missing)


PLAIN = cell(Arm("baseline"), "a", on_server=True, workload=ARM.workload)


def several_at_once(share_of_ten, num_decode_steps=None):
    """Requests called plain; of ten chunks after the first `share_of_ten` hold three tokens."""
    sizes = [1, *([3] * share_of_ten + [1] * (10 - share_of_ten)) * 4]
    pairs = []
    for record, chunk in exchange():
        changes = {"num_output_tokens": sum(sizes), "num_verify_steps": None}
        record = replace(record, **changes, num_decode_steps=num_decode_steps)
        gaps = (10 * MS,) * (len(sizes) - 1)
        pairs.append((record, replace(chunk, gaps_ns=gaps, num_tokens=tuple(sizes))))
    return pairs


def test_a_baseline_whose_chunks_hold_several_tokens_is_none():
    found = findings(several_at_once(6), PLAIN)["baseline_not_plain"]
    assert found.severity == "error"
    assert "several tokens in 144 of 240 chunks after the first" in found.sentence
    assert "baseline_not_plain" not in findings(several_at_once(6), ARM)
    unsized = [(record, replace(chunk, num_tokens=())) for record, chunk in several_at_once(6)]
    assert findings(unsized, PLAIN)["baseline_not_plain"].severity == "error"
    unsized = [(record, replace(chunk, num_tokens=())) for record, chunk in several_at_once(3)]
    assert "baseline_not_plain" not in findings(unsized, PLAIN)
    # a server that says that it sends several steps together, or is a little ahead of its client
    assert "baseline_not_plain" not in findings(several_at_once(6, num_decode_steps=88), PLAIN)
    few = findings(several_at_once(2, num_decode_steps=56), PLAIN)
    assert "baseline_not_plain" not in few
    assert few["baseline_chunks_merged"].severity == "warning"
    assert not {"baseline_not_plain", "baseline_chunks_merged"} & set(findings(several_at_once(1), PLAIN))


def told_otherwise(**changes):
    return [(replace(record, **changes), chunk) for record, chunk in exchange()]


def test_a_block_size_that_is_never_drafted_is_told_with_both_numbers():
    wide = cell(Arm("dflash", 8), "a", on_server=True, workload=ARM.workload)
    found = findings(exchange(), wide, [window_of(ARM, 0, [record for record, _ in exchange()])])
    sentence = found["other_block_size"].sentence
    assert "B = 8 was read, so 7 draft tokens a step, but the server's answers show 3" in sentence
    # where answers do not tell, by the positions that the counters have
    silent = told_otherwise(num_draft_tokens=None)
    found = findings(silent, wide, [window_of(ARM, 0, [record for record, _ in exchange()])])
    assert "counters show 3" in found["other_block_size"].sentence
    # a method that drafts fewer tokens at some steps is no lie
    assert "other_block_size" not in findings(
        [(replace(record, num_draft_tokens=100 - i), chunk) for i, (record, chunk) in enumerate(exchange())]
    )


def test_more_cached_tokens_than_the_prompt_holds_break_an_identity():
    pairs = exchange(num_prompt_tokens=10, num_cached_tokens=1000)
    records = [record for record, _ in pairs]
    found = {finding.code: finding for finding in check_cell(ARM, records)}
    assert found["cached_out_of_range"].severity == "error"
    assert "1000 of 10 prompt tokens came from a cache" in found["cached_out_of_range"].sentence
    facts = LoadFacts(counts=count_server(records, [window_of(ARM, 0, records)]))
    assert load_metrics(ARM, records, facts)["cached_prompt_share"] is None


def test_a_baseline_that_counts_drafts_is_none():
    told = told_otherwise(num_decode_steps=102)
    assert "says 216 steps with a draft" in findings(told, PLAIN)["baseline_not_plain"].sentence
    silent = told_otherwise(num_verify_steps=None)
    window = window_of(ARM, 0, [record for record, _ in exchange()])
    assert "counts 216 steps with a draft" in findings(silent, PLAIN, [window])["baseline_not_plain"].sentence


@pytest.mark.parametrize(
    "distrusted",
    [
        {"num_generation_tokens": 700},  # somebody else's are in it
        {"num_generation_tokens": 600},  # some of ours are not
        {"counters": "unsettled"},
    ],
)
def test_nothing_is_concluded_from_counters_that_are_not_to_be_trusted(distrusted):
    """An arm was once said to decode plainly by the counters of another server."""
    none = {"num_drafts": 0, "num_draft_tokens": 0, "num_accepted_tokens": 0} | distrusted
    found = findings(untold(exchange()), **none)
    assert "never_drafted" not in found
    assert "its counters are not to be trusted" in found["acceptance_unknown"].sentence
    few = findings(untold(exchange()), **{"num_accepted_tokens": 4} | distrusted)
    assert "low_acceptance_length" not in few
    window = replace(window_of(ARM, 0, [record for record, _ in exchange()]), **distrusted)
    silent = told_otherwise(num_verify_steps=None, num_draft_tokens=None)
    assert "baseline_not_plain" not in findings(silent, PLAIN, [window])
    wide = cell(Arm("dflash", 8), "a", on_server=True, workload=ARM.workload)
    assert "other_block_size" not in findings(silent, wide, [window])


def test_what_the_answers_say_stands_beside_counters_that_are_not_to_be_trusted():
    plain = told_otherwise(num_verify_steps=0, num_draft_tokens=0, num_accepted_tokens=0)
    assert "never_drafted" in findings(plain, num_generation_tokens=700)
    other = WindowRecord("a", block=1, counters="reset", prefix_cache="off")
    pairs = [(replace(record, block=i // 3), chunk) for i, (record, chunk) in enumerate(untold(exchange()))]
    first = replace(
        window_of(ARM, 0, [record for record, _ in exchange()[:3]]), num_drafts=0, num_accepted_tokens=0
    )
    assert "never_drafted" not in findings(pairs, windows=[first, other]), "half of it is not known"
