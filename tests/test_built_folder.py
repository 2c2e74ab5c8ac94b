"""A built folder is whole or not there, whatever interrupts the build, and is built by one process."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from bound_user import folder_of_bound_user

from dflash.built_folder import (
    MANIFEST_NAME,
    FolderError,
    build_folder,
    file_sha256,
    find_fault,
    is_there,
    read_manifest,
)
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
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 0, "files": {}}',
        '{"format": 1, "files": {"a": 3}}',
        "[" * 200_000,
        '{"format": 1, "files": ' + '{"a": ' * 100_000,
        *(
            f'{{"format": 1, "files": {{"{name}": {{"num_bytes": {size}, "sha256": {digest}}}}}}}'
            for name, size, digest in [
                ("a", "-1", f'"{"0" * 64}"'),
                ("a", "NaN", f'"{"0" * 64}"'),
                ("a", "true", f'"{"0" * 64}"'),
                ("a", "1", "1"),
                ("a", "1", '"0"'),
                ("../thing/a", "1", f'"{"0" * 64}"'),
                ("/etc/passwd", "1", f'"{"0" * 64}"'),
                ("", "1", f'"{"0" * 64}"'),
            ]
        ),
    ],
    ids=lambda text: text[:40],
)
def test_an_unreadable_manifest_is_a_fault(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "thing"
    build(folder, FakeBuilder())
    (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")
    assert find_fault(folder) == "no readable manifest.json"
    build(folder, FakeBuilder())
    assert find_fault(folder) is None


def test_a_fact_that_changed_is_a_fault(tmp_path: Path) -> None:
    folder = tmp_path / "thing"
    build(folder, FakeBuilder("true"))
    path = folder / MANIFEST_NAME
    path.write_text(path.read_text(encoding="utf-8").replace('"true"', '"trie"'), encoding="utf-8")
    assert find_fault(folder) == "manifest.json is not as it was written"
    build(folder, FakeBuilder())
    assert find_fault(folder) is None


def test_any_fact_can_be_written(tmp_path: Path) -> None:
    """Bytes of a file name that are no UTF-8 come as halves of surrogate pairs."""
    folder = tmp_path / "thing"
    build_folder(folder, lambda partial: {"text": "caf\udce9"}, announce=print)
    assert find_fault(folder) is None
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest["text"] == "caf\udce9"


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket"])
@pytest.mark.parametrize("name", [MANIFEST_NAME, "sub/data.txt"])
def test_what_is_no_file_is_a_fault_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    folder = tmp_path / "thing"
    build(folder, FakeBuilder())
    path = folder / name
    path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        monkeypatch.chdir(folder)  # the name of a socket must be short
        listener.bind(name)
    assert find_fault(folder, hashes=True) is not None
    build(folder, FakeBuilder())
    assert find_fault(folder, hashes=True) is None
    listener.close()


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/stdin"])
def test_a_device_is_no_file(path: str) -> None:
    with pytest.raises(OSError, match="no regular file"):
        file_sha256(Path(path))


class TestLock:
    """What stands in the place of the lock is not waited for, and not written to."""

    def test_a_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / ".thing.lock")
        with pytest.raises(
            FolderError, match="its lock is no regular file: remove it: choose a cache folder"
        ):
            build(tmp_path / "thing", FakeBuilder())

    def test_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / ".thing.lock").mkdir()
        with pytest.raises(FolderError, match=r"cannot write .*: Is a directory: choose a cache folder"):
            build(tmp_path / "thing", FakeBuilder())

    def test_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "target").write_text("kept", encoding="utf-8")
        (tmp_path / ".thing.lock").symlink_to(tmp_path / "target")
        build(tmp_path / "thing", FakeBuilder())
        assert (tmp_path / "target").read_text(encoding="utf-8") == "kept"

    def test_a_link_to_itself(self, tmp_path: Path) -> None:
        (tmp_path / ".thing.lock").symlink_to(tmp_path / ".thing.lock")
        with pytest.raises(FolderError, match="choose a cache folder"):
            build(tmp_path / "thing", FakeBuilder())


class TestPermissions:
    @pytest.mark.parametrize("closed", ["cache", "cache/thing", "cache/thing/manifest.json"])
    def test_a_folder_that_may_not_be_looked_into(self, closed: str) -> None:
        with folder_of_bound_user() as parent:
            folder = parent / "cache" / "thing"
            build(folder, FakeBuilder())
            (parent / closed).chmod(0)
            assert find_fault(folder) == "no readable manifest.json: Permission denied"
            assert is_there(folder)
            assert read_manifest(folder) is None
            if closed == "cache":
                with pytest.raises(FolderError, match="Permission denied: choose a cache folder that can be"):
                    build(folder, FakeBuilder())

    def test_a_source_that_may_not_be_read_is_not_blamed_on_the_folder(self, tmp_path: Path) -> None:
        for place in ("elsewhere/source", "other.txt", "thingamy"):
            error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / place))
            with pytest.raises(PermissionError, match=place):
                build(tmp_path / "thing", FakeBuilder(error=error))
        assert entries(tmp_path) == []

    def test_what_the_build_may_not_write_is(self, tmp_path: Path) -> None:
        def build_in(partial: Path) -> Mapping[str, Any]:
            raise PermissionError(errno.EACCES, "Permission denied", str(partial / "data.txt"))

        with pytest.raises(FolderError, match="choose a cache folder that can be written"):
            build_folder(tmp_path / "thing", build_in, announce=print)


def test_leftovers_of_every_kind_are_removed(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "kept").touch()
    (tmp_path / ".thing.1.old.tmp").write_text("a file", encoding="utf-8")
    (tmp_path / ".thing.2.old.tmp").symlink_to(tmp_path / "target")
    (tmp_path / ".thing.3.old.tmp").symlink_to(tmp_path / "nothing")
    (tmp_path / ".thing.4.tmp").mkdir()
    build(tmp_path / "thing", FakeBuilder())
    assert entries(tmp_path) == ["target", "thing"]
    assert (tmp_path / "target" / "kept").exists()


def test_a_folder_that_is_being_replaced_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, outgoing = tmp_path / "thing", tmp_path / ".thing.1.old.tmp"
    build(folder, FakeBuilder())
    folder.rename(outgoing)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            outgoing.rename(folder)

    monkeypatch.setattr("dflash.folder_manifest.time.sleep", wait)
    assert find_fault(folder, hashes=True) is None
    assert len(waits) == 2
    assert find_fault(tmp_path / "other") == "no readable manifest.json"
    assert len(waits) == 2, "what was never there is not waited for"


def test_readers_of_what_is_replaced_all_the_time(tmp_path: Path) -> None:
    folder = tmp_path / "thing"
    build(folder, FakeBuilder())
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            build(folder, FakeBuilder(), replace=True)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        faults = {find_fault(folder, hashes=True) for _ in range(500)}
    finally:
        stop.set()
        writer.join()
    assert faults == {None}


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
