"""Pictures of where time goes: the parts of a step, and every request on the clock. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash.results import plot_style
from dflash.results.acceptance_plots import title_panel
from dflash.results.formats import format_ms, to_ms
from dflash.results.records import RequestRecord
from dflash.results.request_metrics import NS_PER_S
from dflash.results.summary import CellSummary, Group, RunSummary
from dflash.results.titles import short_titles, target_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_BAR_INCHES = 0.36
PART_COLOURS = {
    "draft": "#e67e22",
    "verify": "#1f77b4",
    "rest": "#6aa84f",
    "not split": plot_style.BASELINE_COLOUR,
}
_ROUNDING = 1e-9  # of sums of floats
MAX_TIMELINES = 12
MAX_REQUESTS = 2_000  # in a panel: more cannot be told apart
_FAILED_COLOUR = "#c0392b"


def step_parts_s(cell: CellSummary) -> dict[str, float] | None:
    """draft_step_s, verify_step_s and what is left of decode_step_s; `not split` where an engine does not
    tell, or tells more than the whole; None without a step time.
    """
    step, draft, verify = (cell.number(f"{name}_step_s") for name in ("decode", "draft", "verify"))
    if step is None:
        return None
    if draft is None or verify is None or draft + verify > step * (1 + _ROUNDING):
        return {"not split": step}
    return {"draft": draft, "verify": verify, "rest": max(0.0, step - draft - verify)}


def draw_step_time(summary: RunSummary) -> Figure | None:
    """The time of a decode step by its parts, a bar an arm; only where an engine tells the parts of some arm."""
    rows = [
        (title, [(cell, parts) for cell in group.cells if (parts := step_parts_s(cell)) is not None])
        for title, group in short_titles(summary.groups)
    ]
    rows = [(title, row) for title, row in rows if any(len(parts) > 1 for _, parts in row)]
    if not rows:
        return None
    heights = [len(row) * _BAR_INCHES + 0.45 for _, row in rows]
    cells = [cell.cell for _, row in rows for cell, _ in row]
    figure = plot_style.new_figure(
        sum(heights) + 1.2, "Time of a decode step by its parts", target_line(*cells)
    )
    panels = figure.subplots(
        len(rows), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0]
    for axes, (title, row) in zip(panels, rows, strict=True):
        _draw_steps(axes, row)
        title_panel(axes, title, 90)
    panels[-1].set_xlabel("ms per step (rest: what the loop itself costs)")
    widest = max(to_ms(sum(parts.values())) for _, row in rows for _, parts in row)
    panels[-1].set_xlim(0, widest * 1.14)
    legend = {bars.get_label(): bars for axes in panels for bars in axes.containers}
    plot_style.legend_below(figure, [legend[name] for name in PART_COLOURS if name in legend])
    return figure


def _draw_steps(axes: Axes, row: Sequence[tuple[CellSummary, dict[str, float]]]) -> None:
    for name, colour in PART_COLOURS.items():
        known = [(place, parts) for place, (_, parts) in enumerate(row) if name in parts]
        if known:
            before = [_sum_before(name, parts) for _, parts in known]
            axes.barh(
                [place for place, _ in known],
                [to_ms(parts[name]) for _, parts in known],
                left=[to_ms(value) for value in before],
                height=0.62,
                color=colour,
                label=name,
                zorder=2,
            )
    for place, (_, parts) in enumerate(row):
        total = sum(parts.values())
        axes.annotate(
            format_ms(total), (to_ms(total), place), xytext=(4, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(row)), [plot_style.wrapped(cell.label) for cell, _ in row])
    axes.set_ylim(len(row) - 0.45, -0.55)
    plot_style.grid_on(axes, "x")


def _sum_before(name: str, parts: dict[str, float]) -> float:
    names = list(parts)
    return sum(parts[other] for other in names[: names.index(name)])


def draw_timeline(summary: RunSummary) -> Figure | None:
    """Every request from sending to its end, a panel a group: pale until the first token, full while it decodes, red
    where it failed. The clocks of several processes are set one behind the other.
    """
    shown = [(title, group) for title, group in short_titles(summary.groups) if _timed(group)]
    if not shown:
        return None
    drawn = shown[:MAX_TIMELINES]
    title = "Requests on the clock (pale: until the first token; full: decoding)"
    if len(drawn) < len(shown):
        title += f": the first {len(drawn)} of {len(shown)}"
    cells = [cell.cell for _, group in drawn for cell in group.cells]
    figure = plot_style.new_figure(len(drawn) * 2.1 + 1.2, title, target_line(*cells))
    panels = figure.subplots(len(drawn), 1, squeeze=False)[:, 0]
    for axes, (name, group) in zip(panels, drawn, strict=True):
        num_shown, num_all = _draw_requests(axes, summary, group)
        cut = f" (the first {num_shown:,} of {num_all:,} requests)" if num_shown < num_all else ""
        title_panel(axes, f"{name}{cut}", 90)
        axes.set_ylabel("request")
    panels[-1].set_xlabel("seconds since the first request was sent")
    plot_style.legend_below(figure, _timeline_legend(summary, [group for _, group in drawn]))
    return figure


def timeline_of(group: Group) -> list[tuple[CellSummary, RequestRecord, float, float, float]]:
    """(cell, record, sent, first, last) of every request with stamps, in seconds since the first was sent, in that
    order. Each further process (of this run or another) begins where the one before ended. Without a first token,
    `first` is the end.
    """
    clocks: dict[tuple[int, int], list[tuple[CellSummary, RequestRecord, int, int, int]]] = {}
    for cell, record, sent, last in _timed(group):
        first = last if record.first_ns is None else record.first_ns
        clocks.setdefault((cell.run, record.segment), []).append((cell, record, sent, first, last))
    lines: list[tuple[CellSummary, RequestRecord, float, float, float]] = []
    begin = 0.0
    for clock in sorted(clocks):
        members = sorted(clocks[clock], key=lambda line: line[2])
        origin = members[0][2]
        for cell, record, *stamps in members:
            sent_s, first_s, last_s = (begin + (stamp - origin) / NS_PER_S for stamp in stamps)
            lines.append((cell, record, sent_s, first_s, last_s))
        begin += (max(line[4] for line in members) - origin) / NS_PER_S
    return lines


def _timed(group: Group) -> list[tuple[CellSummary, RequestRecord, int, int]]:
    return [
        (cell, record, record.sent_ns, record.last_ns)
        for cell in group.cells
        for record in cell.records
        if record.sent_ns is not None and record.last_ns is not None
    ]


def _draw_requests(axes: Axes, summary: RunSummary, group: Group) -> tuple[int, int]:
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    colours = plot_style.arm_colours(summary)
    lines = timeline_of(group)
    drawn = lines[:MAX_REQUESTS]
    segments, strokes = [], []
    for place, (cell, record, sent, first, last) in enumerate(drawn):
        colour = colours[cell.label] if record.completed else _FAILED_COLOUR
        segments += [[(sent, place), (first, place)], [(first, place), (last, place)]]
        strokes += [to_rgba(colour, 0.35), to_rgba(colour, 1.0)]
    width = min(3.0, max(0.4, 90 / len(drawn)))
    axes.add_collection(LineCollection(segments, colors=strokes, linewidths=width, zorder=2))
    end = max(line[4] for line in drawn)
    axes.set_xlim(0, end * 1.01 or 1)
    axes.set_ylim(len(drawn) - 0.4, -0.6)
    axes.locator_params(axis="y", integer=True, nbins=5)
    plot_style.grid_on(axes, "x")
    return len(drawn), len(lines)


def _timeline_legend(summary: RunSummary, groups: Sequence[Group]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    colours = plot_style.arm_colours(summary)
    labels = dict.fromkeys(cell.label for group in groups for cell in group.cells)
    handles = [
        Line2D([], [], color=colours[label], linewidth=3, label=plot_style.wrapped(label)) for label in labels
    ]
    if any(not record.completed for group in groups for _, record, _, _ in _timed(group)):
        handles.append(Line2D([], [], color=_FAILED_COLOUR, linewidth=3, label="not completed"))
    return handles
