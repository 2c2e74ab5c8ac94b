"""Numbers -> words and rows: the one place where units are converted and figures rounded. Pure.

An unknown prints as `n/a`, never as 0 or 1. Latencies print in ms, memory in MiB.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING

from dflash.results.records import Cell
from dflash.results.stats import Interval
from dflash.results.store import Run
from dflash.results.summary import CellSummary, Group, RunSummary
from dflash.results.verify import Finding

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

UNKNOWN = "n/a"
FASTEST_MARK = "►"
TERMINAL_WIDTH = 100
TERMINAL_HEADER = (
    "arm",
    "speedup\n[95 %]",
    "end to\nend",
    "decode\ntok/s",
    "TTFT\nms",
    "step\nms",
    "accept.\nlength",
    "agree-\nment",
    "output\nratio",
    "done",
)

# What a narrow terminal leaves out first: places in TERMINAL_HEADER, all of it stands in report.md.
_DISPENSABLE = (8, 2, 9, 4, 5)

_MS_PER_S = 1_000
_BYTES_PER_MIB = 1024 * 1024


def to_ms(seconds: float) -> float:
    return seconds * _MS_PER_S


def to_mib(num_bytes: float) -> float:
    return num_bytes / _BYTES_PER_MIB


def format_number(value: float | None, digits: int = 2) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def format_count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def format_ms(seconds: float | None) -> str:
    """Seconds as ms with three significant digits or so, without the unit."""
    if seconds is None:
        return UNKNOWN
    value = to_ms(seconds)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def format_rate(value: float | None) -> str:
    """Tokens a second, without the unit."""
    return UNKNOWN if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def format_times(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}x"


def format_percent(value: float | None) -> str:
    """A share; only exactly 1 prints as 100 %, and only exactly 0 as 0 %."""
    if value is None:
        return UNKNOWN
    if 0 < value < 1:
        return f"{min(max(value * 100, 0.1), 99.9):.1f} %"
    return f"{value * 100:.0f} %"


def format_mib(num_bytes: float | None) -> str:
    return UNKNOWN if num_bytes is None else f"{to_mib(num_bytes):,.1f}"


def format_bounds(interval: Interval | None, digits: int = 2) -> str:
    """`[low, high]`, or nothing where there is no interval."""
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"[{interval.low:,.{digits}f}, {interval.high:,.{digits}f}]"


def format_speedup(interval: Interval | None) -> str:
    """`1.08x [1.02, 1.15]`."""
    return (
        UNKNOWN if interval is None else f"{format_times(interval.value)} {format_bounds(interval)}".strip()
    )


def format_with_bounds(interval: Interval | None, digits: int = 2) -> str:
    """`1.42 [1.35, 1.49]`."""
    if interval is None:
        return UNKNOWN
    return f"{format_number(interval.value, digits)} {format_bounds(interval, digits)}".strip()


def format_agreement(interval: Interval | None) -> str:
    """`100 %`, or `87.5 % [75.0, 100.0]`."""
    if interval is None:
        return UNKNOWN
    bounds = interval
    if interval.low is not None and interval.high is not None:
        bounds = Interval(interval.value, interval.low * 100, interval.high * 100)
    return (
        f"{format_percent(interval.value)} {'' if interval.value == 1 else format_bounds(bounds, 1)}".strip()
    )


def format_counts(counts: Mapping[str, int]) -> str:
    """`length 3, stop 13`."""
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or UNKNOWN


def plain_text(text: str) -> str:
    """Text from a model, a server or a file as one line without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)


def group_title(cell: Cell) -> str:
    """What the cells of a group have in common."""
    load = f"concurrency {cell.workload.concurrency}"
    if cell.workload.request_rate is not None:
        load += f", {cell.workload.request_rate:g} requests/s"
    return f"{cell.workload.dataset} · {cell.backend} · {load}"


def target_line(cell: Cell) -> str:
    """The target and how it was sampled."""
    workload = cell.workload
    return (
        f"target {workload.target} · {workload.dtype} · temperature {workload.temperature:g} · "
        f"at most {workload.max_new_tokens} new tokens"
    )


def terminal_row(cell: CellSummary, fastest: bool) -> tuple[str, ...]:
    """One arm as a row under `TERMINAL_HEADER`."""
    speedup = "1 (reference)" if cell.cell.arm.is_baseline else format_speedup(cell.interval("speedup"))
    return (
        f"{FASTEST_MARK if fastest else ' '} {cell.cell.arm.label}",
        speedup,
        "-" if cell.cell.arm.is_baseline else format_times(cell.number("e2el_speedup")),
        format_rate(cell.number("decode_tok_s")),
        format_ms(cell.number("ttft_s")),
        format_ms(cell.number("decode_step_s")),
        format_number(cell.number("acceptance_length")),
        "-" if cell.cell.arm.is_baseline else format_percent(cell.number("agreement")),
        "-" if cell.cell.arm.is_baseline else format_number(cell.number("output_length_ratio")),
        f"{cell.num_completed}/{len(cell.records)}",
    )


def headline(group: Group) -> str:
    """The answer in words: which arm is fastest, how much, and how sure that is."""
    drafting = [cell for cell in group.cells if not cell.cell.arm.is_baseline]
    paired = [(cell, value) for cell in drafting if (value := cell.interval("speedup")) is not None]
    if not paired:
        return _no_headline(group, drafting)
    best, interval = max(paired, key=lambda item: item[1].value)
    label = best.cell.arm.label
    compared = f"{best.number('num_pairs'):.0f} paired requests"
    if interval.value < 1:
        only = "" if len(paired) == 1 else "no arm beats it; the best, "
        end = "Here drafting makes this model slower."
        if interval.high is not None and interval.high >= 1:
            end = "The interval includes 1, so the difference may be chance; nothing is gained here."
        return (
            f"Plain decoding is fastest: {only}{label}{', ' if only else ' '}decodes at "
            f"{format_speedup(interval)} of its speed over {compared}. {end}"
        )
    words = (
        f"{label} is fastest: {format_speedup(interval)} the decode speed of the baseline over {compared}."
    )
    if interval.low is None:
        words += " There are too few prompts for an interval."
    elif interval.low < 1:
        words += " The interval includes 1, so this is not clearly faster than plain decoding."
    close = [
        cell.cell.arm.label
        for cell, other in paired
        if cell is not best and interval.low is not None and other.value >= interval.low
    ]
    if close:
        words += f" {', '.join(close)} {'is' if len(close) == 1 else 'are'} within that interval."
    return words


def _no_headline(group: Group, drafting: Sequence[CellSummary]) -> str:
    if not drafting:
        return (
            "Only plain decoding was run, so there is no speedup. "
            "Add an arm that drafts: --arms baseline,dflash."
        )
    reasons = dict.fromkeys(cell.why_no_speedup or "" for cell in drafting)
    words = f"There is no speedup to report: {'; '.join(reason for reason in reasons if reason)}."
    fastest = group.fastest
    if fastest is not None:
        speed = format_rate(fastest.number("decode_tok_s"))
        words += f" {fastest.cell.arm.label} decodes fastest, at {speed} tok/s."
    return words


def finding_lines(group: Group) -> list[tuple[Finding, str]]:
    """Findings of a group, worst first, each with the arms that it concerns; equal sentences are joined."""
    order = {"error": 0, "warning": 1, "info": 2}
    joined: dict[Finding, list[str]] = {}
    for cell in group.cells:
        for finding in cell.findings:
            joined.setdefault(finding, []).append(cell.cell.arm.label)
    lines = []
    for finding, labels in sorted(joined.items(), key=lambda item: order[item[0].severity]):
        everywhere = len(labels) == len(group.cells) > 1
        lines.append((finding, "all arms" if everywhere else ", ".join(labels)))
    return lines


def print_summary(run: Run, summary: RunSummary, stream: IO[str] | None = None) -> None:
    """The terminal table, one per workload and backend, and below each what the numbers mean in words.

    100 columns where the output is not a terminal. Colour only on a terminal. A narrow one gets fewer
    columns, and is told which are left out.
    """
    from rich.console import Console
    from rich.text import Text

    stream = sys.stdout if stream is None else stream
    is_terminal = stream.isatty()
    console = Console(
        file=stream, width=None if is_terminal else TERMINAL_WIDTH, highlight=False, soft_wrap=False
    )
    if not summary.groups:
        console.print("This run has no cells: nothing was planned.")
    for group in summary.groups:
        console.print(Text(plain_text(group_title(group.first)), style="bold"))
        console.print(Text(plain_text(target_line(group.first)), style="dim"))
        _print_group(console, group)
    for average in summary.averages:
        words = (
            f"{average.arm_label} over {average.num_datasets} data sets: speedup "
            f"{format_times(average.speedup)} "
            f"(geometric mean), acceptance length {format_number(average.acceptance_length)} (arithmetic "
            f"mean)."
        )
        console.print(Text(plain_text(words)))
    console.print(Text(f"Run folder: {plain_text(str(run.folder))}", style="dim"), soft_wrap=True)


def _arms_table(console: Console, group: Group) -> RenderableType:
    """All columns, or as many as the width takes without squeezing one, and a line that names the others."""
    from rich.console import Group as Lines
    from rich.measure import Measurement
    from rich.text import Text

    unbounded = console.options.update(max_width=sys.maxsize)
    for num_left_out in range(len(_DISPENSABLE) + 1):
        left_out = _DISPENSABLE[:num_left_out]
        table = _table_without(group, left_out)
        if Measurement.get(console, unbounded, table).maximum <= console.width:
            break
    if not left_out:
        return table
    titles = ", ".join(TERMINAL_HEADER[place].replace("\n", " ") for place in sorted(left_out))
    return Lines(table, Text(f"Left out for want of width (report.md has all): {titles}.", style="dim"))


def _table_without(group: Group, left_out: Sequence[int]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    places = [place for place in range(len(TERMINAL_HEADER)) if place not in left_out]
    for place in places:
        if place == 0:
            table.add_column(TERMINAL_HEADER[place], overflow="fold")
        else:
            table.add_column(TERMINAL_HEADER[place], justify="right", no_wrap=True)
    for cell in group.cells:
        fastest = cell.cell.cell_id == group.fastest_cell_id
        row = terminal_row(cell, fastest)
        texts = [Text(plain_text(row[place])) for place in places]
        table.add_row(*texts, style="bold green" if fastest else "")
    return table


def _print_group(console: Console, group: Group) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(_arms_table(console, group))
    console.print(Text(plain_text(headline(group)), style="bold"))
    for cell in group.cells:
        if cell.why_no_speed is not None:
            console.print(Text(plain_text(f"  {cell.cell.arm.label}: no decode speed, {cell.why_no_speed}.")))
    styles = {"error": "red", "warning": "yellow", "info": "dim"}
    lines = Table.grid(padding=(0, 1))
    for finding, labels in finding_lines(group):
        severity = Text(finding.severity, style=styles[finding.severity])
        lines.add_row("", severity, Text(plain_text(f"{labels}: {finding.sentence}")))
    console.print(lines)
    console.print()
