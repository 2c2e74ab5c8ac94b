"""What stands at a target decides how it is written: files are replaced whole, everything else is written into."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dflash.results.atomic_file import write_file

WRITE = "import sys; from pathlib import Path; from dflash.results.atomic_file import write_file; "
ROOT = Path(__file__).parents[2]


def names_in(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = write_file(tmp_path / "x", b"old")

    def fail(self, target):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["x"]


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o755])
def test_an_existing_file_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_its_target_is_replaced(tmp_path, is_there):
    (tmp_path / "real").mkdir()
    target, link, second = tmp_path / "real" / "x", tmp_path / "link", tmp_path / "second"
    if is_there:
        target.write_bytes(b"old")
    link.symlink_to(Path("real") / "x")
    second.symlink_to(link)
    write_file(second, b"new")
    assert (link.is_symlink(), second.is_symlink()) == (True, True)
    assert target.read_bytes() == b"new"
    assert names_in(tmp_path / "real") == ["x"]


def test_a_device_stays_a_device(tmp_path):
    before = Path(os.devnull).stat()
    write_file(Path(os.devnull), b"gone")
    link = tmp_path / "link"
    link.symlink_to(os.devnull)
    write_file(link, b"gone")
    after = Path(os.devnull).stat()
    assert stat.S_ISCHR(after.st_mode)
    assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)


def test_a_named_pipe_gets_the_data_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_file(pipe, b"x" * 200_000)
    reader.join(timeout=30)
    assert found == [b"x" * 200_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert names_in(tmp_path) == ["pipe"]


def test_a_pipe_of_a_shell_is_written_into():
    reader, writer = os.pipe()
    try:
        write_file(Path(f"/dev/fd/{writer}"), b"data")
        assert os.read(reader, 100) == b"data"
        os.write(writer, b"still open")
    finally:
        os.close(reader)
        os.close(writer)


def test_standard_output_that_goes_to_a_file_keeps_what_else_is_printed(tmp_path):
    code = f"{WRITE} print('before', flush=True); write_file(Path('/dev/stdout'), b'data\\n'); print('after')"
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, cwd=ROOT)
    assert (tmp_path / "out").read_text().split() == ["before", "data", "after"]


@pytest.mark.parametrize("name", ["no-folder/x", ".", "x" * 300])
def test_an_error_names_the_target_and_no_other_file(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(OSError, match=r"^\[Errno") as caught:
        write_file(path, b"data")
    assert caught.value.filename == str(path)
    assert ".tmp" not in str(caught.value)
    assert names_in(tmp_path) == []


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path):
    path = tmp_path / ("x" * 255)
    write_file(path, b"data")
    assert names_in(tmp_path) == [path.name]
