"""The exception tree. Each class carries the exit code that a command ends with.

A message is one line that names the fault and the mend. This module imports nothing: every room may use it.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_WORSE = 1
EXIT_USAGE = 2
EXIT_FAILURES = 3
EXIT_UNAVAILABLE = 4
EXIT_NOT_COMPARABLE = 5
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130


class DFlashError(Exception):
    """Base of every error that this project raises on purpose.

    Args:
        fault: what is wrong, naming the offending value.
        mend: what to do about it; may be empty where the fault says it all.
    """

    exit_code = EXIT_INTERNAL

    def __init__(self, fault: str, mend: str = "") -> None:
        self.fault = " ".join(fault.split())
        self.mend = " ".join(mend.split())
        super().__init__(f"{self.fault}: {self.mend}" if self.mend else self.fault)


class UsageError(DFlashError, ValueError):
    """Arguments or configuration that cannot be honoured (exit code 2)."""

    exit_code = EXIT_USAGE


class CannotWriteError(UsageError):
    """A run's folder takes nothing more: the disk is full, say. What it holds is kept (exit code 2)."""


class MissingExtraError(UsageError):
    """A package that this backend needs is not installed (exit code 2)."""


class ModelError(UsageError):
    """A model that cannot be found, read, or used as a target (exit code 2)."""


class DraftError(ModelError):
    """A draft that is incomplete, not implemented, or made for another target (exit code 2)."""


class TooManyFailuresError(DFlashError):
    """More requests failed than `--max-error-rate` allows, out of memory included (exit code 3)."""

    exit_code = EXIT_FAILURES


class UnavailableError(DFlashError):
    """An engine or a data set that cannot be had at the moment (exit code 4)."""

    exit_code = EXIT_UNAVAILABLE


class NotComparableError(DFlashError):
    """Nothing could be compared (exit code 5)."""

    exit_code = EXIT_NOT_COMPARABLE


class RequestError(DFlashError):
    """One request failed; the runner records it as a row and goes on.

    `kind` is a short stable word for the failure summary: `out_of_memory`, `prompt_too_long`, `empty_prompt`,
    `timeout`, `simulated` ….
    """

    exit_code = EXIT_FAILURES

    def __init__(self, kind: str, fault: str, mend: str = "") -> None:
        self.kind = kind
        super().__init__(fault, mend)


def first_line(error: BaseException) -> str:
    """What an error says, on one line: its name where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
