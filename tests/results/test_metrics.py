from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_run import MS, drafted_record, plain_record

from dflash.results import acceptance_metrics, metrics, request_metrics
from dflash.results.records import RequestRecord


def test_acceptance_length_of_the_recorded_self_draft_answer():
    """vLLM, target drafting for itself: 8 tokens, B = 4, 2 steps, the last one cut."""
    record = RequestRecord(
        "c",
        "p",
        num_output_tokens=8,
        finish_reason="stop",
        num_decode_steps=2,
        num_verify_steps=2,
        num_draft_tokens=6,
        num_accepted_tokens=6,
    )
    assert acceptance_metrics.acceptance_length([record]) == 3.5
    assert acceptance_metrics.acceptance_length_untrimmed([record]) == 4.0
    assert acceptance_metrics.acceptance_rate([record]) == 1.0


def test_acceptance_length_of_the_recorded_repeat_answer():
    """SGLang `repeat-40`: 40 tokens, 5 verify steps of B = 8."""
    record = RequestRecord("c", "p", num_output_tokens=40, num_decode_steps=5, finish_reason="length")
    assert acceptance_metrics.acceptance_length([record]) == 7.8


def test_a_draft_of_which_nothing_is_accepted_has_length_one():
    records = [drafted_record("c", prompt, (0,) * 9, 4) for prompt in range(3)]
    assert acceptance_metrics.acceptance_length(records) == 1.0
    assert acceptance_metrics.acceptance_length_untrimmed(records) == 1.0
    assert acceptance_metrics.acceptance_rate(records) == 0.0


def test_pooled_and_request_mean_differ():
    records = [drafted_record("c", 0, (3,) * 2, 4), drafted_record("c", 1, (0,) * 8, 4)]
    assert acceptance_metrics.acceptance_length(records) == (8 + 8) / 10
    assert acceptance_metrics.acceptance_length_request_mean(records) == (4 + 1) / 2
    assert acceptance_metrics.acceptance_length_untrimmed(records) == 1 + 6 / 10
    assert acceptance_metrics.acceptance_length_untrimmed_request_mean(records) == (4 + 1) / 2


def test_cut_tokens_count_only_untrimmed():
    cut = replace(drafted_record("c", 0, (3, 3), 4), num_output_tokens=7)  # the last step gave 2 of 4
    assert acceptance_metrics.acceptance_length([cut]) == 3.0
    assert acceptance_metrics.acceptance_length_untrimmed([cut]) == 4.0


def test_tpot_divides_by_decode_tokens():
    record = plain_record("c", 0, 11, step_ms=100)
    assert metrics.tpot_s([record]) == pytest.approx(0.1)  # 1.0 s for 10 tokens, not for 11
    first_chunk_of_four = replace(record, num_first_chunk_tokens=4)
    assert request_metrics.request_tpot_s(first_chunk_of_four) == pytest.approx(1.0 / 7)
    assert metrics.decode_tok_s([first_chunk_of_four]) == pytest.approx(7)
    assert metrics.tpot_s([replace(record, num_output_tokens=1)]) is None


def test_unknown_first_chunk_counts_as_one_token():
    record = plain_record("c", 0, 11)
    assert request_metrics.num_decode_tokens(replace(record, num_first_chunk_tokens=None)) == 10


def test_speeds_are_pooled_not_averaged():
    records = [plain_record("c", 0, 11, step_ms=100), plain_record("c", 1, 101, step_ms=50)]
    assert metrics.decode_tok_s(records) == pytest.approx(110 / 6)
    assert metrics.tpot_s(records) == pytest.approx(6 / 110)
    assert metrics.tpot_s_request_mean(records) == pytest.approx(0.075)
    assert metrics.output_tok_s(records) == pytest.approx(112 / 6.08)
    assert metrics.output_tok_s(records, busy_s=2.0) == pytest.approx(56)


def test_prompts_and_requests_a_second_are_of_completed_requests():
    records = [
        plain_record("c", 0, 11),  # 30 prompt tokens
        plain_record("c", 1, 9),  # 31
        plain_record("c", 2, 500, finish_reason="error"),
    ]
    assert metrics.total_tok_s(records, busy_s=2.0) == pytest.approx((30 + 31 + 11 + 9) / 2)
    assert metrics.completed_req_s(records, load_s=2.0) == pytest.approx(1.0)
    untold = [replace(records[0], num_prompt_tokens=None), *records[1:]]
    assert metrics.total_tok_s(untold, busy_s=2.0) is None, "its tokens took their share of the time"
    assert metrics.completed_req_s(untold, load_s=2.0) == pytest.approx(1.0)
    for nothing in ([], records[2:]):
        assert metrics.total_tok_s(nothing, 2.0) is metrics.completed_req_s(nothing, 2.0) is None


def test_latencies():
    record = replace(plain_record("c", 0, 11), due_ns=-5 * MS)
    assert metrics.ttft_s([record]) == pytest.approx(0.040)
    assert metrics.e2el_s([record]) == pytest.approx(1.040)
    assert metrics.queue_s([record]) == pytest.approx(0.005)
    assert metrics.ttft_from_due_s([record]) == pytest.approx(0.045)


def test_decode_speed_is_acceptance_length_over_step_time():
    records = [drafted_record("c", 0, (2, 0, 1), 3), drafted_record("c", 1, (1, 1), 3)]
    speed = acceptance_metrics.acceptance_length(records) / metrics.decode_step_s(records)
    assert metrics.decode_tok_s(records) == pytest.approx(speed)
    assert metrics.draft_step_s(records) == pytest.approx(0.018)
    assert metrics.verify_step_s(records) == pytest.approx(0.100)


def test_busy_time_is_the_union_of_requests_in_flight_per_segment():
    def request(segment, start, end, reason="stop"):
        return RequestRecord("c", "p", segment=segment, sent_ns=start, last_ns=end, finish_reason=reason)

    overlapping = [request(0, 0, 4 * 10**9), request(0, 10**9, 2 * 10**9), request(0, 3 * 10**9, 6 * 10**9)]
    later = [request(0, 10 * 10**9, 11 * 10**9, "error"), request(1, 0, 10**9)]
    assert metrics.busy_time_s(overlapping + later) == 8
    assert metrics.busy_time_s([]) is None


def test_positions_from_the_histogram():
    record = drafted_record("c", 0, (0, 0, 1, 2), 3)
    assert acceptance_metrics.acceptance_histogram([record]) == (2, 1, 1)
    assert acceptance_metrics.acceptance_histogram_untrimmed([record]) == (2, 1, 1)
    assert acceptance_metrics.acceptance_rate_per_position([record]) == (0.5, 0.25)
    assert acceptance_metrics.acceptance_rate_per_position_conditional([record]) == (0.5, 0.5)


def test_a_position_that_no_step_reached_is_unknown_not_zero():
    record = drafted_record("c", 0, (0, 0), 3)
    assert acceptance_metrics.acceptance_rate_per_position([record]) == (0.0, 0.0)
    assert acceptance_metrics.acceptance_rate_per_position_conditional([record]) == (0.0, None)


def test_joint_rates_sum_to_the_untrimmed_length():
    records = [drafted_record("c", i, tuple((i * j) % 5 for j in range(1, 9)), 5) for i in range(4)]
    rates = acceptance_metrics.acceptance_rate_per_position(records)
    assert 1 + sum(rates) == pytest.approx(acceptance_metrics.acceptance_length_untrimmed(records))


ARM_METRICS = [
    metrics.decode_tok_s,
    metrics.tpot_s,
    metrics.tpot_s_request_mean,
    metrics.ttft_s,
    metrics.e2el_s,
    metrics.queue_s,
    metrics.ttft_from_due_s,
    metrics.output_tok_s,
    metrics.busy_time_s,
    metrics.decode_step_s,
    metrics.draft_step_s,
    metrics.verify_step_s,
    acceptance_metrics.acceptance_length,
    acceptance_metrics.acceptance_length_request_mean,
    acceptance_metrics.acceptance_length_untrimmed,
    acceptance_metrics.acceptance_length_untrimmed_request_mean,
    acceptance_metrics.acceptance_rate,
    acceptance_metrics.acceptance_histogram,
    acceptance_metrics.acceptance_histogram_untrimmed,
    acceptance_metrics.acceptance_rate_per_position,
    acceptance_metrics.acceptance_rate_per_position_conditional,
    metrics.output_tokens_mean,
    metrics.peak_memory_bytes,
]


@pytest.mark.parametrize("metric", ARM_METRICS, ids=lambda metric: metric.__name__)
def test_what_was_not_measured_is_none(metric):
    assert metric([]) is None
    assert metric([RequestRecord("c", "p", finish_reason="stop")]) is None


@pytest.mark.parametrize("reason", ["error", "cancelled"])
def test_only_completed_requests_enter_a_metric(reason):
    good = drafted_record("c", 0, (2, 0), 3)
    bad = drafted_record("c", 1, (0,) * 50, 3, 900, finish_reason=reason)
    for metric in (
        metrics.decode_tok_s,
        acceptance_metrics.acceptance_length,
        metrics.ttft_s,
        acceptance_metrics.acceptance_histogram,
    ):
        assert metric([good, bad]) == metric([good])


def test_error_rate_and_counts():
    records = [
        plain_record("c", 0, 5),
        plain_record("c", 1, 5, finish_reason="length"),
        plain_record("c", 2, 5, finish_reason="error", error_kind="timeout"),
        plain_record("c", 3, 5, finish_reason="cancelled"),
    ]
    assert metrics.error_rate(records) == 0.25
    assert metrics.error_rate([]) is None
    assert metrics.finish_reason_counts(records) == {"cancelled": 1, "error": 1, "length": 1, "stop": 1}
    assert metrics.error_kind_counts(records) == {"timeout": 1}


def test_peak_memory_with_and_without_weights():
    records = [plain_record("c", 0, 5, peak_memory_bytes=7), plain_record("c", 1, 5, peak_memory_bytes=9)]
    assert metrics.peak_memory_bytes(records) == 9
    assert metrics.peak_memory_bytes(records, weights_bytes=100) == 109
    assert metrics.peak_memory_bytes(records, weights_bytes=None) is None
