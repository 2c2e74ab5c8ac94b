"""The folders of programs: one each, gone at the end, and gone at the next start where the end was a kill."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dflash.code_execution.program_folder import PREFIX, program_folder, sweep_program_folders
from dflash.code_execution.programs import run_programs

OWNER = """
import sys, tempfile, time
from dflash.code_execution.programs import CodeLimits
import dflash.code_execution.process as process

tempfile.tempdir = sys.argv[1]
start = process._start
def start_and_tell(folder, stack):
    started = start(folder, stack)
    print(folder, flush=True)
    return started
process._start = start_and_tell
process.run_process(("while True: pass",), CodeLimits(wall_s=60, cpu_s=60), None)
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_an_empty_folder_that_is_gone_at_the_end(parent: Path) -> None:
    with program_folder() as folder:
        assert Path(folder).parent == parent
        assert not list(Path(folder).iterdir())
        (Path(folder) / "file").touch()
        sweep_program_folders()
        assert (Path(folder) / "file").exists(), "its owner lives"
    assert not list(parent.iterdir())


def test_a_sweep_between_making_and_locking(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = tempfile.mkdtemp

    def make_and_sweep(**options: str) -> str:
        made.append(make(**options))
        if len(made) == 1:
            sweep_program_folders()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_sweep)
    with program_folder() as folder:
        assert len(made) == 2
        assert os.path.realpath(made[1]) == folder
        assert [str(path) for path in parent.iterdir()] == [folder]


def test_where_there_are_no_locks_programs_run_and_nothing_is_swept(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with program_folder() as folder:
        sweep_program_folders()
        assert Path(folder).exists()
    assert not list(parent.iterdir())


def test_only_folders_of_programs_are_swept(parent: Path) -> None:
    (parent / "kept").mkdir()
    (parent / "kept" / "file").touch()
    (parent / f"{PREFIX}link").symlink_to(parent / "kept")
    (parent / f"{PREFIX}file").touch()
    (parent / f"{PREFIX}left").mkdir()
    (parent / f"{PREFIX}left" / "link").symlink_to(parent / "kept")
    assert list(run_programs([])) == []
    assert (parent / "kept" / "file").exists()
    assert not (parent / f"{PREFIX}left").exists()


def test_what_a_killed_run_left_is_removed_by_the_next(parent: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(parent)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.parent == parent
    sweep_program_folders()
    assert folder.exists(), "its owner lives"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert folder.exists()
    list(run_programs([]))
    assert not list(parent.iterdir())
