"""A built folder is whole or not there, whatever interrupts the build, and is built by one process."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dflash.built_folder import MANIFEST_NAME, build_folder, find_fault, read_manifest
from dflash.errors import UnavailableError


class FakeBuilder:
    def __init__(self, text: str = "one", error: BaseException | None = None) -> None:
        self.text = text
        self.error = error
        self.num_builds = 0

    def __call__(self, partial: Path) -> Mapping[str, Any]:
        self.num_builds += 1
        (partial / "sub").mkdir()
        (partial / "sub" / "data.txt").write_text(self.text, encoding="utf-8")
        if self.error is not None:
            raise self.error
        return {"text": self.text}


def build(folder: Path, builder: FakeBuilder, **options: Any) -> list[str]:
    lines: list[str] = []
    build_folder(folder, builder, announce=lines.append, **options)
    return lines


def entries(folder: Path) -> list[str]:
    """What a person sees there, and what was left half-written; the lock file stays and is empty."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_built_once_and_listed(tmp_path: Path) -> None:
    folder, builder = tmp_path / "thing", FakeBuilder()
    build(folder, builder)
    build(folder, builder)
    assert builder.num_builds == 1
    assert entries(tmp_path) == ["thing"]
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest["text"] == "one"
    assert manifest["files"]["sub/data.txt"]["num_bytes"] == 3
    assert find_fault(folder, hashes=True) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no"), SystemExit(3)])
def test_an_interrupted_build_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        build(tmp_path / "thing", FakeBuilder(error=error))
    assert entries(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_failed_rebuild_keeps_the_old_one(tmp_path: Path, error: BaseException) -> None:
    folder = tmp_path / "thing"
    build(folder, FakeBuilder("old"))
    with pytest.raises((KeyboardInterrupt, UnavailableError)):
        build(folder, FakeBuilder("new", error), replace=True)
    assert entries(tmp_path) == ["thing"]
    assert find_fault(folder, hashes=True) is None
    assert (folder / "sub" / "data.txt").read_text(encoding="utf-8") == "old"


def test_replaced_when_another_one_is_wanted(tmp_path: Path) -> None:
    folder = tmp_path / "thing"
    build(folder, FakeBuilder("old"))
    build(folder, FakeBuilder("new"), is_current=lambda manifest: manifest["text"] == "new")
    assert (folder / "sub" / "data.txt").read_text(encoding="utf-8") == "new"
    assert entries(tmp_path) == ["thing"]


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="No space left on device: free some space") as raised:
        build(tmp_path / "thing", FakeBuilder(error=OSError(errno.ENOSPC, "No space left on device")))
    assert str(tmp_path / "thing") in str(raised.value)
    assert entries(tmp_path) == []


def test_a_parent_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UnavailableError, match=r"choose a cache folder that can be written$"):
        build(tmp_path / "file" / "thing", FakeBuilder())
    with pytest.raises(UnavailableError, match=r"that can be written \(--folder\)$"):
        build(tmp_path / "file" / "thing", FakeBuilder(), chosen_by="--folder")


def test_what_fails_while_reading_is_not_blamed_on_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        build(tmp_path / "thing", FakeBuilder(error=FileNotFoundError(errno.ENOENT, "no such file")))


def test_sizes_are_checked_at_every_use(tmp_path: Path) -> None:
    folder, builder = tmp_path / "thing", FakeBuilder()
    build(folder, builder)
    (folder / "sub" / "data.txt").write_text("o", encoding="utf-8")
    assert find_fault(folder) == "sub/data.txt has 1 bytes and not 3"
    lines = build(folder, builder)
    assert builder.num_builds == 2
    assert len(lines) == 1
    assert "sub/data.txt has 1 bytes and not 3" in lines[0]
    assert find_fault(folder, hashes=True) is None


def test_content_is_checked_when_asked(tmp_path: Path) -> None:
    folder, builder = tmp_path / "thing", FakeBuilder()
    build(folder, builder)
    (folder / "sub" / "data.txt").write_text("two", encoding="utf-8")
    build(folder, builder)
    assert builder.num_builds == 1
    assert find_fault(folder) is None
    assert "sha256" in (find_fault(folder, hashes=True) or "")
    build(folder, builder, hashes=True)
    assert builder.num_builds == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 0, "files": {}}', '{"format": 1, "files": {"a": 3}}']
)
def test_an_unreadable_manifest_is_a_fault(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "thing"
    build(folder, FakeBuilder())
    (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")
    assert find_fault(folder) == "no readable manifest.json"
    build(folder, FakeBuilder())
    assert find_fault(folder) is None


def test_a_newer_format_is_named_and_not_replaced_unsaid(tmp_path: Path) -> None:
    folder = tmp_path / "thing"
    build(folder, FakeBuilder())
    (folder / MANIFEST_NAME).write_text('{"format": 2, "parts": []}', encoding="utf-8")
    fault = "manifest.json has format 2 of a newer version, this one writes 1"
    assert find_fault(folder) == fault
    assert build(folder, FakeBuilder()) == [f"{folder} cannot be used ({fault}) and is built anew"]


SLOW_BUILD = """
import sys, time
from pathlib import Path
from dflash.built_folder import build_folder

folder, log = Path(sys.argv[1]), Path(sys.argv[2])

def build(partial):
    (partial / "data.txt").write_text("half")
    with log.open("a") as stream:
        stream.write("building\\n")
    while not (log.parent / "go").exists():
        time.sleep(0.01)
    return {}

build_folder(folder, build, announce=lambda line: print(line, flush=True))
print("done", flush=True)
"""


def start_slow_build(folder: Path, log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(SLOW_BUILD), str(folder), str(log)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until_building(log: Path) -> None:
    deadline = time.monotonic() + 60
    while not log.exists():
        assert time.monotonic() < deadline, "the build never began"
        time.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_build_leaves_no_folder_and_the_next_succeeds(tmp_path: Path, how: signal.Signals) -> None:
    cache, log = tmp_path / "cache", tmp_path / "log"
    process = start_slow_build(cache / "thing", log)
    wait_until_building(log)
    os.kill(process.pid, how)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert not (cache / "thing").exists()
    if how == signal.SIGINT:
        assert entries(cache) == []
    build(cache / "thing", FakeBuilder())
    assert entries(cache) == ["thing"], "what the killed build left is removed"


def test_two_processes_build_once(tmp_path: Path) -> None:
    folder, log = tmp_path / "cache" / "thing", tmp_path / "log"
    first = start_slow_build(folder, log)
    wait_until_building(log)
    second = start_slow_build(folder, log)
    assert second.stdout is not None
    assert second.stdout.readline() == "another process is building thing: waiting for it\n"
    (tmp_path / "go").touch()
    assert first.communicate(timeout=60)[0].endswith("done\n")
    assert second.communicate(timeout=60)[0].endswith("done\n")
    assert log.read_text() == "building\n"
    assert find_fault(folder, hashes=True) is None


def test_an_old_folder_that_was_on_its_way_out_comes_back(tmp_path: Path) -> None:
    """A kill between the two renames of a replacement leaves the old folder under its temporary name."""
    folder = tmp_path / "thing"
    build(folder, FakeBuilder("old"))
    folder.rename(tmp_path / ".thing.1.old.tmp")
    with pytest.raises(KeyboardInterrupt):
        build(folder, FakeBuilder("new", KeyboardInterrupt()))
    assert (folder / "sub" / "data.txt").read_text(encoding="utf-8") == "old"
    assert json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))["text"] == "old"
