"""What every verb does around its work: one line on standard error and an exit code for what went wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path

from dflash.errors import (
    EXIT_DONE,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    DFlashError,
    UsageError,
)

DEBUG_VARIABLE = "DFLASH_DEBUG"
STANDARD_OUTPUT = "-"  # as the name of a file that a verb writes


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


def check_json_file(json_file: str | None) -> None:
    """Refuse a --json file that could not be written, before anything is done.

    Raises:
        UsageError: its folder is not there, or it is a folder itself.
    """
    if json_file is None or json_file == STANDARD_OUTPUT:
        return
    if not json_file:
        raise UsageError("--json is empty", "give a file, or - for standard output")
    path = Path(json_file)
    if path.is_dir():
        raise UsageError(f"--json: {path} is a folder", "name a file")
    if not path.parent.is_dir():
        raise UsageError(f"--json: there is no folder {path.parent}", "name a file in a folder that exists")


def write_json(json_file: str | None, document: object) -> None:
    """Write `document` to a file, whole or not at all, or to standard output; None: nowhere.

    Only ASCII is written, so that no terminal's encoding can lose a character.

    Raises:
        UsageError: the file cannot be written.
    """
    if json_file is None:
        return
    import json

    from dflash.results.atomic_file import write_file

    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if json_file == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    try:
        write_file(Path(json_file), text.encode())
    except OSError as error:
        raise UsageError(
            f"cannot write {json_file} ({error.strerror or error})",
            "name a file in a folder that can be written",
        ) from error


def one_line(text: str) -> str:
    """Text from elsewhere as one line without control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
