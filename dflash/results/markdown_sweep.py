"""The sections of a report on sweeps: block sizes beside each other, and repeats. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.results.formats import UNKNOWN, format_number, format_rate, format_times, format_with_bounds
from dflash.results.markdown_text import Explanation, bullets, escape, table
from dflash.results.summary import CellSummary, Group
from dflash.results.tables import FASTEST_MARK
from dflash.results.titles import short_titles, what_differs

_REPEATED = {"speedup": "speedup", "decode_tok_s": "decode tok/s", "acceptance_length": "acceptance length"}
_SWEEP_WORDS = Explanation(
    f"`speedup / acceptance length`, pooled; decode tok/s where nothing is paired. {FASTEST_MARK}: the fastest."
)
_REPEAT_WORDS = Explanation(
    "Each value is one repeat with all prompts. Between-run interval: 95 % of their mean by Student's t. The interval "
    "over prompts, as in the other tables, does not cover what changes from one repeat to the next."
)


def block_sizes(groups: Sequence[Group]) -> list[str]:
    """Data sets and loads as rows, block sizes as columns; nothing where no method was run at two block sizes."""
    swept = [
        (title, cells)
        for title, group in short_titles(groups)
        for cells in _sweeps(group).values()
        if len(cells) > 1
    ]
    if not swept:
        return []
    sizes = sorted({size for _, cells in swept for size in cells})
    rows, unclear = [], []
    for title, cells in swept:
        best, within = _fastest(list(cells.values()))
        method = _method(next(iter(cells.values())))
        shown = [_words(cells[size], cells[size] is best) if size in cells else "" for size in sizes]
        rows.append([escape(title), escape(method), *shown])
        if best is None:
            unclear.append(
                f"{escape(title)}, {escape(method)}: too few prompts for an interval, so none is marked."
            )
        elif within:
            others = ", ".join(f"B={cell.cell.arm.block_size}" for cell in within)
            unclear.append(
                f"{escape(title)}, {escape(method)}: B={best.cell.arm.block_size} cannot be told apart "
                f"from {others}, whose interval reaches into its own."
            )
    header = [what_differs(groups), "method", *(f"B={size}" for size in sizes)]
    parts: list[str] = [table(header, rows, num_left=2), _SWEEP_WORDS]
    return [*parts, bullets(unclear)] if unclear else parts


def _method(cell: CellSummary) -> str:
    name = cell.cell.arm.name
    return f"{name} ({cell.run_name})" if cell.run_name else name


def _sweeps(group: Group) -> dict[tuple[str, str], dict[int, CellSummary]]:
    """The arms of one method (and run, where that tells them apart) by block size."""
    found: dict[tuple[str, str], dict[int, CellSummary]] = {}
    for cell in group.cells:
        if cell.cell.arm.block_size is not None:
            found.setdefault((cell.cell.arm.name, cell.run_name), {})[cell.cell.arm.block_size] = cell
    return found


def _fastest(cells: Sequence[CellSummary]) -> tuple[CellSummary | None, list[CellSummary]]:
    """The highest speedup (decode speed where nothing is paired), and those whose interval reaches it; None without
    intervals.
    """
    name = "speedup" if any(cell.interval("speedup") for cell in cells) else "decode_tok_s"
    known = [(value, cell) for cell in cells if (value := cell.interval(name)) is not None]
    if not known or any(value.low is None for value, _ in known):
        return None, []
    best, cell = max(known, key=lambda item: item[0].value)
    low = best.low or 0.0
    return cell, [other for value, other in known if other is not cell and (value.high or 0.0) >= low]


def _words(cell: CellSummary, is_fastest: bool) -> str:
    speedup = cell.number("speedup")
    first = format_rate(cell.number("decode_tok_s")) if speedup is None else format_times(speedup)
    words = f"{first} / {format_number(cell.number('acceptance_length'))}"
    return f"{FASTEST_MARK} **{words}**" if is_fastest else words


def repeats(group: Group) -> list[str]:
    """Speedup, decode speed and acceptance length from repeat to repeat."""
    rows = [
        [
            escape(cell.label),
            title,
            format_with_bounds(spread.interval),
            format_with_bounds(cell.interval(name)),
            ", ".join(format_number(value) for value in spread.values) or UNKNOWN,
        ]
        for cell in group.cells
        for name, title in _REPEATED.items()
        if (spread := cell.between_repeats.get(name)) is not None
    ]
    if not rows:
        return ["No figure is known of three repeats or more."]
    header = ["arm", "figure", "mean [between-run interval]", "pooled [interval over prompts]", "each repeat"]
    return [table(header, rows, num_left=2), _REPEAT_WORDS]
