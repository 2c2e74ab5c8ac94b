"""The pictures of a report: speeds and lengths. Those of acceptance are in `acceptance_plots.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.results import acceptance_plots, category_plots, load_plots, plot_style, time_plots
from dflash.results.atomic_file import write_file
from dflash.results.columns import Column
from dflash.results.formats import format_rate, format_times
from dflash.results.pairing import pairs_of
from dflash.results.place_plots import draw_by_place
from dflash.results.published import Published
from dflash.results.published_plot import draw_published
from dflash.results.step_places import place_curves
from dflash.results.store import Run
from dflash.results.summary import CellSummary, Group, RunSummary, all_at_limit
from dflash.results.tables import FASTEST_MARK
from dflash.results.titles import group_title, target_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_BAR_INCHES = 0.36

FINISH_COLOURS = {"stop": "#1f77b4", "length": "#e67e22"}


def plot_run(run: Run, summary: RunSummary, folder: Path) -> tuple[Path, ...]:
    """Draw every picture that has something to show, each written whole or not at all.

    Returns:
        The paths written, in the order of the report.
    """
    return tuple(write_file(folder / name, content) for name, content in plot_runs([run], summary).items())


def plot_runs(
    runs: Sequence[Run], summary: RunSummary, published: Published | None = None
) -> dict[str, bytes]:
    """PNG files by name, in the order of the report: every picture that has something to show."""
    import matplotlib

    pictures: dict[str, bytes] = {}
    with matplotlib.rc_context(plot_style.STYLE):
        for name, draw in PICTURES.items():
            _add(pictures, name, draw(summary))
        _add(pictures, BY_PLACE, draw_by_place(summary, place_curves(runs, summary)))
        if published is not None:
            _add(pictures, PUBLISHED, draw_published(summary, published))
    return pictures


def _add(pictures: dict[str, bytes], name: str, figure: Figure | None) -> None:
    if figure is not None:
        pictures[name] = plot_style.png_bytes(figure)


def draw_speedup(summary: RunSummary) -> Figure | None:
    """Speedup of each arm with its interval; the line at 1 is the baseline."""
    groups = [group for group in summary.groups if any(cell.interval("speedup") for cell in group.cells)]
    title = "Decode speedup over plain decoding"

    def bar(cell: CellSummary) -> _Bar | None:
        interval = cell.interval("speedup")
        if interval is None:
            return None
        return _Bar(interval.value, interval.low, interval.high, format_times(interval.value))

    figure = _bar_figure(summary, groups, title, "speedup (1 = plain decoding)", bar)
    if figure is not None:
        for axes in figure.axes:
            axes.axvline(1, color=plot_style.REFERENCE, linewidth=1.2, linestyle=(0, (4, 2)), zorder=3)
    return figure


def draw_decode_speed(summary: RunSummary) -> Figure | None:
    """Decode speed of each arm, baseline included, with its interval."""
    groups = [group for group in summary.groups if any(cell.interval("decode_tok_s") for cell in group.cells)]

    def bar(cell: CellSummary) -> _Bar | None:
        interval = cell.interval("decode_tok_s")
        if interval is None:
            return None
        return _Bar(interval.value, interval.low, interval.high, format_rate(interval.value))

    return _bar_figure(summary, groups, "Decode speed", "tokens per second", bar)


def _output_lengths(cell: CellSummary) -> tuple[Column, Column, NDArray[Any]]:
    """[pairs]: output tokens of the baseline and of the arm, and why the arm's output ended."""
    pairs = pairs_of(() if cell.pairing is None else cell.pairing.completed_pairs)
    first, second = (arm.integers("num_output_tokens") for arm in (pairs.baseline, pairs.arm))
    return first, second, pairs.arm.texts("finish_reason")


def draw_output_lengths(summary: RunSummary) -> Figure | None:
    """Output length of each request in both arms: equal outputs lie on the diagonal."""
    cells = [
        cell
        for group in summary.groups
        for cell in group.cells
        if cell.pairing is not None and cell.number("output_length_ratio") and not all_at_limit(group.cells)
    ]
    if not cells:
        return None
    title = "Output tokens of each request, arm against baseline (equal outputs lie on the line)"
    figure, panels = acceptance_plots.panel_grid(
        cells, title, target_line(*(cell.cell for cell in cells)), square=True
    )
    lengths = [_output_lengths(cell) for cell in cells]
    top = max(int(arm.values[arm.known].max(initial=0)) for *both, _ in lengths for arm in both)
    for axes, cell, (first, second, reasons) in zip(panels, cells, lengths, strict=False):
        axes.plot([0, top * 1.06], [0, top * 1.06], color=plot_style.FAINT, linewidth=1.5, zorder=1)
        for reason, colour in FINISH_COLOURS.items():
            drawn = first.known & second.known & (reasons == reason)
            axes.scatter(
                first.values[drawn],
                second.values[drawn],
                s=26,
                color=colour,
                alpha=0.65,
                linewidths=0,
                label={"stop": "ended by a stop token", "length": "ended at the limit"}[reason],
                zorder=2,
            )
        axes.set_xlim(0, top * 1.06)
        axes.set_ylim(0, top * 1.06)
        axes.set_aspect("equal")
        axes.locator_params(nbins=4)
        acceptance_plots.title_panel(axes, plot_style.series_label(summary, cell))
        axes.set_xlabel("baseline")
    acceptance_plots.label_first_column(panels, "arm")
    plot_style.legend_below(figure, panels[0].get_legend_handles_labels()[0])
    return figure


PICTURES: dict[str, Callable[[RunSummary], Figure | None]] = {
    "speedup.png": draw_speedup,
    "decode_speed.png": draw_decode_speed,
    "acceptance_histogram.png": acceptance_plots.draw_histograms,
    "acceptance_per_position.png": acceptance_plots.draw_per_position,
    "categories.png": category_plots.draw_categories,
    "output_lengths.png": draw_output_lengths,
    "step_time.png": time_plots.draw_step_time,
    "timeline.png": time_plots.draw_timeline,
    "concurrency.png": load_plots.draw_concurrency,
    "pareto.png": load_plots.draw_pareto,
}
# These need more than the summary: the times of chunks, published figures.
BY_PLACE = "acceptance_by_place.png"
PUBLISHED = "published.png"


class _Bar:
    """One bar: its length, its interval, and the words at its end."""

    def __init__(self, value: float, low: float | None, high: float | None, words: str) -> None:
        self.value, self.low, self.high, self.words = value, low, high, words

    @property
    def end(self) -> float:
        return self.value if self.high is None else max(self.value, self.high)


def _bar_figure(
    summary: RunSummary,
    groups: list[Group],
    title: str,
    label: str,
    bar_of: Callable[[CellSummary], _Bar | None],
) -> Figure | None:
    """One panel per group on a common axis, one horizontal bar per arm."""
    rows = [[(cell, bar) for cell in group.cells if (bar := bar_of(cell)) is not None] for group in groups]
    if not rows:
        return None
    colours = plot_style.arm_colours(summary)
    heights = [len(row) * _BAR_INCHES + 0.45 for row in rows]
    if any(bar.low is not None for row in rows for _, bar in row):
        title += " (whiskers: 95 % interval over prompts)"
    figure = plot_style.new_figure(sum(heights) + 1.0, title, target_line(*(group.first for group in groups)))
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    widest = max(bar.end for row in rows for _, bar in row)
    for axes, row, group in zip(panels[:, 0], rows, groups, strict=True):
        _draw_bars(axes, row, group, colours, widest)
        axes.set_title(plot_style.wrapped(group_title(group), 90))
    panels[-1, 0].set_xlabel(label)
    panels[-1, 0].set_xlim(0, widest * 1.14)
    return figure


def _draw_bars(
    axes: Axes,
    row: list[tuple[CellSummary, _Bar]],
    group: Group,
    colours: dict[str, tuple[float, float, float, float] | str],
    widest: float,
) -> None:
    for place, (cell, bar) in enumerate(row):
        axes.barh(place, bar.value, height=0.62, color=colours[cell.label], zorder=2)
        if bar.low is not None and bar.high is not None:
            error = [[max(0.0, bar.value - bar.low)], [max(0.0, bar.high - bar.value)]]
            axes.errorbar(
                bar.value, place, xerr=error, color=plot_style.INK, capsize=3, linewidth=1.2, zorder=4
            )
        fastest = group.is_fastest(cell)
        axes.text(
            bar.end + widest * 0.012,
            place,
            bar.words,
            va="center",
            ha="left",
            fontweight="bold" if fastest else "normal",
            bbox=plot_style.WORD_BOX,
            zorder=5,
        )
    labels = [
        (f"{FASTEST_MARK} " if group.is_fastest(cell) else "") + plot_style.wrapped(cell.label)
        for cell, _ in row
    ]
    axes.set_yticks(range(len(row)), labels)
    axes.set_ylim(len(row) - 0.45, -0.55)
    plot_style.grid_on(axes, "x")
