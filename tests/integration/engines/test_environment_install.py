"""The installation of an engine, with a stand-in for Python and pip: no environment is really made."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from engines import install as install_module
from engines.install import ENGINES, READY_NAME, Engine, declare_torchvision_schemas, digest_of, install, main

from dflash.errors import UnavailableError

REAL_PYTHON = sys.executable
# Stands for Python: makes a "folder" with itself as its python, writes down what pip is asked, and fails by variable.
STAND_IN = """#!/bin/sh
case "$1 $2" in
    "-m venv")
        mkdir -p "$3/bin" "$3/lib/python3.11/site-packages" && cp "$0" "$3/bin/python"
        if [ -n "$STAND_IN_HANGS" ]; then echo begun > "$STAND_IN_HANGS"; exec sleep 60; fi ;;
    "-m pip")
        echo "$@" >> "$STAND_IN_CALLS"
        if [ -n "$STAND_IN_FAILS" ]; then
            echo "Location 'https://me:secret@host/x' is ignored: it is neither a file nor a folder"
            echo "ERROR: Could not find a version that satisfies the requirement toy==1 (from versions: none)" >&2
            echo "$STAND_IN_FAILS" >&2
            exit 1
        fi ;;
    -c*) exit "${STAND_IN_CHECK:-0}" ;;
esac
"""


@pytest.fixture
def toy(tmp_path: Path) -> Engine:
    folder = tmp_path / "toy"
    (folder / "plugin").mkdir(parents=True)
    (folder / "requirements.lock").write_text("toy==1\n")
    (folder / "plugin" / "pyproject.toml").write_text("[project]\n")
    return Engine(name="toy", folder=folder, packages=("plugin",), check="import toy")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that pip's arguments go to, a line for each call."""
    python = tmp_path / "stand-in"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    calls = tmp_path / "calls"
    calls.touch()
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("STAND_IN_CALLS", str(calls))
    monkeypatch.delenv("PIP_ARGS", raising=False)
    return calls


@pytest.fixture
def lines() -> list[str]:
    return []


def environment_folder(toy: Engine, cache: Path) -> Path:
    return cache / f"toy-{digest_of(toy)[:12]}"


def test_made_once(toy, calls, lines, tmp_path):
    python = install(toy, tmp_path / "cache", lines.append)
    assert python == environment_folder(toy, tmp_path / "cache") / "bin" / "python"
    assert python.exists()
    asked = calls.read_text().splitlines()
    assert len(asked) == 2
    assert asked[0].endswith(f"--no-deps -r {toy.lock_file}")
    assert "--no-build-isolation" in asked[1]
    assert str(toy.folder) not in asked[1]  # a build would write into the checkout
    assert install(toy, tmp_path / "cache", lines.append) == python
    assert calls.read_text().splitlines() == asked
    assert "ready" in lines[-1]


def test_options_of_pip_are_passed_on(toy, calls, lines, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_ARGS", "-c 'my constraints.txt'")
    install(toy, tmp_path / "cache", lines.append)
    assert all("-c my constraints.txt" in line for line in calls.read_text().splitlines())


@pytest.mark.parametrize("changed", ["requirements.lock", "plugin/pyproject.toml"])
def test_other_sources_make_another_environment(toy, calls, lines, tmp_path, changed):
    first = install(toy, tmp_path / "cache", lines.append)
    with (toy.folder / changed).open("a") as stream:
        stream.write("# changed\n")
    second = install(toy, tmp_path / "cache", lines.append)
    assert first != second
    assert first.exists()
    assert len(calls.read_text().splitlines()) == 4


def test_one_without_the_mark_is_made_anew(toy, calls, lines, tmp_path):
    folder = environment_folder(toy, tmp_path / "cache")
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "half").touch()
    install(toy, tmp_path / "cache", lines.append)
    assert not (folder / "lib" / "half").exists()
    assert (folder / READY_NAME).read_text() == digest_of(toy)
    assert "unfinished" in lines[0]


def test_one_whose_python_is_gone_is_made_anew(toy, calls, lines, tmp_path):
    python = install(toy, tmp_path / "cache", lines.append)
    python.unlink()
    assert install(toy, tmp_path / "cache", lines.append) == python
    assert python.exists()


@pytest.mark.parametrize(
    ("complaint", "reason"),
    [
        ("ERROR: No matching distribution found for toy==1", "No matching distribution found for toy==1"),
        ("OSError: No space left on device", "No space left on device"),
    ],
)
def test_what_the_index_does_not_have_is_named(toy, calls, tmp_path, monkeypatch, capsys, complaint, reason):
    monkeypatch.setitem(install_module.ENGINES, "toy", toy)
    monkeypatch.setenv("STAND_IN_FAILS", complaint)
    assert main(["toy", "--into", str(tmp_path / "cache")]) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    error = printed.err.splitlines()[-1]
    assert error.startswith("error: ")
    assert reason in error
    assert "secret" not in error
    assert not environment_folder(toy, tmp_path / "cache").exists()


def test_packages_that_do_not_work_leave_nothing(toy, calls, lines, tmp_path, monkeypatch):
    monkeypatch.setenv("STAND_IN_CHECK", "1")
    with pytest.raises(UnavailableError, match="do not work"):
        install(toy, tmp_path / "cache", lines.append)
    assert not environment_folder(toy, tmp_path / "cache").exists()


def test_the_python_is_the_only_line_on_standard_output(toy, calls, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(install_module.ENGINES, "toy", toy)
    monkeypatch.setenv("DFLASH_ENGINES_CACHE", str(tmp_path / "chosen"))
    assert main(["toy"]) == 0
    python = environment_folder(toy, tmp_path / "chosen") / "bin" / "python"
    assert capsys.readouterr().out == f"{python}\n"


def test_a_folder_in_the_checkout_is_refused(toy, calls, monkeypatch, capsys):
    monkeypatch.setitem(install_module.ENGINES, "toy", toy)
    inside = install_module.CHECKOUT / "engines"
    assert main(["toy", "--into", str(inside)]) == 2
    assert "inside the checkout" in capsys.readouterr().err
    assert not inside.exists()


def test_a_second_process_waits_and_takes_what_the_first_has_made(toy, calls, lines, tmp_path):
    folder = environment_folder(toy, tmp_path / "cache")
    folder.parent.mkdir()
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=install, args=(toy, tmp_path / "cache", lines.append))
        second.start()
        wait_until(lambda: bool(lines))
        assert "waiting" in lines[0]
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").touch()
        (folder / READY_NAME).write_text(digest_of(toy))
    second.join(10)
    assert not second.is_alive()
    assert calls.read_text() == ""


def wait_until(condition, limit_s=10.0):
    give_up = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(0.02)


START = """
import sys
from pathlib import Path
sys.path.insert(0, {place!r})
from engines import install
install.ENGINES["toy"] = install.Engine(name="toy", folder=Path({folder!r}), packages=(), check="")
sys.executable = {python!r}
sys.exit(install.main(["toy", "--into", {cache!r}]))
"""


@pytest.fixture
def hanging(toy, calls, tmp_path, monkeypatch):
    """An installation in a process of its own that hangs in its first step."""
    begun = tmp_path / "begun"
    monkeypatch.setenv("STAND_IN_HANGS", str(begun))
    place = str(install_module.HERE.parent)
    script = START.format(
        place=place, folder=str(toy.folder), python=sys.executable, cache=str(tmp_path / "cache")
    )
    process = subprocess.Popen([REAL_PYTHON, "-c", script], start_new_session=True, stderr=subprocess.PIPE)
    wait_until(begun.exists)
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def is_locked(toy: Engine, cache: Path) -> bool:
    with (cache / f".{environment_folder(toy, cache).name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_terminated_installation_ends_its_step_and_leaves_nothing(hanging, toy, tmp_path):
    folder = environment_folder(toy, tmp_path / "cache")
    assert folder.exists()
    hanging.terminate()
    assert hanging.wait(10) == 128 + signal.SIGTERM
    assert not folder.exists()
    assert not is_locked(toy, tmp_path / "cache")


def test_the_step_of_a_killed_installation_keeps_others_out_until_it_ends(hanging, toy, tmp_path):
    hanging.kill()
    hanging.wait(10)
    assert is_locked(toy, tmp_path / "cache")
    os.killpg(hanging.pid, signal.SIGKILL)
    wait_until(lambda: not is_locked(toy, tmp_path / "cache"))


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_has_its_sources_here_and_every_version_is_locked(name):
    engine = ENGINES[name]
    lines = [line for line in engine.lock_file.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) > 50
    assert [line for line in lines if "==" not in line] == []
    for package in engine.packages:
        assert (engine.folder / package / "pyproject.toml").is_file()


def test_a_digest_does_not_depend_on_what_python_leaves_behind(toy):
    before = digest_of(toy)
    (toy.folder / "plugin" / "__pycache__").mkdir()
    (toy.folder / "plugin" / "__pycache__" / "x.cpython-311.pyc").touch()
    assert digest_of(toy) == before
    assert digest_of(replace(toy, name="other")) == before  # the name is in the folder's


def test_torchvision_gets_the_schemas_that_its_kernels_would_declare(tmp_path):
    (tmp_path / "torchvision").mkdir()
    extension = tmp_path / "torchvision" / "extension.py"
    extension.write_text("kept = 1\n")
    declare_torchvision_schemas(tmp_path)
    text = extension.read_text()
    assert text.startswith("kept = 1\n")
    compile(text, "extension.py", "exec")
    assert text.count(" -> Tensor") == 2


def test_another_torchvision_is_refused(tmp_path):
    with pytest.raises(UnavailableError, match="torchvision"):
        declare_torchvision_schemas(tmp_path)
