"""The picture of the categories of prompts: whether a good mean comes from one kind of prompt. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash.results import plot_style
from dflash.results.breakdowns import PartSummary
from dflash.results.summary import Group, RunSummary
from dflash.results.titles import group_title, target_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_METRICS = {
    "speedup": "speedup (1 = plain decoding)",
    "acceptance_length": "acceptance length (tokens per step)",
}


def draw_categories(summary: RunSummary) -> Figure | None:
    """Speedup and acceptance length by category of prompt, or that one of them that is known."""
    groups = [
        group
        for group in summary.groups
        if any(len(cell.breakdowns.categories) > 1 for cell in group.cells if not cell.cell.arm.is_baseline)
    ]
    metrics = {
        metric: label
        for metric, label in _METRICS.items()
        if any(part.interval(metric) is not None for group in groups for part in _category_parts(group))
    }
    if not metrics:
        return None
    colours = plot_style.arm_colours(summary)
    heights = [_category_inches(group) for group in groups]
    title = "By category of prompt"
    if any(_has_interval(group) for group in groups):
        title += " (lines on the bars: 95 % interval over prompts)"
    figure = plot_style.new_figure(sum(heights) + 1.0, title, target_line(*(group.first for group in groups)))
    ratios = {"height_ratios": heights}
    panels = figure.subplots(len(groups), len(metrics), squeeze=False, sharex="col", gridspec_kw=ratios)
    for row, group in enumerate(groups):
        names = _category_names(group)
        for axes, (metric, label) in zip(panels[row], metrics.items(), strict=True):
            _draw_category_panel(axes, group, names, metric, colours)
            if row == len(groups) - 1:
                axes.set_xlabel(label)
        for axes in panels[row][1:]:
            axes.set_yticklabels([])
        if len(groups) > 1:
            panels[row][0].set_title(plot_style.wrapped(group_title(group), 50))
    for axes in panels[0]:  # shared by all below, and so only once everything is drawn
        axes.set_xlim(left=0)
    legend = {handle.get_label(): handle for row in panels for handle in row[0].containers}
    plot_style.legend_below(figure, [legend[label] for label in legend])
    return figure


def _category_names(group: Group) -> list[str]:
    names = dict.fromkeys(part.name for cell in group.cells for part in cell.breakdowns.categories)
    return sorted(names)


def _category_parts(group: Group) -> list[PartSummary]:
    return [
        part for cell in group.cells if not cell.cell.arm.is_baseline for part in cell.breakdowns.categories
    ]


def _has_interval(group: Group) -> bool:
    intervals = [part.interval(name) for part in _category_parts(group) for name in _METRICS]
    return any(interval is not None and interval.low is not None for interval in intervals)


def _category_inches(group: Group) -> float:
    arms = max(1, len(group.cells) - 1)
    return max(1.6, len(_category_names(group)) * (0.14 * arms + 0.22) + 0.6)


def _draw_category_panel(
    axes: Axes,
    group: Group,
    names: list[str],
    metric: str,
    colours: dict[str, tuple[float, float, float, float] | str],
) -> None:
    cells = [cell for cell in group.cells if not cell.cell.arm.is_baseline]
    thickness = 0.8 / max(1, len(cells))
    for offset, cell in enumerate(cells):
        by_name = {part.name: part for part in cell.breakdowns.categories}
        known = [
            (place, interval)
            for place, name in enumerate(names)
            if name in by_name and (interval := by_name[name].interval(metric)) is not None
        ]
        middles = [place - 0.4 + thickness * (offset + 0.5) for place, _ in known]
        axes.barh(
            middles,
            [interval.value for _, interval in known],
            height=thickness * 0.92,
            color=colours[cell.label],
            label=plot_style.wrapped(cell.label),
            zorder=2,
        )
        for middle, (_, interval) in zip(middles, known, strict=True):
            if interval.low is not None and interval.high is not None:
                axes.plot(
                    [interval.low, interval.high],
                    [middle, middle],
                    color=plot_style.INK,
                    linewidth=1,
                    zorder=4,
                )
    axes.axvline(1, color=plot_style.REFERENCE, linewidth=1.2, linestyle=(0, (4, 2)), zorder=3)
    axes.set_yticks(range(len(names)), [plot_style.wrapped(name, 22) for name in names])
    axes.set_ylim(len(names) - 0.45, -0.55)
    plot_style.grid_on(axes, "x")
