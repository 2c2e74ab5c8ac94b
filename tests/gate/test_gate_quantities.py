"""Throughput, goodput and task score as they are gated."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from gated_runs import compare, gated, made_up, only

from dflash.gate.comparison import compare_runs
from dflash.gate.expressions import parse_gate
from dflash.gate.gated_run import GatedRun, Rules
from dflash.gate.quantities import QUANTITIES
from dflash.results.records import DatasetInfo
from dflash.results.summary import summarise_run

ROOT = Path(__file__).parents[2]
SLO = {"slo": {"e2el_s": 2.3}}


def on_server(run, concurrency: int = 2):
    """Its requests two at a time: every other one begins with the one before."""
    begin, records = 0, []
    for place, record in enumerate(run.records):
        length = record.last_ns - record.sent_ns
        records.append(
            replace(
                record, sent_ns=begin, first_ns=begin + record.first_ns, last_ns=begin + length, segment=0
            )
        )
        begin += length if place % 2 else 0
    cells = tuple(replace(cell, on_server=True) for cell in run.info.cells)
    return replace(run, records=tuple(records), info=replace(run.info, cells=cells))


def test_the_readme_names_every_quantity():
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Gate a change")[2]
    rows = [
        line for line in section.splitlines() if line.startswith(("| falls:", "| rises:", "| limits alone"))
    ]
    names = set(re.findall(r"`([a-z0-9_]+)[`:]", " ".join(row.partition("` |")[2] or row for row in rows)))
    percentiles = {
        f"{name}_p{percent}" for name in ("ttft_s", "tpot_s", "e2el_s") for percent in (50, 90, 99)
    }
    assert {name for name in names if not name.startswith("_p")} | percentiles == set(QUANTITIES)


def test_throughput_in_process_is_over_the_time_of_requests():
    run = made_up()
    own = [record for record in run.records if record.cell_id == "d"]
    tokens = sum(record.num_output_tokens for record in own)
    seconds = sum(record.last_ns - record.sent_ns for record in own) / 1e9
    assert QUANTITIES["output_tok_s"].value(gated(run).sides["d"]) == pytest.approx(tokens / seconds)


def test_throughput_of_a_server_is_over_its_busy_time():
    run = on_server(made_up(num_repeats=1))
    own = [record for record in run.records if record.cell_id == "d"]
    tokens = sum(record.num_output_tokens for record in own)
    side = gated(run).sides["d"]
    busy = sum(record.last_ns - record.sent_ns for record in own) / 1e9  # of one arm none overlap here
    assert QUANTITIES["output_tok_s"].value(side) == pytest.approx(tokens / busy)
    assert not QUANTITIES["output_tok_s"].is_pooled(side)


@pytest.mark.parametrize("is_server", [False, True])
@pytest.mark.parametrize(("step_ms", "verdict"), [(30.0, "same"), (36.0, "worse"), (25.0, "better")])
def test_throughput_is_judged(is_server, step_ms, verdict):
    place = on_server if is_server else lambda run: run
    noise = {"noise": 0.01, "run_noise": 0.002}
    base, new = made_up(seed=1, **noise), made_up("new", seed=2, step_ms=step_ms, **noise)
    item = only(compare(place(base), place(new), "output_tok_s:-5%"))
    assert item.verdict == verdict
    assert item.basis == ("repeats" if is_server else "prompts and repeats")


def test_one_repeat_of_a_server_tells_no_throughput():
    base, new = (
        on_server(made_up(name, num_repeats=1, seed=seed, noise=0.01)) for seed, name in enumerate("ab")
    )
    item = only(compare(base, new, "output_tok_s:-5%"))
    assert item.verdict == "inconclusive"
    assert item.reason.endswith("3 repeats of each run would tell")


def test_goodput_falls_where_requests_leave_their_limits():
    noise = {"noise": 0.01, "run_noise": 0.002, "config": SLO}
    base, slow = made_up(seed=1, **noise), made_up("slow", seed=2, step_ms=45.0, **noise)
    item = only(compare(base, slow, "goodput_req_s:-5%"))
    assert item.verdict == "worse"
    assert item.new < 0.8 * item.base
    assert only(compare(base, made_up("new", seed=3, **noise), "goodput_req_s:-5%")).verdict == "same"


def test_no_goodput_left_is_worse():
    base, none = made_up(config=SLO), made_up("none", step_ms=900.0, config=SLO)
    item = only(compare(base, none, "goodput_req_s:-5%"))
    assert (item.verdict, item.reason) == ("worse", "-100.00 %: nothing is left of it")


def test_other_limits_are_another_goodput():
    base, new = made_up(config=SLO), made_up("new", config={"slo": {"e2el_s": 3.0}})
    item = only(compare(base, new, "goodput_req_s:-5%"))
    assert item.verdict == "incomparable"
    assert item.reason.startswith("slo differs: e2el_s 2.3 in the base, e2el_s 3 in the new run")


@pytest.mark.parametrize(
    "gate", ["goodput_req_s:-5%", "goodput_req_s:<1", "task_score:-5%", "task_score:<0.5"]
)
def test_without_limits_or_answers_there_is_nothing_to_gate(gate):
    report = compare(made_up(), made_up("new"), gate)
    assert report.comparisons == ()
    assert report.exit_code == 5
    assert f"gate {gate} gates nothing: no cell of both runs has this quantity" in report.notes


def scored(name: str, num_right: int, digest: str = "a1", **changes) -> GatedRun:
    """The first prompts are answered rightly."""
    run = made_up(name, **changes)
    datasets = (DatasetInfo("gsm8k", "d1", 16, references_digest=digest),)
    info = replace(run.info, datasets=datasets)
    outcomes = {
        (record.cell_id, record.prompt_id, record.turn, record.repeat): (
            "right" if int(record.prompt_id.partition("/")[2]) < num_right else "wrong"
        )
        for record in run.records
    }
    return GatedRun.of(info, summarise_run(replace(run, info=info)), outcomes)


def judged(base: GatedRun, new: GatedRun, gate: str):
    return only(compare_runs(base, new, Rules((parse_gate(gate),))))


def test_a_task_score_that_does_not_vary_is_compared_exactly():
    item = judged(scored("base", 12), scored("new", 9), "task_score:-5%")
    assert (item.verdict, item.basis, item.base, item.new) == ("worse", "exact", 0.75, 0.5625)
    assert judged(scored("base", 12), scored("new", 12), "task_score:-5%").verdict == "same"


def test_a_task_score_of_one_repeat_is_judged_over_prompts():
    item = judged(scored("base", 12, num_repeats=1), scored("new", 11, num_repeats=1), "task_score:-1%")
    assert (item.verdict, item.basis) == ("inconclusive", "prompts")


def test_a_task_score_has_a_limit():
    assert judged(scored("base", 12), scored("new", 9), "task_score:<0.6").verdict == "worse"
    assert judged(scored("base", 12), scored("new", 10), "task_score:<0.6").verdict == "same"


def test_other_reference_answers_are_another_score():
    item = judged(scored("base", 12), scored("new", 12, digest="a2"), "task_score:-5%")
    assert item.verdict == "incomparable"
    assert item.reason.startswith("the reference answers differ: 'a1' in the base, 'a2'")


def test_a_latency_of_nothing_is_not_better():
    new = made_up("new")
    records = tuple(replace(record, last_ns=record.first_ns) for record in new.records)
    item = only(compare(made_up(), replace(new, records=records), "tpot_s:+5%"))
    assert item.verdict == "incomparable"
    assert item.reason == "tpot_s is 0.00 ms in the new run: no stamp tells a time"


def test_one_repeat_that_counts_what_three_counted_is_the_same():
    item = only(compare(made_up(), made_up("new", num_repeats=1), "acceptance_length:-2%"))
    assert (item.verdict, item.basis, item.reason) == ("same", "exact", "equal in both runs")
