from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from edge_runs import EDGE_RUNS
from made_up_run import cell, dflash_arm, made_up_run, plain_record

from dflash.results import acceptance_plots, category_plots, plot_style, plots
from dflash.results.markdown import render_report
from dflash.results.place_plots import draw_by_place
from dflash.results.records import RunInfo
from dflash.results.store import Run
from dflash.results.summary import summarise_run


def texts_of(figure) -> list:
    """All words that are drawn: ticks outside the limits have labels too, which are not."""
    texts = []
    for axes in figure.axes:
        if axes.get_visible():
            texts += [axes._left_title, *axes.texts, axes.xaxis.label, axes.yaxis.label]
            for axis in (axes.xaxis, axes.yaxis):
                low, high = sorted(axis.get_view_interval())
                texts += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text for text in texts if text.get_text()]


def drawn(figure):
    figure.canvas.draw()
    return figure


OF_SERVERS = {"concurrency.png", "pareto.png"}
IN_PROCESS = [name for name in plots.PICTURES if name not in OF_SERVERS]


def test_every_picture_of_a_run_is_written_and_nothing_else(tmp_path: Path):
    run = made_up_run()
    paths = plots.plot_run(run, summarise_run(run), tmp_path)
    assert [path.name for path in paths] == [*IN_PROCESS, plots.BY_PLACE]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*IN_PROCESS, plots.BY_PLACE])
    for path in paths:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", content[16:24])
        assert 600 <= width <= 2000
        assert 300 <= height <= 4000


def test_equal_numbers_give_equal_files(tmp_path: Path):
    run = made_up_run()
    summary = summarise_run(run)
    first = [path.read_bytes() for path in plots.plot_run(run, summary, tmp_path)]
    assert [path.read_bytes() for path in plots.plot_run(run, summary, tmp_path)] == first


def test_bars_show_the_speedups_and_the_line_at_one():
    summary = summarise_run(made_up_run(block_sizes=(2, 3, 8)))
    (axes,) = plots.draw_speedup(summary).axes
    expected = [item.number("speedup") for item in summary.cells[1:]]
    assert [patch.get_width() for patch in axes.patches] == pytest.approx(expected)
    assert any(list(line.get_xdata()) == [1, 1] for line in axes.lines)


def test_whiskers_are_the_intervals():
    summary = summarise_run(made_up_run(block_sizes=(2, 3, 8)))
    for draw, name, cells in (
        (plots.draw_speedup, "speedup", summary.cells[1:]),
        (plots.draw_decode_speed, "decode_tok_s", summary.cells),
    ):
        (axes,) = draw(summary).axes
        found = [bars.get_segments()[0][:, 0] for bars in axes.collections]
        expected = [(interval.low, interval.high) for item in cells if (interval := item.interval(name))]
        assert len(found) == len(cells)
        for whisker, bounds in zip(found, expected, strict=True):
            assert list(whisker) == pytest.approx(bounds)


def test_bars_of_decode_speed_are_of_all_arms():
    summary = summarise_run(made_up_run())
    (axes,) = plots.draw_decode_speed(summary).axes
    expected = [item.number("decode_tok_s") for item in summary.cells]
    assert [patch.get_width() for patch in axes.patches] == pytest.approx(expected)


def test_bars_of_categories_are_the_figures_of_the_parts():
    summary = summarise_run(made_up_run(block_sizes=(2, 8), num_prompts=12))
    for axes, name in zip(
        category_plots.draw_categories(summary).axes, ("speedup", "acceptance_length"), strict=True
    ):
        for bars, arm in zip(axes.containers, summary.cells[1:], strict=True):
            expected = [part.number(name) for part in arm.breakdowns.categories]
            assert [bar.get_width() for bar in bars] == pytest.approx(expected)


def test_points_of_output_lengths_are_both_arms_of_each_request():
    run = made_up_run(block_sizes=(3,))
    records = tuple(
        replace(record, num_output_tokens=77) if record.cell_id.endswith("b3") and i % 3 == 0 else record
        for i, record in enumerate(run.records)
    )
    (axes,) = plots.draw_output_lengths(summarise_run(replace(run, records=records))).axes
    points = sorted(tuple(point) for dots in axes.collections for point in dots.get_offsets())
    by_cell = [
        {item.prompt_id: item.num_output_tokens for item in records if item.cell_id.endswith(name)}
        for name in ("baseline", "b3")
    ]
    assert points == sorted((by_cell[0][prompt], by_cell[1][prompt]) for prompt in by_cell[0])
    assert any(x != y for x, y in points)


def test_names_in_any_script_are_drawn_without_a_word_on_fonts(recwarn):
    run = made_up_run(block_sizes=(3,))
    records = tuple(replace(record, category=f"日本語 $x_$ {record.category}") for record in run.records)
    with matplotlib.rc_context(plot_style.STYLE):
        figure = category_plots.draw_categories(summarise_run(replace(run, records=records)))
        assert plot_style.png_bytes(figure).startswith(b"\x89PNG")
    assert [str(warning.message) for warning in recwarn] == []


def test_histogram_bars_are_shares_of_steps():
    summary = summarise_run(made_up_run(block_sizes=(3,)))
    (axes,) = acceptance_plots.draw_histograms(summary).axes
    counts = summary.cells[1].numbers("acceptance_histogram")
    expected = [100 * count / sum(counts) for count in counts]
    assert [patch.get_height() for patch in axes.patches] == pytest.approx(expected)


def words_of(axes) -> str:
    return "\n".join(text.get_text() for text in axes.texts)


def test_a_histogram_says_which_form_it_has():
    """Of servers only the untrimmed form is known; its mean is in the same form."""
    run = made_up_run(block_sizes=(3,))
    counted = tuple(replace(record, acceptance_histogram=None) for record in run.records)
    for records, words, metric in (
        (run.records, "acceptance length", "acceptance_length"),
        (counted, "as engines count", "acceptance_length_untrimmed"),
    ):
        summary = summarise_run(replace(run, records=records))
        (axes,) = acceptance_plots.draw_histograms(summary).axes
        assert ("untrimmed" if metric.endswith("untrimmed") else "delivered") in axes.get_xlabel()
        assert f"{words} {summary.cells[1].number(metric):.2f}" in words_of(axes)


def test_categories_have_no_panel_of_what_is_not_known():
    run = made_up_run(block_sizes=(3,))
    records = tuple(
        replace(record, num_decode_steps=None, acceptance_histogram=None) for record in run.records
    )
    (axes,) = category_plots.draw_categories(summarise_run(replace(run, records=records))).axes
    assert axes.get_xlabel() == "speedup (1 = plain decoding)"
    assert axes.patches


def test_per_position_curves_are_the_metrics_in_percent():
    summary = summarise_run(made_up_run(block_sizes=(4,), num_prompts=60))
    figure = acceptance_plots.draw_per_position(summary)
    names = ("acceptance_rate_per_position", "acceptance_rate_per_position_conditional")
    for axes, name in zip(figure.axes, names, strict=True):
        (line,) = axes.lines
        expected = [100 * rate for rate in summary.cells[1].numbers(name)]
        assert list(line.get_ydata()) == pytest.approx(expected)


def test_conditional_rates_of_few_steps_are_not_drawn():
    summary = summarise_run(made_up_run(block_sizes=(16,), num_prompts=3))
    joint, conditional = acceptance_plots.draw_per_position(summary).axes
    assert len(joint.lines[0].get_xdata()) == 15
    reaching = [
        sum(summary.cells[1].numbers("acceptance_histogram_untrimmed")[accepted:]) for accepted in range(15)
    ]
    assert len(conditional.lines[0].get_xdata()) == sum(count >= 10 for count in reaching) < 15


@pytest.mark.parametrize("num_arms", [1, 2, 5, 8])
def test_words_lie_inside_the_picture_and_panels_do_not_overlap(num_arms):
    sizes = (2, 3, 4, 5, 6, 8, 12, 16)[:num_arms]
    name = "a-very-long-data-set-name-with-many-words-in-it"
    summary = summarise_run(made_up_run(block_sizes=sizes, num_prompts=12, dataset=name))
    with matplotlib.rc_context(plot_style.STYLE):
        figures = [plots.PICTURES[name](summary) for name in IN_PROCESS]
        for figure in map(drawn, [*figures, draw_by_place(summary, {})]):
            width, height = figure.canvas.get_width_height()
            for text in texts_of(figure):
                box = text.get_window_extent()
                assert box.x0 >= -1, text.get_text()
                assert box.x1 <= width + 1, text.get_text()
                assert box.y0 >= -1, text.get_text()
                assert box.y1 <= height + 1, text.get_text()
            boxes = [axes.get_tightbbox() for axes in figure.axes if axes.get_visible()]
            for place, box in enumerate(boxes):
                for other in boxes[place + 1 :]:
                    overlap = matplotlib.transforms.Bbox.intersection(box, other)
                    assert overlap is None or min(overlap.width, overlap.height) < 3


def test_names_are_not_read_as_formulas(tmp_path: Path):
    cells = [cell(cell_id="b"), cell(dflash_arm(3), "a")]
    records = [plain_record(name, i, 90, category="$\\frac{$") for name in "ab" for i in range(6)]
    records += [plain_record(name, i, 90, category="_x^{") for name in "ab" for i in range(6, 8)]
    run = Run(Path("x"), RunInfo("x", "", cells=tuple(cells)), tuple(records))
    assert "categories.png" in [path.name for path in plots.plot_run(run, summarise_run(run), tmp_path)]


@pytest.mark.parametrize("name", EDGE_RUNS)
@pytest.mark.filterwarnings("error")
def test_every_run_can_be_drawn(name, tmp_path: Path):
    run = EDGE_RUNS[name]
    names = {path.name for path in plots.plot_run(run, summarise_run(run), tmp_path)}
    assert ("speedup.png" in names) == (name in {"one prompt", "nothing accepted"})
    assert names <= {*IN_PROCESS, plots.BY_PLACE}


def test_global_matplotlib_state_is_left_alone(tmp_path: Path):
    before = dict(matplotlib.rcParams)
    run = made_up_run()
    plots.plot_run(run, summarise_run(run), tmp_path)
    assert dict(matplotlib.rcParams) == before


NAMES = (
    "gsm8k",
    "math500",
    "aime24",
    "humaneval",
    "mbpp",
    "livecodebench",
    "mt-bench",
    "alpaca",
    "swe-bench-lite",
)


def several(names=NAMES, **changes) -> Run:
    runs = [made_up_run(dataset=name, seed=seed, **changes) for seed, name in enumerate(names)]
    info = replace(runs[0].info, cells=sum((run.info.cells for run in runs), ()))
    return replace(runs[0], info=info, records=sum((run.records for run in runs), ()))


def test_every_data_set_has_a_panel_of_acceptance_per_position():
    summary = summarise_run(several(block_sizes=(4, 8, 16)))
    with matplotlib.rc_context(plot_style.STYLE):
        figure = drawn(acceptance_plots.draw_per_position(summary))
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == list(NAMES)
    assert {axes.get_subplotspec().get_gridspec().ncols for axes in panels} == {3}
    for axes, group in zip(panels, summary.groups, strict=True):
        joint, conditional = axes.lines[:3], axes.lines[3:]
        for line, arm in zip(joint, group.cells[1:], strict=True):
            rates = arm.numbers("acceptance_rate_per_position")
            assert list(line.get_ydata()) == pytest.approx([100 * rate for rate in rates])
        assert len(conditional) == 3
        assert {line.get_linestyle() for line in joint} == {"-"}
        assert "-" not in {line.get_linestyle() for line in conditional}


@pytest.mark.parametrize("name", IN_PROCESS)
def test_legends_are_whole_and_outside_of_the_panels(name):
    long = "a-method-with-a-very-long-name-indeed"
    run = several(NAMES[:2], block_sizes=(2, 4, 16), num_prompts=5)
    cells = tuple(
        cell if cell.arm.is_baseline else replace(cell, arm=replace(cell.arm, name=long))
        for cell in run.info.cells
    )
    summary = summarise_run(replace(run, info=replace(run.info, cells=cells)))
    with matplotlib.rc_context(plot_style.STYLE):
        figure = drawn(plots.PICTURES[name](summary))
        width, height = figure.canvas.get_width_height()
        for legend in figure.legends:
            box = legend.get_window_extent()
            assert 0 <= box.x0 < box.x1 <= width
            assert 0 <= box.y0 < box.y1 <= height
            for axes in filter(lambda axes: axes.get_visible(), figure.axes):
                overlap = matplotlib.transforms.Bbox.intersection(box, axes.get_tightbbox())
                assert overlap is None or overlap.height < 3
    assert bool(figure.legends) == (
        name
        in {
            "acceptance_per_position.png",
            "categories.png",
            "output_lengths.png",
            "step_time.png",
            "timeline.png",
        }
    )


def test_no_category_is_left_out():
    run = made_up_run(num_prompts=40)
    records = tuple(replace(record, category=f"c{record.prompt_id[11:]:>02}") for record in run.records)
    figure = category_plots.draw_categories(summarise_run(replace(run, records=records)))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [f"c{number:02}" for number in range(40)]


def test_bars_of_all_data_sets_lie_within_their_common_axis():
    for name in ("categories.png", "speedup.png", "decode_speed.png"):
        figure = plots.PICTURES[name](summarise_run(several(block_sizes=(4, 16))))
        for axes in figure.axes:
            low, high = axes.get_xlim()
            assert low == 0
            assert max(patch.get_width() for patch in axes.patches) < high


@pytest.mark.parametrize(("num_prompts", "has_interval"), [(8, True), (4, False)])
def test_whiskers_are_named_only_where_there_are_any(num_prompts, has_interval):
    summary = summarise_run(made_up_run(num_prompts=num_prompts))
    for draw in (plots.draw_speedup, plots.draw_decode_speed):
        title = draw(summary).get_suptitle()
        assert ("whiskers: 95 % interval over prompts" in title) == has_interval
        assert "bar:" not in title
    assert "interval" not in category_plots.draw_categories(summary).get_suptitle()


def test_lengths_that_all_are_the_limit_are_not_drawn_but_said():
    run = several(("gsm8k", "mt-bench"), block_sizes=(2,))
    sentence = "Every completed request ended at the limit of 128 new tokens: the lengths are not drawn."

    def at_limit(dataset: str) -> Run:
        records = [
            replace(record, finish_reason="length") if record.cell_id.startswith(dataset) else record
            for record in run.records
        ]
        return replace(run, records=tuple(records))

    for cut, num_panels in ((run, 2), (at_limit("gsm8k"), 1), (at_limit(""), 0)):
        summary = summarise_run(cut)
        figure = plots.draw_output_lengths(summary)
        panels = [] if figure is None else [axes for axes in figure.axes if axes.get_visible()]
        assert len(panels) == num_panels
        assert (sentence in render_report(cut, summary)) == (num_panels < 2)


def test_a_picture_of_very_many_panels_can_still_be_written():
    figure = plot_style.new_figure(900, "tall")
    width, height = struct.unpack(">II", plot_style.png_bytes(figure)[16:24])
    assert height <= 30_000
    assert width > 0
