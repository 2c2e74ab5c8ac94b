"""Rows out of published files: every form is told apart, texts are unchanged, and faults are named with their place."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import json
import math
import re
from pathlib import Path

import pytest

from dflash.datasets.files import check_columns, format_rows, iter_rows, parse_rows, plain_row, read_rows
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
        (b'[{"a": 1} {"a": 2}]', r"file is no JSON \(after row 1: a comma"),
        (b'[{"a": 1}, ]', r"file is no JSON \(after row 1"),
        (b'[{"a": 1}] {"a": 2}', r"file is no JSON \(after row 1: something follows"),
        (b'[{"a": "\xff"}]', r"file after row 0 is not UTF-8"),
        (b"\xef\xbb\xbf \n", r"file holds no rows"),
    ],
)
def test_a_bad_line_is_named(data: bytes, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        parse_rows(data, "file")


FORMATS = r"rows are read from JSON Lines \(.*\), a JSON list of objects, CSV \(.csv, .tsv\) or Parquet"
CUT_SHORT = "the file may be cut short: fetch it again"
SHAPE = r'a row is an object, such as \{"prompt": "…"\} or \{"turns": \["…", "…"\]\}'


@pytest.mark.parametrize(
    ("data", "mend"),
    [
        (b"What is two and two?\nAnd three?\n", FORMATS),
        (b"<html>not found</html>", FORMATS),
        (b'{\n"a": 1\n}\n', FORMATS),
        (b'{"a": 1}\n{"a": 2', CUT_SHORT),
        (b'{"a": 1}\n{"a": 2\n{"a": 3}\n', "correct it there"),
        (b'{"a": 1}\n{"a": "\xff"}\n{"a": 3}\n', "correct it there"),
        (b"[What is", FORMATS),
        (b'[{"a": 1}, {"a"', CUT_SHORT),
        (b'[{"a": 1}] {"a": 2}', "correct it there"),
        (b'["one", "two"]', SHAPE),
        (b'[["one", "two"]]', SHAPE),
        (b'"one"\n', SHAPE),
    ],
)
def test_the_mend_is_that_of_the_fault(data: bytes, mend: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_rows(data, "file")
    assert re.match(mend, raised.value.mend)


def test_a_truncated_gzip_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(format_rows(ROWS))[:-12])
    with pytest.raises(UsageError, match="is a damaged gzip file"):
        read_rows(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_rows(tmp_path / "missing.jsonl")


def test_numbers_of_any_size_nan_and_double_keys(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n": 123456789012345678901234567890, "x": NaN, "a": 1, "a": 2}\n')
    (row,) = read_rows(path)
    assert row["n"] == 123456789012345678901234567890
    assert math.isnan(row["x"])
    assert row["a"] == 2
    (again,) = parse_rows(format_rows([row]), "file")
    assert again["n"] == row["n"]
    assert math.isnan(again["x"])


def test_half_a_surrogate_pair_is_kept() -> None:
    (row,) = parse_rows(b'{"a": "\\ud83d", "b": "\xc3\xa9"}', "file")
    assert parse_rows(format_rows([row]), "file") == [{"a": "\ud83d", "b": "é"}]


def test_types_may_differ_from_row_to_row(tmp_path: Path) -> None:
    """As in the column `reference` of a published set, where table builders give up."""
    rows = [
        {"id": 1, "r": ["text"]},
        {"id": 2, "r": [["list", "of lists"]]},
        {"id": 3},
        {"id": 4, "r": {"k": None}},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(format_rows(rows))
    assert read_rows(path) == rows


@pytest.mark.parametrize("as_list", [False, True])
def test_a_long_list_is_read_in_pieces(tmp_path: Path, as_list: bool) -> None:
    rows = [{"n": n, "text": "é\u2028\r\n" * (60_000 if n == 2 else 3_000)} for n in range(12)]
    path = tmp_path / "rows.json"
    data = json.dumps(rows, ensure_ascii=False).encode() if as_list else format_rows(rows)
    assert len(data) > 3 << 18, "several blocks, and a row longer than one"
    path.write_bytes(data)
    reading = iter_rows(path)
    assert next(reading) == rows[0]
    assert list(reading) == rows[1:]


class TestCsv:
    def read(self, tmp_path: Path, data: bytes, name: str = "rows.csv") -> list[object]:
        path = tmp_path / name
        path.write_bytes(data)
        return list(read_rows(path))

    def test_line_ends_inside_quotes_are_kept_and_all_is_text(self, tmp_path: Path) -> None:
        data = b'id,prompt\r\n007,"one\r\ntwo, ""three""\n\xe2\x80\xa8four"\r\n\r\n2,\r\n'
        assert self.read(tmp_path, data) == [
            {"id": "007", "prompt": 'one\r\ntwo, "three"\n\u2028four'},
            {"id": "2", "prompt": ""},
        ]

    def test_gzipped_and_with_a_byte_order_mark(self, tmp_path: Path) -> None:
        data = gzip.compress(b"\xef\xbb\xbfprompt\nhello\n")
        assert self.read(tmp_path, data, "rows.CSV.gz") == [{"prompt": "hello"}]

    def test_a_prompt_of_two_megabytes(self, tmp_path: Path) -> None:
        limit = csv.field_size_limit()
        text = "word " * 400_000
        assert self.read(tmp_path, f'prompt\n"{text}"\n'.encode()) == [{"prompt": text}]
        assert csv.field_size_limit() == limit, "a setting of the whole process"

    @pytest.mark.parametrize(
        ("data", "row"),
        [
            (b"question;lang\nWhy, and how?;en\n", {"question": "Why, and how?", "lang": "en"}),
            (b"question\tlang\r\nWhy; how?\ten\r\n", {"question": "Why; how?", "lang": "en"}),
            (b"question,note;s\nWhy?,a;b\n", {"question": "Why?", "note;s": "a;b"}),
            (b'"a,b";c\n1;2\n', {"a,b": "1", "c": "2"}),
            (b'question,"a;b"\n1,2\n', {"question": "1", "a;b": "2"}),
        ],
    )
    def test_the_header_tells_the_separator(self, tmp_path: Path, data: bytes, row: object) -> None:
        assert self.read(tmp_path, data) == [row]

    def test_tabs_by_their_suffix(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, b"prompt\tn\nHi\t1\n", "rows.tsv") == [{"prompt": "Hi", "n": "1"}]

    @pytest.mark.parametrize(
        ("data", "mend"),
        [
            (b"a,b\n1,2\n3", CUT_SHORT),
            (b'a,b\n1,"cut short\n', CUT_SHORT),
            (b"a,b\n1\n3,4\n", "fields stand between commas: quote a text that holds one"),
            (b"a;b\n1;2;3\n", "fields stand between semicolons: quote a text that holds one"),
            (b'"a,b\n', FORMATS),
        ],
    )
    def test_the_mend_is_that_of_the_fault(self, tmp_path: Path, data: bytes, mend: str) -> None:
        with pytest.raises(UsageError) as raised:
            self.read(tmp_path, data)
        assert re.match(mend, raised.value.mend)

    @pytest.mark.parametrize(
        ("data", "fault"),
        [
            (b"a,b\n1,2\n3\n", r"line 3 of .*rows.csv has 1 fields, the header 2"),
            (b"a,b\n1,2,3\n", r"line 2 of .* has 3 fields, the header 2"),
            (b'a,b\n1,"cut short\n', r"line 2 of .* is no CSV"),
            (b"a,a\n1,2\n", r"names a column twice \(a, a\)"),
            (b"a\n\xff\n", r"is not UTF-8"),
            (b"a,b\n", r"holds no rows"),
            (b"", r"holds no rows"),
        ],
    )
    def test_faults(self, tmp_path: Path, data: bytes, fault: str) -> None:
        with pytest.raises(UsageError, match=fault):
            self.read(tmp_path, data)


class TestParquet:
    ROWS = (
        {
            "turns": ["one", "two\r\n\u2028"],
            "n": 1,
            "at": datetime.date(2025, 2, 3),
            "price": decimal.Decimal("1.50"),
        },
        {"turns": [], "n": None, "at": None, "price": None},
    )

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        path = tmp_path / "rows.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(list(self.ROWS)), path)
        return path

    def test_lists_stay_lists_and_the_rest_is_what_json_can_hold(self, file: Path) -> None:
        rows = read_rows(file)
        assert rows == [
            {"turns": ["one", "two\r\n\u2028"], "n": 1, "at": "2025-02-03", "price": "1.50"},
            {"turns": [], "n": None, "at": None, "price": None},
        ]
        assert parse_rows(format_rows(rows), "file") == rows

    def test_told_by_its_first_bytes(self, file: Path) -> None:
        other = file.rename(file.with_name("rows"))
        assert len(read_rows(other)) == 2

    def test_damaged(self, file: Path) -> None:
        file.write_bytes(file.read_bytes()[:-20])
        with pytest.raises(
            UsageError, match=r"rows.parquet is a damaged Parquet file \(.*: fetch it again"
        ) as raised:
            read_rows(file)
        assert "\n" not in str(raised.value)
        file.write_bytes(b"<html>not found</html>")
        with pytest.raises(UsageError, match=r"rows.parquet is a damaged Parquet file"):
            read_rows(file)

    def test_what_is_no_text_is_left_out(self) -> None:
        row = {
            "text": b"caf\xc3\xa9",
            "image": b"\x89PNG\xff",
            "object": object(),
            "deep": {"at": [datetime.time(1, 2)]},
        }
        assert plain_row(row) == {"text": "café", "deep": {"at": ["01:02:00"]}}


def test_wrong_columns_name_both() -> None:
    check_columns([{"a": 1, "b": 2, "c": 3}], ("a", "b"), "set", "file")
    with pytest.raises(UsageError) as raised:
        check_columns([{"a": 1, "b": 2}, {"a": 1, "c": 2}], ("a", "b"), "set", "file")
    assert str(raised.value) == (
        "file is not the data set set: row 2 lacks b: expected the columns a, b; found a, c"
    )


def test_one_of_several_columns_is_enough() -> None:
    check_columns([{"turns": []}, {"prompt": ""}], (("turns", "prompt"),), "set", "file")
    with pytest.raises(UsageError) as raised:
        check_columns([{"id": 1}], ("id", ("turns", "prompt")), "set", "file")
    assert str(raised.value) == (
        "file is not the data set set: row 1 lacks turns or prompt: "
        "expected the columns id, turns or prompt; found id"
    )
