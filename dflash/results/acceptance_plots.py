"""Pictures of what the target accepted: histogram per arm, and rate per draft position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash.results import plot_style
from dflash.results.formats import format_number
from dflash.results.summary import CellSummary, RunSummary
from dflash.results.tables import target_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_COLUMNS = 4
_MAX_LEGEND = 24
_MIN_STEPS = 10  # fewer steps say nothing about a conditional rate


def draw_histograms(summary: RunSummary) -> Figure | None:
    """Share of decode steps by tokens delivered, one panel per arm that drafts."""
    cells = [cell for cell in plot_style.drafting_cells(summary) if histogram_of(cell) is not None]
    if not cells:
        return None
    colours = plot_style.arm_colours(summary)
    title = "Tokens per decode step: share of steps, by how many tokens each gave"
    figure, panels = panel_grid(cells, title, target_line(cells[0].cell))
    for axes, cell in zip(panels, cells, strict=False):
        known = histogram_of(cell)
        assert known is not None
        _, histogram = known
        _draw_histogram(axes, cell, histogram, colours[cell.cell.arm.label])
        title_panel(axes, plot_style.series_label(summary, cell))
    label_first_column(panels, "% of steps")
    return figure


def draw_per_position(summary: RunSummary) -> Figure | None:
    """Acceptance rate per draft position: joint, of all steps, and conditional, of those that got there."""
    cells = [
        cell for cell in plot_style.drafting_cells(summary) if cell.numbers("acceptance_rate_per_position")
    ]
    cells = cells[:_MAX_LEGEND]
    if not cells:
        return None
    colours = plot_style.arm_colours(summary)
    rows = math.ceil(len(cells) / 4)
    figure = plot_style.new_figure(
        3.7 + 0.24 * rows, "Acceptance rate per draft position", target_line(cells[0].cell)
    )
    panels = figure.subplots(1, 2, sharey=True)
    dashes = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
    markers = ("o", "s", "^", "D")
    datasets = list(dict.fromkeys(cell.cell.workload for cell in cells))
    for cell in cells:
        place = datasets.index(cell.cell.workload) % len(dashes)
        for axes, metric in zip(
            panels, ("acceptance_rate_per_position", "acceptance_rate_per_position_conditional"), strict=True
        ):
            last = last_with_steps(cell) if metric.endswith("_conditional") else cell.cell.arm.block_size or 0
            rates = enumerate(cell.numbers(metric) or (), start=1)
            points = [(i, rate) for i, rate in rates if rate is not None and i <= last]
            axes.plot(
                [i for i, _ in points],
                [100 * rate for _, rate in points],
                color=colours[cell.cell.arm.label],
                linestyle=dashes[place],
                marker=markers[place],
                markersize=4.5,
                linewidth=1.7,
                label=plot_style.series_label(summary, cell),
            )
    panels[0].set_title("joint: of all verify steps")
    panels[1].set_title(f"conditional: of steps that accepted i-1\n(where at least {_MIN_STEPS} did)")
    panels[0].set_ylabel("accepted, % of steps")
    longest = max(len(cell.numbers("acceptance_rate_per_position") or ()) for cell in cells)
    for axes in panels:
        axes.set_xlabel("draft position i (1..B-1)")
        axes.set_ylim(0, 104)
        axes.set_xlim(0.6, longest + 0.4)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(True)
    handles, labels = panels[0].get_legend_handles_labels()
    columns = 4 if max(map(len, labels)) < 24 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))
    return figure


def last_with_steps(cell: CellSummary) -> int:
    """The last draft position whose predecessor was accepted by enough steps to draw its conditional rate."""
    histogram = [count or 0 for count in cell.numbers("acceptance_histogram_untrimmed") or ()]
    return sum(sum(histogram[accepted:]) >= _MIN_STEPS for accepted in range(len(histogram)))


def histogram_of(cell: CellSummary) -> tuple[str, tuple[float | None, ...]] | None:
    """(metric name, counts): delivered tokens where known, else untrimmed as engines count."""
    for name in ("acceptance_histogram", "acceptance_histogram_untrimmed"):
        histogram = cell.numbers(name)
        if histogram is not None:
            return name, histogram
    return None


def panel_grid(
    cells: Sequence[CellSummary], title: str, subtitle: str, square: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with one panel per cell, at most four in a row."""
    columns = min(_MAX_COLUMNS, len(cells))
    rows = math.ceil(len(cells) / columns)
    width = {1: 5.0, _MAX_COLUMNS: 10.5}.get(columns, plot_style.WIDTH_INCHES)
    panel_height = min(3.9, width / columns + 0.35) if square else 2.4
    figure = plot_style.new_figure(rows * panel_height + 1.1, title, subtitle, width)
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    plot_style.hide_unused(panels[len(cells) :])
    return figure, panels


def title_panel(axes: Axes, text: str) -> None:
    """A title that stays within a panel of `panel_grid`."""
    axes.set_title(plot_style.wrapped(text, 24), fontsize=9)


def label_first_column(panels: Sequence[Axes], label: str) -> None:
    """One y label per row of panels."""
    for axes in panels:
        place = axes.get_subplotspec()
        if place is not None and place.is_first_col():
            axes.set_ylabel(label)


def _draw_histogram(
    axes: Axes,
    cell: CellSummary,
    histogram: tuple[float | None, ...],
    colour: tuple[float, float, float, float] | str,
) -> None:
    counts = [count or 0 for count in histogram]
    width = max(len(counts), cell.cell.arm.block_size or 0)
    counts += [0] * (width - len(counts))
    total = sum(counts)
    shares = [100 * count / total for count in counts]
    places = list(range(1, width + 1))
    axes.bar(places, shares, width=0.78, color=colour, zorder=2)
    if width <= 8:
        for place, share in zip(places, shares, strict=True):
            words = f"{share:.0f}" if share >= 1 or share == 0 else "<1"
            axes.text(place, share + 1.5, words, ha="center", va="bottom", fontsize=8.5)
    mean = cell.number("acceptance_length")
    axes.text(
        0.98,
        0.97,
        f"acceptance length {format_number(mean)}\n{total:,.0f} steps",
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=8.5,
        bbox=plot_style.WORD_BOX,
    )
    every = 1 if width <= 8 else 2 if width <= 16 else 4
    axes.set_xticks(places[::every])
    axes.set_xlim(0.4, width + 0.6)
    axes.set_ylim(0, max(shares) * 1.45)
    axes.set_xlabel("tokens in the step")
    plot_style.grid_on(axes, "y")
