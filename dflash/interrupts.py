"""Ctrl-C and SIGTERM: the first ends the run in good order, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

from dflash.errors import EXIT_INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context in which the first SIGINT or SIGTERM raises `KeyboardInterrupt`: at once, or after a shield.

    In-process engines block inside `generate`, so the exception must be raised there and not by the event
    loop. Outside the main thread Python delivers no signals, and this does nothing.
    """

    def __init__(self) -> None:
        self.received: str | None = None  # name of the signal
        self._num_shields = 0  # they may be nested
        self._pending = False
        self._before: dict[signal.Signals, Any] = {}
        self._shield = _Shield(self)  # one for all: it is entered for every record

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def shield(self) -> AbstractContextManager[None]:
        """Hold a first signal back until what is inside (writing a record) is whole."""
        return self._shield

    def _leave_shield(self, failed: bool) -> None:
        self._num_shields -= 1
        if failed:  # the run ends by this error: the signal adds nothing
            self._pending = False
        elif self._pending and not self._num_shields:
            self._pending = False
            raise KeyboardInterrupt(self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            sys.stderr.write("\nended at once\n")
            os._exit(EXIT_INTERRUPTED)
        self.received = signal.Signals(number).name
        if self._num_shields:
            self._pending = True
        else:
            raise KeyboardInterrupt(self.received)


class _Shield(AbstractContextManager[None]):
    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def __enter__(self) -> None:
        self._interrupts._num_shields += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._interrupts._leave_shield(kind is not None)
