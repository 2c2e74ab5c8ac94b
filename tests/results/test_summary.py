from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_run import cell, dflash_arm, made_up_run, plain_record, with_difference, workload

from dflash.results import acceptance_metrics, paired_metrics
from dflash.results.document import json_document
from dflash.results.paired_metrics import pair_units
from dflash.results.records import RequestRecord, RunInfo
from dflash.results.stats import Interval
from dflash.results.store import Run
from dflash.results.summary import RunSummary, arm_metrics, summarise_run


def run_of(cells, records=()) -> Run:
    return Run(Path("reports/x"), RunInfo("x", "2026-01-02", cells=tuple(cells)), tuple(records))


def records_of(run, cell_id):
    return [record for record in run.records if record.cell_id == cell_id]


def test_one_baseline_serves_every_arm():
    run = made_up_run(block_sizes=(8, 2, 3))
    (group,) = summarise_run(run).groups
    assert [summary.cell.arm.label for summary in group.cells] == [
        "baseline",
        "dflash B=2",
        "dflash B=3",
        "dflash B=8",
    ]
    assert [summary.baseline_cell_id for summary in group.cells] == [None, *["quickstart-baseline"] * 3]
    baseline = records_of(run, "quickstart-baseline")
    for summary in group.cells[1:]:
        pairing = pair_units(baseline, records_of(run, summary.cell.cell_id))
        assert summary.number("speedup") == paired_metrics.speedup(pairing)
        assert summary.number("acceptance_length") == acceptance_metrics.acceptance_length(summary.records)
        assert summary.number("num_pairs") == 8


def test_workloads_and_backends_are_never_paired_with_each_other():
    cells = [
        cell(cell_id="b", workload_id="w1"),
        cell(dflash_arm(3), "a", workload_id="w2"),
        cell(dflash_arm(3), "c", workload_id="w1", backend="other"),
    ]
    summary = summarise_run(run_of(cells, [plain_record(name, 0, 20) for name in "bac"]))
    assert len(summary.groups) == 3
    for item in summary.cells[1:]:
        assert item.number("speedup") is None
        assert "no baseline arm" in item.why_no_speedup


def test_the_fastest_arm_is_the_baseline_when_every_draft_is_slower():
    slow = summarise_run(made_up_run(step_ms=(300, 400)))
    assert slow.groups[0].fastest_cell_id == "quickstart-baseline"
    fast = summarise_run(made_up_run(step_ms=(60, 110)))
    assert fast.groups[0].fastest_cell_id == "quickstart-b2"


def test_categories_are_the_metrics_of_their_prompts_alone():
    run = made_up_run()
    arm = next(item for item in summarise_run(run).cells if item.cell.arm.block_size == 3)
    assert [part.name for part in arm.breakdowns.categories] == ["chat", "code", "math"]
    math_records = [record for record in arm.records if record.category == "math"]
    baseline = [record for record in records_of(run, "quickstart-baseline") if record.category == "math"]
    category = arm.breakdowns.categories[2]
    assert category.number("acceptance_length") == acceptance_metrics.acceptance_length(math_records)
    assert category.number("speedup") == paired_metrics.speedup(pair_units(baseline, math_records))
    assert category.num_completed == 3


def test_refused_pairing_leaves_no_paired_number():
    run = made_up_run()
    records = tuple(
        replace(record, prompt_digest="other")
        if record.cell_id == "quickstart-b2" and record.prompt_id == "quickstart/3"
        else record
        for record in run.records
    )
    arm = next(
        c for c in summarise_run(replace(run, records=records)).cells if c.cell.cell_id == "quickstart-b2"
    )
    assert arm.number("speedup") is None
    assert arm.number("agreement") is None
    assert "refused" in arm.why_no_speedup
    assert "unlike_prompts" in [finding.code for finding in arm.findings]
    assert all(category.number("speedup") is None for category in arm.breakdowns.categories)
    assert arm.number("acceptance_length") is not None  # the arm's own numbers stand


def test_agreement_is_not_claimed_of_sampled_outputs():
    run = made_up_run()
    cells = tuple(replace(c, workload=replace(c.workload, temperature=1.0)) for c in run.info.cells)
    sampled = summarise_run(replace(run, info=replace(run.info, cells=cells)))
    assert sampled.cells[1].number("agreement") is None
    assert sampled.cells[1].number("speedup_agreeing") is None
    assert "temperature" in sampled.cells[1].why_no_agreement


def test_overlapping_requests_divide_by_busy_time():
    busy = cell(workload=workload(concurrency=2))
    together = [plain_record("b", 0, 11, prompt_id=f"p{i}") for i in range(2)]
    assert arm_metrics(busy, together)["output_tok_s"] == pytest.approx(22 / 1.04)
    alone = arm_metrics(cell(), together)["output_tok_s"]
    assert alone == pytest.approx(22 / 2.08)


def test_open_loop_has_no_throughput_speedup():
    load = workload(request_rate=2.0, concurrency=4)
    cells = [cell(cell_id="b", workload=load), cell(dflash_arm(3), "a", workload=load)]
    run = run_of(cells, [plain_record(name, 0, 20) for name in "ab"])
    assert summarise_run(run).cells[1].number("throughput_speedup") is None
    assert summarise_run(run).cells[1].number("speedup") == 1.0


def test_averages_over_data_sets_are_geometric_and_arithmetic():
    runs = [made_up_run(dataset=name, seed=seed) for seed, name in enumerate(("gsm8k", "humaneval"))]
    cells = sum((run.info.cells for run in runs), ())
    joined = run_of(cells, sum((run.records for run in runs), ()))
    summary = summarise_run(joined)
    average = next(item for item in summary.averages if item.arm_label == "dflash B=2")
    arms = [item for item in summary.cells if item.cell.arm.label == "dflash B=2"]
    speedups = [item.number("speedup") for item in arms]
    assert average.num_datasets == 2
    assert average.speedup == pytest.approx(math.sqrt(speedups[0] * speedups[1]))
    lengths = [item.number("acceptance_length") for item in arms]
    assert average.acceptance_length == pytest.approx(sum(lengths) / 2)


INTERVALS = {
    "speedup",
    "e2el_speedup",
    "throughput_speedup",
    "acceptance_length",
    "acceptance_length_untrimmed",
    "decode_tok_s",
    "agreement",
}


def test_the_document_carries_intervals_exactly_where_defined():
    run = made_up_run()
    document = json_document(run, summarise_run(run), 3)
    assert document["run"] == "reports/made-up"
    assert document["exit_code"] == 3
    arm = document["cells"][1]
    assert {name for name, value in arm.items() if isinstance(value, dict) and "low" in value} == INTERVALS
    assert all(arm[name].keys() == {"value", "low", "high"} for name in INTERVALS)
    assert (arm["arm"], arm["block_size"], arm["num_speculative_tokens"]) == ("dflash", 2, 1)
    assert arm["dataset"] == "quickstart"
    assert arm["speedup"]["low"] <= arm["speedup"]["value"] <= arm["speedup"]["high"]
    assert arm["task_score"] is None
    assert document["cells"][0]["speedup"] is None
    assert len(arm["acceptance_histogram"]) == 2


def test_few_prompts_have_null_bounds():
    run = made_up_run(num_prompts=4)
    arm = json_document(run, summarise_run(run), 0)["cells"][1]
    assert arm["speedup"]["value"] > 0
    assert arm["speedup"]["low"] is None
    assert arm["speedup"]["high"] is None


def test_every_cell_has_the_same_keys_and_strict_json():
    for run in (made_up_run(), with_difference(made_up_run()), run_of([cell(), cell(dflash_arm(2), "a")])):
        document = json_document(run, summarise_run(run), 0)
        assert json.loads(json.dumps(document, allow_nan=False)) == document
        assert len({tuple(item) for item in document["cells"]}) == 1


def test_not_a_number_becomes_null():
    run = made_up_run()
    summary = summarise_run(run)
    broken = replace(
        summary.cells[1], metrics={"speedup": Interval(1.0, math.nan, math.inf), "tpot_s": math.nan}
    )
    group = replace(summary.groups[0], cells=(broken,))
    (document,) = json_document(run, RunSummary((group,)), 0)["cells"]
    assert document["speedup"] == {"value": 1.0, "low": None, "high": None}
    assert document["tpot_s"] is None


def test_an_unmeasured_cell_has_only_none_and_counts():
    record = RequestRecord("b", "p", finish_reason="error", error_kind="timeout")
    values = arm_metrics(cell(cell_id="b"), [record])
    measured = {name: value for name, value in values.items() if value is not None}
    assert measured == {"num_requests": 1, "num_completed": 0, "error_rate": 1.0}
