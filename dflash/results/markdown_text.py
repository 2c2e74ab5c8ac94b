"""Markdown that cannot be broken by the text inside it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dflash.results.formats import plain_text

# Characters that begin or end markup anywhere in a line; `|` would end a table cell, `<` and `&` begin HTML.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#$&])")
_AUTOLINK = re.compile(r"(?i)\b(https?|ftp|www)(?=[:.])")
_LINE_START = re.compile(r"^(\s*\d*)([-+=.)])(?=[\s=-]|$)")


def escape(text: str) -> str:
    """One line of text that shows as it is: no markup, no links, no HTML, no control characters."""
    escaped = _SPECIAL.sub(r"\\\1", plain_text(text)).replace("\\<", "&lt;").replace("\\>", "&gt;")
    escaped = escaped.replace("\\&", "&amp;")
    # An address would become a link by itself; with a backslash behind its scheme it does not.
    escaped = _AUTOLINK.sub(r"\1\\", escaped)
    return _LINE_START.sub(r"\1\\\2", escaped)


class Table(str):
    """A pipe table as it is written, with what it is made of, so that several can become one."""

    __slots__ = ("header", "num_left", "rows")
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_left: int


class Bullets(str):
    """A list as it is written, with its lines."""

    __slots__ = ("lines",)
    lines: tuple[str, ...]


class Explanation(str):
    """Words on how to read what stands above: they say nothing of one group of cells alone."""

    __slots__ = ()


def table(header: Sequence[str], rows: Sequence[Sequence[str]], num_left: int = 1) -> Table:
    """A pipe table;

    The first `num_left` columns are aligned left, the others right. Cells are already escaped.
    """
    rule = [":--" if place < num_left else "--:" for place in range(len(header))]
    made = Table("\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows]))
    made.header, made.rows, made.num_left = tuple(header), tuple(map(tuple, rows)), num_left
    return made


def code_block(text: str) -> str:
    """A fenced block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = "\n".join(plain_text(line) for line in text.splitlines())
    return f"{fence}\n{lines}\n{fence}"


def bullets(lines: Sequence[str]) -> Bullets:
    """A list; lines are already escaped."""
    made = Bullets("\n".join(f"- {line}" for line in lines))
    made.lines = tuple(lines)
    return made
