"""What every verb does around its work: one line on standard error and an exit code for what went wrong."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from dflash.errors import (
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
    outlive_readers()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a character shows another in its place
            stream.reconfigure(errors="replace")
    try:
        return work(sys.argv[1:] if argv is None else argv)
    except (Exception, KeyboardInterrupt) as error:
        return report_error(error)


class _Outlet(io.FileIO):
    """A stream of this process that takes what nobody reads any more, as if it were read."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(data)


def outlive_readers() -> None:
    """Let standard output and error go on silently when their reader goes away: what is measured is in files, and the
    exit code is for others than the reader. Streams that someone else has put in their place are left alone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if os.name != "posix" or stream is not getattr(sys, f"__{name}__"):
            continue
        if not isinstance(stream, TextIOWrapper):
            continue  # closed from the start
        stream.flush()
        raw = _Outlet(stream.fileno(), "wb", closefd=False)
        outlet = TextIOWrapper(
            raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, outlet)


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


def check_json_file(json_file: str | None, flag: str = "--json") -> None:
    """Refuse a file that could not be written, before anything is done.

    Args:
        flag: that names it.

    Raises:
        UsageError: its folder is not there, or it is a folder itself.
    """
    if json_file is None or json_file == STANDARD_OUTPUT:
        return
    if not json_file:
        raise UsageError(f"{flag} is empty", "give a file, or - for standard output")
    path = Path(json_file)
    if path.is_dir():
        raise UsageError(f"{flag}: {path} is a folder", "name a file")
    if not path.parent.is_dir():
        raise UsageError(f"{flag}: there is no folder {path.parent}", "name a file in a folder that exists")


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
        print(text, end="")  # nothing where standard output is closed
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
