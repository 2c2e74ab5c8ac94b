"""Rows out of the files that data sets are published as: JSON lines, a JSON list, CSV, or Parquet; gzipped or not.

Files are read row by row, so that one of several gigabytes needs little more memory than its largest row.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from dflash.datasets.csv_rows import csv_rows
from dflash.datasets.file_faults import (
    CORRECT,
    CUT_SHORT,
    FORMATS,
    OTHER_FILE,
    SHAPE,
    not_utf8,
    read_faults,
)
from dflash.errors import MissingExtraError, UsageError

Row = Mapping[str, Any]
Columns = Sequence[str | tuple[str, ...]]  # a tuple: any one of these

_GZIP_MAGIC = b"\x1f\x8b"
_PARQUET_MAGIC = b"PAR1"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 18
_PARQUET_ROWS = 64  # at a time: rows of code contests take a megabyte each
_SPACE = re.compile(r"[ \t\r\n]*")


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, all at once; see `iter_rows`."""
    return list(iter_rows(path))


def iter_rows(path: Path) -> Iterator[Row]:
    """The rows of a file: JSON lines or a JSON list of objects, CSV with a header, or Parquet, gzipped or not.

    Gzip and Parquet are told by their first bytes, CSV by its suffix, a JSON list by its bracket. CSV is
    separated by commas, or by the semicolons or tabs that a header without commas has; its values are text as it
    stands. JSON is what Python makes of it (numbers of any size, NaN, the last of double keys).
    Parquet gives what JSON can hold (see `plain_row`).

    Raises:
        UsageError: the file cannot be read, is cut short or damaged, holds a line that is no row, or no row at
            all; the file is named, and the line where there are lines.
    """
    label = str(path)
    with read_faults(path), path.open("rb") as file:
        magic = file.read(len(_PARQUET_MAGIC))
        file.seek(0)
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if magic.startswith(_GZIP_MAGIC) else file
        suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
        if magic == _PARQUET_MAGIC or suffixes[-1:] == [".parquet"]:
            rows = _parquet_rows(path, label)
        elif suffixes[-1:] in ([".csv"], [".tsv"]):
            rows = csv_rows(stream, label)
        else:
            rows = _json_rows(stream, label)
        yield from _at_least_one(rows, label)


def parse_rows(data: bytes, label: str) -> list[Row]:
    """Rows of JSON lines, or of one JSON list.

    Lines end at "\\n" and nowhere else: `str.splitlines` would also cut at U+2028 or U+0085 inside a text.

    Raises:
        UsageError: a line is no JSON object, or there is no row at all; the line is named.
    """
    return list(_at_least_one(_json_rows(io.BytesIO(data), label), label))


def format_row(row: Row) -> bytes:
    """A row as one JSON line, texts unchanged."""
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair can only be written as its escape
        return json.dumps(row).encode() + b"\n"


def format_rows(rows: Iterable[Row]) -> bytes:
    """Rows as JSON lines, texts unchanged."""
    return b"".join(map(format_row, rows))


def check_columns(rows: Iterable[Row], expected: Columns, dataset: str, label: str) -> None:
    """Refuse rows that are not those of the data set.

    Raises:
        UsageError: a row lacks a column; the expected and the found ones are named.
    """
    for _ in checked_rows(rows, expected, dataset, label):
        pass


def checked_rows(rows: Iterable[Row], expected: Columns, dataset: str, label: str) -> Iterator[Row]:
    """The rows as they come, each checked as `check_columns` does."""
    alternatives = [(column,) if isinstance(column, str) else column for column in expected]
    for number, row in enumerate(rows, start=1):
        for columns in alternatives:
            if not any(column in row for column in columns):
                wanted = ", ".join(map(" or ".join, alternatives))
                raise UsageError(
                    f"{label} is not the data set {dataset}: row {number} lacks {' or '.join(columns)}",
                    f"expected the columns {wanted}; found {', '.join(map(str, row)) or 'none'}",
                )
        yield row


def plain_row(row: Row) -> Row:
    """The row as JSON can hold it: times as ISO 8601, decimals and ids as text, bytes as the UTF-8 that they are.

    A column that holds something else, such as an image, is left out: where it is needed, it is then missed.
    """
    plain: dict[str, Any] = {}
    for column, value in row.items():
        with contextlib.suppress(TypeError):
            plain[column] = _plain_value(value)
    return plain


def _plain_value(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode("utf-8")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ in ("Decimal", "UUID", "timedelta"):
        return str(value)
    raise TypeError(f"{type(value).__name__} is neither text nor number")


def _at_least_one(rows: Iterator[Row], label: str) -> Iterator[Row]:
    first = next(rows, None)
    if first is None:
        raise UsageError(f"{label} holds no rows", OTHER_FILE)
    yield first
    yield from rows


def _json_rows(stream: BinaryIO, label: str) -> Iterator[Row]:
    if _first_byte(stream) == b"[":
        yield from _ListReader(stream, label).rows()
        return
    has_rows = False
    for number, line in enumerate(stream, start=1):  # cut at b"\n" only
        text = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        if text.strip():
            try:
                row = _parse_line(text)
            except ValueError as error:
                mend = FORMATS if not has_rows else CORRECT if stream.read(1) else CUT_SHORT
                raise UsageError(f"line {number} of {label} {error}", mend) from error
            if not isinstance(row, dict):
                raise UsageError(f"line {number} of {label} is no JSON object", SHAPE)
            has_rows = True
            yield row


def _first_byte(stream: BinaryIO) -> bytes:
    """The first one that is no space; the stream stands at its beginning afterwards."""
    if stream.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
        stream.seek(0)
    while (byte := stream.read(1)) and byte.isspace():
        pass
    stream.seek(0)
    return byte


def _parse_line(line: bytes) -> Any:
    """Raises ValueError: it is none, to follow its place in a sentence."""
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text ({error.reason})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON ({error})") from error


class _ListReader:
    """The objects of one JSON list, decoded one by one from blocks of its text."""

    def __init__(self, stream: BinaryIO, label: str) -> None:
        self._stream, self._label = stream, label
        self._decode_bytes = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._decode_json = json.JSONDecoder().raw_decode
        self._text, self._position = "", 0
        self._num_rows = 0

    def rows(self) -> Iterator[Row]:
        self._next_mark()
        self._position += 1  # the bracket
        mark = self._next_mark()
        while mark != "]":
            row = self._decode_item()
            if not isinstance(row, dict):
                raise UsageError(f"{self._label} is a JSON list of something else than rows", SHAPE)
            self._num_rows += 1
            yield row
            mark = self._next_mark()
            if mark not in (",", "]"):
                raise self._fault("a comma or the end of the list is missing")
            self._position += mark == ","
        self._position += 1
        if self._next_mark():
            raise self._fault("something follows the list", CORRECT)

    def _next_mark(self) -> str:
        """The next character that is no space, not taken; "" at the end of the file."""
        while True:
            space = _SPACE.match(self._text, self._position)
            assert space is not None
            self._position = space.end()
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._read_more():
                return ""

    def _decode_item(self) -> Any:
        self._next_mark()
        while True:
            try:
                item, self._position = self._decode_json(self._text, self._position)
            except RecursionError as error:
                raise self._fault(str(error)) from error
            except ValueError as error:  # wrong, or not all of it is read yet
                if not self._read_more():
                    raise self._fault(str(error)) from error
            else:
                return item

    def _read_more(self) -> bool:
        """At least double what is left of the text, so that a long row is not tried at every block."""
        rest = self._text[self._position :]
        block = self._stream.read(max(_BLOCK_BYTES, len(rest)))
        try:
            self._text, self._position = rest + self._decode_bytes(block, not block), 0
        except UnicodeDecodeError as error:
            raise not_utf8(f"{self._label} after row {self._num_rows}", error) from error
        return bool(block)

    def _fault(self, reason: str, mend: str | None = None) -> UsageError:
        mend = mend or (CUT_SHORT if self._num_rows else FORMATS)
        return UsageError(f"{self._label} is no JSON (after row {self._num_rows}: {reason})", mend)


def _parquet_rows(path: Path, label: str) -> Iterator[Row]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError(f"{label} is a Parquet file", "pip install pyarrow to read it") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
                yield from map(plain_row, batch.to_pylist())
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise UsageError(f"{label} is a damaged Parquet file ({reason[0]})", "fetch it again") from error
