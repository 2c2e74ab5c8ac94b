"""Pictures of what the target accepted: histogram per arm, and rate per draft position."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash.results import plot_style
from dflash.results.formats import format_number
from dflash.results.summary import CellSummary, Group, RunSummary
from dflash.results.titles import short_titles, target_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_MAX_COLUMNS = 4
_MAX_POSITION_COLUMNS = 3
# Metric of a histogram -> the name of its form, the mean in the same form and its name, what a bar counts.
HISTOGRAM_FORMS = {
    "acceptance_histogram": (
        "delivered",
        "acceptance_length",
        "acceptance length",
        "tokens delivered in the step",
    ),
    "acceptance_histogram_untrimmed": (
        *("untrimmed", "acceptance_length_untrimmed", "as engines count"),
        "tokens in the step, untrimmed",
    ),
}
_MIN_STEPS = 10  # fewer steps say nothing about a conditional rate
# Name -> metric, line style.
_FORMS: dict[str, tuple[str, plot_style.Dash]] = {
    "joint": ("acceptance_rate_per_position", "-"),
    "conditional": ("acceptance_rate_per_position_conditional", (0, (1.5, 1.2))),
}


def draw_histograms(summary: RunSummary) -> Figure | None:
    """Share of steps by their tokens, one panel per arm that drafts: delivered ones where those are known, else
    untrimmed as engines count; each panel says which.
    """
    cells = [cell for cell in plot_style.drafting_cells(summary) if histogram_of(cell) is not None]
    if not cells:
        return None
    colours = plot_style.arm_colours(summary)
    title = "Tokens per decode step: share of steps, by how many tokens each gave"
    figure, panels = panel_grid(cells, title, target_line(*(cell.cell for cell in cells)))
    for axes, cell in zip(panels, cells, strict=False):
        known = histogram_of(cell)
        assert known is not None
        metric, histogram = known
        _draw_histogram(axes, cell, metric, histogram, colours[cell.label])
        title_panel(axes, plot_style.series_label(summary, cell))
    label_first_column(panels, "% of steps")
    return figure


def draw_per_position(summary: RunSummary) -> Figure | None:
    """Acceptance rate per draft position, a panel per group: joint, of all steps, and conditional, of those that got
    there. One group alone has a panel for each of the two.
    """
    groups = [group for group in summary.groups if _curves(group)]
    if not groups:
        return None
    if len(groups) == 1:
        return _draw_one_group(summary, groups[0])
    title = (
        "Acceptance rate per draft position\n"
        f"joint: of all verify steps; conditional: of steps that accepted i-1, where at least {_MIN_STEPS} did"
    )
    columns = min(_MAX_POSITION_COLUMNS, len(groups))
    rows = math.ceil(len(groups) / columns)
    figure = plot_style.new_figure(
        rows * 2.5 + 1.5, title, target_line(*(group.first for group in groups)), max(3.4 * columns, 7.0)
    )
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=True).ravel())
    plot_style.hide_unused(panels[len(groups) :])
    for axes, (name, group) in zip(panels, short_titles(groups), strict=False):
        for metric, dash in _FORMS.values():
            _draw_curves(axes, summary, group, metric, dash)
        _position_axes(axes, group)
        title_panel(axes, name, 34)
    label_first_column(panels, "accepted, % of steps")
    plot_style.legend_below(figure, _position_legend(summary, groups))
    return figure


def _draw_one_group(summary: RunSummary, group: Group) -> Figure:
    figure = plot_style.new_figure(3.9, "Acceptance rate per draft position", target_line(group.first))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (metric, _) in zip(panels, _FORMS.values(), strict=True):
        _draw_curves(axes, summary, group, metric, "-")
        _position_axes(axes, group)
    panels[0].set_title("joint: of all verify steps")
    panels[1].set_title(f"conditional: of steps that accepted i-1\n(where at least {_MIN_STEPS} did)")
    panels[0].set_ylabel("accepted, % of steps")
    plot_style.legend_below(figure, _position_legend(summary, [group])[: -len(_FORMS)])
    return figure


def _curves(group: Group) -> list[CellSummary]:
    return [
        cell
        for cell in group.cells
        if not cell.cell.arm.is_baseline and cell.numbers("acceptance_rate_per_position")
    ]


def _draw_curves(axes: Axes, summary: RunSummary, group: Group, metric: str, dash: plot_style.Dash) -> None:
    """One curve per arm that drafts; its colour is the arm's."""
    colours = plot_style.arm_colours(summary)
    for cell in _curves(group):
        rates = cell.numbers(metric) or ()
        last = last_with_steps(cell) if metric.endswith("_conditional") else len(rates)
        points = [(i, rate) for i, rate in enumerate(rates, start=1) if rate is not None and i <= last]
        axes.plot(
            [i for i, _ in points],
            [100 * rate for _, rate in points],
            color=colours[cell.label],
            linestyle=dash,
            marker="o",
            markersize=3.8,
            linewidth=1.6,
        )


def _position_axes(axes: Axes, group: Group) -> None:
    from matplotlib.ticker import MaxNLocator

    longest = max(len(cell.numbers("acceptance_rate_per_position") or ()) for cell in _curves(group))
    axes.set_xlabel("draft position i (1..B-1)")
    axes.set_ylim(0, 104)
    axes.set_xlim(0.6, longest + 0.4)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.grid(True)


def _position_legend(summary: RunSummary, groups: Sequence[Group]) -> list[Line2D]:
    """A line for every arm, then one for each form."""
    from matplotlib.lines import Line2D

    colours = plot_style.arm_colours(summary)
    labels = dict.fromkeys(cell.label for group in groups for cell in _curves(group))
    arms = [
        Line2D([], [], color=colours[label], marker="o", label=plot_style.wrapped(label)) for label in labels
    ]
    forms = [
        Line2D([], [], color=plot_style.INK, linestyle=dash, label=name) for name, (_, dash) in _FORMS.items()
    ]
    return [*arms, *forms]


def last_with_steps(cell: CellSummary) -> int:
    """The last draft position whose predecessor was accepted by enough steps to draw its conditional rate."""
    histogram = [count or 0 for count in cell.numbers("acceptance_histogram_untrimmed") or ()]
    return sum(sum(histogram[accepted:]) >= _MIN_STEPS for accepted in range(len(histogram)))


def histogram_of(cell: CellSummary) -> tuple[str, tuple[float | None, ...]] | None:
    """(metric name, counts): delivered tokens where known, else untrimmed as engines count."""
    for name in HISTOGRAM_FORMS:
        histogram = cell.numbers(name)
        if histogram is not None:
            return name, histogram
    return None


def panel_grid(
    cells: Sequence[CellSummary], title: str, subtitle: str, square: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with one panel per cell, at most four in a row; a row per group where its arms fit in one."""
    num_arms = set(Counter((cell.cell.workload_id, cell.cell.backend) for cell in cells).values())
    is_regular = len(num_arms) == 1 and 1 < min(num_arms) <= _MAX_COLUMNS
    columns = min(num_arms) if is_regular else min(_MAX_COLUMNS, len(cells))
    rows = math.ceil(len(cells) / columns)
    width = {1: 5.0, _MAX_COLUMNS: 10.5}.get(columns, plot_style.WIDTH_INCHES)
    panel_height = min(3.9, width / columns + 0.35) if square else 2.4
    figure = plot_style.new_figure(rows * panel_height + 1.1, title, subtitle, width)
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    plot_style.hide_unused(panels[len(cells) :])
    return figure, panels


def title_panel(axes: Axes, text: str, width: int = 24) -> None:
    """A title that stays within a panel of `panel_grid`."""
    axes.set_title(plot_style.wrapped(text, width), fontsize=9)


def label_first_column(panels: Sequence[Axes], label: str) -> None:
    """One y label per row of panels."""
    for axes in panels:
        place = axes.get_subplotspec()
        if place is not None and place.is_first_col():
            axes.set_ylabel(label)


def _draw_histogram(
    axes: Axes,
    cell: CellSummary,
    metric: str,
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
    _, mean, mean_words, bar_words = HISTOGRAM_FORMS[metric]
    axes.text(
        0.98,
        0.97,
        f"{mean_words} {format_number(cell.number(mean))}\n{total:,.0f} steps",
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=8.5,
        bbox=plot_style.WORD_BOX,
    )
    every = 1 if width <= 8 else 2 if width <= 16 else 4
    axes.set_xticks(places[::every])
    axes.set_xlim(0.4, width + 0.6)
    axes.set_ylim(0, max(shares) * 1.55)
    axes.set_xlabel(bar_words)
    plot_style.grid_on(axes, "y")
