from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_run import cell, dflash_arm, drafted_record, plain_record, workload

from dflash.results import paired_metrics
from dflash.results.identities import check_throughput, stamps_fault
from dflash.results.paired_metrics import pair_units
from dflash.results.records import Arm, DifferenceRecord
from dflash.results.verify import check_cell
from dflash.results.verify_pair import check_pair, is_near_tie

ACCEPTED = (2, 0, 1, 2, 2) * 12  # 84 tokens of output, over the warning for short ones


def codes(findings) -> set[str]:
    return {finding.code for finding in findings}


def drafted(**changes):
    """Five healthy requests, the first one changed."""
    records = [drafted_record("a", prompt, ACCEPTED, 3) for prompt in range(5)]
    return [replace(records[0], **changes), *records[1:]]


def arm_cell(**changes):
    return cell(dflash_arm(3), "a", **({"workload": workload(num_prompts=5)} | changes))


def test_a_cell_that_ended_early_says_how_far_it_came():
    cut = {"status": "interrupted", "reason": "the time budget was used up"}
    (once,) = check_cell(arm_cell(workload=workload(num_prompts=8), num_requests=8, **cut), drafted())
    assert once.sentence.endswith("after 5 of 8 prompts.")
    (twice,) = check_cell(arm_cell(num_requests=10, **cut), drafted())
    assert twice.sentence.endswith("after 5 of 10 requests."), "every repeat is a request of its own"


def test_without_times_no_pair_is_missed_in_the_speedup():
    untimed = [
        replace(record, sent_ns=None, first_ns=None, last_ns=None)
        for record in (*drafted(), *(plain_record("b", prompt, 100) for prompt in range(5)))
    ]
    pairing = pair_units(untimed[5:], untimed[:5])
    for is_timed in (True, False):
        found = codes(check_pair(arm_cell(is_timed=is_timed), pairing, (), 0))
        assert ("pairs_left_out" in found) == is_timed


def test_a_healthy_cell_has_no_findings():
    assert check_cell(arm_cell(), drafted()) == ()
    baseline = cell(Arm("baseline"), "b", workload=workload(num_prompts=5))
    assert check_cell(baseline, [plain_record("b", prompt, 100) for prompt in range(5)]) == ()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"num_output_tokens": 500}, "tokens_do_not_add_up"),
        ({"acceptance_histogram": (24, 0, 36)}, "tokens_do_not_add_up"),
        ({"acceptance_histogram": None, "num_accepted_tokens": 200}, "tokens_do_not_add_up"),
        ({"num_decode_steps": 61}, "histogram_does_not_add_up"),
        ({"acceptance_histogram_untrimmed": (12, 12, 35)}, "histogram_does_not_add_up"),
        ({"acceptance_histogram_untrimmed": (12, 12, 35, 1)}, "histogram_does_not_add_up"),
        ({"acceptance_histogram_untrimmed": (13, 11, 36)}, "histogram_does_not_add_up"),
        ({"num_draft_tokens": 83}, "acceptance_out_of_range"),
        ({"num_draft_tokens": 121}, "acceptance_out_of_range"),
        ({"num_decode_steps": 40}, "acceptance_out_of_range"),
        ({"first_ns": -1}, "stamps_out_of_order"),
        ({"last_ns": None}, "stamps_out_of_order"),
        ({"prompt_id": "quickstart/1"}, "request_recorded_twice"),
        ({"prompt_id": "quickstart/1"}, "requests_do_not_add_up"),
        ({"finish_reason": "lost"}, "requests_do_not_add_up"),
    ],
)
def test_broken_identities_are_errors(changes, code):
    findings = {finding.code: finding for finding in check_cell(arm_cell(), drafted(**changes))}
    assert code in findings
    assert findings[code].severity == "error"


def test_a_step_cut_by_a_stop_breaks_no_identity():
    # The last step accepted 2 and would give 3 tokens; the stop left 1 of them.
    whole = drafted_record("a", 0, ACCEPTED, 3)
    cut = replace(
        whole,
        num_output_tokens=whole.num_output_tokens - 2,
        acceptance_histogram=(whole.acceptance_histogram[0] + 1, 12, whole.acceptance_histogram[2] - 1),
    )
    assert check_cell(arm_cell(), [cut, *drafted()[1:]]) == ()


def test_steps_without_a_draft_are_taken_out_of_the_server_identity():
    """ngram: 10 decode steps, 4 of them with a draft, 5 tokens accepted: 1 + 10 + 5 tokens."""
    record = replace(
        plain_record("a", 0, 16),
        num_decode_steps=10,
        num_verify_steps=4,
        num_draft_tokens=12,
        num_accepted_tokens=5,
        acceptance_histogram=None,
    )
    ngram = cell(Arm("ngram", 4), "a", workload=workload(num_prompts=1))
    assert "tokens_do_not_add_up" not in codes(check_cell(ngram, [record]))
    assert "tokens_do_not_add_up" in codes(check_cell(ngram, [replace(record, num_output_tokens=17)]))


def test_a_baseline_that_skips_tokens_is_found():
    records = [plain_record("b", 0, 100, num_decode_steps=50, acceptance_histogram=None)]
    assert "tokens_do_not_add_up" in codes(check_cell(cell(), records))


def test_believability_of_one_arm():
    nothing = [drafted_record("a", prompt, (0,) * 80, 3) for prompt in range(5)]
    assert codes(check_cell(arm_cell(), nothing)) == {"low_acceptance_length", "nothing_accepted"}
    short = [drafted_record("a", prompt, (2,) * 5, 3) for prompt in range(5)]
    assert codes(check_cell(arm_cell(), short)) == {"short_outputs"}
    few = drafted()[:4]
    assert codes(check_cell(arm_cell(workload=workload(num_prompts=4)), few)) == {"few_prompts"}
    assert codes(check_cell(arm_cell(), drafted(prompt_digest="prompt-1"))) == {"duplicate_prompts"}
    assert codes(check_cell(arm_cell(), drafted(num_first_chunk_tokens=None))) == {"first_chunk_assumed"}
    assert codes(check_cell(arm_cell(), drafted(num_draft_tokens=119))) == {"short_drafts"}
    failed = check_cell(arm_cell(), drafted(finish_reason="error", error_kind="out_of_memory"))
    assert "1 of 5 requests failed (out_of_memory 1)." in [finding.sentence for finding in failed]
    cancelled = check_cell(
        arm_cell(status="interrupted", reason="Ctrl-C"), drafted(finish_reason="cancelled")
    )
    assert {"cancelled_requests", "cell_interrupted"} <= codes(cancelled)


def test_partly_measured_counts_are_said():
    assert "partly_measured" in codes(check_cell(arm_cell(), drafted(num_accepted_tokens=None)))


def test_a_second_turn_with_the_same_prompt_id_is_no_duplicate_prompt():
    records = drafted() + [replace(record, repeat=1) for record in drafted()]
    assert check_cell(arm_cell(), records) == ()


def pair(arm_step_ms, **changes):
    baseline = [plain_record("b", prompt, 100 + prompt, 100) for prompt in range(6)]
    arm = [plain_record("a", prompt, 100 + prompt, arm_step_ms) for prompt in range(6)]
    return pair_units(baseline, [replace(arm[0], **changes), *arm[1:]])


def test_slower_is_said_plainly():
    (finding,) = check_pair(arm_cell(), pair(125))
    assert finding.code == "slower_than_baseline"
    assert "slower than plain decoding: 0.80x" in finding.sentence
    assert "chance" not in finding.sentence
    assert check_pair(arm_cell(), pair(50)) == ()


@pytest.mark.parametrize("slow_ms", [150, 170])
def test_an_interval_that_includes_one_is_said_and_neither_side_claimed(slow_ms):
    baseline = [plain_record("b", prompt, 100, 100) for prompt in range(6)]
    arm = [plain_record("a", prompt, 100, (40, slow_ms)[prompt % 2]) for prompt in range(6)]
    (finding,) = check_pair(arm_cell(), pair_units(baseline, arm))
    assert finding.code == "speedup_not_clear"
    assert "cannot be told apart" in finding.sentence
    assert "slower" not in finding.sentence


@pytest.mark.parametrize("step_ms", [50, 125])
def test_without_an_interval_neither_faster_nor_slower_is_claimed(step_ms):
    baseline = [plain_record("b", prompt, 100) for prompt in range(4)]
    arm = [
        replace(record, sent_ns=record.sent_ns - 10**11)
        for record in (plain_record("a", prompt, 100, step_ms) for prompt in range(4))
    ]
    assert check_pair(arm_cell(), pair_units(baseline, arm)) == ()


def test_end_to_end_within_chance_is_not_said_to_be_slower():
    baseline = [plain_record("b", prompt, 100, 100) for prompt in range(6)]
    arm = [
        replace(record, sent_ns=record.sent_ns - (0, 22 * 10**8)[prompt % 2])
        for prompt, record in enumerate(plain_record("a", prompt, 100, 90) for prompt in range(6))
    ]
    pairing = pair_units(baseline, arm)
    interval = paired_metrics.pooled_e2el_speedup(pairing).interval()
    assert interval.value < 1 <= interval.high
    assert check_pair(arm_cell(), pairing) == ()


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        ("interrupted", "interrupted by SIGINT", "Interrupted by SIGINT after 5 of 7 prompts."),
        ("interrupted", None, "Interrupted after 5 of 7 prompts."),
        ("interrupted", "Ctrl-C", "Interrupted (Ctrl-C) after 5 of 7 prompts."),
        ("failed", "OSError: gone", "Failed after 5 of 7 prompts (OSError: gone)."),
        ("running", None, "Not ended after 5 of 7 prompts (its process was killed, or is still at work)."),
    ],
)
def test_a_cell_that_is_not_completed_says_how_far_it_came(status, reason, words):
    cell = arm_cell(status=status, reason=reason, workload=workload(num_prompts=7))
    (finding,) = check_cell(cell, drafted())
    assert (finding.code, finding.sentence) == (f"cell_{status}", words)


def test_few_prompts_of_several_turns_are_counted_as_prompts_and_as_requests():
    records = [*drafted()[:4], *(replace(record, turn=1) for record in drafted()[:4])]
    (finding,) = check_cell(arm_cell(workload=workload(num_prompts=4)), records)
    assert finding.sentence.startswith("Only 8 requests of 4 prompts completed: fewer than 5 prompts")


def test_faster_decoding_with_slower_requests_is_said():
    baseline = [plain_record("b", prompt, 100, 100) for prompt in range(6)]
    slow_start = [
        replace(record, sent_ns=record.sent_ns - 10**11, cell_id="a")
        for record in (plain_record("a", prompt, 100, 90) for prompt in range(6))
    ]
    assert codes(check_pair(arm_cell(), pair_units(baseline, slow_start))) == {"slower_end_to_end"}


def test_pairs_left_out_unequal_lengths_and_refusal():
    assert codes(check_pair(arm_cell(), pair(50, finish_reason="error"))) == {"pairs_left_out"}
    assert codes(check_pair(arm_cell(), pair(50, num_output_tokens=300))) == {"unequal_output_lengths"}
    (refused,) = check_pair(arm_cell(), pair(50, prompt_digest="other"))
    assert (refused.code, refused.severity) == ("unlike_prompts", "error")
    assert "quickstart/0" in refused.sentence


def test_a_later_turn_alone_can_refuse_the_pair():
    baseline = [plain_record("b", 0, 100, turn=turn, prompt_digest=f"turn-{turn}") for turn in range(2)]
    arm = [replace(record, cell_id="a") for record in baseline]
    assert not pair_units(baseline, arm).unlike_prompts
    pairing = pair_units(baseline, [arm[0], replace(arm[1], prompt_digest="another history")])
    assert pairing.unlike_prompts == (("quickstart/0", 1, 0),)
    assert pairing.pairs == ()
    (refused,) = check_pair(arm_cell(), pairing)
    assert refused.code == "unlike_prompts"
    assert "first in quickstart/0 (turn 1)" in refused.sentence


def test_prompt_tokens_that_one_arm_does_not_tell_are_said():
    (finding,) = check_pair(arm_cell(), pair(50, prompt_digest=None))
    assert (finding.code, finding.severity) == ("prompts_not_compared", "warning")
    assert (
        "Prompt tokens could not be compared in 1 of 6 pairs of requests: they are not known of this arm in 1"
        in (finding.sentence)
    )
    baseline = [plain_record("b", prompt, 100, 100, prompt_digest=None) for prompt in range(6)]
    arm = [plain_record("a", prompt, 100, 50, prompt_digest=None) for prompt in range(6)]
    (finding,) = check_pair(arm_cell(), pair_units(baseline, arm))
    assert (finding.code, finding.severity) == ("prompts_not_compared", "info")
    assert "of both arms in 6" in finding.sentence
    mixed = [replace(arm[0], prompt_digest="d"), *arm[1:]]
    (finding,) = check_pair(arm_cell(), pair_units(baseline, mixed))
    assert finding.severity == "warning"
    assert "of the baseline in 1, of both arms in 5" in finding.sentence


@pytest.mark.parametrize(
    ("dtype", "gap", "near_tie"),
    [
        ("float32", 1e-5, True),
        ("float32", 0.1, False),
        ("bfloat16", 0.1, True),
        ("bfloat16", 2.0, False),
        ("float32", None, None),
        (None, 0.1, True),
    ],
)
def test_near_tie_or_fault_depends_on_the_dtype(dtype, gap, near_tie):
    assert is_near_tie(DifferenceRecord("a", "p", logit_gap=gap), dtype) is near_tie


@pytest.mark.parametrize(("gap", "severity"), [(1e-5, "warning"), (0.5, "error"), (None, "warning")])
def test_differing_outputs_are_found_in_greedy_runs_only(gap, severity):
    differences = [DifferenceRecord("a", "quickstart/0", logit_gap=gap)]
    (finding,) = check_pair(arm_cell(), pair(50, output_digest="other"), differences)
    assert (finding.code, finding.severity) == ("outputs_differ", severity)
    sampled = arm_cell(workload=workload(temperature=1.0, num_prompts=5))
    assert check_pair(sampled, pair(50, output_digest="other"), differences) == ()


def test_peak_throughput_is_not_below_the_mean():
    assert check_throughput(10.0, 12.0) is None
    assert check_throughput(None, 12.0) is None
    assert check_throughput(12.0, 10.0).code == "peak_below_mean"


def test_the_last_window_of_a_short_run_need_not_be_full():
    assert check_throughput(12.0, 11.0, least_peak_tok_s=11.0) is None
    assert check_throughput(12.0, 10.9, least_peak_tok_s=11.0).code == "peak_below_mean"
    assert check_throughput(12.0, 11.5, least_peak_tok_s=13.0).code == "peak_below_mean"


@pytest.mark.parametrize(
    ("stamps", "is_broken"),
    [
        ((0, 1, 2, 3), False),
        ((None, 1, 2, 3), False),
        ((5, 5, 5, 5), False),
        ((2, 1, 2, 3), True),  # sent before it was due
        ((0, 1, 4, 3), True),
        ((0, 3, 2, 4), True),
        ((0, 1, None, 3), True),
    ],
)
def test_stamps_are_in_order(stamps, is_broken):
    due, sent, first, last = stamps
    record = plain_record("a", 0, 5, due_ns=due, sent_ns=sent, first_ns=first, last_ns=last)
    assert (stamps_fault(record) is not None) == is_broken


def test_an_answer_without_a_token_has_no_first_one():
    record = plain_record("a", 0, 1, num_output_tokens=0, first_ns=None, last_ns=10**9)
    assert stamps_fault(record) is None
