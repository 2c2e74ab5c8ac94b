"""The load on a server: how many requests are under way, or when each is due."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

NS_PER_S = 1_000_000_000
LAG_EVERY_S = 0.02

Job = Callable[[int | None], Awaitable[None]]  # takes when it is due, in ns of `time.perf_counter_ns`


@dataclass(frozen=True, slots=True)
class Load:
    """Closed loop: `concurrency` requests are kept under way. Open loop: requests are sent when they are due, whether
    earlier ones have come back or not, and at most `concurrency` of them are under way if that is given."""

    concurrency: int
    request_rate: float | None = None  # requests a second; None: closed loop
    arrivals: str = "poisson"  # or "constant"
    seed: int = 0


def due_offsets_ns(load: Load, num_requests: int) -> list[int]:
    """When each request of an open loop is due, in ns after the start: ascending, the same in every run.

    Poisson arrivals have exponentially distributed gaps, mean 1 / rate; constant ones are 1 / rate apart.
    """
    assert load.request_rate is not None
    generator = random.Random(f"arrivals/{load.seed}")
    gap_s = 1 / load.request_rate
    offset_s, offsets = 0.0, []
    for _ in range(num_requests):
        offsets.append(round(offset_s * NS_PER_S))
        offset_s += generator.expovariate(load.request_rate) if load.arrivals == "poisson" else gap_s
    return offsets


async def run_load(load: Load, jobs: Sequence[Job], deadline_ns: int | None = None) -> None:
    """Run every job under `load`; returns when the last has ended.

    Args:
        deadline_ns: of `time.perf_counter_ns`: no job is begun after it, and those under way are waited for.

    Raises:
        BaseException: the first that a job raises; the others are cancelled and awaited before.
    """
    if load.request_rate is None:
        await _run_closed(load.concurrency, jobs, deadline_ns)
    else:
        await _run_open(load, jobs, deadline_ns)


async def _run_closed(concurrency: int, jobs: Sequence[Job], deadline_ns: int | None) -> None:
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            if _is_past(deadline_ns):
                return
            await job(None)

    await _all(work() for _ in range(min(concurrency, len(jobs))))


async def _run_open(load: Load, jobs: Sequence[Job], deadline_ns: int | None) -> None:
    started_ns = time.perf_counter_ns()
    places = asyncio.Semaphore(load.concurrency)

    async def work(job: Job, offset_ns: int) -> None:
        due_ns = started_ns + offset_ns
        if deadline_ns is not None and due_ns >= deadline_ns:
            return
        await asyncio.sleep(max(0, due_ns - time.perf_counter_ns()) / NS_PER_S)
        async with places:  # waiting here shows as queueing: the request was due and is not sent
            if not _is_past(deadline_ns):
                await job(due_ns)

    await _all(
        work(job, offset_ns) for job, offset_ns in zip(jobs, due_offsets_ns(load, len(jobs)), strict=True)
    )


def _is_past(deadline_ns: int | None) -> bool:
    return deadline_ns is not None and time.perf_counter_ns() >= deadline_ns


async def _all(works: Iterable[Awaitable[None]]) -> None:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def rest(seconds: float) -> None:
    """Do nothing, so that the machine can cool down."""
    await asyncio.sleep(seconds)


class LoopLag:
    """How late this process's event loop wakes up: time that it adds to the stamps of what it reads.

    A context; sleeps for `LAG_EVERY_S` again and again and keeps a histogram, whose size does not grow.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}  # lag in whole microseconds, above 1000 in steps of 1 %
        self._task: asyncio.Task[None] | None = None
        self.max_ns: int | None = None

    async def __aenter__(self) -> LoopLag:
        self._task = asyncio.ensure_future(self._measure())
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def percentile_ns(self, percent: float) -> int | None:
        """The lag that `percent` of the wake-ups did not exceed (to 1 %); None where nothing was measured."""
        wanted = percent / 100 * sum(self._counts.values())
        seen = 0
        for lag_us in sorted(self._counts):
            seen += self._counts[lag_us]
            if seen >= wanted:
                return min(lag_us * 1000, self.max_ns or 0)
        return None

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            lag_ns = max(0, round((loop.time() - due_s) * NS_PER_S))
            self.max_ns = max(lag_ns, self.max_ns or 0)
            bucket = _bucket_us(lag_ns)
            self._counts[bucket] = self._counts.get(bucket, 0) + 1


def _bucket_us(lag_ns: int) -> int:
    lag_us = -(-lag_ns // 1000)
    step = max(1, lag_us // 100)
    return -(-lag_us // step) * step
