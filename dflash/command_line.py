"""What every verb does around its work: one line on standard error and an exit code for what went wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper

from dflash.errors import (
    EXIT_DONE,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    DFlashError,
)

DEBUG_VARIABLE = "DFLASH_DEBUG"


def run_verb(work: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Call `work` with the arguments and map what it raises to an exit code; never raises an `Exception`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a character shows another in its place
            stream.reconfigure(errors="replace")
    try:
        return work(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:  # the reader of our output has gone: nobody is left to be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except (Exception, KeyboardInterrupt) as error:
        return report_error(error)


def report_error(error: BaseException) -> int:
    """Print the line for `error` and give its exit code; with DFLASH_DEBUG=1 the traceback comes first."""
    if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    print(error_line(error), file=sys.stderr, flush=True)
    return exit_code_of(error)


def exit_code_of(error: BaseException) -> int:
    """The exit code that an exception stands for."""
    if isinstance(error, DFlashError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, ConnectionError | TimeoutError):
        return EXIT_UNAVAILABLE
    return EXIT_USAGE if isinstance(error, OSError) else EXIT_INTERNAL


def error_line(error: BaseException) -> str:
    """One line without control characters that names the fault and the mend."""
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted: {error}" if str(error) else "interrupted"
    if isinstance(error, DFlashError):
        text = str(error)
    elif isinstance(error, OSError):  # a path that cannot be read or written
        text = f"{error.filename or 'file'}: {error.strerror or error}"
    else:
        text = (
            f"internal error: {type(error).__name__}: {error} (this is a fault of dflash; "
            f"set {DEBUG_VARIABLE}=1 to see the traceback)"
        )
    return f"error: {one_line(text)}"


def one_line(text: str) -> str:
    """Text from elsewhere as one line without control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
