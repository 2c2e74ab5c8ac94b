"""Rows out of published files: lines end at a line feed only, and what is wrong is named with its place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dflash.dataset_files import check_columns, format_rows, parse_rows, read_rows
from dflash.errors import UsageError

ROWS = [{"text": "one\u2028two\x85three"}, {"text": "four\r\nfive", "n": None}]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n"])
def test_lines_end_at_a_line_feed_only(ending: str) -> None:
    data = ending.join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode()
    assert parse_rows(data, "file") == ROWS
    assert parse_rows(data + ending.encode(), "file") == ROWS


def test_what_is_written_is_read_back_unchanged() -> None:
    assert parse_rows(format_rows(ROWS), "file") == ROWS


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.jsonl.gz", "rows"])
@pytest.mark.parametrize("as_list", [False, True])
def test_the_form_is_told_from_the_content(tmp_path: Path, name: str, as_list: bool) -> None:
    data = json.dumps(ROWS, indent=1).encode() if as_list else format_rows(ROWS)
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else b"\xef\xbb\xbf" + data)
    assert read_rows(path) == ROWS


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b'{"a": 1}\n{"a": 2\n', r"line 2 of file is no JSON"),
        (b'{"a": 1}\n\n[1]\n', r"line 3 of file is no JSON object"),
        (b'{"a": "\xff"}\n', r"line 1 of file is not UTF-8"),
        (b'[{"a": 1}, {"a": 2}', r"file is no JSON"),
        (b"[1, 2]", r"file is a JSON list of something else than rows"),
        (b"", r"file holds no rows"),
        (b"[]", r"file holds no rows"),
        (b"[" * 100_000, r"file is no JSON"),
    ],
)
def test_a_bad_line_is_named(data: bytes, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        parse_rows(data, "file")


def test_a_truncated_gzip_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(format_rows(ROWS))[:-12])
    with pytest.raises(UsageError, match="is a damaged gzip file"):
        read_rows(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_rows(tmp_path / "missing.jsonl")


def test_wrong_columns_name_both() -> None:
    check_columns([{"a": 1, "b": 2, "c": 3}], ("a", "b"), "set", "file")
    with pytest.raises(UsageError) as raised:
        check_columns([{"a": 1, "b": 2}, {"a": 1, "c": 2}], ("a", "b"), "set", "file")
    assert str(raised.value) == (
        "file is not the data set set: row 2 lacks b: expected the columns a, b; found a, c"
    )
