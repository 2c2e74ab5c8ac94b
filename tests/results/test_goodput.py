from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_run import MS, cell, plain_record, workload

from dflash.errors import UsageError
from dflash.results.goodput import Slo, goodput_req_s, meets, num_within_slo, slo_of
from dflash.results.load_metrics import LoadFacts, load_metrics
from dflash.results.metrics import load_time_s

CLOSED = cell(on_server=True, workload=workload(concurrency=2))
OPEN = cell(on_server=True, workload=workload(concurrency=2, request_rate=1.0))


def test_every_limit_must_be_kept():
    record = plain_record("b", 0, 11, step_ms=50)  # TTFT 40 ms, TPOT 50 ms, E2EL 540 ms
    assert meets(CLOSED, record, Slo(ttft_s=0.040, tpot_s=0.050, e2el_s=0.540))
    assert not meets(CLOSED, record, Slo(ttft_s=0.039, tpot_s=0.050, e2el_s=0.540))
    assert not meets(CLOSED, record, Slo(ttft_s=0.040, tpot_s=0.049))
    assert not meets(CLOSED, record, Slo(e2el_s=0.539))
    assert meets(CLOSED, record, Slo(e2el_s=0.540))


@pytest.mark.parametrize("reason", ["error", "cancelled"])
def test_failed_requests_never_keep_a_limit(reason):
    record = plain_record("b", 0, 11, finish_reason=reason)
    assert not meets(CLOSED, record, Slo(ttft_s=1000.0))


def test_what_was_not_measured_is_not_kept():
    record = plain_record("b", 0, 11, sent_ns=None)
    assert not meets(CLOSED, record, Slo(ttft_s=1000.0))
    assert meets(CLOSED, record, Slo(tpot_s=1000.0))
    assert not meets(CLOSED, replace(record, num_output_tokens=None), Slo(tpot_s=1000.0))


def test_an_output_without_a_decode_token_has_no_tpot_to_break():
    assert meets(CLOSED, plain_record("b", 0, 1), Slo(tpot_s=0.001))
    assert meets(CLOSED, plain_record("b", 0, 8, num_first_chunk_tokens=8), Slo(tpot_s=0.001))


def test_in_an_open_loop_limits_count_from_when_a_request_was_due():
    record = plain_record("b", 0, 11, step_ms=50, due_ns=-1000 * MS)
    assert meets(CLOSED, record, Slo(ttft_s=0.1, e2el_s=0.6))
    assert not meets(OPEN, record, Slo(ttft_s=0.1))
    assert not meets(OPEN, record, Slo(e2el_s=0.6))
    assert meets(OPEN, record, Slo(ttft_s=1.04, e2el_s=1.54))


def test_goodput_is_requests_within_limits_per_second_of_busy_time():
    records = [plain_record("b", i, 11, step_ms=50 + 10 * i, sent_ns=0, first_ns=40 * MS) for i in range(4)]
    records = [
        replace(record, last_ns=record.first_ns + (50 + 10 * i) * 10 * MS) for i, record in enumerate(records)
    ]
    records.append(replace(records[0], finish_reason="error"))
    slo = Slo(tpot_s=0.065)
    assert num_within_slo(CLOSED, records, slo) == 2
    assert goodput_req_s(CLOSED, records, slo) == pytest.approx(2 / 0.840)


def test_an_open_loop_answers_no_more_requests_a_second_than_are_sent():
    """One request a second, each answered in 0.54 s, in two stretches: the time between them counts nowhere."""
    records = [
        plain_record(
            "b",
            number,
            11,
            block=number // 5,
            due_ns=start,
            sent_ns=start + 10 * MS,
            first_ns=start + 50 * MS,
            last_ns=start + 550 * MS,
        )
        for number in range(10)
        for start in [(number + 100 * (number // 5)) * 1000 * MS]
    ]
    assert load_time_s(OPEN, records) == pytest.approx(2 * 4.55)
    assert load_time_s(CLOSED, records) == pytest.approx(10 * 0.54)
    assert goodput_req_s(OPEN, records, Slo(e2el_s=1.0)) == pytest.approx(10 / 9.1)
    values = load_metrics(OPEN, records, LoadFacts())
    assert values["completed_req_s"] == pytest.approx(10 / 9.1)
    assert values["total_tok_s"] == pytest.approx(sum(range(30, 40)) / 5.4 + 110 / 5.4)
    assert load_time_s(OPEN, []) is None


def test_without_limits_or_requests_there_is_no_goodput():
    assert goodput_req_s(CLOSED, [plain_record("b", 0, 5)], None) is None
    assert num_within_slo(CLOSED, [plain_record("b", 0, 5)], None) is None
    assert num_within_slo(CLOSED, [], Slo(ttft_s=1.0)) is None


def test_limits_come_from_the_runs_settings():
    assert slo_of({"slo": {"ttft_s": 0.5, "tpot_s": 0.05}}) == Slo(0.5, 0.05, None)
    assert slo_of({"slo": {"e2el_s": 2}}) == Slo(e2el_s=2)
    for empty in ({}, {"slo": None}, {"slo": {}}, {"slo": {"ttft_s": None}}):
        assert slo_of(empty) is None


@pytest.mark.parametrize(
    "limits", [{"itl_s": 0.1}, {"ttft_s": "0.5"}, {"ttft_s": 0}, {"ttft_s": True}, ["ttft_s"]]
)
def test_limits_that_say_nothing_are_refused(limits):
    with pytest.raises(UsageError, match="limit"):
        slo_of({"slo": limits})
