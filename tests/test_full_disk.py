"""A disk that is full in the middle of a run: what is kept is said, and the run goes on from there."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from made_up_prompts import use_made_up_prompts

import dflash.results.atomic_file
import dflash.results.store
from dflash.benchmark import main
from dflash.errors import CannotWriteError
from dflash.results.store import RunWriter, load_run


class Disk:
    """Takes so many bytes, and part of the line that is too much."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
        self.left = num_bytes
        append_line, write = RunWriter.append_line, dflash.results.atomic_file._write

        def limited_append(writer: RunWriter, name: str, line: bytes) -> None:
            fits = line[: self.left]
            self.left -= len(fits)
            append_line(writer, name, fits)
            if fits != line:
                raise dflash.results.store._cannot_write(writer.folder / name, self.error)

        def limited_write(path: Path, data: bytes) -> None:
            if self.left <= 0:
                raise self.error
            write(path, data)

        monkeypatch.setattr(RunWriter, "append_line", limited_append)
        monkeypatch.setattr(dflash.results.atomic_file, "_write", limited_write)

    @property
    def error(self) -> OSError:
        return OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("num_bytes", [900, 3000, 5000])
def test_what_is_kept_is_said_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any], num_bytes: int
) -> None:
    use_made_up_prompts(monkeypatch)
    words = ["--backend", "simulated", "--output-dir", str(tmp_path), "--run", "r", "--warmup", "0"]
    with monkeypatch.context() as full:
        Disk(full, num_bytes)
        assert main(words) == 2
    said = capsys.readouterr().err
    kept = load_run(tmp_path / "r")
    assert (num_bytes == 5000) <= len(kept.records) < 8
    assert f"{len(kept.records)} requests are kept in" in said
    assert "this goes on from there" in said
    assert "No space left on device" in said
    assert "free space" in said
    assert "no report: " in said
    assert not (tmp_path / "r" / "report.md").exists()
    assert main([*words, "--quiet"]) == 0
    assert len(load_run(tmp_path / "r").records) == 8


class _Parts:
    """A file that takes few bytes at a time, and a limited number of them."""

    def __init__(self, limit: int) -> None:
        self.taken = b""
        self._limit = limit

    def write(self, data: bytes) -> int:
        if len(self.taken) >= self._limit:
            raise OSError(errno.EFBIG, "File too large")
        part = data[: min(4, self._limit - len(self.taken))]
        self.taken += part
        return len(part)

    def close(self) -> None:
        pass


def test_a_line_that_is_taken_in_parts_is_whole_or_the_systems_reason_is_said(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "r")
    whole, cut = _Parts(100), _Parts(6)
    writer._files |= {"whole.jsonl": whole, "cut.jsonl": cut}  # type: ignore[dict-item]
    writer.append_line("whole.jsonl", b'{"a": 1}\n')
    assert whole.taken == b'{"a": 1}\n'
    with pytest.raises(CannotWriteError, match=r"cut.jsonl \(File too large\)"):
        writer.append_line("cut.jsonl", b'{"a": 1}\n')
    writer.close()
