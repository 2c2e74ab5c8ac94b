"""Several runs in one report: which baseline an arm is compared with, and what is said where it is refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_run import cell, dflash_arm, drafted_record, made_up_run, plain_record
from made_up_server_run import server_lines
from run_folders import write_run

from dflash.report import main
from dflash.results.document import json_document_of_runs
from dflash.results.markdown import render_runs
from dflash.results.records import OutputRecord, RunInfo
from dflash.results.store import Run
from dflash.results.summary import summarise_run, summarise_runs
from dflash.results.tables import print_summary_of_runs
from dflash.results.unread import load_runs

MACHINE = {
    "machine": {"cpu": "made-up CPU", "num_cores": 2},
    "threads": {"torch": 2},
    "versions": {"torch": "2.9"},
}


def parts_of(run: Run) -> tuple[Run, Run]:
    """The baseline of a run, measured yesterday, and its other arms, measured today."""
    info = replace(run.info, environment=MACHINE)
    baselines = tuple(item for item in info.cells if item.arm.is_baseline)
    others = tuple(item for item in info.cells if not item.arm.is_baseline)

    def part(name: str, day: int, cells) -> Run:
        ids = {item.cell_id for item in cells}
        records = tuple(record for record in run.records if record.cell_id in ids)
        created = f"2026-01-0{day}T00:00:00+00:00"
        return replace(run, info=replace(info, name=name, created_at=created, cells=cells), records=records)

    return part("yesterday", 1, baselines), part("today", 2, others)


def changed(run: Run, **environment: object) -> Run:
    return replace(run, info=replace(run.info, environment={**MACHINE, **environment}))


def with_workload(run: Run, **changes: object) -> Run:
    cells = tuple(
        replace(item, workload=replace(item.workload, **changes), workload_id="other")
        for item in run.info.cells
    )
    return replace(run, info=replace(run.info, cells=cells))


def report_of(*runs: Run) -> str:
    return render_runs([run.info for run in runs], summarise_runs(runs))


def test_an_arm_is_paired_with_the_baseline_of_another_run():
    run = made_up_run(block_sizes=(2, 3))
    yesterday, today = parts_of(run)
    (group,) = summarise_runs([yesterday, today]).groups
    (alone,) = summarise_run(run).groups
    assert [item.label for item in group.cells] == ["baseline", "dflash B=2", "dflash B=3"]
    for item, expected in zip(group.cells, alone.cells, strict=True):
        for name in ("speedup", "e2el_speedup", "throughput_speedup", "agreement", "decode_tok_s"):
            assert item.metrics[name] == expected.metrics[name], name
    assert [(item.run, item.baseline_run, item.baseline_cell_id) for item in group.cells[1:]] == [
        (1, 0, "quickstart-baseline")
    ] * 2
    assert group.fastest_cell_id == alone.fastest_cell_id


def test_the_order_of_the_runs_changes_no_figure():
    yesterday, today = parts_of(made_up_run())
    figures = [
        {item.label: item.metrics["speedup"] for item in summarise_runs(runs).cells}
        for runs in ([yesterday, today], [today, yesterday])
    ]
    assert figures[0] == figures[1]
    assert figures[0]["dflash B=3"] is not None


def test_that_the_arms_did_not_take_turns_is_said():
    report = report_of(*parts_of(made_up_run()))
    assert report.startswith("# yesterday + today\n")
    assert (
        "The baseline is of run yesterday, begun 2026-01-01T00:00:00+00:00; this arm is of run today"
        in report
    )
    assert "did not take turns" in report
    assert "baseline\\_of\\_other" not in report_of(made_up_run())


@pytest.mark.parametrize(("memory_gib", "is_paired"), [(125.2, True), (64.0, False)])
def test_memory_may_differ_by_what_a_kernel_keeps(memory_gib, is_paired):
    yesterday, today = parts_of(made_up_run(block_sizes=(3,)))
    machine = {**MACHINE["machine"], "memory_gib": 125.8}
    runs = [
        changed(yesterday, machine=machine),
        changed(today, machine={**machine, "memory_gib": memory_gib}),
    ]
    arm = next(item for item in summarise_runs(runs).cells if not item.cell.arm.is_baseline)
    assert (arm.number("speedup") is not None) == is_paired
    assert is_paired or "machine memory_gib differs (64.0, there 125.8)" in (arm.why_no_speedup or "")


def test_another_kernel_is_told():
    yesterday, today = parts_of(made_up_run(block_sizes=(3,)))
    arm = summarise_runs([yesterday, changed(today, machine={**MACHINE["machine"], "os": "newer"})]).cells[1]
    (finding,) = [item for item in arm.findings if item.code == "runs_differ"]
    assert "machine os newer (baseline: None)" in finding.sentence


def test_other_versions_are_compared_and_told():
    yesterday, today = parts_of(made_up_run())
    summary = summarise_runs([yesterday, changed(today, versions={"torch": "2.10"})])
    arm = summary.cells[1]
    assert arm.number("speedup") is not None
    (finding,) = [item for item in arm.findings if item.code == "runs_differ"]
    assert finding.severity == "warning"
    assert "versions torch 2.10 (baseline: 2.9)" in finding.sentence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run: with_workload(run, max_new_tokens=64), "max_new_tokens differs (64, there 128)"),
        (lambda run: with_workload(run, target="other"), "target differs (other, there made-up-135m)"),
        (lambda run: with_workload(run, prompts_digest="d2"), "prompts_digest differs (d2, there d1)"),
        (with_workload, "workload_id differs (other, there quickstart)"),
        (lambda run: with_workload(run, concurrency=4), "concurrency differs (4, there 1)"),
        (
            lambda run: changed(run, machine={"cpu": "another CPU", "num_cores": 2}),
            "machine cpu differs (another CPU, there made-up CPU)",
        ),
        (lambda run: changed(run, threads={"torch": 1}), "threads torch differs (1, there 2)"),
        (lambda run: changed(run, engine={"device": "cpu"}), "engine device differs (cpu, there not known)"),
    ],
)
def test_a_refused_pair_names_the_field(change, words):
    yesterday, today = parts_of(made_up_run(block_sizes=(3,)))
    summary = summarise_runs([yesterday, change(today)])
    assert len(summary.groups) == 2
    arm = next(item for item in summary.cells if not item.cell.arm.is_baseline)
    assert arm.number("speedup") is None
    assert arm.why_no_speedup == (
        f"no baseline arm in its run, and that of run yesterday is not compared: {words}"
    )
    report = report_of(yesterday, change(today))
    assert words.replace("_", "\\_") in report
    assert "| n/a | n/a |" in report


def test_another_backend_is_never_compared():
    yesterday, today = parts_of(made_up_run(block_sizes=(3,)))
    cells = tuple(replace(item, backend="mlx") for item in today.info.cells)
    summary = summarise_runs([yesterday, replace(today, info=replace(today.info, cells=cells))])
    arm = next(item for item in summary.cells if not item.cell.arm.is_baseline)
    assert "backend differs (mlx, there simulated)" in (arm.why_no_speedup or "")


def test_of_several_baselines_the_nearest_is_named():
    yesterday, today = parts_of(made_up_run(block_sizes=(3,)))
    far = with_workload(
        replace(yesterday, info=replace(yesterday.info, name="far")), target="other", dtype="bfloat16"
    )
    near = with_workload(replace(yesterday, info=replace(yesterday.info, name="near")), seed=1)
    arm = next(item for item in summarise_runs([far, near, today]).cells if not item.cell.arm.is_baseline)
    assert "that of run near is not compared: seed differs (0, there 1)" in (arm.why_no_speedup or "")


def test_prompts_of_other_tokens_are_not_compared_across_runs_either():
    yesterday, today = parts_of(made_up_run(block_sizes=(3,)))
    records = tuple(replace(record, prompt_digest="other") for record in today.records)
    arm = summarise_runs([yesterday, replace(today, records=records)]).cells[1]
    assert arm.why_no_speedup == "comparison refused: the prompts differ between the arms"


def test_an_arm_with_its_own_history_is_paired_with_no_other_run():
    yesterday, today = parts_of(made_up_run(block_sizes=(3,)))
    cells = tuple(replace(item, notes=("history=own: its own answers",)) for item in today.info.cells)
    summary = summarise_runs([yesterday, replace(today, info=replace(today.info, cells=cells))])
    arm = next(item for item in summary.cells if not item.cell.arm.is_baseline)
    assert "history differs (own, there of the baseline)" in (arm.why_no_speedup or "")


def test_the_own_baseline_comes_before_that_of_another_run_and_equal_arms_bear_their_runs_names():
    first = made_up_run(block_sizes=(3,), seed=1)
    second = made_up_run(block_sizes=(3,), seed=2, step_ms=(60,))
    runs = [replace(run, info=replace(run.info, name=name)) for run, name in ((first, "a"), (second, "b"))]
    (group,) = summarise_runs(runs).groups
    assert [item.label for item in group.cells] == [
        "baseline (a)",
        "baseline (b)",
        "dflash B=3 (a)",
        "dflash B=3 (b)",
    ]
    assert [item.baseline_run for item in group.cells] == [0, 1, 0, 1]
    for item, run in zip(group.cells[2:], (first, second), strict=True):
        assert item.metrics["speedup"] == summarise_run(run).cells[1].metrics["speedup"]
    assert group.fastest is not None
    assert group.fastest.label == "dflash B=3 (b)"
    report = report_of(*runs)
    assert "► **dflash B=3 (b)**" in report
    assert "► **dflash B=3 (a)**" not in report


def test_two_drafts_of_one_label_bear_their_runs_names_too():
    yesterday, today = parts_of(made_up_run(block_sizes=(3,)))
    cells = tuple(replace(item, arm=replace(item.arm, draft_revision="r8")) for item in today.info.cells)
    newer = replace(today, info=replace(today.info, name="newer", cells=cells))
    labels = [item.label for item in summarise_runs([yesterday, today, newer]).cells]
    assert labels == ["baseline", "dflash B=3 (today)", "dflash B=3 (newer)"]


def test_groups_that_read_the_same_bear_their_runs_names():
    yesterday, today = parts_of(made_up_run(block_sizes=(3,)))
    report = report_of(yesterday, with_workload(today, max_new_tokens=64))
    assert "run yesterday: **Only plain decoding was run" in report
    assert "run today: **There is no speedup to report" in report


def test_saved_outputs_of_two_runs_show_where_they_differ(tmp_path):
    arm = cell(dflash_arm(3), "a")
    yesterday = RunInfo("y", "2026-01-01", cells=(cell(cell_id="b"),), environment=MACHINE)
    today = RunInfo("t", "2026-01-02", cells=(arm,), environment=MACHINE)
    plain = [plain_record("b", i, 4, output_digest=f"o{i}") for i in range(6)]
    drafted = [
        drafted_record("a", i, (2,), 3, output_digest="other" if i == 2 else f"o{i}") for i in range(6)
    ]
    outputs = [OutputRecord("b", f"quickstart/{i}", output_ids=(1, 2, 3, 4)) for i in range(6)]
    others = [OutputRecord("a", f"quickstart/{i}", output_ids=(1, 2, 7, 4)) for i in range(6)]
    runs = [
        write_run(tmp_path / "y", yesterday, [*plain, *outputs]),
        write_run(tmp_path / "t", today, [*drafted, *others]),
    ]
    found = summarise_runs(runs).cells[1]
    assert found.agreement_basis == {"ids": 6}
    assert [
        (item.prompt_id, item.position, item.baseline_token_id, item.arm_token_id)
        for item in found.differences
    ] == [("quickstart/2", 2, 3, 7)]


def test_servers_of_two_runs_are_compared_at_equal_load(tmp_path):
    lines = server_lines(concurrencies=(1, 4))
    whole = lines.write(tmp_path / "whole")
    cells = list(lines.cells)
    lines.cells = [item for item in cells if item.arm.is_baseline]
    yesterday = lines.write(tmp_path / "yesterday")
    lines.cells = [item for item in cells if not item.arm.is_baseline]
    today = lines.write(tmp_path / "today")
    expected = {item.cell.cell_id: item for item in summarise_run(whole).cells}
    for item in summarise_runs([yesterday, today]).cells:
        for name in ("speedup", "throughput_speedup", "agreement"):
            assert item.metrics[name] == expected[item.cell.cell_id].metrics[name]


def test_goodput_of_all_runs_is_by_the_limits_of_the_first_that_has_some(tmp_path):
    lines = server_lines(concurrencies=(1,))
    without = lines.write(tmp_path / "without")
    lines.config = {"slo": {"ttft_s": 0.5, "tpot_s": 0.015}}
    strict = lines.write(tmp_path / "strict")
    lines.config = {"slo": {"ttft_s": 0.001}}
    impossible = lines.write(tmp_path / "impossible")
    summary = summarise_runs([without, strict, impossible])
    assert summary.slo is not None
    assert summary.slo.ttft_s == 0.5
    drafting = [item.number("num_within_slo") for item in summary.cells if not item.cell.arm.is_baseline]
    assert drafting == [16, 16, 16]


# --- what is printed and written


def test_the_console_says_the_same_of_several_runs():
    runs = parts_of(made_up_run())
    stream = io.StringIO()
    print_summary_of_runs(runs, summarise_runs(runs), stream)
    printed = stream.getvalue()
    assert "dflash B=3 is fastest" in printed
    assert printed.count("Run folder:") == 2


def test_notes_and_ends_of_several_runs_bear_their_names():
    yesterday, today = parts_of(made_up_run(block_sizes=(3,)))
    cut = tuple(
        replace(item, status="interrupted", reason="interrupted by SIGINT") for item in today.info.cells
    )
    today = replace(today, info=replace(today.info, cells=cut, notes=("of today", "of both")))
    yesterday = replace(yesterday, info=replace(yesterday.info, notes=("of both",)))
    report = report_of(yesterday, today)
    assert "**Run today: Interrupted by SIGINT after" in report
    assert "- Note: run today: of today" in report
    assert "- Note: of both" in report


def test_settings_machines_and_commands_of_all_runs_are_there():
    yesterday, today = parts_of(made_up_run())
    today = replace(today, info=replace(today.info, command="python -m dflash.benchmark --no-baseline"))
    report = report_of(yesterday, today)
    assert "| yesterday | machine.cpu | made-up CPU |" in report
    assert "| today | machine.cpu | made-up CPU |" in report
    assert "Run today:\n\n```\npython -m dflash.benchmark --no-baseline\n```" in report


def test_the_document_of_several_runs_says_which_run_each_cell_is_of():
    runs = parts_of(made_up_run(block_sizes=(3,)))
    document = json_document_of_runs(runs, summarise_runs(runs), 0)
    assert document["runs"] == ["reports/made-up"] * 2
    assert [(item["run"], item["baseline_run"]) for item in document["cells"]] == [
        ("yesterday", None),
        ("today", "yesterday"),
    ]
    json.dumps(document, allow_nan=False)


def test_runs_of_equal_names_are_told_apart_by_their_folders(tmp_path):
    run = made_up_run(block_sizes=(3,))
    folders = [tmp_path / parent / "made-up" for parent in ("a", "b")]
    for folder in folders:
        write_run(folder, run.info, run.records)
    runs, unread = load_runs(folders)
    assert [item.info.name for item in runs] == ["a/made-up", "b/made-up"]
    assert unread == []


def test_the_verb_writes_one_report_beside_the_first_run(tmp_path, capsys):
    for run in parts_of(made_up_run()):
        write_run(tmp_path / run.info.name, run.info, run.records)
    folders = [str(tmp_path / name) for name in ("yesterday", "today")]
    assert main([*folders, "--json", str(tmp_path / "all.json"), "--format", "csv,json"]) == 0
    folder = tmp_path / "yesterday+today"
    assert sorted(path.name for path in folder.iterdir()) == ["report.csv", "report.json"]
    assert json.loads((tmp_path / "all.json").read_text()) == json.loads((folder / "report.json").read_text())
    printed = capsys.readouterr().out
    assert "dflash B=3 is fastest" in printed
    assert f"Report: {folder / 'report.csv'}" in printed
    assert not (tmp_path / "yesterday" / "report.md").exists()


def test_the_verb_writes_where_it_is_told_to(tmp_path):
    for run in parts_of(made_up_run()):
        write_run(tmp_path / run.info.name, run.info, run.records)
    folders = [str(tmp_path / name) for name in ("yesterday", "today")]
    assert main([*folders, "--output-dir", str(tmp_path / "out"), "--format", "csv", "--quiet"]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.csv"]


def test_a_run_that_is_named_twice_is_refused(tmp_path: Path, capsys):
    run = made_up_run()
    write_run(tmp_path / "r", run.info, run.records)
    assert main([str(tmp_path / "r"), str(tmp_path / "." / "r")]) == 2
    assert "is named twice" in capsys.readouterr().err
