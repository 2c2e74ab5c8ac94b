"""The load: how many requests are under way, when each is due, and what becomes of them when one fails."""

from __future__ import annotations

import asyncio
import itertools
import statistics

import pytest

from dflash.load import Load, LoopLag, due_offsets_ns, run_load


class Counter:
    """Jobs that note how many of them are under way."""

    def __init__(self, num_turns: int = 3) -> None:
        self.num_turns = num_turns
        self.now = self.most = self.done = self.cancelled = 0
        self.due: list[int | None] = []

    async def job(self, due_ns: int | None) -> None:
        self.due.append(due_ns)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(self.num_turns):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1
        self.done += 1


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (4, 4), (50, 10)])
def test_a_closed_loop_keeps_its_level(concurrency: int, most: int) -> None:
    counter = Counter()
    asyncio.run(run_load(Load(concurrency), [counter.job] * 10))
    assert (counter.done, counter.most, counter.now) == (10, most, 0)
    assert counter.due == [None] * 10


def test_an_open_loop_sends_when_due_and_says_when_that_was() -> None:
    counter = Counter()
    asyncio.run(run_load(Load(100, request_rate=10_000.0, arrivals="constant"), [counter.job] * 20))
    due = [stamp for stamp in counter.due if stamp is not None]
    assert counter.done == len(due) == 20
    assert [later - earlier for earlier, later in itertools.pairwise(due)] == [100_000] * 19


def test_an_open_loop_that_is_capped_keeps_the_due_stamps() -> None:
    counter = Counter(num_turns=50)
    asyncio.run(run_load(Load(2, request_rate=1e6), [counter.job] * 30))
    assert counter.most == 2
    due = [stamp for stamp in counter.due if stamp is not None]
    assert due == sorted(due), "waiting for a place moves no request's due time"


def test_poisson_arrivals_have_the_mean_and_the_spread_of_their_rate() -> None:
    offsets = due_offsets_ns(Load(1, request_rate=5.0, seed=3), 20_001)
    gaps_s = [(later - earlier) / 1e9 for earlier, later in itertools.pairwise(offsets)]
    assert offsets[0] == 0
    assert statistics.mean(gaps_s) == pytest.approx(0.2, rel=0.03)
    assert statistics.stdev(gaps_s) == pytest.approx(0.2, rel=0.03), "exponential: the spread is the mean"
    assert offsets == due_offsets_ns(Load(1, request_rate=5.0, seed=3), 20_001)
    assert offsets[:5] != due_offsets_ns(Load(1, request_rate=5.0, seed=4), 5)


def test_a_job_that_fails_ends_the_others_before_it_is_raised() -> None:
    counter = Counter(num_turns=10_000)

    async def fail(due_ns: int | None) -> None:
        await asyncio.sleep(0)
        raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        asyncio.run(run_load(Load(4), [counter.job, counter.job, fail, counter.job]))
    assert (counter.now, counter.done, counter.cancelled) == (0, 0, 3)


def test_the_lag_of_a_busy_loop_is_seen() -> None:
    async def block() -> LoopLag:
        async with LoopLag() as lag:
            for _ in range(3):
                await asyncio.sleep(0.03)
                waited = asyncio.get_running_loop().time() + 0.05
                while asyncio.get_running_loop().time() < waited:
                    pass
            await asyncio.sleep(0.03)
        return lag

    lag = asyncio.run(block())
    assert lag.max_ns is not None
    assert lag.max_ns > 20_000_000
    percentiles = [lag.percentile_ns(percent) or 0 for percent in (1, 50, 99, 100)]
    assert percentiles == sorted(percentiles)
    assert percentiles[-1] <= lag.max_ns


def test_no_lag_is_known_where_nothing_ran() -> None:
    assert LoopLag().percentile_ns(99) is None
