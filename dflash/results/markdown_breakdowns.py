"""The sections of a report that show a group in parts: by category, length of the prompt, and turn. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dflash.results.breakdowns import (
    PROMPT_LENGTH_BUCKETS,
    Breakdowns,
    PartSummary,
    prompt_length_bucket,
)
from dflash.results.columns import table_of
from dflash.results.formats import (
    format_cache_mark,
    format_ms,
    format_number,
    format_percent,
    format_rate,
    format_speedup,
    format_with_bounds,
)
from dflash.results.markdown_acceptance import drafting_cells
from dflash.results.markdown_text import bullets, escape, table
from dflash.results.summary import CellSummary, Group

PartsOf = Callable[[Breakdowns], "tuple[PartSummary, ...]"]


def categories(group: Group) -> list[str]:
    """The main numbers by category of prompt."""
    rows = _rows(group, lambda parts: parts.categories, str)
    return [_table("category", rows)] if rows else ["The prompts have no categories."]


def prompt_lengths(group: Group) -> list[str]:
    """The main numbers by length of the prompt, and how many requests are in no bucket."""
    rows = _rows(group, lambda parts: parts.prompt_lengths, PROMPT_LENGTH_BUCKETS.index)
    known = {
        prompt_length_bucket(num_tokens)
        for cell in _shown_cells(group)
        for num_tokens in {*table_of(cell.records).integers("num_prompt_tokens").numbers().tolist()}
    }
    if not known:
        return ["No prompt length is known."]
    parts = (
        [_table("prompt tokens", rows)]
        if rows
        else [f"The prompts are all in one bucket: {min(known)} tokens."]
    )
    unknown = [
        f"**{escape(cell.label)}**: completed requests in no bucket, as their prompt length is not known: "
        f"{cell.breakdowns.num_unknown_lengths}."
        for cell in _shown_cells(group)
        if cell.breakdowns.num_unknown_lengths
    ]
    return [*parts, bullets(unknown)] if unknown else parts


def turns(group: Group) -> list[str]:
    """The main numbers by turn; turn 0 is the first."""
    rows = _rows(group, lambda parts: parts.turns, int)
    return [_table("turn", rows)] if rows else ["Every prompt has one turn."]


def _shown_cells(group: Group) -> list[CellSummary]:
    """The arms that draft; the baseline where it is alone."""
    return drafting_cells(group) or list(group.cells)


def _rows(group: Group, parts_of: PartsOf, order: Callable[[str], Any]) -> list[list[str]]:
    """Part by part, a row for each arm."""
    found = [(cell, part) for cell in _shown_cells(group) for part in parts_of(cell.breakdowns)]
    return [_row(cell, part) for cell, part in sorted(found, key=lambda item: order(item[1].name))]


def _row(cell: CellSummary, part: PartSummary) -> list[str]:
    return [
        escape(part.name),
        escape(cell.label),
        str(part.num_completed),
        format_speedup(part.interval("speedup")),
        format_rate(part.number("decode_tok_s")),
        format_with_bounds(part.interval("acceptance_length")),
        f"{format_ms(part.number('ttft_s'))} {format_cache_mark(cell.cache_mark, None)}".strip(),
        format_percent(part.number("agreement")),
        format_number(part.number("output_tokens_mean"), 1),
    ]


def _table(name: str, rows: list[list[str]]) -> str:
    header = [
        name,
        "arm",
        "requests",
        "speedup",
        "decode tok/s",
        "acceptance length",
        "TTFT ms",
        "agreement",
        "output tokens",
    ]
    return table(header, rows, num_left=2)
