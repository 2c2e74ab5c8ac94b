from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from edge_runs import EDGE_RUNS
from made_up_run import made_up_run

from dflash.results.csv_table import render_csv
from dflash.results.document import json_document
from dflash.results.stats import Interval
from dflash.results.store import Run
from dflash.results.summary import summarise_run


def table_of(run: Run) -> list[dict[str, str]]:
    text = render_csv(json_document(run, summarise_run(run), 0)["cells"])
    return list(csv.DictReader(io.StringIO(text)))


def test_a_row_a_cell_with_every_metric_and_the_bounds_beside_it():
    run = made_up_run(block_sizes=(3,))
    rows = table_of(run)
    assert [row["arm"] for row in rows] == ["baseline", "dflash"]
    speedup = summarise_run(run).cells[1].metrics["speedup"]
    assert isinstance(speedup, Interval)
    found = [float(rows[1][name]) for name in ("speedup", "speedup_low", "speedup_high")]
    assert found == [speedup.value, speedup.low, speedup.high]
    names = list(rows[0])
    assert names.index("speedup_low") == names.index("speedup") + 1


def test_what_was_not_measured_is_empty():
    baseline = table_of(made_up_run(block_sizes=(3,)))[0]
    assert [baseline[name] for name in ("speedup", "speedup_low", "speedup_high", "queue_s")] == [""] * 4


def test_text_that_a_spreadsheet_takes_for_a_formula_is_marked():
    run = made_up_run(block_sizes=(3,))
    cells = tuple(
        replace(cell, workload=replace(cell.workload, dataset='=HYPERLINK("x"),\n"'), workload_id="w")
        for cell in run.info.cells
    )
    rows = table_of(replace(run, info=replace(run.info, cells=cells)))
    assert [row["dataset"] for row in rows] == ['\'=HYPERLINK("x"),\n"'] * 2


@pytest.mark.parametrize("name", EDGE_RUNS)
def test_every_run_has_a_table(name):
    rows = table_of(EDGE_RUNS[name])
    assert len(rows) == len(EDGE_RUNS[name].info.cells)
    assert not [value for row in rows for value in row.values() if value in ("nan", "inf", "None")]
