"""Runs the code of answers against the tests of their data set, each program in a limited process of its own.

Model output is hostile until shown otherwise. A program gets a fresh temporary folder, no environment, no
input, no descriptors and no network; time, memory, files and system calls are limited from within
(`protections.py` says by what, `sandbox.py` how the verdict comes out), and its process group is
killed whole at the end. A layer that the machine does not have is left out and named; a layer that it had when
the run began, and then fails, ends the run: no program runs with less than what was stamped.

The layers are laid by ctypes. Looked at and left: bubblewrap (a program to install, of no use where
unprivileged namespaces are switched off, as in many containers), pyseccomp (needs libseccomp, last released in
2021), landlock and py-landlock (not yet stable, for what is three system calls), sandlock (13 MB of native code,
recent kernels only). What stays open to a program: which paths exist, and the text of Python's own files.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from dflash.code_execution.answers import find_code, find_entry_point, make_program
from dflash.code_execution.process import CodeLimits, ProcessRun, run_process
from dflash.code_execution.program_folder import sweep_program_folders
from dflash.code_execution.sandbox import MAX_DETAIL_CHARS, SEPARATOR
from dflash.errors import UnavailableError, UsageError
from dflash.prompts import CodeCheck

__all__ = [
    "CodeLimits",
    "CodeOutcome",
    "available_protections",
    "check_answers",
    "protection_warning",
    "run_program",
    "run_programs",
]

Program = str | tuple[str, ...]

_MAX_WORKERS = 16
_REASONS_TOLD = ("failed", "forbidden", "exited", "memory")  # by the process itself


@dataclass(frozen=True, slots=True)
class CodeOutcome:
    """What became of one program.

    `reason`: "passed"; "failed" (an error, of the tests or of the code); "timeout"; "memory"; "forbidden" (an
    error, for what it may not do); "exited" (ended itself before the tests did); "disk" (wrote too much);
    "crashed" (the interpreter died); "no_code" (nothing to run); "stopped" (from outside: no verdict).
    """

    passed: bool
    reason: str
    detail: str = ""  # first line of the error: printable, at most 200 characters


def check_answers(
    items: Iterable[tuple[str, CodeCheck]],
    limits: CodeLimits | None = None,
    on_done: Callable[[CodeOutcome], None] | None = None,
    *,
    max_workers: int | None = None,
) -> list[CodeOutcome]:
    """Try the code of every answer; the outcomes are in the order of the items.

    Equal programs run once, so equal outputs of two arms get the same verdict.

    Args:
        items: an answer as the model gave it, and how it is checked.
        on_done: called in this thread with each outcome, in the order of the items, as soon as it is there.

    Raises:
        UsageError, UnavailableError: as `run_programs`.
    """
    programs: list[Program | None] = []
    for text, check in items:
        code = find_code(text, check.entry_point or find_entry_point(check.tests))
        programs.append(None if code is None else make_program(check, code))
    known: dict[Program | None, CodeOutcome] = {
        None: CodeOutcome(False, "no_code", "the answer holds no code")
    }
    distinct = dict.fromkeys(program for program in programs if program is not None)
    with closing(run_programs(distinct, limits, max_workers=max_workers)) as runs:
        for program in programs:
            if program not in known:  # the programs run in the order in which they come up here
                known[program] = next(runs)
            if on_done is not None:
                on_done(known[program])
    return [known[program] for program in programs]


def run_programs(
    programs: Iterable[Program], limits: CodeLimits | None = None, *, max_workers: int | None = None
) -> Generator[CodeOutcome, None, None]:
    """Run several programs at a time; the outcomes come in the order of the programs.

    Closing the iterator kills what runs and drops what waits; so does Ctrl-C while it is read. Folders of programs
    whose parent was killed are removed at the start.

    Args:
        max_workers: programs at a time; None: one for each processor that this process may use, at most 16.

    Raises:
        UsageError: this system cannot limit a process.
        UnavailableError: a process could not be started, or not with the protections that it had.
    """
    sweep_program_folders()
    available_protections()
    stop = threading.Event()
    pool = ThreadPoolExecutor(max_workers or _num_processors(), thread_name_prefix="code")
    try:
        futures = [pool.submit(run_program, program, limits, stop=stop) for program in programs]
        for future in futures:
            yield future.result()
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def run_program(
    program: Program, limits: CodeLimits | None = None, *, stop: threading.Event | None = None
) -> CodeOutcome:
    """Run one program to its end or to one of its limits.

    Args:
        program: its text, or its parts, which are compiled each by itself and run one after the other.
        stop: when set, the program is killed; the outcome is "stopped".

    Raises:
        UsageError: this system cannot limit a process.
        UnavailableError: a process could not be started, or not with the protections that it had.
    """
    limits = limits or CodeLimits()
    parts = (program,) if isinstance(program, str) else program
    return _judge(run_process(parts, limits, available_protections(), stop), limits)


@functools.cache
def available_protections() -> tuple[str, ...]:
    """The layers that hold on this machine, found by laying them (`protections.py` lists them).

    Raises:
        UsageError: not a system on which a process can be limited.
        UnavailableError: no process could be started, or Python does not work within the limits.
    """
    if os.name != "posix" or not sys.executable:
        raise UsageError("code cannot be executed with limits on this system", "use Linux or macOS")
    layers = tuple(run_process(None, CodeLimits(), None).report.decode().split())
    # Limits that this Python cannot live with would look like wrong answers.
    trial = run_process(("import collections, decimal, math, random, re, typing",), CodeLimits(), layers)
    if not trial.passed:
        raise UnavailableError(
            f"a trial program does not run within the limits ({_judge(trial, CodeLimits()).detail})",
            "run without --execute-code, or with another Python",
        )
    return layers


def protection_warning(protections: Sequence[str]) -> str | None:
    """One line for people where code runs with less protection than Linux can give; else None."""
    missing = []
    if not any(name.startswith("landlock") for name in protections):
        missing.append("files (Landlock)")
    if "seccomp" not in protections:
        network = "network and " if "namespaces" not in protections else ""
        missing.append(f"{network}processes (seccomp)")
    if not missing:
        return None
    return (
        f"the kernel does not guard {' nor '.join(missing)} here: code that is out to do harm may get out of the"
        " limits; execute code on a machine or in a container that you can lose"
    )


def _judge(run: ProcessRun, limits: CodeLimits) -> CodeOutcome:
    if run.passed:
        return CodeOutcome(True, "passed")
    if run.end == "stopped":
        return CodeOutcome(False, "stopped", "it was stopped from outside")
    if run.end == "timeout":
        return CodeOutcome(False, "timeout", f"not done after {limits.wall_s:g} s")
    if run.end == "disk":
        return CodeOutcome(
            False, "disk", f"more than {limits.folder_bytes} bytes or {limits.num_files} files"
        )
    reason, found, detail = run.report.partition(SEPARATOR)
    if found and reason.decode(errors="replace") in _REASONS_TOLD:
        return CodeOutcome(False, reason.decode(), _printable(detail))
    if run.status >= 0:
        return CodeOutcome(False, "exited", f"ended itself with status {run.status}")
    if -run.status == signal.SIGXCPU or (-run.status == signal.SIGKILL and run.wall_s >= limits.cpu_s):
        return CodeOutcome(False, "timeout", f"not done after {limits.cpu_s} s of processor time")
    return CodeOutcome(False, "crashed", f"ended by {_signal_name(-run.status)}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time ones have no names
        return f"signal {number}"


def _printable(data: bytes) -> str:
    """The first line, with everything that a terminal would act upon replaced."""
    lines = data.decode(errors="replace").strip().splitlines() or [""]
    return "".join(char if char.isprintable() else "\ufffd" for char in lines[0])[:MAX_DETAIL_CHARS]


def _num_processors() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, _MAX_WORKERS)
