"""Runs one program that nobody trusts: the far side of `programs.py`, in a process of its own.

It imports the standard library and its neighbours only, and gives up what the process may do
(`protections.py`) before the program's text is even compiled.

**The verdict.** The parent believes that the tests passed when it gets its token back, a random number that
waits in a pipe. One expression reads it, runs the program (its parts, compiled each by itself before) and sends
it: while the program runs, the token is on
the interpreter's evaluation stack, in no variable of any frame, and the only way to the end of the expression
is the end of the program's last line. `sys.exit`, `os._exit`, printed words, patched built-ins and walks over
frames do not come to it; the lists of `gc`, tracers and ctypes are refused. What a program can still do: answer
the tests with an object that equals everything, which is between it and the data set's tests; and, written
against the interpreter itself (made-up bytecode), read its own memory. It gains a verdict by that, and no way out.
"""

from __future__ import annotations

import marshal
import os
import sys
import types
from collections.abc import Callable
from itertools import repeat
from typing import Any

from dflash.code_execution.audit_hook import ForbiddenImportError
from dflash.code_execution.protections import protect

TOKEN_BYTES = 32
READY = b"r"  # the first byte of a report; before it the program has not run
SEPARATOR = b"\0"  # between reason and detail
MAX_DETAIL_CHARS = 200

# How the parent starts `main`: the folder of the package is on the path for these imports only.
START = (
    "import sys; standard = [p for p in sys.path if p]; sys.path.append(sys.argv[1]);"
    " from dflash.code_execution.sandbox import main; sys.path[:] = standard; main(*map(int, sys.argv[2:]))"
)


def main(control: int, report: int, parent: int) -> None:
    """Read a job, protect, run, report. Does not return.

    Args:
        control: pipe from the parent: the length of the job, the job, the token.
        report: pipe to the parent: `READY`, then the token, or a reason and a detail. Where the job holds no
            program, the names of the layers that hold.
        parent: process id.
    """
    job = _read_job(control)
    program = job["program"]
    try:
        layers = protect(job, parent)
    except Exception as error:
        _leave_with(report, f"{type(error).__name__}: {error}".encode(errors="replace"))
    os.write(report, READY)
    if program is None:
        _leave_with(report, " ".join(layers).encode())
    for name in [name for name in sys.modules if name.split(".")[0] == "dflash"]:
        del sys.modules[name]
    _run(program, control, report)


def _leave_with(report: int, message: bytes) -> None:
    os.write(report, message)
    os._exit(1)


def _read_job(control: int) -> dict[str, Any]:
    num_bytes = int.from_bytes(_read_exactly(control, 8), "big")
    job: dict[str, Any] = marshal.loads(_read_exactly(control, num_bytes))
    return job


def _read_exactly(file: int, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        chunk = os.read(file, num_bytes - len(data))
        if not chunk:
            os._exit(1)  # the parent is gone
        data += chunk
    return bytes(data)


def _run(program: tuple[str, ...], control: int, report: int) -> None:
    # A real module, so that dataclasses, typing and pickle find the classes of the program. It is not called
    # `__main__`: what an answer does when run as a script is not what the tests are about.
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    read, write, close, leave = os.read, os.write, os.close, os._exit
    execute: Callable[..., object] = exec
    try:
        leave(
            write(
                report,
                (
                    read(control, TOKEN_BYTES),
                    close(control),
                    # Compiled in advance, and in no variable: the first part cannot change the next one.
                    [
                        *map(
                            execute,
                            [compile(part, "answer", "exec", dont_inherit=True) for part in program],
                            repeat(module.__dict__),
                        )
                    ],
                )[0],
            )
            - TOKEN_BYTES
        )
    except MemoryError:
        write(report, b"memory\0MemoryError")  # there may be no memory for more
    except BaseException as error:
        write(report, _describe(error))
    finally:
        leave(1)


def _describe(error: BaseException) -> bytes:
    """Reason and text. What the program put into `__str__` runs here, and meets the clock if it does not end."""
    if isinstance(error, SystemExit):
        reason = b"exited"
    elif isinstance(error, PermissionError | ForbiddenImportError):
        reason = b"forbidden"
    else:
        reason = b"failed"
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")[: 4 * MAX_DETAIL_CHARS]
        return reason + SEPARATOR + text.encode(errors="replace")
    except BaseException:
        return reason + SEPARATOR + b"an error that cannot be printed"
