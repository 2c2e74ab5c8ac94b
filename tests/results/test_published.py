from __future__ import annotations

import re
from dataclasses import replace

import pytest
from made_up_run import made_up_run, workload
from made_up_server_run import server_lines

from dflash.errors import UsageError
from dflash.results.markdown import render_runs
from dflash.results.markdown_paper import PaperRow, measured_rows, published_rows
from dflash.results.published import PublishedFigure, load_published
from dflash.results.published_plot import draw_published
from dflash.results.store import Run
from dflash.results.summary import summarise_run


@pytest.fixture(scope="module")
def published():
    return load_published("paper")


def run_of(target: str, datasets: tuple[str, ...] = ("gsm8k", "math500"), **changes: object) -> Run:
    """One arm, B = 4, on each data set with that target."""
    runs = [made_up_run(dataset=name, block_sizes=(4,), seed=seed) for seed, name in enumerate(datasets)]
    cells = tuple(
        replace(cell, workload=replace(cell.workload, target=target, **changes))
        for run in runs
        for cell in run.info.cells
    )
    records = tuple(record for run in runs for record in run.records)
    return replace(runs[0], info=replace(runs[0].info, cells=cells), records=records)


def paper_section(run: Run, published) -> str:
    report = render_runs([run.info], summarise_run(run), published=published)
    return report.split("## Paper's form\n")[1].split("\n## ")[0]


def rows_of(section: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith("| :")
    ]


# --- the paper's own tables


def test_the_averages_of_the_paper_come_out_of_its_cells(published):
    """Geometric mean of speedups, arithmetic mean of acceptance lengths, of cells that are rounded to 0.01."""
    assert len(published.averages) == 12
    for average in published.averages:
        datasets = [figure.dataset for figure in average.figures]
        assert len(datasets) == 7
        figures = {figure.dataset: (figure.speedup, figure.acceptance_length) for figure in average.figures}
        speedup, length = PaperRow("m", "w", "s", figures).average(datasets)
        assert speedup == pytest.approx(average.speedup, abs=0.0101)
        assert length == pytest.approx(average.acceptance_length, abs=0.0101)


def test_an_arithmetic_mean_of_speedups_is_not_what_the_paper_prints(published):
    off = [
        abs(sum(figure.speedup for figure in average.figures) / 7 - average.speedup)
        for average in published.averages
        if average.figures[0].method == "DFlash (16)"
    ]
    assert len(off) == 4
    assert min(off) > 0.05


def test_the_figures_are_those_of_the_reference_page(published, shared_folder):
    """Every cell of tables 1 and 3 stands there with its speedup and acceptance length."""
    page = (shared_folder / "reference" / "published-results.md").read_text(encoding="utf-8")
    printed = set(re.findall(r"(\d+\.\d+)/(\d+\.\d+)", page))
    numbers = {(float(speedup), float(length)) for speedup, length in printed}
    table = [figure for figure in published.figures if figure.source == "DFlash paper, table 1"]
    assert len(table) == 12 * 7
    assert {(figure.speedup, figure.acceptance_length) for figure in table} <= numbers
    throughput = {(float(rate), float(ratio)) for rate, ratio in re.findall(r"(\d+) \((\d\.\d)\)", page)}
    drafted = [
        figure
        for figure in published.figures
        if figure.source == "DFlash paper, table 3" and figure.speedup is not None
    ]
    assert len(drafted) == 7 * 5
    assert {(figure.output_tok_s, figure.speedup) for figure in drafted} <= throughput


def test_every_figure_has_its_source_and_says_something(published):
    for figure in published.figures:
        assert figure.source
        assert figure.target
        assert figure.method
        known = [figure.speedup, figure.acceptance_length, figure.output_tok_s]
        assert any(value is not None and value > 0 for value in known), figure
        assert figure.speedup is None or 0.2 < figure.speedup < 20
        assert figure.acceptance_length is None or 1 <= figure.acceptance_length <= 16
    assert published.sources[0] == "DFlash paper (arXiv 2602.06036v2)"


def test_an_unknown_reference_is_refused():
    with pytest.raises(UsageError, match="'papers'"):
        load_published("papers")


# --- what they are set beside


def beside(published, **changes: object) -> list[PublishedFigure]:
    return published.beside(workload(dataset="gsm8k", **changes))


def test_figures_are_found_by_target_data_set_temperature_and_reasoning(published):
    found = [figure for figure in beside(published, target="Qwen/Qwen3-4B") if "table 1" in figure.source]
    assert [(figure.method, figure.speedup) for figure in found] == [
        ("EAGLE-3 (16)", 1.99),
        ("EAGLE-3 (60)", 2.27),
        ("DFlash (16)", 5.15),
    ]
    warm = beside(published, target="Qwen/Qwen3-4B", temperature=1.0)
    assert ("DFlash (16)", 4.71) in [(figure.method, figure.speedup) for figure in warm]
    assert beside(published, target="Qwen/Qwen3-4B", temperature=0.7) == []
    assert beside(published, target="Qwen/Qwen3-4B-Base") == []
    thinking = beside(published, target="Qwen/Qwen3-4B", reasoning="on")
    assert all("table 1" not in figure.source for figure in thinking)


@pytest.mark.parametrize("target", ["Qwen/Qwen3-8B", "~/models/Qwen3-8B/", "qwen3-8b"])
def test_a_target_is_known_by_the_last_part_of_its_name(published, target):
    assert any(figure.speedup == 5.15 for figure in beside(published, target=target))


def test_published_rows_stand_below_the_measured_ones(published):
    section = paper_section(run_of("Qwen/Qwen3-8B"), published)
    header, measured, *others = rows_of(section)
    assert header == ["arm", "engine and load", "source", "gsm8k", "math500", "Avg"]
    assert measured[2] == "measured"
    row = next(row for row in others if row[0] == "DFlash (16)" and "table 1" in row[2])
    assert row[1:] == [
        "transformers, H200, concurrency 1",
        "DFlash paper, table 1",
        "5.15 / 6.54",
        "6.08 / 7.87",
        "5.60 / 7.21",  # sqrt(5.15 * 6.08) and (6.54 + 7.87) / 2
    ]
    assert "Sources: DFlash paper (arXiv 2602.06036v2)" in section


def test_the_measured_row_is_in_the_form_of_the_paper(published):
    run = run_of("Qwen/Qwen3-8B")
    summary = summarise_run(run)
    (row,) = measured_rows(summary.groups)
    for group in summary.groups:
        arm = group.cells[1]
        assert row.figures[group.first.workload.dataset] == (
            arm.number("speedup_mean_tpot"),
            arm.number("acceptance_length_untrimmed_request_mean"),
        )


def test_where_nothing_matches_that_is_said(published):
    section = paper_section(run_of("made-up-135m"), published)
    assert "No published figure has this target (made-up-135m)" in section
    assert published_rows(summarise_run(run_of("made-up-135m")), published) == []


def test_without_a_reference_nothing_published_is_shown():
    assert "DFlash paper" not in paper_section(run_of("Qwen/Qwen3-8B"), None)


def test_an_average_needs_every_data_set(published):
    section = paper_section(run_of("Qwen/Qwen3-8B", ("gsm8k", "alpaca")), published)
    row = next(row for row in rows_of(section) if row[0] == "DFlash (16)" and "table 1" in row[2])
    assert row[3:] == ["5.15 / 6.54", "n/a", "n/a"]


def test_the_picture_shows_both(published):
    run = run_of("Qwen/Qwen3-8B")
    summary = summarise_run(run)
    figure = draw_published(summary, published)
    assert figure is not None
    speedups, lengths = figure.axes[:2]
    found = [row for row in published_rows(summary, published) if "gsm8k" in row.figures]
    expected = [summary.cells[1].number("speedup_mean_tpot"), *(row.figures["gsm8k"][0] for row in found)]
    assert [bar.get_width() for bar in speedups.patches] == pytest.approx(
        [value for value in expected if value is not None]
    )
    assert next(bar.get_width() for bar in lengths.patches) == pytest.approx(
        summary.cells[1].number("acceptance_length_untrimmed_request_mean")
    )
    assert draw_published(summarise_run(run_of("made-up-135m")), published) is None


def test_the_picture_tells_several_loads_apart(published, tmp_path):
    lines = server_lines(concurrencies=(1, 4))
    lines.cells = [
        replace(cell, workload=replace(cell.workload, target="Qwen/Qwen3-8B")) for cell in lines.cells
    ]
    figure = draw_published(summarise_run(lines.write(tmp_path / "run")), published)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[:2] == ["dflash B=4, concurrency 1", "dflash B=4, concurrency 4"]
    assert labels[2] == "EAGLE-3 (16), DFlash paper, table 1"


# --- by concurrency


def test_throughput_by_concurrency_is_in_the_form_of_the_paper(published, tmp_path):
    lines = server_lines(concurrencies=(1, 4, 8), dataset="humaneval")
    lines.cells = [
        replace(cell, workload=replace(cell.workload, target="Qwen/Qwen3-8B")) for cell in lines.cells
    ]
    run = lines.write(tmp_path / "run")
    summary = summarise_run(run)
    rows = rows_of(paper_section(run, published).split("lengths.\n")[1])
    assert rows[0] == ["data set", "arm", "engine", "source", "c=1", "c=4", "c=8", "acceptance length"]
    arms = [group.cells[1] for group in summary.groups]
    expected = [f"{arm.number('output_tok_s'):.1f} ({arm.number('throughput_speedup'):.2f})" for arm in arms]
    assert rows[2][4:7] == expected
    assert rows[2][7] == f"{arms[0].number('acceptance_length_untrimmed_request_mean'):.2f}"
    table_3 = next(row for row in rows if row[1] == "DFlash" and "table 3" in row[3])
    assert table_3[4:] == ["955.0 (4.20)", "3,092 (3.60)", "6,010 (3.60)", "6.50"]


def test_one_concurrency_makes_no_table(tmp_path):
    run = server_lines(concurrencies=(4,)).write(tmp_path / "run")
    assert "c=4 |" not in paper_section(run, None)
