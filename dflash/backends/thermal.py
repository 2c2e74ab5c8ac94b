"""How hot a Mac says that it is: it slows down by itself, and a run that it slowed down is not like another."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
from functools import cache
from typing import Any

STATES = ("nominal", "fair", "serious", "critical")  # NSProcessInfo.thermalState, 0 to 3
SLOWED_DOWN = ("serious", "critical")


def thermal_state() -> str | None:
    """The system's own word for it; None where there is none (no Mac, or it does not say)."""
    if platform.system() != "Darwin":
        return None
    try:
        number = _ask(_runtime())
    except (AttributeError, OSError, TypeError, ValueError):
        return None
    return STATES[number] if 0 <= number < len(STATES) else None


def thermal_note(states: list[str | None]) -> str | None:
    """What a reader must know of the states that were seen at the start and after each request, or None."""
    seen = [state for state in states if state is not None]
    if not seen:
        return None
    worst = max(seen, key=STATES.index)
    if worst not in SLOWED_DOWN:
        return f"the Mac's thermal state was {worst} at worst."
    count = sum(state in SLOWED_DOWN for state in seen)
    return (
        f"the Mac's thermal state was {worst} at worst, serious or above at {count} of {len(seen)} readings: it slows "
        "down by itself then. Rest between cells by --cooldown, and measure again."
    )


def _ask(runtime: Any) -> int:
    """`[[NSProcessInfo processInfo] thermalState]`, which needs no privilege."""
    process = runtime.send(ctypes.c_void_p, runtime.find_class("NSProcessInfo"), "processInfo")
    return int(runtime.send(ctypes.c_long, process, "thermalState"))


class _Runtime:
    """As much of the Objective-C runtime as one question needs."""

    def __init__(self) -> None:
        ctypes.CDLL(ctypes.util.find_library("Foundation"))
        self._library = ctypes.CDLL(ctypes.util.find_library("objc"))
        for function in (self._library.objc_getClass, self._library.sel_registerName):
            function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_char_p]

    def find_class(self, name: str) -> Any:
        return self._library.objc_getClass(name.encode())

    def send(self, result: Any, receiver: Any, message: str) -> Any:
        prototype = ctypes.CFUNCTYPE(result, ctypes.c_void_p, ctypes.c_void_p)
        selector = self._library.sel_registerName(message.encode())
        return prototype(("objc_msgSend", self._library))(receiver, selector)


@cache
def _runtime() -> _Runtime:
    return _Runtime()
