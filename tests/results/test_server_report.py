from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_run import MS, made_up_run
from made_up_server_run import made_up_server_run, server_lines, window_of

from dflash.results.document import json_document
from dflash.results.markdown import MEANINGS, SERVER_FIGURES, render_report
from dflash.results.summary import summarise_run
from dflash.results.tables import print_summary
from dflash.results.titles import load_words

GOLDEN = Path(__file__).parent.parent / "golden" / "server_report.md"
HEADINGS = ["Concurrency", "Load", "Throughput", "Latency", "Server counters"]


def report_of(run) -> str:
    return render_report(run, summarise_run(run))


def printed(run) -> str:
    stream = io.StringIO()
    print_summary(run, summarise_run(run), stream)
    return stream.getvalue()


def section(report: str, heading: str) -> str:
    return report.split(f"## {heading}\n")[1].split("\n## ")[0]


def rows_of(body: str, label: str) -> list[list[str]]:
    lines = [line for line in body.splitlines() if line.startswith("|") and label in line.split("|")[1]]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def troubled_run(folder: Path):
    """Failures, refusals, a warm cache, foreign traffic, a late event loop, and one output that differs."""
    lines = server_lines(concurrencies=(1, 4), num_prompts=12)
    arm, one = "dflash-gsm8k-c4", "dflash-gsm8k-c1"
    lines.config = {"slo": {"ttft_s": 0.5, "tpot_s": 0.0085}}
    lines.change(arm, 0, finish_reason="error", error_kind="timeout", error_message="no token for 120 s")
    lines.change(arm, 1, finish_reason="error", error_kind="stream_cut", error_message="ended in the middle")
    lines.change(arm, 3, num_retries=2)
    lines.change(one, 5, output_digest="ids-other")
    for place in range(12):
        lines.change(one, place, num_cached_tokens=20)
    lines.outputs = [
        replace(output, output_ids=(*(output.output_ids or ())[:17], 999))
        if (output.cell_id, output.prompt_id) == (one, "gsm8k/5")
        else output
        for output in lines.outputs
    ]
    lines.windows = [
        replace(window, num_generation_tokens=(window.num_generation_tokens or 0) + 64, num_requests=7)
        if (window.cell_id, window.block) == (one, 1)
        else window
        for window in lines.windows
    ]
    lines.change_windows("baseline-gsm8k-c4", loop_lag_max_ns=31 * MS)
    lines.change_windows("baseline-gsm8k-c1", prefix_cache="unknown")
    for place in range(12):
        lines.change("baseline-gsm8k-c1", place, num_cached_tokens=None)
    return lines.write(folder)


def test_the_report_of_a_troubled_server_run_is_the_golden_one(tmp_path):
    """Set DFLASH_UPDATE_GOLDEN=1 to write it again, then read the difference."""
    report = report_of(troubled_run(tmp_path / "made-up-servers"))
    if os.environ.get("DFLASH_UPDATE_GOLDEN"):
        GOLDEN.write_text(report, encoding="utf-8")
    assert report == GOLDEN.read_text(encoding="utf-8")


def test_a_healthy_server_run_has_no_findings(tmp_path):
    run = made_up_server_run(tmp_path / "run", concurrencies=(1, 4))
    assert [cell.findings for cell in summarise_run(run).cells] == [()] * 4
    assert "None: every identity holds" in section(report_of(run), "Findings")


def test_sections_on_servers_are_in_reports_on_servers_only(tmp_path):
    of_servers = re.findall(r"^## (.*)$", report_of(made_up_server_run(tmp_path / "run")), re.M)
    in_process = re.findall(r"^## (.*)$", report_of(made_up_run(block_sizes=(4,))), re.M)
    assert [heading for heading in of_servers if heading not in in_process] == HEADINGS
    assert [heading for heading in of_servers if heading not in HEADINGS] == in_process


def test_figures_of_servers_are_explained_in_reports_on_servers_only(tmp_path):
    assert set(MEANINGS) >= SERVER_FIGURES
    in_process = section(report_of(made_up_run()), "What the numbers mean")
    of_servers = section(report_of(made_up_server_run(tmp_path / "run")), "What the numbers mean")
    for figure in SERVER_FIGURES:
        assert f"| **{figure}** |" in of_servers
        assert f"| **{figure}** |" not in in_process


def test_one_table_holds_every_load_of_a_data_set(tmp_path):
    lines = server_lines(concurrencies=(1, 2, 4))
    other = server_lines(concurrencies=(2,), dataset="humaneval")
    for name in ("cells", "records", "chunks", "outputs", "windows"):
        getattr(lines, name).extend(getattr(other, name))
    body = section(report_of(lines.write(tmp_path / "run")), "Concurrency")
    assert body.count("| load |") == 1
    first, second = rows_of(body, "gsm8k"), rows_of(body, "humaneval")
    assert [row[:2] for row in first] == [["gsm8k", f"concurrency {level}"] for level in (1, 2, 4)]
    assert [row[:2] for row in second] == [["humaneval", "concurrency 2"]]
    speeds = [float(row[3]) for row in first]
    assert speeds == sorted(speeds)
    assert speeds[2] > 3 * speeds[0]


def test_an_arm_that_one_load_lacks_is_unknown_there(tmp_path):
    lines = server_lines(concurrencies=(1, 4))
    lines.cells = [cell for cell in lines.cells if cell.cell_id != "dflash-gsm8k-c1"]
    first, _ = rows_of(section(report_of(lines.write(tmp_path / "run")), "Concurrency"), "concurrency")
    assert first[2:] == ["n/a"] * 4


def test_an_open_loop_shows_what_was_due(tmp_path):
    lines = server_lines(request_rate=2.5)
    lines.records = [replace(record, due_ns=record.sent_ns - 80 * MS) for record in lines.records]
    run = lines.write(tmp_path / "run")
    report = report_of(run)
    assert "open loop at 2.5 requests/s, at most 4 under way" in report
    figures = {row[1]: row[2] for row in rows_of(section(report, "Latency"), "baseline")}
    assert figures["due to sent"] == "80.0"
    assert figures["TTFT"] == "60.0"
    assert figures["TTFT from due"] == "140.0"
    assert "80.0 ms after they were due" in section(report, "Findings")
    closed = section(report_of(made_up_server_run(tmp_path / "closed")), "Latency")
    assert "due" not in closed


def test_an_open_loop_without_a_cap_names_none(tmp_path):
    cells = server_lines(concurrencies=(100_000,), request_rate=3.0).cells
    assert load_words(cells[0]) == "open loop at 3 requests/s"


def test_failures_stand_in_terminal_and_report(tmp_path):
    run = troubled_run(tmp_path / "run")
    text = " ".join(printed(run).split())
    assert "2 of 24 requests failed (dflash B=4 2): every figure is over the completed ones alone." in text
    assert "2 of 12 requests failed (stream_cut 1, timeout 1)" in text
    report = report_of(run)
    assert "10 of 12, 2 failed" in section(report, "Speed")
    assert "failed by kind: stream\\_cut 1, timeout 1" in section(report, "Load")
    assert "(2 failed)" in section(report, "Concurrency")
    assert "no token for 120 s" in section(report, "Errors")


@pytest.mark.parametrize("columns", [60, 80])
def test_a_narrow_terminal_never_leaves_out_failures(tmp_path, monkeypatch, columns):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    stream, run = Terminal(), troubled_run(tmp_path / "run")
    print_summary(run, summarise_run(run), stream)
    table = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).split("concurrency 4")[1].split("is fastest")[0]
    assert "10/12" in table
    assert "2 failed" in table


def test_ttft_is_marked_where_prompts_were_or_may_have_been_cached(tmp_path):
    report = report_of(troubled_run(tmp_path / "run"))
    speed = section(report, "Speed")
    assert "| 60.0 cached (44.0 %) |" in speed
    assert "| 60.0 cache unknown |" in speed
    assert "TTFT, cached (44.0 %)" in section(report, "Latency")
    assert "| 60.0 cached (44.0 %) |" in section(report, "Where the time goes")
    terminal = printed(troubled_run(tmp_path / "again"))
    assert "cached" in terminal
    assert "(44.0 %)" in terminal


def test_agreement_says_by_what_outputs_were_compared(tmp_path):
    lines = server_lines(num_prompts=10)
    lines.outputs = [
        replace(output, output_ids=None) if output.prompt_id in ("gsm8k/1", "gsm8k/2") else output
        for output in lines.outputs
    ]
    lines.outputs = [
        replace(output, text="another answer")
        if (output.cell_id, output.prompt_id) == ("dflash-gsm8k-c4", "gsm8k/2")
        else output
        for output in lines.outputs
    ]
    lines.change("dflash-gsm8k-c4", 2, output_digest="text-other")
    body = section(report_of(lines.write(tmp_path / "run")), "Agreement")
    assert "90.0 %" in body
    assert "Compared: 8 by token ids, 2 by text" in body
    (row,) = rows_of(body, "dflash B=4")
    assert row[1:] == ["gsm8k/2", "0", "0", "2", "swer 2 answer 2 answer 2", "other answer"]


def test_every_state_of_the_counters_has_words(tmp_path):
    for state, words in (("reset", "reset"), ("unreadable", "unreadable"), ("missing", "missing")):
        lines = server_lines()
        lines.change_windows("dflash-gsm8k-c4", counters=state)
        run = lines.write(tmp_path / state)
        (row,) = [
            row for row in rows_of(section(report_of(run), "Server counters"), "dflash") if row[1] == words
        ]
        assert row[2:] == ["n/a / n/a"] * 5
        assert f"by the server's counters n/a ({words})" in " ".join(printed(run).split())


def test_the_document_carries_what_a_server_run_measures(tmp_path):
    run = made_up_server_run(tmp_path / "run")
    document = json_document(run, summarise_run(run), 0)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    baseline, arm = document["cells"]
    assert baseline.keys() == arm.keys()
    for name in (
        "icl_s",
        "icl_s_p99",
        "peak_output_tok_s",
        "steady_output_tok_s",
        "steady_decode_tok_s",
        "goodput_req_s",
        "loop_lag_max_s",
    ):
        assert isinstance(arm[name], float), name
    assert arm["num_within_slo"] == 16
    assert arm["cached_prompt_share"] == 0.0
    assert arm["ttft_cache"] is None
    assert arm["agreement_basis"] == {"ids": 16}
    assert arm["throughput_speedup"]["value"] == pytest.approx(arm["output_tok_s"] / baseline["output_tok_s"])
    counters = arm["counters"]
    assert counters["state"] == "reconciled"
    assert counters["server"] == counters["own"]
    assert counters["own"]["num_generation_tokens"] == 16 * 90
    assert counters["prefix_cache"] == "off"
    assert baseline["counters"]["own"]["num_drafts"] is None


def test_a_document_in_process_has_no_counters():
    run = made_up_run()
    cell = json_document(run, summarise_run(run), 0)["cells"][0]
    assert cell["counters"] is None
    assert cell["ttft_cache"] is None
    assert cell["agreement_basis"] == {}
    assert cell["goodput_req_s"] is None
    assert cell["steady_output_tok_s"] is None


def test_marks_of_a_document(tmp_path):
    run = troubled_run(tmp_path / "run")
    cells = {cell["cell_id"]: cell for cell in json_document(run, summarise_run(run), 3)["cells"]}
    assert cells["dflash-gsm8k-c1"]["ttft_cache"] == "cached"
    assert cells["baseline-gsm8k-c1"]["ttft_cache"] == "cache_unknown"
    assert cells["dflash-gsm8k-c1"]["counters"]["state"] == "contaminated"
    assert cells["dflash-gsm8k-c4"]["counters"]["state"] == "not_checkable"
    assert cells["dflash-gsm8k-c4"]["error_kinds"] == {"stream_cut": 1, "timeout": 1}


def test_a_server_arm_without_a_baseline_is_told_how_to_get_one(tmp_path):
    lines = server_lines()
    lines.cells = [cell for cell in lines.cells if not cell.arm.is_baseline]
    run = lines.write(tmp_path / "run")
    assert "add it with --baseline-url" in report_of(run)


def test_a_resumed_server_run_counts_the_blocks_of_both_processes(tmp_path):
    lines = server_lines(num_prompts=16)
    arm = next(cell for cell in lines.cells if not cell.arm.is_baseline)
    later = [record for record in lines.records if (record.cell_id, record.block) == (arm.cell_id, 1)]
    lines.records = [record for record in lines.records if record not in later]
    again = [replace(record, segment=1, block=2) for record in later]
    lines.records += again
    lines.chunks = [
        replace(chunk, segment=1)
        if chunk.cell_id == arm.cell_id and chunk.prompt_id in {record.prompt_id for record in again}
        else chunk
        for chunk in lines.chunks
    ]
    lines.windows.append(window_of(arm, 2, again, segment=1))
    summary = summarise_run(lines.write(tmp_path / "run"))
    counts = summary.cells[1].counts
    assert counts.verdict == "reconciled"
    assert [(window.segment, window.block) for window in counts.windows] == [(0, 0), (1, 2)]
    assert summary.cells[1].number("steady_output_tok_s") > 0


def test_where_a_running_server_is_stands_beside_its_arm(tmp_path):
    lines = server_lines()
    assert "| server arguments |\n" in report_of(lines.write(tmp_path / "started"))
    address = "http://localhost:8001"
    lines.cells = [
        cell if cell.arm.is_baseline else replace(cell, arm=replace(cell.arm, server=address))
        for cell in lines.cells
    ]
    report = report_of(lines.write(tmp_path / "running"))
    assert "| server arguments | server |" in report
    assert report.count("//localhost:8001 |") == 1, "once for the arm, whatever the number of cells"
