from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_run import made_up_run
from scored_runs import ARM, BASELINE, code_results, scored_run, stored

from dflash.results.document import json_document
from dflash.results.markdown import render_report
from dflash.results.stats import Pooled, ratio
from dflash.results.store import Run, load_run
from dflash.results.summary import CellSummary, summarise_run
from dflash.results.tables import print_summary
from dflash.results.task_scores import mcnemar_p_value, score_run

GOLDEN = Path(__file__).parent.parent / "golden" / "task_score.md"


def cells_of(run: Run) -> dict[str, CellSummary]:
    return {cell.cell.cell_id: cell for cell in summarise_run(run).cells}


def codes(cell: CellSummary) -> dict[str, str]:
    return {finding.code: finding.severity for finding in cell.findings}


def score_section(run: Run) -> str:
    return render_report(run, summarise_run(run)).split("## Task score\n")[1].split("\n## ")[0].strip()


def test_the_score_is_the_share_that_is_right_with_the_bootstrap_over_prompts(tmp_path):
    baseline = cells_of(scored_run(tmp_path, {BASELINE: (1, 4)}))[BASELINE]
    rows = [(f"p{number}", (float(number not in (1, 4)), 1.0)) for number in range(8)]
    assert baseline.metrics["task_score"] == Pooled.of(rows, ratio).interval()
    assert baseline.number("task_score") == 0.75
    assert baseline.number("num_scored") == 8
    assert baseline.number("num_right") == 6
    assert baseline.number("num_unanswered") == baseline.number("num_cut") == 0
    assert baseline.number("task_score_p_value") is None
    assert baseline.why_no_task_score is None


@pytest.mark.parametrize(
    ("only_baseline", "only_arm", "p_value"),
    [
        (0, 5, 0.0625),
        (5, 0, 0.0625),
        (3, 3, 1.0),
        (0, 0, 1.0),
        (0, 1, 1.0),
        (1, 9, 0.021484375),
        (0, 6, 0.03125),
    ],
)
def test_mcnemar_known_answers(only_baseline, only_arm, p_value):
    assert mcnemar_p_value(only_baseline, only_arm) == p_value


def test_mcnemar_of_many_prompts_is_the_binomial_tail():
    tail = sum(math.comb(1300, i) for i in range(601)) / 2**1300
    assert mcnemar_p_value(700, 600) == pytest.approx(2 * tail)
    assert 0.0 <= mcnemar_p_value(0, 5000) < 1e-300


def test_a_pair_is_tested_prompt_by_prompt(tmp_path):
    arm = cells_of(scored_run(tmp_path, {BASELINE: (1, 4), ARM: (1, 5, 6)}))[ARM]
    assert arm.number("task_score_only_baseline") == 2
    assert arm.number("task_score_only_arm") == 1
    assert arm.number("task_score_p_value") == 1.0
    assert "task_score_differs" not in codes(arm)


@pytest.mark.parametrize(("temperature", "severity"), [(0.0, "error"), (0.7, "warning")])
def test_a_significant_difference_is_a_finding(tmp_path, temperature, severity):
    run = scored_run(tmp_path, {ARM: range(6)})
    cells = tuple(
        replace(cell, workload=replace(cell.workload, temperature=temperature)) for cell in run.info.cells
    )
    arms = cells_of(replace(run, info=replace(run.info, cells=cells)))
    assert codes(arms[ARM])["task_score_differs"] == severity
    (sentence,) = [item.sentence for item in arms[ARM].findings if item.code == "task_score_differs"]
    assert "below the baseline's" in sentence
    assert "Prompts right in the baseline only: 6; in this arm only: 0" in sentence
    assert "task_score_differs" not in codes(arms["quickstart-b3"])


def test_repeats_of_one_prompt_are_one_prompt_in_the_test(tmp_path):
    """Three equal repeats of two changed answers are two differences, not six."""
    run = made_up_run()
    records = tuple(replace(record, repeat=repeat) for repeat in range(3) for record in run.records)
    wrong = ("quickstart/1", "quickstart/2")
    texts = {
        (record.cell_id, *record.unit): "1" if record.cell_id == ARM and record.prompt_id in wrong else "7"
        for record in records
    }
    answers = {record.prompt_id: "7" for record in records}
    arm = cells_of(stored(tmp_path, replace(run, records=records), texts, answers))[ARM]
    assert arm.number("num_scored") == 24
    assert arm.number("task_score_only_baseline") == 2
    assert arm.number("task_score_p_value") == 0.5


def test_cut_answers_count_as_they_read_and_are_warned_of(tmp_path):
    arm = cells_of(scored_run(tmp_path, {ARM: (0,)}, finish_reason="length"))[ARM]
    assert arm.number("task_score") == 7 / 8
    assert arm.number("num_cut") == 8
    assert codes(arm)["answers_cut"] == "warning"
    (sentence,) = [item.sentence for item in arm.findings if item.code == "answers_cut"]
    assert "--max-new-tokens" in sentence


def test_one_cut_answer_in_ten_is_no_warning(tmp_path):
    run = scored_run(tmp_path / "a", num_prompts=10)
    one = tuple(
        replace(record, finish_reason="length") if record.prompt_id == "quickstart/3" else record
        for record in run.records
    )
    arm = cells_of(replace(run, records=one))[ARM]
    assert arm.number("num_cut") == 1
    assert "answers_cut" not in codes(arm)


def test_an_output_without_an_answer_is_not_right(tmp_path):
    run = made_up_run()
    texts = {(record.cell_id, *record.unit): "I do not know." for record in run.records}
    arm = cells_of(stored(tmp_path, run, texts, {record.prompt_id: "7" for record in run.records}))[ARM]
    assert arm.number("task_score") == 0.0
    assert arm.number("num_unanswered") == arm.number("num_scored") == 8


def test_failed_requests_and_lost_outputs_are_not_scored_and_are_said(tmp_path):
    run = made_up_run()
    changes = {"quickstart/0": {"finish_reason": "error", "error_kind": "timeout"}}
    records = tuple(replace(record, **changes.get(record.prompt_id, {})) for record in run.records)
    texts = {
        (record.cell_id, *record.unit): None if record.prompt_id == "quickstart/1" else "7"
        for record in records
        if record.prompt_id != "quickstart/2"
    }
    stored_run = stored(
        tmp_path, replace(run, records=records), texts, {record.prompt_id: "7" for record in records}
    )
    arm = cells_of(stored_run)[ARM]
    assert arm.number("num_scored") == 5
    assert arm.number("task_score") == 1.0
    assert dict(arm.unscored) == {"failed": 1, "no_output": 2}
    assert codes(arm)["partly_scored"] == "warning"
    assert "not scored: failed or cancelled 1, output not saved 2" in score_section(stored_run)


def test_prompts_without_a_reference_are_left_out_quietly(tmp_path):
    run = made_up_run()
    texts = {(record.cell_id, *record.unit): "7" for record in run.records}
    arm = cells_of(stored(tmp_path, run, texts, {"quickstart/0": "7", "quickstart/5": "8"}))[ARM]
    assert arm.number("num_scored") == 2
    assert arm.number("task_score") == 0.5
    assert "partly_scored" not in codes(arm)


def test_only_the_last_turn_is_scored(tmp_path):
    run = made_up_run()
    turns = tuple(
        replace(record, turn=turn, prompt_digest=f"{record.prompt_digest}-{turn}")
        for record in run.records
        for turn in range(2)
    )
    broken = tuple(
        replace(record, finish_reason="error", error_kind="no_history")
        if record.unit == ("quickstart/3", 1, 0) and record.cell_id == ARM
        else record
        for record in turns
    )
    texts = {(record.cell_id, *record.unit): ("5", "7")[record.turn] for record in broken}
    answers = {record.prompt_id: "7" for record in broken}
    cells = cells_of(stored(tmp_path, replace(run, records=broken), texts, answers))
    assert cells[BASELINE].number("num_scored") == 8
    assert cells[BASELINE].number("task_score") == 1.0
    assert cells[ARM].number("num_scored") == 7  # the first turn does not step in for a failed last one
    assert cells[ARM].number("task_score") == 1.0


def test_code_is_scored_by_its_trials(tmp_path):
    run = made_up_run()
    outcome = {
        "quickstart/0": (True, "passed"),
        "quickstart/1": (False, "failed"),
        "quickstart/2": (False, "timeout"),
        "quickstart/3": (False, "no_code"),
        "quickstart/4": (None, "no_sandbox"),
    }
    results = code_results(run, outcome)
    del results[-1]  # the last arm's last trial was never made
    cells = cells_of(stored(tmp_path, run, code=results))
    assert cells[ARM].number("task_score") == 0.25
    assert cells[ARM].number("num_scored") == 4
    assert cells[ARM].number("num_unanswered") == 1
    assert all(dict(cell.unscored) == {"not_executed": 1} for cell in cells.values())


def test_a_later_trial_of_the_same_code_counts(tmp_path):
    run = made_up_run(num_prompts=1)
    results = [
        *code_results(run, {"quickstart/0": (None, "no_sandbox")}),
        *code_results(run, {"quickstart/0": (True, "passed")}),
    ]
    assert set(score_run(stored(tmp_path, run, code=results)).values()) == {"right"}


def test_a_superseded_attempt_is_not_scored(tmp_path):
    run = made_up_run(num_prompts=1)
    again = tuple(replace(record, segment=1) for record in run.records)
    both = replace(run, records=(*run.records, *again))
    stored(tmp_path, both, {(record.cell_id, *record.unit): "7" for record in again}, {"quickstart/0": "7"})
    lines = (tmp_path / "outputs.jsonl").read_text().splitlines()
    (tmp_path / "outputs.jsonl").write_text(
        "\n".join([*lines[3:], *(line.replace('"text":"7"', '"text":"8"') for line in lines[:3])]) + "\n"
    )
    assert set(score_run(load_run(tmp_path)).values()) == {"right"}


@pytest.mark.parametrize(
    ("category", "answers", "reason"),
    [
        ("math", {}, "the prompts have no reference answers"),
        ("code", {}, "code is executed only with --execute-code"),
        ("math", {f"quickstart/{i}": "7" for i in range(8)}, "outputs were not saved (--no-save-outputs)"),
    ],
)
def test_why_there_is_no_score(tmp_path, category, answers, reason):
    run = made_up_run()
    records = tuple(replace(record, category=category) for record in run.records)
    run = stored(tmp_path, replace(run, records=records), None, answers)
    cells = cells_of(run)
    assert all(cell.number("task_score") is None for cell in cells.values())
    assert all(cell.why_no_task_score.startswith(reason) for cell in cells.values())
    assert reason.split("(")[0] in score_section(run)


def test_a_refused_pairing_is_not_tested(tmp_path):
    run = scored_run(tmp_path, {ARM: range(6)})
    records = tuple(
        replace(record, prompt_digest="other") if record.cell_id == ARM else record for record in run.records
    )
    arm = cells_of(replace(run, records=records))[ARM]
    assert arm.number("task_score") == 0.25
    assert arm.number("task_score_p_value") is None
    assert "task_score_differs" not in codes(arm)


def test_the_document_carries_the_score_with_its_interval(tmp_path):
    run = scored_run(tmp_path, {ARM: (1, 4)})
    document = json_document(run, summarise_run(run), 0)["cells"][1]
    assert document["task_score"]["value"] == 0.75
    assert document["task_score"].keys() == {"value", "low", "high"}
    assert document["task_score"]["low"] < 0.75 < document["task_score"]["high"]
    assert (document["num_scored"], document["num_right"], document["num_cut"]) == (8, 6, 0)
    assert (document["task_score_only_baseline"], document["task_score_only_arm"]) == (2, 0)
    assert document["task_score_p_value"] == 0.5
    assert document["unscored"] == {}
    assert {part["category"]: part["num_right"] for part in document["categories"]} == {
        "chat": 2,
        "code": 1,
        "math": 3,
    }


def test_the_terminal_shows_a_score_where_one_exists(tmp_path, capsys):
    run = scored_run(tmp_path, {ARM: (1, 4)})
    print_summary(run, summarise_run(run))
    shown = capsys.readouterr().out
    assert "score" in shown
    assert any("dflash B=2" in line and "75.0 %" in line for line in shown.splitlines())
    assert max(map(len, shown[: shown.index("Run folder")].splitlines())) <= 100
    print_summary(made_up_run(), summarise_run(made_up_run()))
    assert "score" not in capsys.readouterr().out


def test_the_section_is_the_golden_one(tmp_path):
    """Set DFLASH_UPDATE_GOLDEN=1 to write it again, then read the difference."""
    section = score_section(scored_run(tmp_path, {BASELINE: (2,), ARM: range(7)})) + "\n"
    if os.environ.get("DFLASH_UPDATE_GOLDEN"):
        GOLDEN.write_text(section, encoding="utf-8")
    assert section == GOLDEN.read_text(encoding="utf-8")


def test_all_arms_of_a_data_set_are_in_one_table(tmp_path):
    run = scored_run(tmp_path, {ARM: (1, 4)})
    loads = tuple(
        replace(
            cell,
            cell_id=f"{cell.cell_id}-8",
            workload_id="other",
            workload=replace(cell.workload, concurrency=8),
        )
        for cell in run.info.cells
    )
    joined = replace(run, info=replace(run.info, cells=(*run.info.cells, *loads)))
    rows = [line for line in score_section(joined).splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 6
    assert [row.split("|")[3].strip() for row in rows[2:]] == ["concurrency 1"] * 3 + ["concurrency 8"] * 3


def test_answers_that_did_not_change_are_said(tmp_path):
    section = score_section(scored_run(tmp_path, dict.fromkeys((BASELINE, ARM), (3,))))
    assert "**dflash B=2**: every prompt is right in both arms, or in neither." in section


def test_without_references_the_outputs_are_not_read(tmp_path):
    run = stored(tmp_path, made_up_run(), {})
    (tmp_path / "outputs.jsonl").write_text("no JSON\n")
    assert score_run(run) == {}
