"""The beginning of a report: how the run ended, what drafting gives, and what must be known of the run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.results.formats import UNKNOWN, format_number, format_times
from dflash.results.markdown_text import bullets, escape, table
from dflash.results.records import RunInfo
from dflash.results.run_notes import Note, how_they_ended, notes_of_runs
from dflash.results.summary import Average, RunSummary
from dflash.results.titles import run_title, short_titles, target_line
from dflash.results.verdicts import clear_words, headline, overall


def answer(infos: Sequence[RunInfo], summary: RunSummary) -> list[str]:
    """A cut run says so first; then what decides the meaning of all numbers, the verdicts, and the other notes."""
    notes = notes_of_runs(infos, summary)
    parts = [f"**{escape(ended)}**" for ended in how_they_ended(infos, summary)]
    parts += _notes([note for note in notes if note.comes_first])
    if infos and not summary.groups:
        planned = "this run" if len(infos) < 2 else "these runs"
        parts.append(f"**No cell was planned in {planned}: there is nothing to report.**")
    parts += [f"**{escape(words)}**" for words in overall(summary)]
    parts += _verdicts(summary)
    if summary.groups:
        cells = [group.first for group in summary.groups]
        parts.append(escape(f"{run_title(cells)}; {target_line(*cells)}."))
    parts += [_measured(info, len(infos) > 1) for info in infos]
    return parts + _notes([note for note in notes if not note.comes_first])


def _measured(info: RunInfo, named: bool) -> str:
    words = f"easured {escape(info.created_at)} with dflash {escape(info.dflash_version or UNKNOWN)}."
    return f"Run {escape(info.name)}: m{words}" if named else f"M{words}"


def _verdicts(summary: RunSummary) -> list[str]:
    if len(summary.groups) < 2:
        return [f"**{escape(headline(group))}**" for group in summary.groups]
    return [
        bullets(
            [
                f"{escape(title)}: **{escape(headline(group))}**"
                for title, group in short_titles(summary.groups)
            ]
        )
    ]


def _notes(notes: Sequence[Note]) -> list[str]:
    lines = [f"Note: {escape(note.words)}" for note in notes]
    return lines if len(lines) < 2 else [bullets(lines)]


def averages(summary: RunSummary) -> list[str]:
    """Averages over data sets; nothing where there is one data set."""
    if not summary.averages:
        return []
    has_settings = any(average.settings for average in summary.averages)
    rows = [
        [
            escape(average.arm_label),
            escape(average.backend),
            *([escape(average.settings)] if has_settings else []),
            _load_of(average),
            str(average.num_datasets),
            format_times(average.speedup),
            clear_words(average),
            format_number(average.acceptance_length),
        ]
        for average in summary.averages
    ]
    header = [
        "arm",
        "backend",
        *(["settings"] if has_settings else []),
        "concurrency",
        "data sets",
        "speedup (geometric mean)",
        "than plain decoding",
        "acceptance length (arithmetic mean)",
    ]
    return [table(header, rows, num_left=3 if has_settings else 2)]


def _load_of(average: Average) -> str:
    rate = average.request_rate
    return str(average.concurrency) if rate is None else f"{rate:g} requests/s"
