"""Rows out of the files that data sets are published as: JSON lines or one JSON list, plain or gzipped."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash.errors import UsageError

Row = Mapping[str, Any]
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_rows(path: Path) -> list[Row]:
    """The rows of a file: JSON lines or one JSON list of objects, plain or gzipped, told apart by content.

    Raises:
        UsageError: the file cannot be read, is cut short, or holds a line that is no row; the line is named.
    """
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path} is a damaged gzip file ({error})", "fetch it again") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error})", "name another file") from error
    return parse_rows(data, str(path))


def parse_rows(data: bytes, label: str) -> list[Row]:
    """Rows of JSON lines, or of one JSON list.

    Lines end at "\\n" and nowhere else: `str.splitlines` would also cut at U+2028 or U+0085 inside a text.

    Raises:
        UsageError: a line is no JSON object, or there is no row at all; the line is named.
    """
    data = data.removeprefix(_BYTE_ORDER_MARK)
    if data.lstrip()[:1] == b"[":
        rows: list[Row] = _parse_json(data, label)
        if not all(isinstance(row, dict) for row in rows):
            raise UsageError(f"{label} is a JSON list of something else than rows", "name another file")
    else:
        rows = [
            _parse_line(line, f"line {number} of {label}")
            for number, line in enumerate(data.split(b"\n"), start=1)
            if line.strip()
        ]
    if not rows:
        raise UsageError(f"{label} holds no rows", "name another file")
    return rows


def format_rows(rows: Sequence[Row]) -> bytes:
    """Rows as JSON lines, texts unchanged."""
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def check_columns(rows: Sequence[Row], expected: Sequence[str], dataset: str, label: str) -> None:
    """Refuse rows that are not those of the data set.

    Raises:
        UsageError: a row lacks a column; the expected and the found ones are named.
    """
    for number, row in enumerate(rows, start=1):
        missing = [column for column in expected if column not in row]
        if missing:
            raise UsageError(
                f"{label} is not the data set {dataset}: row {number} lacks {', '.join(missing)}",
                f"expected the columns {', '.join(expected)}; found {', '.join(map(str, row)) or 'none'}",
            )


def _parse_line(line: bytes, label: str) -> Row:
    row = _parse_json(line, label)
    if not isinstance(row, dict):
        raise UsageError(f"{label} is no JSON object", "name a file with one JSON object a line")
    return row


def _parse_json(data: bytes, label: str) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{label} is not UTF-8 text ({error.reason})", "name another file") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{label} is no JSON ({error})", "the file may be cut short: fetch it again"
        ) from error
