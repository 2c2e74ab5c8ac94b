"""A run's numbers in the terminal: one table per workload and backend, and what they mean in words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

# The names with `as` are for the verb `generate`, which takes them from here.
from dflash.results.formats import format_cache_mark, format_percent, format_speedup, format_times, plain_text
from dflash.results.formats import format_count as format_count
from dflash.results.formats import format_ms as format_ms
from dflash.results.formats import format_number as format_number
from dflash.results.formats import format_rate as format_rate
from dflash.results.formats import format_with_bounds as format_with_bounds
from dflash.results.goodput import Slo
from dflash.results.run_notes import how_they_ended, notes_of_runs
from dflash.results.server_words import counters_line, distrust_words, load_line
from dflash.results.store import Run
from dflash.results.summary import CellSummary, Group, RunSummary
from dflash.results.titles import group_title, target_line
from dflash.results.verdicts import average_line, headline, overall
from dflash.results.verify import Finding

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

FASTEST_MARK = "►"
TERMINAL_WIDTH = 100
# Column -> its title, in the order of the table.
COLUMNS = {
    "arm": "arm",
    "speedup": "speedup\n[95 %]",
    "end_to_end": "end to\nend",
    "decode": "decode\ntok/s",
    "output": "output\ntok/s",
    "ttft": "TTFT\nms",
    "step": "step\nms",
    "acceptance": "accept.\nlength",
    "counters": "by\ncounters",
    "agreement": "agree-\nment",
    "score": "task\nscore",
    "output_ratio": "output\nratio",
    "done": "requests\ndone",
}
_OF_SERVERS = ("output", "counters")  # in process they would say nothing
# What a narrow terminal leaves out first; all of it stands in report.md. Failures are never left out.
_DISPENSABLE = ("output_ratio", "end_to_end", "done", "ttft", "step", "score")
_DISPENSABLE_ON_SERVERS = (
    "output_ratio",
    "step",
    "end_to_end",
    "counters",
    "done",
    "score",
    "ttft",
    "output",
)


def done_words(cell: CellSummary) -> str:
    """`123/128`, and below it how many failed."""
    done = f"{cell.num_completed}/{len(cell.records)}"
    return f"{done}\n{cell.num_failed} failed" if cell.num_failed else done


def terminal_row(cell: CellSummary, fastest: bool) -> dict[str, str]:
    """One arm as a row under `COLUMNS`."""
    is_baseline = cell.cell.arm.is_baseline
    mark = format_cache_mark(cell.cache_mark, cell.number("cached_prompt_share"))
    return {
        "arm": f"{FASTEST_MARK if fastest else ' '} {cell.label}",
        "speedup": "1 (reference)" if is_baseline else format_speedup(cell.interval("speedup")),
        "end_to_end": "-" if is_baseline else format_times(cell.number("e2el_speedup")),
        "decode": format_rate(cell.number("decode_tok_s")),
        "output": format_rate(cell.number("output_tok_s")),
        "ttft": "\n".join([format_ms(cell.number("ttft_s")), *mark.split(" ", 1)]).strip(),
        "step": format_ms(cell.number("decode_step_s")),
        "acceptance": format_number(cell.number("acceptance_length")),
        "counters": "-" if is_baseline else _by_counters(cell),
        "agreement": "-" if is_baseline else format_percent(cell.number("agreement")),
        "score": format_percent(cell.number("task_score")),
        "output_ratio": "-" if is_baseline else format_number(cell.number("output_length_ratio")),
        "done": done_words(cell),
    }


def _by_counters(cell: CellSummary) -> str:
    value = format_number(cell.number("acceptance_length_untrimmed_counters"))
    return "\n".join([value, *distrust_words(cell).split(" ", 1)]).strip()


def repeats_line(cell: CellSummary) -> str | None:
    """The between-run interval of the main figure: of the speedup, or of decode speed where nothing is paired."""
    for name, words, form in (
        ("speedup", "speedup", format_speedup),
        ("decode_tok_s", "decode tok/s", format_with_bounds),
    ):
        spread = cell.between_repeats.get(name)
        if spread is not None:
            return f"between {len(spread.values)} repeats, {words} {form(spread.interval)}"
    return None


def finding_lines(group: Group) -> list[tuple[Finding, str]]:
    """Findings of a group, worst first, each with the arms that it concerns; equal sentences are joined."""
    order = {"error": 0, "warning": 1, "info": 2}
    joined: dict[Finding, list[str]] = {}
    for cell in group.cells:
        for finding in cell.findings:
            joined.setdefault(finding, []).append(cell.label)
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
    print_summary_of_runs([run], summary, stream)


def print_summary_of_runs(runs: Sequence[Run], summary: RunSummary, stream: IO[str] | None = None) -> None:
    """The same of several runs together."""
    from rich.console import Console
    from rich.text import Text

    stream = sys.stdout if stream is None else stream
    infos = [run.info for run in runs]
    is_terminal = stream.isatty()
    console = Console(
        file=stream, width=None if is_terminal else TERMINAL_WIDTH, highlight=False, soft_wrap=False
    )
    for ended in how_they_ended(infos, summary):
        console.print(Text(plain_text(ended), style="bold red"))
    if not summary.groups:
        runs_have = "This run has" if len(runs) == 1 else "These runs have"
        console.print(f"{runs_have} no cells: nothing was planned.")
    _print_lines(console, [("note", "magenta", note.words) for note in notes_of_runs(infos, summary)])
    for group in summary.groups:
        console.print(Text(plain_text(group_title(group)), style="bold"))
        console.print(Text(plain_text(target_line(group.first)), style="dim"))
        _print_group(console, group, summary.slo)
    for words in overall(summary):
        console.print(Text(plain_text(words), style="bold"))
    for average in summary.averages:
        console.print(Text(plain_text(average_line(average))))
    for run in runs:
        console.print(Text(f"Run folder: {plain_text(str(run.folder))}", style="dim"), soft_wrap=True)


def _print_lines(console: Console, lines: Sequence[tuple[str, str, str]]) -> None:
    """A kind, its style, and a text that is wrapped beside it; nothing where there is no line."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    for kind, style, text in lines:
        grid.add_row("", Text(kind, style=style), Text(plain_text(text)))
    if lines:
        console.print(grid)


def _arms_table(console: Console, group: Group) -> RenderableType:
    """All columns, or as many as the width takes without squeezing one, and a line that names the others."""
    from rich.console import Group as Lines
    from rich.measure import Measurement
    from rich.text import Text

    unbounded = console.options.update(max_width=sys.maxsize)
    has_score = any(cell.number("task_score") is not None for cell in group.cells)
    absent = (() if has_score else ("score",)) + (() if group.on_server else _OF_SERVERS)
    dispensable = [
        name
        for name in (_DISPENSABLE_ON_SERVERS if group.on_server else _DISPENSABLE)
        if name not in absent and not (name == "done" and group.num_failed)
    ]
    for num_left_out in range(len(dispensable) + 1):
        left_out = dispensable[:num_left_out]
        table = _table_without(group, (*left_out, *absent))
        if Measurement.get(console, unbounded, table).maximum <= console.width:
            break
    if not left_out:
        return table
    titles = ", ".join(_one_line(title) for name, title in COLUMNS.items() if name in left_out)
    return Lines(table, Text(f"Left out for want of width (report.md has all): {titles}.", style="dim"))


def _one_line(title: str) -> str:
    """A column's title outside the table: a word that its width has parted is whole again."""
    return title.replace("-\n", "").replace("\n", " ")


def _table_without(group: Group, left_out: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    names = [name for name in COLUMNS if name not in left_out]
    for name in names:
        if name == "arm":
            table.add_column(COLUMNS[name], overflow="fold")
        else:
            table.add_column(COLUMNS[name], justify="right", no_wrap=True)
    for cell in group.cells:
        fastest = group.is_fastest(cell)
        row = terminal_row(cell, fastest)
        texts = [Text("\n".join(map(plain_text, row[name].split("\n")))) for name in names]
        table.add_row(*texts, style="bold green" if fastest else "")
    return table


def _print_group(console: Console, group: Group, slo: Slo | None) -> None:
    from rich.text import Text

    console.print(_arms_table(console, group))
    console.print(Text(plain_text(headline(group)), style="bold"))
    for cell in group.cells:
        if cell.why_no_speed is not None:
            console.print(Text(plain_text(f"  {cell.label}: no decode speed, {cell.why_no_speed}.")))
        for line in (load_line(cell, slo), counters_line(cell), repeats_line(cell)):
            if line is not None:
                console.print(Text(plain_text(f"  {cell.label}: {line}.")))
    styles = {"error": "red", "warning": "yellow", "info": "dim"}
    _print_lines(
        console,
        [
            (finding.severity, styles[finding.severity], f"{labels}: {finding.sentence}")
            for finding, labels in finding_lines(group)
        ],
    )
    console.print()
