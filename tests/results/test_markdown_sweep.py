from __future__ import annotations

from dataclasses import replace

from made_up_run import made_up_run
from test_plots import several

from dflash.results.markdown_sweep import block_sizes
from dflash.results.markdown_text import Table
from dflash.results.store import Run
from dflash.results.summary import summarise_run, summarise_runs


def sweep_of(*runs: Run) -> tuple[Table, str]:
    """The table, and what is said below it."""
    table, *words = block_sizes(summarise_runs(runs).groups)
    assert isinstance(table, Table)
    return table, "\n".join(words)


def test_the_fastest_block_size_is_marked():
    run = made_up_run(block_sizes=(2, 3, 8), step_ms=(120, 60, 150))
    table, words = sweep_of(run)
    assert table.header == ("workload", "method", "B=2", "B=3", "B=8")
    arms = summarise_run(run).cells[1:]
    shown = [f"{arm.number('speedup'):.2f}x / {arm.number('acceptance_length'):.2f}" for arm in arms]
    assert table.rows == (("quickstart", "dflash", shown[0], f"► **{shown[1]}**", shown[2]),)
    assert "cannot be told apart" not in words


def test_block_sizes_that_cannot_be_told_apart_from_the_fastest_are_named():
    table, words = sweep_of(made_up_run(block_sizes=(2, 3), step_ms=(110, 120)))
    assert sum("►" in text for text in table.rows[0]) == 1
    assert "cannot be told apart from B=" in words


def test_without_intervals_none_is_marked_and_the_reason_is_said():
    table, words = sweep_of(made_up_run(block_sizes=(2, 3), num_prompts=3))
    assert not any("►" in text for text in table.rows[0])
    assert "too few prompts for an interval, so none is marked" in words


def test_data_sets_are_rows_and_a_size_that_was_not_run_is_empty():
    table, _ = sweep_of(several(("gsm8k", "mt-bench"), block_sizes=(4, 16)))
    assert [row[0] for row in table.rows] == ["gsm8k", "mt-bench"]
    two = [made_up_run(dataset="gsm8k", block_sizes=sizes) for sizes in ((2, 4), (4, 8))]
    runs = [replace(run, info=replace(run.info, name=name)) for run, name in zip(two, "ab", strict=True)]
    table, _ = sweep_of(*runs)
    assert [row[1] for row in table.rows] == ["dflash (a)", "dflash (b)"]
    assert [[bool(text) for text in row[2:]] for row in table.rows] == [
        [True, True, False],
        [False, True, True],
    ]


def test_block_sizes_of_two_runs_stand_beside_each_other():
    runs = [made_up_run(block_sizes=(size,)) for size in (4, 8)]
    runs[1] = replace(runs[1], info=replace(runs[1].info, name="later", cells=runs[1].info.cells[1:]))
    table, _ = sweep_of(*runs)
    assert table.header[2:] == ("B=4", "B=8")
    assert [row[1] for row in table.rows] == ["dflash"]


def test_one_block_size_is_no_sweep():
    assert block_sizes(summarise_run(made_up_run(block_sizes=(4,))).groups) == []


def test_without_a_baseline_block_sizes_are_ranked_by_decode_speed():
    run = made_up_run(block_sizes=(2, 3), step_ms=(120, 60))
    table, _ = sweep_of(replace(run, info=replace(run.info, cells=run.info.cells[1:])))
    arm = summarise_run(run).cells[2]
    assert table.rows[0][3].startswith(f"► **{arm.number('decode_tok_s'):.1f} / ")
