"""Pictures of servers under load: throughput by concurrency, and speed of one user against that of all. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dflash.results import plot_style
from dflash.results.acceptance_plots import title_panel
from dflash.results.summary import CellSummary, Group, RunSummary
from dflash.results.titles import parts_beside_load, target_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_COLUMNS = 3
Point = tuple[int, float, float]  # concurrency, x, y


def draw_concurrency(summary: RunSummary) -> Figure | None:
    """Output throughput of the whole server against the concurrency, a panel a data set, a line an arm."""

    def point(cell: CellSummary) -> Point | None:
        value, level = cell.number("output_tok_s"), cell.cell.workload.concurrency
        return None if value is None else (level, level, value)

    figure = _draw(
        summary,
        "Output throughput of the whole server by concurrency",
        point,
        "requests in flight",
        "tokens/s of the server",
    )
    for axes in [] if figure is None else figure.axes:
        axes.set_xscale("log", base=2)
        levels = sorted({int(x) for line in axes.lines for x in line.get_xdata()})  # type: ignore[arg-type, union-attr]
        axes.set_xticks(levels, [str(level) for level in levels])
        axes.minorticks_off()
    return figure


def draw_pareto(summary: RunSummary) -> Figure | None:
    """Decode speed of one request against the throughput of the whole server; the numbers are concurrencies."""

    def point(cell: CellSummary) -> Point | None:
        user, total = cell.number("decode_tok_s"), cell.number("output_tok_s")
        return None if user is None or total is None else (cell.cell.workload.concurrency, user, total)

    figure = _draw(
        summary,
        "Speed of one user against the throughput of the server\n(numbers: requests in flight)",
        point,
        "tokens/s of one user (decode)",
        "tokens/s of the server",
        with_levels=True,
    )
    for axes in [] if figure is None else figure.axes:
        axes.set_xlim(0, axes.get_xlim()[1] * 1.04)
    return figure


def sweeps(summary: RunSummary) -> list[tuple[str, list[Group]]]:
    """Data sets (and engines, settings, runs, where there are several) that were run at two concurrencies or more."""
    found: dict[tuple[str, ...], list[Group]] = {}
    for group in summary.server_groups:
        if group.first.workload.request_rate is None:
            key = (group.first.workload.dataset, group.first.backend, *parts_beside_load(group))
            found.setdefault(key, []).append(group)
    several = len({backend for _, backend, *_ in found}) > 1
    kept = []
    for (dataset, backend, *beside), groups in found.items():
        if len({group.first.workload.concurrency for group in groups}) > 1:
            parts = [dataset, backend if several else "", *beside]
            kept.append((" · ".join(part for part in parts if part), groups))
    return kept


def _draw(
    summary: RunSummary,
    title: str,
    point: Callable[[CellSummary], Point | None],
    x_label: str,
    y_label: str,
    with_levels: bool = False,
) -> Figure | None:
    panels_of = [(name, _lines(groups, point)) for name, groups in sweeps(summary)]
    panels_of = [
        (name, lines) for name, lines in panels_of if any(len(points) > 1 for points in lines.values())
    ]
    if not panels_of:
        return None
    columns = min(_MAX_COLUMNS, len(panels_of))
    rows = math.ceil(len(panels_of) / columns)
    cells = [cell.cell for cell in summary.cells if cell.cell.on_server]
    width = max(3.5 * columns, 7.0)
    figure = plot_style.new_figure(rows * 3.0 + 1.2, title, target_line(*cells), width)
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    plot_style.hide_unused(panels[len(panels_of) :])
    for axes, (name, lines) in zip(panels, panels_of, strict=False):
        _draw_panel(axes, summary, lines, with_levels)
        title_panel(axes, name, 34)
        axes.set_xlabel(x_label)
        axes.set_ylim(0, max(y for points in lines.values() for _, _, y in points) * 1.12)
        axes.grid(True)
    for axes in panels[::columns]:
        axes.set_ylabel(y_label)
    for axes in panels[len(panels_of) :]:
        figure.delaxes(axes)
    handles = {line.get_label(): line for axes in panels[: len(panels_of)] for line in axes.lines}
    plot_style.legend_below(figure, list(handles.values()))
    return figure


def _lines(groups: Sequence[Group], point: Callable[[CellSummary], Point | None]) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = {}
    for group in groups:
        for cell in group.cells:
            found = point(cell)
            if found is not None:
                lines.setdefault(cell.label, []).append(found)
    return {label: sorted(points) for label, points in lines.items()}


def _draw_panel(axes: Axes, summary: RunSummary, lines: dict[str, list[Point]], with_levels: bool) -> None:
    colours = plot_style.arm_colours(summary)
    for label, points in lines.items():
        axes.plot(
            [x for _, x, _ in points],
            [y for _, _, y in points],
            color=colours[label],
            marker="o",
            markersize=4.5,
            linewidth=1.7,
            label=plot_style.wrapped(label),
        )
        for level, x, y in points if with_levels else ():
            axes.annotate(str(level), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
