"""A summary -> a CSV table: one row a cell, every metric under its code name. Pure.

What was not measured is empty. An interval has three columns: its value under the metric's name, and its bounds under
`NAME_low` and `NAME_high`. A list (a histogram, a curve) is JSON within its cell.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

_LEFT_OUT = (
    "categories",
    "prompt_lengths",
    "turns",
)  # parts of a cell: rows of their own in the JSON document
_BOUNDS = ("low", "high")


def render_csv(cells: Sequence[Mapping[str, Any]]) -> str:
    """The table of the cells of a JSON document (see `json_document`)."""
    names = [name for name in dict.fromkeys(name for cell in cells for name in cell) if name not in _LEFT_OUT]
    bounded = {name for name in names if any(_is_interval(cell.get(name)) for cell in cells)}
    columns = [
        column
        for name in names
        for column in ((name, *(f"{name}_{bound}" for bound in _BOUNDS)) if name in bounded else (name,))
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(_flat(cell) for cell in cells)
    return text.getvalue()


def _is_interval(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"value", *_BOUNDS}


def _flat(cell: Mapping[str, Any]) -> dict[str, object]:
    row: dict[str, object] = {}
    for name, value in cell.items():
        if name in _LEFT_OUT:
            continue
        if _is_interval(value):
            row[name] = _plain(value["value"])
            row |= {f"{name}_{bound}": _plain(value[bound]) for bound in _BOUNDS}
        else:
            row[name] = _plain(value)
    return row


def _plain(value: Any) -> object:
    """A spreadsheet must not take text for a formula."""
    if value is None:
        return ""
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    return value
