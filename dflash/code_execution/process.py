"""Starts the process that one program runs in, watches it, and ends it with all that it started."""

from __future__ import annotations

import marshal
import os
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from io import RawIOBase
from pathlib import Path

from dflash.code_execution.program_folder import program_folder
from dflash.code_execution.sandbox import READY, START, TOKEN_BYTES
from dflash.code_execution.seccomp import seccomp_filter
from dflash.errors import UnavailableError

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
# How the loader finds Python's own libraries, where Python was built so; nothing else is passed on.
_LOADER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_START_TIMEOUT_S = 60.0
_WATCH_INTERVAL_S = 0.05
_MAX_REPORT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class CodeLimits:
    """What one program may use."""

    wall_s: float = 10.0  # from when the program starts: the start of Python is not in it
    cpu_s: int = 10
    memory_bytes: int = 1 << 30  # address space
    file_bytes: int = 1 << 20  # of each file
    folder_bytes: int = 16 << 20  # of all its files; it is watched, so somewhat more may be written
    num_files: int = 1000
    num_open_files: int = 32


@dataclass(frozen=True, slots=True)
class ProcessRun:
    """How one process went."""

    token: bytes
    report: bytes  # what it said after `READY`
    status: int  # exit code, or minus the signal that ended it
    end: str  # "told" (the report is whole), "timeout", "disk", "stopped"
    wall_s: float  # of the program

    @property
    def passed(self) -> bool:
        return self.report == self.token


def run_process(
    program: tuple[str, ...] | None,
    limits: CodeLimits,
    layers: tuple[str, ...] | None,
    stop: threading.Event | None = None,
) -> ProcessRun:
    """Run `program`, or tell the protections of this machine where it is None.

    Args:
        program: parts that are compiled each by itself and run one after the other in one module.
        layers: the protections that must hold; None: whatever there is.
        stop: when set, the process is killed.

    Raises:
        UnavailableError: the process could not be started, or not with these protections.
    """
    token = secrets.token_bytes(TOKEN_BYTES)
    job = {
        **asdict(limits),
        "program": program,
        "layers": layers,
        "filter": seccomp_filter(os.uname().machine) if sys.platform == "linux" else None,
    }
    data = marshal.dumps(job)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(program_folder())
            process, control, report = _start(folder, stack)
        except OSError as error:
            raise UnavailableError(f"no process for an answer's code could be started ({error})") from error
        with suppress(BrokenPipeError):  # the report says why it ended
            _send(control, len(data).to_bytes(8, "big") + data)
            _send(control, token)
        watch = _Watch(report, folder, limits, token, stop or threading.Event())
        watch.wait_until_ready()
        end = watch.wait()
        wall_s = time.monotonic() - watch.started
        return ProcessRun(token, bytes(watch.report), _end(process), end, wall_s)


def _start(folder: str, stack: ExitStack) -> tuple[subprocess.Popen[bytes], RawIOBase, RawIOBase]:
    """The process, the pipe to it and the pipe from it; leaving `stack` ends and closes them."""
    job_reader, job_writer = os.pipe()
    control = stack.enter_context(os.fdopen(job_writer, "wb", buffering=0))
    try:
        report_reader, report_writer = os.pipe()
        report = stack.enter_context(os.fdopen(report_reader, "rb", buffering=0))
        try:
            environment = {name: os.environ[name] for name in _LOADER_VARIABLES if name in os.environ}
            numbers = map(str, (job_reader, report_writer, os.getpid()))
            process = subprocess.Popen(
                # -I would also ignore the hash seed, and the order of sets must not vary from run to run
                [sys.executable, "-S", "-s", "-B", "-c", START, _PACKAGE_PARENT, *numbers],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={**environment, "PYTHONHASHSEED": "0"},
                close_fds=True,
                pass_fds=(job_reader, report_writer),
                start_new_session=True,
            )
            stack.callback(_end, process)
        finally:
            os.close(report_writer)
    finally:
        os.close(job_reader)
    return process, control, report


def _send(pipe: RawIOBase, data: bytes) -> None:
    while data:
        data = data[pipe.write(data) :]


def _end(process: subprocess.Popen[bytes]) -> int:
    """Kill what is left of the process group, and return the status of its leader."""
    if process.returncode is None:  # not waited for yet, so the number of the group is still its own
        with suppress(ProcessLookupError, PermissionError):  # macOS: not permitted when all of it is dead
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


class _Watch:
    """Reads a report until something ends the wait."""

    def __init__(
        self, pipe: RawIOBase, folder: str, limits: CodeLimits, token: bytes, stop: threading.Event
    ) -> None:
        self.report = bytearray()
        self.started = time.monotonic()
        self._pipe = pipe
        self._folder = folder
        self._limits = limits
        self._token = token
        self._stop = stop

    def wait_until_ready(self) -> None:
        """Wait for the protections to hold. The clock of the program starts then.

        Raises:
            UnavailableError: they do not, in the words of the process.
        """
        end = self._read(_START_TIMEOUT_S, enough=len(READY))
        if end != "stopped" and self.report[: len(READY)] != READY:
            self._read(_START_TIMEOUT_S, enough=_MAX_REPORT_BYTES)
            told = self.report.decode(errors="replace") or "it ended without a word"
            raise UnavailableError(f"a process for an answer's code could not be limited ({told[:200]})")
        del self.report[: len(READY)]
        self.started = time.monotonic()

    def wait(self) -> str:
        return self._read(self._limits.wall_s, enough=_MAX_REPORT_BYTES)

    def _read(self, timeout_s: float, enough: int) -> str:
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while len(self.report) < enough:
                remaining_s = deadline - time.monotonic()
                if self._stop.is_set():
                    return "stopped"
                if remaining_s <= 0:
                    return "timeout"
                if self._wrote_too_much():
                    return "disk"
                if not selector.select(min(remaining_s, _WATCH_INTERVAL_S)):
                    continue
                chunk = self._pipe.read(enough - len(self.report))
                self.report += chunk
                if not chunk or self.report == self._token:
                    break
        return "told"

    def _wrote_too_much(self) -> bool:
        num_files = num_bytes = 0
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                num_files += 1
                with suppress(FileNotFoundError):  # removed meanwhile
                    num_bytes += entry.stat(follow_symlinks=False).st_size
                if num_files > self._limits.num_files or num_bytes > self._limits.folder_bytes:
                    return True
        return False
