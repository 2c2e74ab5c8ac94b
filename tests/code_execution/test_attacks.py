"""What a hostile program gets, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash.code_execution import programs
from dflash.code_execution.process import run_process
from dflash.code_execution.programs import (
    CodeLimits,
    available_protections,
    protection_warning,
    run_program,
)
from dflash.errors import UnavailableError, UsageError

QUICK = CodeLimits(wall_s=2.0, cpu_s=2)
PROTECTIONS = available_protections()
needs_kernel = pytest.mark.skipif(
    "seccomp" not in PROTECTIONS or not any(name.startswith("landlock") for name in PROTECTIONS),
    reason="no seccomp or no Landlock here",
)


@pytest.fixture(autouse=True)
def _no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    parent = tmp_path / "folders of programs"
    parent.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    yield
    assert not list(parent.iterdir())


def reason_of(program: str, limits: CodeLimits = QUICK) -> str:
    outcome = run_program(program, limits)
    assert outcome.passed == (outcome.reason == "passed")
    return outcome.reason


@pytest.mark.parametrize(
    "program",
    [
        "open('/etc/passwd')",
        f"import os\nos.listdir({str(Path.home())!r})",
        f"open({str(Path(__file__))!r})",
        "import os\nos.listdir('/proc/self/fd')",
        "open('../outside', 'w')",
        "import os\nopen(os.__file__, 'a')",
        "import socket\nsocket.create_connection(('127.0.0.1', 80))",
        "import socket\nsocket.socket(socket.AF_UNIX)",
        "import ctypes\nctypes.CDLL(None).socket(2, 1, 0)",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.system('true')",
        "import os\nwhile True: os.fork()",
        "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=print).start()",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
        "import os, signal\nos.killpg(0, signal.SIGKILL)",
        "import os\nos.rmdir(os.getcwd())",
        "import os\nos.mkdir('inner')",
        "import os\nos.symlink('/etc', 'link')",
        "import gc\ngc.get_objects()",
    ],
)
def test_an_attack_is_refused(program):
    assert reason_of(program) == "forbidden"


@needs_kernel
def test_a_process_started_past_the_audit_hook_is_refused():
    program = """
        import _posixsubprocess, inspect, os
        r, w = os.pipe()
        many = [[b"/bin/true"], [b"/bin/true"], True, (), None, None, -1, -1, -1, -1, -1, -1, r, w, False, False]
        for rest in ([-1, None, None, None, -1, None, False], [-1, None, None, None, -1, None],
                     [None, None, None, -1, None, False], [None, None, None, -1, None]):
            try:
                _posixsubprocess.fork_exec(*many, *rest)
                break
            except TypeError:
                pass
    """
    assert reason_of(textwrap.dedent(program)) == "forbidden"


@pytest.mark.parametrize(
    "program",
    [
        # every text and number within reach, to every file
        """
        import os, sys
        found, frame = [], sys._getframe()
        while frame:
            found += [*frame.f_locals.values(), *frame.f_globals.values()]
            frame = frame.f_back
        for value in found:
            data = value.encode() if isinstance(value, str) else value
            for file in range(1, 32):
                try: os.write(file, data[:32])
                except Exception: pass
        os._exit(0)
        """,
        # the pipe that the token came by
        """
        import os, sys
        frame = sys._getframe().f_back
        try: token = os.read(frame.f_locals["control"], 32)
        except OSError: token = bytes(32)
        os.write(frame.f_locals["report"], token)
        os._exit(0)
        """,
        # what the far side will call next
        """
        import os, sys
        frame = sys._getframe().f_back
        for name in ("write", "leave", "read", "execute", "close"):
            frame.f_locals[name] = lambda *arguments: 32
        os.write = os._exit = lambda *arguments: 32
        assert False
        """,
        """
        import builtins
        for name in ("compile", "exec", "BaseException", "AssertionError", "Exception", "SystemExit"):
            setattr(builtins, name, print)
        assert False
        """,
        "import sys\nsys.settrace(print)",
        "import sys\nsys.setprofile(print)",
        "import sys\nsys.stdout.write('passed')\nprint('passed')\nsys.exit('passed')",
        """
        import os
        for file in range(3, 32):
            try: os.write(file, b"passed\\0")
            except OSError: pass
        os._exit(0)
        """,
        "import os\nos.closerange(0, 100)",
        "import atexit, os\natexit.register(os._exit, 0)\nassert False",
        "import sys\nsys.excepthook = sys.unraisablehook = lambda *arguments: None\nassert False",
    ],
)
def test_a_verdict_cannot_be_forged(program):
    assert not run_program(textwrap.dedent(program), QUICK).passed


def test_a_program_that_floods_or_closes_the_report_is_ended():
    flood = """
        import os
        while True:
            for file in range(3, 32):
                try: os.write(file, bytes(65536))
                except OSError: pass
    """
    started = time.monotonic()
    assert not run_program(textwrap.dedent(flood), CodeLimits(wall_s=30)).passed
    assert not run_program("import os\nos.closerange(0, 100)\nwhile True: pass", CodeLimits(wall_s=30)).passed
    assert time.monotonic() - started < 25  # neither was ended by the clock


LEAVES_A_GRANDCHILD = """
import os, sys, time
number = os.fork()
if number:
    os.write(int(sys.argv[3]), b"r%d" % number)
else:
    time.sleep(60)
os._exit(0)
"""


def are_dead(processes: list[int]) -> bool:
    """Whether they are; a killed process may take a moment until it is gone."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = [state_of(process) for process in processes]
        if all(state == "" or state.startswith("Z") for state in found):
            return True
        time.sleep(0.05)
    return False


def state_of(process: int) -> str:
    command = ["ps", "-o", "stat=", "-p", str(process)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_a_grandchild_is_dead_afterwards(monkeypatch):
    """The layers refuse to make one; here the far side itself does."""
    monkeypatch.setattr("dflash.code_execution.process.START", LEAVES_A_GRANDCHILD)
    run = run_process(("",), CodeLimits(wall_s=0.5), None)
    assert run.end == "timeout"  # the grandchild held the report open
    assert are_dead([int(run.report)])


# ---- interrupts

INTERRUPTED = """
import sys
from dflash.code_execution.programs import CodeLimits, available_protections, run_programs
available_protections()
print("ready", flush=True)
try:
    list(run_programs(["while True: pass"] * 8, CodeLimits(wall_s=60, cpu_s=60), max_workers=2))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def children_of(process: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in found.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="ps --ppid is Linux's")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_process(number, tmp_path):
    """Ctrl-C ends in good order; where the parent is killed the programs die with it, and the folders stay."""
    folders = tmp_path / "its folders"
    folders.mkdir()
    environment = {**os.environ, "TMPDIR": str(folders)}
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 30
        while len(running := children_of(parent.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(running) == 2
        parent.send_signal(number)
        said = parent.stdout.read()
    assert are_dead(running)
    if number == signal.SIGINT:
        assert said == "interrupted\n"
        assert not list(folders.iterdir())


# ---- protections


def test_the_protections_are_named():
    assert PROTECTIONS[0] == "rlimits"
    assert PROTECTIONS[-1] == "audit-hook"


def test_a_protection_that_is_missing_ends_the_run():
    with pytest.raises(UnavailableError, match="armour could not be had"):
        run_process(("",), QUICK, (*PROTECTIONS, "armour"))


def test_a_process_that_cannot_start_ends_the_run(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(UnavailableError, match="could be started"):
        run_program("")
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(UnavailableError, match="ended without a word"):
        run_program("")


def test_another_system_is_refused(monkeypatch):
    monkeypatch.setattr(programs.os, "name", "nt")
    with pytest.raises(UsageError, match="Linux or macOS"):
        available_protections.__wrapped__()


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (("rlimits", "namespaces", "landlock-4", "seccomp", "audit-hook"), None),
        (("rlimits", "landlock-4", "seccomp", "audit-hook"), None),
        (("rlimits", "audit-hook"), "files (Landlock) nor network and processes (seccomp)"),
        (("rlimits", "namespaces", "seccomp", "audit-hook"), "files (Landlock) here"),
        (("rlimits", "namespaces", "landlock-1", "audit-hook"), "guard processes (seccomp)"),
    ],
)
def test_weaker_protection_is_said_in_one_line(layers, words):
    warning = protection_warning(layers)
    assert (
        warning is None if words is None else warning is not None and words in warning and "\n" not in warning
    )
