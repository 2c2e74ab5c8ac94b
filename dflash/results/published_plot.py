"""The picture that sets measured figures beside published ones, both in the paper's form. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash.results import plot_style
from dflash.results.formats import format_number
from dflash.results.markdown_paper import PaperRow, measured_rows, published_rows
from dflash.results.published import Published
from dflash.results.summary import RunSummary
from dflash.results.titles import target_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR_INCHES = 0.27
_PUBLISHED_COLOUR = "#c9ced4"


def draw_published(summary: RunSummary, published: Published) -> Figure | None:
    """Speedup and acceptance length, a row of panels a data set, measured arms first; only where both are known."""
    found = published_rows(summary, published)
    rows = [*measured_rows(summary.groups), *found]
    datasets = [name for name in _datasets(summary) if any(name in row.figures for row in found)]
    if not datasets:
        return None
    members = {name: [row for row in rows if name in row.figures] for name in datasets}
    heights = [len(members[name]) * _BAR_INCHES + 0.45 for name in datasets]
    cells = [group.first for group in summary.groups if group.first.workload.dataset in datasets]
    title = "Measured, and published for the same target and data set (pale)"
    figure = plot_style.new_figure(sum(heights) + 1.1, title, target_line(*cells), 10.5)
    panels = figure.subplots(
        len(datasets), 2, squeeze=False, sharex="col", gridspec_kw={"height_ratios": heights}
    )
    for row, name in zip(panels, datasets, strict=True):
        for axes, place in zip(row, (0, 1), strict=True):
            _draw_bars(axes, summary, members[name], name, place)
        row[1].set_yticklabels([])
        row[0].set_title(plot_style.wrapped(name, 40))
    panels[-1][0].set_xlabel("speedup, the paper's form")
    panels[-1][1].set_xlabel("acceptance length, mean over requests")
    for place, axes in enumerate(panels[-1]):
        widest = max(row.figures[name][place] or 0.0 for name in datasets for row in members[name])
        axes.set_xlim(0, (widest or 1) * 1.18)
    return figure


def _datasets(summary: RunSummary) -> list[str]:
    return list(dict.fromkeys(group.first.workload.dataset for group in summary.groups))


def _draw_bars(axes: Axes, summary: RunSummary, rows: list[PaperRow], dataset: str, place: int) -> None:
    colours = plot_style.arm_colours(summary)
    for position, row in enumerate(rows):
        value = row.figures[dataset][place]
        if value is not None:
            axes.barh(position, value, height=0.7, color=colours.get(row.method, _PUBLISHED_COLOUR), zorder=2)
        words = format_number(value)
        axes.annotate(words, (value or 0, position), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(
        range(len(rows)), [plot_style.wrapped(label, 44) for label in labels_of(rows)], fontsize=8.5
    )
    axes.set_ylim(len(rows) - 0.45, -0.55)
    plot_style.grid_on(axes, "x")


def labels_of(rows: Sequence[PaperRow]) -> list[str]:
    """The method of every row, with its source where it was published; of rows that this does not tell apart also what
    differs in engine, load and settings.
    """
    leads = [row.method if row.is_measured else f"{row.method}, {row.source}" for row in rows]
    labels = []
    for row, lead in zip(rows, leads, strict=True):
        alike = [
            set(other.where.split(", ")) for other, name in zip(rows, leads, strict=True) if name == lead
        ]
        shared = set.intersection(*alike)
        labels.append(", ".join([lead, *(part for part in row.where.split(", ") if part not in shared)]))
    return labels
