from __future__ import annotations

import io
from dataclasses import replace

import pytest
from made_up_run import cell, dflash_arm, drafted_record, made_up_run, plain_record

from dflash.results.document import json_document
from dflash.results.markdown import render_report
from dflash.results.records import RunInfo
from dflash.results.repeats import spread_of
from dflash.results.store import Run
from dflash.results.summary import summarise_run
from dflash.results.tables import print_summary

ACCEPTED = (1, 2, 0) * 20


def repeated_run(step_ms: tuple[int, ...], **config: object) -> Run:
    """Six prompts, every repeat with a step time of its own in the arm that drafts; 80 ms in the baseline."""
    baseline, arm = cell(cell_id="b"), cell(dflash_arm(3), "a")
    records = []
    for repeat, step in enumerate(step_ms):
        for prompt in range(6):
            records.append(plain_record("b", prompt, 121, 80, repeat=repeat, round=repeat))
            records.append(drafted_record("a", prompt, ACCEPTED, 3, step, repeat=repeat, round=repeat))
    info = RunInfo("r", "2026-01-01", cells=(baseline, arm), config={"repeats": len(step_ms), **config})
    return replace(made_up_run(), info=info, records=tuple(records))


def test_the_interval_of_three_repeats_by_hand():
    """1, 2, 3: mean 2, standard deviation 1, and 4.3027 / sqrt(3) around it."""
    spread = spread_of([1.0, 2.0, 3.0])
    assert spread is not None
    assert spread.values == (1.0, 2.0, 3.0)
    assert spread.interval.value == 2.0
    assert spread.interval.low == pytest.approx(2 - 4.302653 / 3**0.5)
    assert spread.interval.high == pytest.approx(2 + 4.302653 / 3**0.5)


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [1.0, 2.0, None]])
def test_fewer_than_three_repeats_give_none(values):
    assert spread_of(values) is None


def test_every_repeat_has_its_own_speedup():
    """120 tokens in 60 steps: a step of 80 ms is 40 ms a token, twice as fast as 80 ms."""
    baseline, arm = summarise_run(repeated_run((80, 100, 160))).cells
    assert arm.between_repeats["speedup"].values == pytest.approx((2.0, 1.6, 1.0))
    assert arm.between_repeats["acceptance_length"].values == (2.0, 2.0, 2.0)
    assert baseline.between_repeats["decode_tok_s"].values == pytest.approx((12.5,) * 3)
    assert "speedup" not in baseline.between_repeats


def test_the_report_and_the_document_have_the_interval_between_repeats():
    run = repeated_run((80, 100, 160))
    summary = summarise_run(run)
    report = render_report(run, summary)
    body = report.split("## Between repeats\n")[1].split("\n## ")[0]
    assert "| dflash B=3 | speedup | 1.53 [0.28, 2.78] |" in body
    assert "2.00, 1.60, 1.00" in body
    found = json_document(run, summary, 0)["cells"][1]["between_repeats"]["speedup"]
    assert found["values"] == pytest.approx([2.0, 1.6, 1.0])
    assert found["low"] < 0.3 < 2.7 < found["high"]


def test_the_terminal_has_it_too():
    run = repeated_run((80, 100, 160))
    stream = io.StringIO()
    print_summary(run, summarise_run(run), stream)
    assert "dflash B=3: between 3 repeats, speedup 1.53x [0.28, 2.78]." in stream.getvalue()
    assert "baseline: between 3 repeats, decode tok/s 12.50 [12.50, 12.50]." in stream.getvalue()


def test_two_repeats_have_no_such_section():
    run = repeated_run((80, 100))
    assert "Between repeats" not in render_report(run, summarise_run(run))


def test_prompts_that_are_used_again_are_no_repeats():
    """Six prompts for 12 requests: two uses of each prompt make one round."""
    run = repeated_run((80, 100, 160, 80, 100, 160), repeats=3)
    records = tuple(replace(record, round=record.repeat // 2) for record in run.records)
    arm = summarise_run(replace(run, records=records)).cells[1]
    total_ms = [180, 240, 260]  # of two requests with a step each
    assert arm.between_repeats["speedup"].values == pytest.approx([2 * 2 * 80 / ms for ms in total_ms])
