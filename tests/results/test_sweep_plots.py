"""The data behind the pictures of load, time and place; how pictures look is in `test_plots.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from edge_runs import EDGE_RUNS
from made_up_run import MS, cell, dflash_arm, drafted_record, made_up_run, plain_record
from made_up_server_run import server_lines
from run_folders import write_run
from test_plots import drawn, texts_of

from dflash.results import load_plots, place_plots, plot_style, plots, time_plots
from dflash.results.markdown import render_report
from dflash.results.records import ChunkRecord, RunInfo
from dflash.results.step_places import MAX_BUCKETS, place_curves
from dflash.results.store import Run
from dflash.results.summary import RunSummary, summarise_run


@pytest.fixture(scope="module")
def loads(tmp_path_factory) -> Run:
    """Two data sets at three concurrencies, the arm's batch slower at a higher one."""
    lines = server_lines(concurrencies=(1, 4, 8))
    more = server_lines(concurrencies=(1, 4, 8), dataset="humaneval")
    for name in ("cells", "records", "chunks", "outputs", "windows"):
        getattr(lines, name).extend(getattr(more, name))
    return lines.write(tmp_path_factory.mktemp("loads") / "run")


@pytest.fixture(scope="module")
def of_loads(loads) -> RunSummary:
    return summarise_run(loads)


def lines_of(axes) -> dict[str, list[tuple[float, float]]]:
    return {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axes.lines}


# --- load


def test_throughput_is_drawn_by_concurrency_for_all_arms(of_loads):
    figure = load_plots.draw_concurrency(of_loads)
    assert [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes] == ["gsm8k", "humaneval"]
    for axes, dataset in zip(figure.axes, ("gsm8k", "humaneval"), strict=True):
        groups = [group for group in of_loads.groups if group.first.workload.dataset == dataset]
        for place, label in enumerate(("baseline", "dflash B=4")):
            expected = [
                (group.first.workload.concurrency, group.cells[place].number("output_tok_s"))
                for group in groups
            ]
            assert lines_of(axes)[label] == expected
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "4", "8"]


def test_the_speed_of_one_user_is_drawn_against_that_of_the_server(of_loads):
    figure = load_plots.draw_pareto(of_loads)
    axes = figure.axes[0]
    groups = [group for group in of_loads.groups if group.first.workload.dataset == "gsm8k"]
    expected = [
        (group.cells[1].number("decode_tok_s"), group.cells[1].number("output_tok_s")) for group in groups
    ]
    assert lines_of(axes)["dflash B=4"] == expected
    assert [text.get_text() for text in axes.texts] == ["1", "4", "8"] * 2
    assert axes.get_xlim()[0] == 0


def test_one_load_and_open_loops_have_no_such_pictures(tmp_path):
    for name, settings in (("one", {}), ("open", {"request_rate": 2.0, "concurrencies": (4, 8)})):
        summary = summarise_run(server_lines(**settings).write(tmp_path / name))
        assert load_plots.draw_concurrency(summary) is None
        assert load_plots.draw_pareto(summary) is None


# --- time


def test_a_step_is_drawn_by_its_parts():
    """120 ms a step: 18 ms to draft, 100 ms to verify, 2 ms left; the baseline's 100 ms are not split."""
    baseline, arm = cell(cell_id="b"), cell(dflash_arm(3), "a")
    records = [plain_record("b", i, 61) for i in range(6)]
    records += [drafted_record("a", i, (1, 0) * 20, 3, 120) for i in range(6)]
    run = replace(made_up_run(), info=RunInfo("r", "", cells=(baseline, arm)), records=tuple(records))
    summary = summarise_run(run)
    assert time_plots.step_parts_s(summary.cells[1]) == pytest.approx(
        {"draft": 0.018, "verify": 0.1, "rest": 0.002}
    )
    (axes,) = time_plots.draw_step_time(summary).axes
    bars = {bars.get_label(): [(bar.get_x(), bar.get_width()) for bar in bars] for bars in axes.containers}
    assert bars == {
        "not split": [pytest.approx((0, 100))],
        "draft": [pytest.approx((0, 18))],
        "verify": [pytest.approx((18, 100))],
        "rest": [pytest.approx((118, 2))],
    }


def test_parts_that_are_more_than_the_whole_are_no_split():
    records = [drafted_record("a", i, (1, 0) * 20, 3, 120) for i in range(6)]
    records = [replace(record, verify_ns=200 * MS * 40) for record in records]
    run = replace(
        made_up_run(), info=RunInfo("r", "", cells=(cell(dflash_arm(3), "a"),)), records=tuple(records)
    )
    summary = summarise_run(run)
    assert time_plots.step_parts_s(summary.cells[0]) == {"not split": pytest.approx(0.12)}
    assert time_plots.draw_step_time(summary) is None


def test_where_no_engine_tells_the_parts_nothing_is_drawn(of_loads):
    assert time_plots.draw_step_time(of_loads) is None


def test_requests_are_on_the_clock_in_the_order_of_sending():
    """Two processes with clocks of their own: the second begins where the first ended."""
    arm = cell(cell_id="b")
    records = [
        plain_record("b", 0, 11, sent_ns=5_000 * MS, first_ns=5_100 * MS, last_ns=6_000 * MS),
        plain_record("b", 1, 11, sent_ns=5_500 * MS, first_ns=5_600 * MS, last_ns=7_000 * MS),
        plain_record("b", 2, 11, sent_ns=90 * MS, first_ns=190 * MS, last_ns=490 * MS, segment=1),
    ]
    run = replace(made_up_run(), info=RunInfo("r", "", cells=(arm,)), records=tuple(records))
    (group,) = summarise_run(run).groups
    found = [line[2:] for line in time_plots.timeline_of(group)]
    assert found == [pytest.approx(line) for line in ((0, 0.1, 1.0), (0.5, 0.6, 2.0), (2.0, 2.1, 2.4))]
    (axes,) = time_plots.draw_timeline(summarise_run(run)).axes
    segments = axes.collections[0].get_segments()
    assert [tuple(map(tuple, segment)) for segment in segments[:2]] == [
        ((0, 0), (0.1, 0)),
        ((0.1, 0), (1.0, 0)),
    ]
    assert len(segments) == 6


def test_failed_requests_are_red_in_the_timeline(tmp_path):
    lines = server_lines()
    lines.change("dflash-gsm8k-c4", 3, finish_reason="error", error_kind="timeout", first_ns=None)
    figure = time_plots.draw_timeline(summarise_run(lines.write(tmp_path / "run")))
    colours = [tuple(colour) for colour in figure.axes[0].collections[0].get_colors()]
    red = matplotlib.colors.to_rgba("#c0392b", 1.0)
    assert colours.count(red) == 1
    assert "not completed" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_what_is_not_drawn_of_very_many_requests_is_said():
    records = [plain_record("b", 0, 11, repeat=i) for i in range(2_500)]
    run = replace(made_up_run(), info=RunInfo("r", "", cells=(cell(cell_id="b"),)), records=tuple(records))
    (axes,) = time_plots.draw_timeline(summarise_run(run)).axes
    assert axes.get_title().endswith("(the first 2,000 of 2,500 requests)")
    assert len(axes.collections[0].get_segments()) == 4_000


# --- place


def chunked_run(folder: Path, num_tokens: tuple[int, ...], num_steps: int) -> Run:
    """One request whose chunks hold so many tokens."""
    arm = cell(dflash_arm(4), "a")
    record = drafted_record("a", 0, (1,) * num_steps, 4, num_output_tokens=sum(num_tokens))
    chunk = ChunkRecord("a", "quickstart/0", gaps_ns=(MS,) * (len(num_tokens) - 1), num_tokens=num_tokens)
    return write_run(folder, RunInfo("r", "", cells=(arm,)), [record, chunk])


def test_steps_are_counted_by_where_in_the_output_they_began(tmp_path):
    """Steps begin after 1, 4, 7 | 9, 12, 15 | 16 tokens: buckets of 8 tokens with 8, 7 and 2 delivered tokens."""
    run = chunked_run(tmp_path / "r", (1, 3, 3, 2, 3, 3, 1, 2), 7)
    (curve,) = place_curves([run], summarise_run(run)).values()
    assert (curve.width, curve.num_left_out) == (8, 0)
    assert curve.tokens[:3] == [8, 7, 2]
    assert curve.steps[:3] == [3, 3, 1]
    assert curve.points() == [(4.0, 8 / 3), (12.0, 7 / 3), (20.0, 2.0)]
    assert len(curve.tokens) == MAX_BUCKETS
    (_, axes) = place_plots.draw_by_place(summarise_run(run), place_curves([run], summarise_run(run))).axes
    assert lines_of(axes)["dflash B=4"] == curve.points()


def test_chunks_that_are_no_steps_are_left_out_and_counted(tmp_path):
    run = chunked_run(tmp_path / "r", (1, 6, 5), 7)
    assert place_curves([run], summarise_run(run)) == {}


def test_long_outputs_have_wider_buckets(tmp_path):
    run = chunked_run(tmp_path / "r", (1, *(2,) * 700), 700)
    (curve,) = place_curves([run], summarise_run(run)).values()
    assert curve.width == 128  # 16 buckets hold 1,401 tokens
    assert sum(curve.tokens) == 1_400
    assert sum(curve.steps) == 700


def test_acceptance_is_pooled_by_the_power_of_two_of_the_prompt_length():
    records = [
        drafted_record("a", 0, (1, 1), 3, num_prompt_tokens=40),  # 4 tokens in 2 steps
        drafted_record("a", 1, (0, 0, 0), 3, num_prompt_tokens=63),  # 3 in 3
        drafted_record("a", 2, (2,), 3, num_prompt_tokens=64),  # 3 in 1
    ]
    records = [replace(record, num_prompt_tokens=n) for record, n in zip(records, (40, 63, 64), strict=True)]
    run = replace(
        made_up_run(), info=RunInfo("r", "", cells=(cell(dflash_arm(3), "a"),)), records=tuple(records)
    )
    summary = summarise_run(run)
    assert place_plots.by_prompt_length(summary.cells[0]) == [(51.5, 7 / 5), (64.0, 3.0)]
    (axes,) = place_plots.draw_by_place(summary, {}).axes
    assert lines_of(axes)["dflash B=3"] == [(51.5, 7 / 5), (64.0, 3.0)]


def test_only_the_picture_by_place_reads_chunks(tmp_path, monkeypatch):
    run = chunked_run(tmp_path / "r", (1, 3, 3), 2)
    summary = summarise_run(run)
    read = []
    chunks = Run.chunks
    monkeypatch.setattr(Run, "chunks", lambda self: read.append(1) or chunks(self))
    for draw in plots.PICTURES.values():
        draw(summary)
    render_report(run, summary)
    assert read == []
    place_curves([run], summary)
    assert read == [1]


# --- looks


def test_words_of_the_pictures_of_load_lie_inside_of_them(of_loads, loads):
    curves = place_curves([loads], of_loads)
    with matplotlib.rc_context(plot_style.STYLE):
        figures = [draw(of_loads) for draw in (load_plots.draw_concurrency, load_plots.draw_pareto)]
        for figure in map(drawn, [*figures, place_plots.draw_by_place(of_loads, curves)]):
            width, height = figure.canvas.get_width_height()
            for text in [*texts_of(figure), *figure.legends[0].get_texts()]:
                box = text.get_window_extent()
                assert box.x0 >= -1, text.get_text()
                assert box.x1 <= width + 1, text.get_text()
                assert box.y0 >= -1, text.get_text()
                assert box.y1 <= height + 1, text.get_text()


@pytest.mark.parametrize("name", EDGE_RUNS)
@pytest.mark.filterwarnings("error")
def test_every_run_can_be_drawn_by_place_and_time(name):
    summary = summarise_run(EDGE_RUNS[name])
    for draw in (time_plots.draw_step_time, time_plots.draw_timeline, load_plots.draw_pareto):
        draw(summary)
    place_plots.draw_by_place(summary, {})
