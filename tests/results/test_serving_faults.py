"""Faults that users met in tools that measure servers: each test is named after its number, and shows the trap, then
that these numbers do not fall into it."""

from __future__ import annotations

import io
import random
from dataclasses import replace

import pytest
from made_up_run import MS, cell, workload
from made_up_server_run import (
    BLOCK_SIZE,
    STEP_MS,
    made_up_server_run,
    server_lines,
    server_request,
    window_of,
)

from dflash.results import acceptance_metrics, arrivals, metrics, request_metrics
from dflash.results.arrivals import collect_arrivals
from dflash.results.document import json_document
from dflash.results.markdown import render_report
from dflash.results.records import Arm, RequestRecord, WindowRecord
from dflash.results.server_counters import count_server
from dflash.results.summary import summarise_run
from dflash.results.tables import print_summary

ARM = "dflash-gsm8k-c4"
BASELINE = "baseline-gsm8k-c4"
FULL = (3,) * 20  # every draft token accepted: chunks of 4 tokens


def summary_of(lines, folder):
    return {item.cell.cell_id: item for item in summarise_run(lines.write(folder)).cells}


def full_speed():
    """Four requests of 2.06 s whose chunks all hold 4 tokens but the first, and their arrivals."""
    found = [server_request("a", i, 0, FULL * 5, 401) for i in range(4)]
    records = [record for record, *_ in found]
    return records, collect_arrivals({"a": records}, [chunk for _, chunk, _ in found])["a"]


def test_fault_01_chunk_gaps_are_not_times_per_token():
    records, found = full_speed()
    assert arrivals.icl_s(found) == pytest.approx(STEP_MS / 1000)
    assert metrics.tpot_s(records) == pytest.approx(STEP_MS / 1000 / 4)


def test_fault_02_peak_counts_tokens_not_chunks():
    records, found = full_speed()
    chunks_per_s = 4 * 1000 / STEP_MS
    peak = arrivals.peak_output_tok_s(records, found)
    mean = metrics.output_tok_s(records, metrics.busy_time_s(records))
    assert peak == pytest.approx(4 * chunks_per_s)
    assert chunks_per_s < mean < peak  # the trap: chunks counted as tokens give a peak below the mean


def test_fault_04_time_per_token_is_by_usage_however_the_tokens_are_cut_into_chunks(tmp_path):
    fine, coarse = server_lines(), server_lines()
    coarse.chunks = [
        replace(chunk, gaps_ns=(sum(chunk.gaps_ns),), num_tokens=(1, sum(chunk.num_tokens) - 1))
        for chunk in coarse.chunks
    ]
    first, second = summary_of(fine, tmp_path / "fine")[ARM], summary_of(coarse, tmp_path / "coarse")[ARM]
    assert first.number("tpot_s") == second.number("tpot_s")
    assert first.number("decode_tok_s") == second.number("decode_tok_s")
    assert second.number("icl_s") > 30 * first.number("icl_s")


def test_fault_06_a_missing_count_is_not_the_limit(tmp_path):
    lines = server_lines(num_tokens=90)
    lines.change(ARM, 0, num_output_tokens=None)
    found = summary_of(lines, tmp_path / "run")[ARM]
    assert found.number("output_tokens_mean") == 90
    assert request_metrics.request_tpot_s(found.records[0]) is None
    assert found.number("peak_output_tok_s") is None  # its tokens are somewhere, and nobody knows how many
    assert "partly_measured" in {finding.code for finding in found.findings}


def test_fault_07_a_bundled_first_chunk_is_no_decode_speed():
    record = server_request("a", 0, 0, FULL, 81)[0]
    bundled = replace(record, num_output_tokens=89, num_first_chunk_tokens=9)
    assert metrics.decode_tok_s([bundled]) == metrics.decode_tok_s([record])
    assert metrics.decode_tok_s([replace(bundled, num_first_chunk_tokens=1)]) > metrics.decode_tok_s([record])


def test_fault_09_both_lengths_stand_in_a_report_under_their_names(tmp_path):
    lines = server_lines()
    report = render_report(run := lines.write(tmp_path / "run"), summarise_run(run))
    arm = summarise_run(run).cells[1]
    delivered, counted = arm.number("acceptance_length"), arm.number("acceptance_length_untrimmed")
    assert f"{delivered:.2f}" != f"{counted:.2f}"
    body = report.split("## Server counters\n")[1].split("\n## ")[0]
    assert "| arm | source | acceptance length | as engines count |" in body
    assert f"| dflash B=4 | answers | {delivered:.2f} | {counted:.2f} |" in body
    assert f"| dflash B=4 | counters | n/a | {counted:.2f} |" in body
    accepted_per_step = sum(r.num_accepted_tokens for r in arm.records) / sum(
        r.num_verify_steps for r in arm.records
    )
    assert counted == pytest.approx(1 + accepted_per_step)  # the bonus token is in both


def test_fault_11_ranks_that_tell_nothing_are_no_acceptance_of_one():
    """One rank's answers carry no counts: the others are pooled by their steps, and the gap is said."""
    told = [
        server_request("a", i, 0, accepted, n)[0] for i, (accepted, n) in enumerate([(FULL, 81), ((0,), 2)])
    ]
    untold = [
        replace(record, prompt_id=f"gsm8k/{9 + i}", num_decode_steps=None, num_verify_steps=None)
        for i, record in enumerate(told)
    ]
    assert acceptance_metrics.acceptance_length([*told, *untold]) == pytest.approx(81 / 21)
    assert acceptance_metrics.acceptance_length_request_mean([*told, *untold]) == pytest.approx(2.5)
    assert acceptance_metrics.acceptance_length(untold) is None


def test_fault_12_what_a_server_counted_for_other_cells_is_in_no_cell(tmp_path):
    lines = server_lines(concurrencies=(1, 4))
    lines.cells = lines.cells[::-1]
    found = summary_of(lines, tmp_path / "run")
    for cell_id, item in found.items():
        own = [window for window in lines.windows if window.cell_id == cell_id]
        assert set(item.counts.windows) == set(own)
        assert item.counts.verdict == "reconciled"
    slow = server_lines(concurrencies=(1, 4))
    slow.change_windows("dflash-gsm8k-c1", num_accepted_tokens=0)
    changed = summary_of(slow, tmp_path / "slow")
    assert changed["dflash-gsm8k-c1"].number("acceptance_length_untrimmed_counters") == 1.0
    untouched = changed[ARM].number("acceptance_length_untrimmed_counters")
    assert untouched == found[ARM].number("acceptance_length_untrimmed_counters")


def test_fault_13_pooled_and_request_mean_are_both_given_and_absence_is_borne(tmp_path):
    records = [server_request("a", 0, 0, FULL, 81)[0], server_request("a", 1, 0, (0,), 2)[0]]
    assert acceptance_metrics.acceptance_length(records) == pytest.approx(81 / 21)
    assert acceptance_metrics.acceptance_length_request_mean(records) == pytest.approx(2.5)
    lines = server_lines()
    for place in range(16):
        lines.change(
            ARM,
            place,
            num_decode_steps=None,
            num_verify_steps=None,
            num_draft_tokens=None,
            num_accepted_tokens=None,
            acceptance_histogram_untrimmed=None,
        )
    item = summary_of(lines, tmp_path / "run")[ARM]
    assert item.number("acceptance_length") is None  # never the counters' figure in its place
    assert item.number("acceptance_length_untrimmed") is None
    assert item.number("acceptance_length_untrimmed_counters") == pytest.approx(2.51, abs=0.01)
    assert item.counts.verdict == "reconciled"
    assert item.findings == ()


@pytest.mark.parametrize("state", ["missing", "unreadable", "reset"])
def test_fault_14_absent_counters_are_unknown_not_zero(tmp_path, state):
    lines = server_lines()
    lines.windows = [
        WindowRecord(window.cell_id, block=window.block, counters=state, prefix_cache="off")
        for window in lines.windows
    ]
    run = lines.write(tmp_path / "run")
    (_, arm) = json_document(run, summarise_run(run), 0)["cells"]
    assert arm["acceptance_length_untrimmed_counters"] is None
    assert arm["acceptance_rate_counters"] is None
    assert set(arm["counters"]["server"].values()) == {None}
    assert arm["counters"]["state"] == state
    assert arm["acceptance_length_untrimmed"]["value"] > 2  # what the answers say stands


def test_fault_23_a_warm_prefix_cache_is_marked_wherever_ttft_stands(tmp_path):
    lines = server_lines()
    for place in range(16):
        lines.change(ARM, place, num_cached_tokens=38, num_prompt_tokens=40)
        lines.change(BASELINE, place, num_prompt_tokens=40)
    run = lines.write(tmp_path / "run")
    summary = summarise_run(run)
    assert summary.cells[1].number("cached_prompt_share") == pytest.approx(0.95)
    assert {"prompts_cached", "unequal_cached_shares"} <= {f.code for f in summary.cells[1].findings}
    report = render_report(run, summary)
    assert report.count("cached (95.0 %)") >= 3
    assert (
        "cached"
        not in report.split("## Latency")[1].split("| dflash B=4 | TTFT")[0].split("| baseline | TTFT")[1]
    )


def test_fault_28_a_server_that_refuses_does_not_look_faster(tmp_path):
    lines = server_lines()
    healthy = summary_of(lines, tmp_path / "healthy")[ARM]
    refused = random.Random(0).sample(range(16), 6)
    for place in refused:
        lines.change(
            ARM,
            place,
            finish_reason="error",
            error_kind="too_many_requests",
            num_output_tokens=None,
            first_ns=None,
            last_ns=None,
        )
    lines.config = {"slo": {"ttft_s": 10.0}}
    run = lines.write(tmp_path / "refusing")
    summary = summarise_run(run)
    arm = summary.cells[1]
    assert arm.number("output_tok_s") < healthy.number("output_tok_s")
    assert arm.number("throughput_speedup") < healthy.number("throughput_speedup")
    assert arm.number("num_within_slo") == 10
    document = json_document(run, summary, 3)["cells"][1]
    assert document["error_rate"] == 6 / 16
    assert document["error_kinds"] == {"too_many_requests": 6}
    stream = io.StringIO()
    print_summary(run, summary, stream)
    for text in (stream.getvalue(), render_report(run, summary)):
        assert "6 failed" in text
        assert "too_many_requests 6" in text.replace("\\", "")


def test_fault_29_failed_requests_are_in_no_speed_and_the_population_is_stated(tmp_path):
    lines = server_lines()
    before = summary_of(lines, tmp_path / "before")[ARM]
    slow = server_request(ARM, 99, 0, FULL, 81, finish_reason="error", error_kind="stream_cut")
    lines.records.append(replace(slow[0], last_ns=60_000 * MS, first_ns=50_000 * MS, segment=1))
    lines.chunks.append(replace(slow[1], segment=1, gaps_ns=(10_000 * MS,) * 20))
    run = lines.write(tmp_path / "after")
    after = next(item for item in summarise_run(run).cells if item.cell.cell_id == ARM)
    for name in ("decode_tok_s", "tpot_s", "ttft_s", "e2el_s", "icl_s", "acceptance_length", "ttft_s_p99"):
        assert after.number(name) == before.number(name), name
    assert "over completed requests" in render_report(run, summarise_run(run)).split("## Load")[1]


def test_fault_30_counts_reconcile(tmp_path):
    lines = server_lines()
    lines.change(ARM, 0, finish_reason="error", error_kind="connection_refused")
    lines.change(ARM, 1, finish_reason="cancelled")
    item = summary_of(lines, tmp_path / "run")[ARM]
    assert item.number("num_requests") == item.num_completed + item.num_failed + 1
    assert "requests_do_not_add_up" not in {finding.code for finding in item.findings}
    lines.records = [record for record in lines.records if record.prompt_id != "gsm8k/9"]
    lost = summary_of(lines, tmp_path / "lost")[ARM]
    assert "requests_do_not_add_up" in {finding.code for finding in lost.findings}


def test_fault_31_waiting_for_a_place_is_latency_from_when_a_request_was_due(tmp_path):
    """A cap on requests under way hides queueing where latency counts from sending alone."""
    lines = server_lines(request_rate=4.0)
    lines.config = {"slo": {"ttft_s": 0.2}}
    lines.records = [
        replace(record, due_ns=record.sent_ns - 3_000 * MS * (place % 16) // 16)
        for place, record in enumerate(lines.records)
    ]
    item = summary_of(lines, tmp_path / "run")[ARM]
    assert item.number("ttft_s_p99") == pytest.approx(0.06)
    assert item.number("ttft_from_due_s_p99") > 2.5
    assert item.number("queue_s_p99") > 2.5
    assert item.number("num_within_slo") < 4  # limits count from due
    assert "requests_queued" in {finding.code for finding in item.findings}


def test_fault_36_what_a_client_does_after_the_last_answer_dilutes_nothing():
    """The window ends two seconds after the last answer: counters were waited for."""
    place = cell(Arm("dflash", BLOCK_SIZE), "a", on_server=True, workload=workload(concurrency=4))
    records, found = full_speed()
    window = window_of(place, 0, records)
    last_answer = max(record.last_ns for record in records)
    assert window.ended_ns - last_answer == 2_000 * MS
    counts = count_server(records, [replace(window, ended_ns=last_answer + 3_600_000 * MS)])
    assert counts.verdict == "reconciled"
    seconds = (last_answer - min(record.sent_ns for record in records)) / 1e9
    assert metrics.output_tok_s(records, metrics.busy_time_s(records)) == pytest.approx(4 * 401 / seconds)
    assert arrivals.steady_state(place, records, found).seconds == pytest.approx(seconds)


def test_acceptance_that_falls_under_load_is_said(tmp_path):
    """Known fault 37 of engines: acceptance fine at one request, collapsed when batched."""
    lines = server_lines(concurrencies=(1, 4))
    for place in range(16):
        lines.change(ARM, place, num_decode_steps=70 + place % 3, num_verify_steps=None)
    found = summary_of(lines, tmp_path / "run")
    codes = {finding.code for finding in found[ARM].findings}
    assert "acceptance_falls_under_load" in codes
    assert "acceptance_falls_under_load" not in {f.code for f in found["dflash-gsm8k-c1"].findings}
    level = summary_of(server_lines(concurrencies=(1, 4)), tmp_path / "level")
    assert not any(item.findings for item in level.values())


def test_only_equal_loads_are_paired(tmp_path):
    """A baseline at one load is none for an arm at another, and an open loop none for a closed one."""
    lines = server_lines(concurrencies=(1, 4))
    lines.cells = [item for item in lines.cells if item.cell_id in ("baseline-gsm8k-c1", ARM)]
    assert summary_of(lines, tmp_path / "run")[ARM].number("speedup") is None
    assert summary_of(lines, tmp_path / "again")[ARM].pairing is None


def test_a_record_alone_tells_no_speed():
    assert metrics.output_tok_s([RequestRecord("a", "p", finish_reason="error")], None) is None


def test_a_healthy_run_stays_healthy(tmp_path):
    run = made_up_server_run(tmp_path / "run")
    assert all(not item.findings for item in summarise_run(run).cells)


def test_nothing_is_compared_with_a_baseline_that_drafts(tmp_path):
    """A drafting server under the baseline's name, which tells nothing of its drafts: only its chunks show it."""
    lines = server_lines()
    for place in range(16):
        lines.change(BASELINE, place, num_decode_steps=None)
    sizes = {chunk.prompt_id: chunk for chunk in lines.chunks if chunk.cell_id == ARM}
    lines.chunks = [
        replace(sizes[chunk.prompt_id], cell_id=BASELINE) if chunk.cell_id == BASELINE else chunk
        for chunk in lines.chunks
    ]
    run = lines.write(tmp_path / "run")
    found = summary_of(lines, tmp_path / "other")
    assert "baseline_not_plain" in {finding.code for finding in found[BASELINE].findings}
    arm = found[ARM]
    assert arm.number("speedup") is None
    assert arm.number("agreement") is None
    assert "comparison refused: the baseline sent several tokens in" in arm.why_no_speedup
    assert "no_baseline" in {finding.code for finding in arm.findings}
    assert "comparison refused" in render_report(run, summarise_run(run))
