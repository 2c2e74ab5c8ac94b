"""Rows of CSV files. The separator is told by the header line: programs of other languages write semicolons."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from typing import BinaryIO

from dflash.datasets.file_faults import CORRECT, CUT_SHORT, FORMATS, not_utf8
from dflash.errors import UsageError

_FIELD_CHARS = 2**31 - 1
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}  # the first that the header has


def csv_rows(stream: BinaryIO, label: str) -> Iterator[dict[str, str]]:
    """The rows below a header, every value as text; read as they are asked for.

    Fields stand between commas, or between the semicolons or tabs that a header without commas has.

    Raises:
        UsageError: a line is damaged or has another number of fields than the header; it is named.
    """
    # newline="": line ends inside quoted fields are kept as they are
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    try:
        first = text.readline()
    except UnicodeDecodeError as error:
        raise not_utf8(label, error) from error
    separator = _separator_of(first)
    reader = csv.reader(itertools.chain([first], text), delimiter=separator, strict=True)
    limit = csv.field_size_limit(_FIELD_CHARS)
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            raise UsageError(f"{label} names a column twice ({', '.join(header)})", "rename one of them")
        for values in reader:
            if values and len(values) != len(header):
                raise UsageError(
                    f"line {reader.line_num} of {label} has {len(values)} fields, the header {len(header)}",
                    CUT_SHORT
                    if len(values) < len(header) and not text.read(1)
                    else f"fields stand between {_SEPARATORS[separator]}: quote a text that holds one",
                )
            if values:
                yield dict(zip(header, values, strict=True))
    except csv.Error as error:
        mend = CORRECT if text.read(1) else CUT_SHORT
        raise UsageError(
            f"line {reader.line_num} of {label} is no CSV ({error})", mend if reader.line_num > 1 else FORMATS
        ) from error
    except UnicodeDecodeError as error:
        raise not_utf8(f"{label} after line {reader.line_num}", error) from error
    finally:
        csv.field_size_limit(limit)


def _separator_of(header: str) -> str:
    outside_quotes = "".join(header.split('"')[::2])
    return next((separator for separator in _SEPARATORS if separator in outside_quotes), ",")
