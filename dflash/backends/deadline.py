"""One moving time limit for a whole request, which says what it waited for."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

from dflash.errors import RequestError


class Deadline:
    """Cancels the task that runs inside it when its time is over, and then raises a `RequestError` in its place.

    `expect` moves the time without a new timer, so that it may be called for every packet. Timers of a task
    of its own for each read, as `asyncio.wait_for` makes them, would cost more than reading does.
    """

    def __init__(self, total_s: float | None, awaited: str) -> None:
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._total = (math.inf if total_s is None else now + total_s, "total_timeout", total_s, awaited)
        self._current = self._total
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    def expect(self, kind: str, seconds: float | None, awaited: str) -> None:
        """From now on allow `seconds` (None: no limit but the total) for `awaited`."""
        at = math.inf if seconds is None else self._loop.time() + seconds
        self._current = min((at, kind, seconds, awaited), self._total, key=lambda limit: limit[0])
        if self._timer is None or self._timer.when() > self._current[0]:
            self._arm()

    def __enter__(self) -> Deadline:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._num_cancels = task.cancelling() if hasattr(task, "cancelling") else 0
        self._arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._expired:
            return
        # Python 3.10 cannot tell a cancel from outside that comes in the same moment.
        outside = self._task.uncancel() > self._num_cancels if hasattr(self._task, "uncancel") else False
        if not outside and isinstance(error, asyncio.CancelledError):
            _, name, seconds, awaited = self._current
            raise RequestError(name, f"waited {seconds:g} s for {awaited}") from None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (
            None if math.isinf(self._current[0]) else self._loop.call_at(self._current[0], self._fire)
        )

    def _fire(self) -> None:
        self._timer = None
        if self._loop.time() < self._current[0]:  # it was moved meanwhile
            self._arm()
            return
        self._expired = True
        self._task.cancel()
