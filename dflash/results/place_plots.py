"""Pictures of the acceptance length along prompts and outputs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy

from dflash.results import acceptance_metrics, plot_style
from dflash.results.acceptance_plots import title_panel
from dflash.results.columns import table_of
from dflash.results.step_places import CellKey, PlaceCurve
from dflash.results.summary import CellSummary, Group, RunSummary
from dflash.results.titles import short_titles, target_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_GROUPS = 12
_MIN_LOG_RATIO = 8  # of the longest prompt to the shortest, from which the axis is logarithmic
MAX_DOTS = 500  # requests of an arm that are drawn one by one


def draw_by_place(summary: RunSummary, curves: Mapping[CellKey, PlaceCurve]) -> Figure | None:
    """A row a group: acceptance length by length of the prompt, and by position in the output where it is known."""
    shown = [
        (title, group)
        for title, group in short_titles(summary.groups)
        if any(by_prompt_length(cell) for cell in group.cells) or _curves(group, curves)
    ]
    if not shown:
        return None
    drawn = shown[:MAX_GROUPS]
    title = "Acceptance length along prompts and outputs (tokens per step, pooled)"
    if len(drawn) < len(shown):
        title += f": the first {len(drawn)} of {len(shown)}"
    has_positions = any(_curves(group, curves) for _, group in drawn)
    cells = [cell.cell for _, group in drawn for cell in group.cells]
    figure = plot_style.new_figure(len(drawn) * 2.6 + 1.2, title, target_line(*cells))
    panels = figure.subplots(len(drawn), 2 if has_positions else 1, squeeze=False, sharey="row")
    for row, (name, group) in zip(panels, drawn, strict=True):
        _draw_prompt_lengths(row[0], summary, group)
        if has_positions:
            _draw_positions(row[1], summary, group, curves)
        title_panel(row[0], name, 40)
        row[0].set_ylabel("acceptance length")
        row[0].set_ylim(bottom=1)
        row[0].set_ylim(top=row[0].get_ylim()[1] * 1.05)
    for axes, label in zip(panels[-1], ("prompt tokens", "output tokens before the step"), strict=False):
        axes.set_xlabel(label)
    handles = {line.get_label(): line for row in panels for axes in row for line in axes.lines}
    plot_style.legend_below(figure, list(handles.values()))
    return figure


def by_prompt_length(cell: CellSummary) -> list[tuple[float, float]]:
    """(mean prompt length, acceptance length) of requests pooled by the power of two that the length of their prompt
    reaches: 16..31 tokens, 32..63 and so on.
    """
    if cell.cell.arm.is_baseline:
        return []
    buckets: dict[int, list[tuple[int, int, int]]] = {}
    for record in cell.records:
        length, tokens, steps = record.num_prompt_tokens, record.num_output_tokens, record.num_decode_steps
        if record.completed and length and tokens and steps:
            buckets.setdefault(length.bit_length(), []).append((length, tokens - 1, steps))
    points = []
    for _, found in sorted(buckets.items()):
        lengths, tokens, steps = (sum(column) for column in zip(*found, strict=True))
        points.append((lengths / len(found), tokens / steps))
    return points


def _curves(group: Group, curves: Mapping[CellKey, PlaceCurve]) -> list[tuple[CellSummary, PlaceCurve]]:
    found = [(cell, curves.get((cell.run, cell.cell.cell_id))) for cell in group.cells]
    return [(cell, curve) for cell, curve in found if curve is not None]


def _draw_prompt_lengths(axes: Axes, summary: RunSummary, group: Group) -> None:
    colours = plot_style.arm_colours(summary)
    for cell in group.cells:
        points = by_prompt_length(cell)
        if not points:
            continue
        requests = table_of(cell.records)
        prompts, lengths = (
            requests.integers("num_prompt_tokens").where_not_zero(),
            acceptance_metrics.acceptance_lengths(requests),
        )
        dots = numpy.flatnonzero(requests.completed & prompts.known & lengths.known)
        dots = dots[:: max(1, math.ceil(len(dots) / MAX_DOTS))]
        colour = colours[cell.label]
        axes.scatter(prompts.values[dots], lengths.values[dots], s=9, color=colour, alpha=0.35, linewidths=0)
        _line(axes, points, colour, cell.label)
    of_cells = [table_of(cell.records).integers("num_prompt_tokens") for cell in group.cells]
    known = numpy.concatenate([column.where_not_zero().numbers() for column in of_cells])
    if len(known) and known.max() >= _MIN_LOG_RATIO * known.min():
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(True)


def _draw_positions(
    axes: Axes, summary: RunSummary, group: Group, curves: Mapping[CellKey, PlaceCurve]
) -> None:
    colours = plot_style.arm_colours(summary)
    known = _curves(group, curves)
    for cell, curve in known:
        _line(axes, curve.points(), colours[cell.label], cell.label)
    left_out = sum(curve.num_left_out for _, curve in known)
    if left_out:
        title_panel(axes, f"{left_out} requests left out: their chunks are not their steps", 40)
    axes.set_xlim(left=0)
    axes.grid(True)


def _line(axes: Axes, points: list[tuple[float, float]], colour: plot_style.Colour, label: str) -> None:
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=colour,
        marker="o",
        markersize=4,
        linewidth=1.6,
        label=plot_style.wrapped(label),
    )
