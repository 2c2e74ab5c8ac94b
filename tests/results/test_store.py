"""Run folders: what is written is read back, and damage is told, not hidden."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from dflash.errors import UsageError
from dflash.results.line_format import decode_line, encode_line
from dflash.results.records import (
    FORMAT_VERSION,
    Arm,
    Cell,
    ChunkRecord,
    DifferenceRecord,
    OutputRecord,
    RequestRecord,
    RunInfo,
    Segment,
    Workload,
)
from dflash.results.store import RunWriter, load_run

WORKLOAD = Workload(
    target="t",
    target_revision=None,
    dtype="float32",
    dataset="quickstart",
    prompts_digest="0" * 12,
    num_prompts=2,
    max_new_tokens=8,
    temperature=0.0,
    top_p=None,
    top_k=None,
    seed=0,
    reasoning="off",
)
CELLS = (
    Cell("aaaaaaaaaaaa", "w", "a1", "simulated", WORKLOAD, Arm("baseline"), "completed"),
    Cell("bbbbbbbbbbbb", "w", "a2", "simulated", WORKLOAD, Arm("dflash", 4, "equality"), notes=("one",)),
)
INFO = RunInfo(
    name="r",
    created_at="2026-01-01T00:00:00+00:00",
    command="python -m dflash.benchmark",
    environment={"machine": {"cpu": "x"}},
    config={"datasets": ["quickstart"]},
    cells=CELLS,
    segments=(Segment("2026-01-01T00:00:00+00:00", 17, ("--quiet",), 5),),
    notes=("a note",),
)


def full_record(rng: random.Random, block_size: int = 16) -> RequestRecord:
    """Every field set, with numbers as large as they come."""
    stamp = 10**15 + rng.randrange(10**14)
    histogram = tuple(rng.randrange(100) for _ in range(block_size))
    return RequestRecord(
        cell_id="bbbbbbbbbbbb",
        prompt_id="quickstart/0127",
        category="math",
        order=1,
        sent_ns=stamp,
        first_ns=stamp + 10**9,
        last_ns=stamp + 10**11,
        num_prompt_tokens=1234,
        num_output_tokens=2048,
        num_first_chunk_tokens=1,
        finish_reason="length",
        num_decode_steps=500,
        num_verify_steps=500,
        num_draft_tokens=7500,
        num_accepted_tokens=1548,
        acceptance_histogram=histogram,
        acceptance_histogram_untrimmed=None,
        draft_ns=10**10,
        verify_ns=10**10,
        peak_memory_bytes=10**10,
        prompt_digest="0123456789abcdef",
        output_digest="0123456789abcdef",
    )


def new_run(folder: Path, info: RunInfo = INFO) -> RunWriter:
    writer = RunWriter(folder)
    writer.write_info(info)
    return writer


def test_everything_is_read_back_as_written(tmp_path: Path) -> None:
    rng = random.Random(0)
    record = full_record(rng)
    baseline = replace(record, cell_id="aaaaaaaaaaaa", num_draft_tokens=None, acceptance_histogram=None)
    failed = RequestRecord(
        "bbbbbbbbbbbb", "quickstart/1", error_kind="timeout", error_message='a "b"\n\u2028'
    )
    output = OutputRecord("bbbbbbbbbbbb", "quickstart/0127", output_ids=(1, 2), text="x\ny \U0001f600")
    chunk = ChunkRecord("bbbbbbbbbbbb", "quickstart/0127", gaps_ns=(5,), num_tokens=(1, 3), num_accepted=(2,))
    difference = DifferenceRecord(
        "bbbbbbbbbbbb", "quickstart/0127", position=3, arm_token_id=9, logit_gap=0.25
    )
    writer = new_run(tmp_path / "r")
    for item in (baseline, record, failed, output, chunk, difference):
        writer.append(item)
    run = load_run(tmp_path / "r")  # while it is still being written
    writer.close()
    assert run.info == INFO
    assert run.records == (baseline, record, failed)
    assert tuple(run.outputs()) == (output,)
    assert tuple(run.chunks()) == (chunk,)
    assert run.differences == (difference,)


def test_a_line_stays_short() -> None:
    line = encode_line(full_record(random.Random(1)))
    assert len(line) <= 620
    assert line.count(b"\n") == 1
    assert b"null" not in line


@pytest.mark.parametrize("kind", [RequestRecord, OutputRecord, ChunkRecord, DifferenceRecord])
def test_a_line_of_defaults_is_read_back(kind: type) -> None:
    record = kind("c", "p")
    assert decode_line(encode_line(record), kind) == record


def test_every_field_of_a_record_is_written() -> None:
    for item in fields(RequestRecord):
        value = {"category": "x", "finish_reason": "stop"}.get(item.name)
        if value is None:
            kind = str(item.type)
            value = (1, 2) if "tuple" in kind else "s" if "str" in kind else 7
        record = replace(RequestRecord("c", "p"), **{item.name: value})
        assert decode_line(encode_line(record), RequestRecord) == record


def test_unknown_fields_are_passed_over() -> None:
    line = b'{"cell_id":"c","prompt_id":"p","finish_reason":"stop","of_a_later_release":[1]}'
    assert decode_line(line, RequestRecord) == RequestRecord("c", "p", finish_reason="stop")


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"{",
        b'{"prompt_id":"p"}',
        b'{"cell_id":"c","prompt_id":"p","sent_ns":"soon"}',
        b'{"cell_id":"c","prompt_id":"p","sent_ns":1.5}',
        b'{"cell_id":"c","prompt_id":"p","turn":true}',
        b'{"cell_id":"c","prompt_id":"p","turn":null}',
        b'{"cell_id":"c","prompt_id":"p","finish_reason":"bored"}',
        b'{"cell_id":"c","prompt_id":"p","acceptance_histogram":[1,"2"]}',
    ],
)
def test_a_line_of_another_shape_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - several kinds, all of them ValueError
        decode_line(line, RequestRecord)


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_torn_last_line_is_passed_over_and_said_then_cut_on_resume(tmp_path: Path, kept: int) -> None:
    record = full_record(random.Random(2))
    writer = new_run(tmp_path / "r")
    writer.append(record)
    writer.close()
    line = encode_line(replace(record, prompt_id="quickstart/0128"))
    with (tmp_path / "r/records.jsonl").open("ab") as file:
        file.write(line[: kept if kept > 0 else -2])
    run = load_run(tmp_path / "r")
    assert run.records == (record,)
    assert any("line 2 of records.jsonl was cut short" in note for note in run.info.notes)

    writer = RunWriter(tmp_path / "r")
    notes = writer.repair()
    third = replace(record, prompt_id="quickstart/0129")
    writer.append(third)
    writer.close()
    assert len(notes) == 1
    assert "line 2 of records.jsonl" in notes[0]
    assert load_run(tmp_path / "r").records == (record, third)


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    first, second, third = (RequestRecord("aaaaaaaaaaaa", name) for name in "123")
    writer = new_run(tmp_path / "r")
    writer.append(first)
    writer.close()
    with (tmp_path / "r/records.jsonl").open("ab") as file:
        file.write(encode_line(second).rstrip())
    assert load_run(tmp_path / "r").records == (first, second)
    writer = RunWriter(tmp_path / "r")
    assert writer.repair() == ()
    writer.append(third)
    writer.close()
    assert load_run(tmp_path / "r").records == (first, second, third)


def test_damage_in_the_middle_is_one_clear_line(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "r")
    for name in "123":
        writer.append(RequestRecord("aaaaaaaaaaaa", name))
    writer.close()
    path = tmp_path / "r/records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:9] + b"\n" + lines[2])
    with pytest.raises(UsageError, match=r"line 2 of records\.jsonl in run 'r' cannot be read") as caught:
        load_run(tmp_path / "r")
    assert "\n" not in str(caught.value)


def test_a_unit_that_was_run_again_is_read_once(tmp_path: Path) -> None:
    """Segment 0 ended in the middle of prompt 2, whose baseline was done; segment 1 ran prompt 2 anew."""
    writer = new_run(tmp_path / "r")
    rows = [
        RequestRecord("aaaaaaaaaaaa", "1", finish_reason="stop"),
        RequestRecord("bbbbbbbbbbbb", "1", finish_reason="stop"),
        RequestRecord("aaaaaaaaaaaa", "2", finish_reason="stop", num_output_tokens=1),
        RequestRecord("bbbbbbbbbbbb", "2", finish_reason="stop", segment=1),
        RequestRecord("aaaaaaaaaaaa", "2", finish_reason="stop", segment=1, num_output_tokens=2),
    ]
    for row in rows:
        writer.append(OutputRecord(row.cell_id, row.prompt_id, segment=row.segment, text=str(row.segment)))
        writer.append(row)
    writer.append(DifferenceRecord("bbbbbbbbbbbb", "2", position=1))
    writer.append(DifferenceRecord("bbbbbbbbbbbb", "2", segment=1, position=5))
    writer.close()
    run = load_run(tmp_path / "r")
    assert run.records == (rows[0], rows[1], rows[3], rows[4])
    assert [output.text for output in run.outputs()] == ["0", "0", "1", "1"]
    assert [difference.position for difference in run.differences] == [5]


def test_an_arm_left_over_from_a_superseded_attempt_is_not_read(tmp_path: Path) -> None:
    """Both arms of segment 0 go as soon as segment 1 touches the unit: pairs are of one process only."""
    writer = new_run(tmp_path / "r")
    writer.append(RequestRecord("aaaaaaaaaaaa", "1", finish_reason="stop"))
    writer.append(RequestRecord("bbbbbbbbbbbb", "1", finish_reason="error", error_kind="timeout"))
    writer.append(RequestRecord("aaaaaaaaaaaa", "1", finish_reason="cancelled", segment=1))
    writer.close()
    assert [(r.cell_id[0], r.segment) for r in load_run(tmp_path / "r").records] == [("a", 1)]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "r")
    code = "import sys; from pathlib import Path; from dflash.results.store import RunWriter; "
    code += "RunWriter(Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "r")]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is being written by another process" in second.stderr
    writer.close()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run at"):
        load_run(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="is not a run folder"):
        load_run(tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is not a run folder"):
        load_run(tmp_path / "file")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="exists and is not a run folder"):
        RunWriter(tmp_path / "other")
    assert [item.name for item in (tmp_path / "other").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format_version": 1}', '{"format_version": "1"}'])
def test_a_damaged_info_is_one_clear_line(tmp_path: Path, content: str) -> None:
    new_run(tmp_path / "r").close()
    (tmp_path / "r/run.json").write_text(content)
    with pytest.raises(UsageError, match="cannot be read"):
        load_run(tmp_path / "r")


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    new_run(tmp_path / "r", replace(INFO, format_version=FORMAT_VERSION + 1)).close()
    with pytest.raises(UsageError, match="use a newer dflash"):
        load_run(tmp_path / "r")


def test_info_is_replaced_whole(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "r")
    writer.write_info(replace(INFO, notes=()))
    writer.close()
    assert load_run(tmp_path / "r").info.notes == ()
    assert {item.name for item in (tmp_path / "r").iterdir()} == {"run.json", "records.jsonl"}


def test_to_pandas_has_a_row_per_request(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    writer = new_run(tmp_path / "r")
    assert load_run(tmp_path / "r").to_pandas().empty
    writer.append(full_record(random.Random(3)))
    writer.close()
    frame = load_run(tmp_path / "r").to_pandas()
    assert frame.loc[0, "arm"] == "dflash"
    assert frame.loc[0, "block_size"] == 4
    assert frame.loc[0, "num_output_tokens"] == 2048


def test_half_a_character_does_not_end_a_run(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "r", replace(INFO, command="x \udcff"))
    writer.append(OutputRecord("aaaaaaaaaaaa", "1", text="a \ud800 b"))
    writer.append(RequestRecord("aaaaaaaaaaaa", "1"))
    writer.close()
    run = load_run(tmp_path / "r")
    assert run.info.command == "x ?"
    assert [output.text for output in run.outputs()] == ["a ? b"]


def test_outputs_and_chunks_are_read_one_by_one(tmp_path: Path) -> None:
    """A run of many requests must not be held in memory: a fault in line 2 shows when line 2 is asked for."""
    writer = new_run(tmp_path / "r")
    for number in "12":
        writer.append(OutputRecord("aaaaaaaaaaaa", number, text=number))
        writer.append(ChunkRecord("aaaaaaaaaaaa", number, num_tokens=(1,)))
        writer.append(RequestRecord("aaaaaaaaaaaa", number, finish_reason="stop"))
    writer.close()
    run = load_run(tmp_path / "r")
    for name, read in (("outputs.jsonl", run.outputs), ("chunks.jsonl", run.chunks)):
        path = tmp_path / "r" / name
        first, _ = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(first + b"damaged\n" + first)
        lines = read()
        assert next(lines).prompt_id == "1"
        with pytest.raises(UsageError, match="line 2 of"):
            next(lines)
