"""Faults of a simulated server: which request they hit, and what they do in the middle of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.backends.scenario import SERVER_ACTIONS, Fault
from dflash.backends.simulated_requests import DONE, Format
from dflash.errors import UsageError

if TYPE_CHECKING:
    from dflash.backends.simulated_engine import Job, SimulatedEngine
    from dflash.backends.simulated_stream import EventStream

GARBAGE_EVENT = b'data: {"id": "garbage", "choices": [{"ind\n\n'
MID_ANSWER = ("hang", "cut", "garbage", "oversized", "error_event", "restart")


class FaultBook:
    """The scenario's faults, and how often each has hit.

    Raises:
        UsageError: a fault that only the engine in process knows.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if fault.action not in SERVER_ACTIONS:
                raise UsageError(
                    f"the fault {fault.action!r} is one of the engine in process, not of a server",
                    f"choose one of {', '.join(SERVER_ACTIONS)}",
                )
        self._faults = tuple(faults)
        self._hits = [0] * len(faults)

    def take(self, number: int, request_id: str, arm: str, prompt: str) -> Fault | None:
        """The first fault for the `number`-th arrival that has hits left."""
        for place, fault in enumerate(self._faults):
            if self._hits[place] < fault.most_hits and fault.hits_arrival(number, request_id, arm, prompt):
                self._hits[place] += 1
                return fault
        return None

    def refusal_before(self, number: int, arm: str) -> Fault | None:
        """The fault that closes the port before arrival `number`; it is then spent."""
        for place, fault in enumerate(self._faults):
            is_due = fault.action == "refuse" and (fault.request or 0) == number
            if is_due and fault.arm in (None, arm) and not self._hits[place]:
                self._hits[place] += 1
                return fault
        return None

    def clear(self) -> None:
        self._hits = [0] * len(self._faults)


@dataclass(slots=True)
class Gate:
    """Lets a job's chunks pass until its fault is due; the fault then happens once.

    Args:
        stream: None: the answer is one document, and what an event would be is left to whoever sends it.
        cut: closes the connection.
        restart: cuts every connection, and refuses new ones for a time.
    """

    engine: SimulatedEngine
    job: Job
    fault: Fault
    answer: Format
    stream: EventStream | None
    cut: Callable[[], None]
    restart: Callable[[float], None]
    is_spent: bool = False

    def __call__(self) -> bool:
        if self.is_spent or self.job.log.num_output_tokens < self.fault.after_tokens:
            return True
        self.is_spent = True
        action, stream = self.fault.action, self.stream
        if action == "hang":
            if self.fault.seconds is not None:
                asyncio.get_running_loop().call_later(self.fault.seconds, self.engine.resume, self.job)
            return False
        if action == "cut":
            self.cut()
            self.engine.end(self.job, "cut")
            return False
        if action == "restart":
            self.restart(self.fault.seconds or 0.0)
            return False
        if stream is None:
            return True
        if action == "error_event":
            stream.write(self.answer.error_event(self.fault.message))
            stream.write(DONE)
            self.engine.end(self.job, "error_event")
            return False
        stream.write(GARBAGE_EVENT if action == "garbage" else oversized_event(self.fault.size_bytes))
        return True


def oversized_event(num_bytes: int) -> bytes:
    """One good event of about `num_bytes` bytes that carries nothing."""
    return b'data: {"id":"oversized","choices":[],"padding":"' + b"x" * num_bytes + b'"}\n\n'
