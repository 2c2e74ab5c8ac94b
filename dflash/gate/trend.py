"""The last runs of a suite, in order: does a quantity step, or creep? Pure.

A gate against the last baseline cannot see a slow creep: every change is small. Here all runs are looked at together.
The statistic is the largest difference of means before and after any place, over its standard error; the noise is
taken from differences of neighbours, s² = sum((x[i+1] - x[i])²) / (2 (n - 1)) (von Neumann), which neither a step nor
a creep inflates. How large it gets where nothing happens is simulated from normal noise, seeded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

MIN_RUNS = 6  # with fewer nothing is called a step
LEVEL = 0.01
_NUM_SIMULATED = 4_000
_SEED = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A change in the course of runs."""

    place: int  # index of the first run after it
    relative: float  # mean after / mean before - 1
    kind: Literal["step", "creep"]  # whichever fits the values better


@dataclass(frozen=True, slots=True)
class Trend:
    """One quantity of one cell over the runs that have it."""

    quantity: str
    cell: str
    run_ids: tuple[str, ...]
    values: tuple[float, ...]
    steps: tuple[Step, ...]

    @property
    def since_first(self) -> float:
        """Last / first - 1."""
        return self.values[-1] / self.values[0] - 1


def find_steps(values: Sequence[float]) -> tuple[Step, ...]:
    """Where positive values step or creep, in order; binary segmentation.

    A stretch of fewer than 6 runs is not looked at.
    """
    logs = [math.log(value) for value in values]
    return tuple(sorted(_find(logs, 0), key=lambda step: step.place))


def _find(logs: Sequence[float], start: int) -> list[Step]:
    if len(logs) < MIN_RUNS:
        return []
    import numpy

    series = numpy.asarray(logs, dtype=numpy.float64)
    statistics = _statistics(series[None, :])[0]
    place = int(numpy.argmax(statistics)) + 1
    noise = float(numpy.square(numpy.diff(series)).sum())
    if noise > 0 and statistics[place - 1] <= _threshold(len(logs)):
        return []
    before, after = series[:place], series[place:]
    size = float(after.mean() - before.mean())
    if size == 0:
        return []
    kind: Literal["step", "creep"] = "creep" if _line_fits_better(series, place) else "step"
    found = [Step(start + place, math.expm1(size), kind)]
    if kind == "creep":  # its halves would be called steps again
        return found
    return [*_find(logs[:place], start), *found, *_find(logs[place:], start + place)]


def _statistics(series: NDArray[numpy.float64]) -> NDArray[Any]:
    """|mean after - mean before| / (s sqrt(1/k + 1/(n-k))) for k = 1..n-1. [series, runs] -> [series, runs - 1]"""
    import numpy

    number = series.shape[1]
    sums = numpy.cumsum(series, axis=1)
    places = numpy.arange(1, number)
    before = sums[:, :-1] / places
    after = (sums[:, -1:] - sums[:, :-1]) / (number - places)
    noise = numpy.sqrt(numpy.square(numpy.diff(series, axis=1)).sum(axis=1) / (2 * (number - 1)))
    error = noise[:, None] * numpy.sqrt(1 / places + 1 / (number - places))
    with numpy.errstate(divide="ignore", invalid="ignore"):
        found: NDArray[Any] = numpy.nan_to_num(numpy.abs(after - before) / error, nan=0.0, posinf=numpy.inf)
    return found


@lru_cache(maxsize=256)
def _threshold(number: int) -> float:
    """What the largest statistic of `number` runs exceeds in 1 % of series of nothing but normal noise."""
    import numpy

    noise = numpy.random.default_rng(_SEED).normal(size=(_NUM_SIMULATED, number))
    return float(numpy.quantile(_statistics(noise).max(axis=1), 1 - LEVEL))


def _line_fits_better(series: NDArray[numpy.float64], place: int) -> bool:
    """Whether a straight line leaves less unexplained than one step at `place`."""
    import numpy

    times = numpy.arange(len(series))
    line = numpy.polyval(numpy.polyfit(times, series, 1), times)
    step = numpy.where(times < place, series[:place].mean(), series[place:].mean())
    return bool(numpy.square(series - line).sum() < numpy.square(series - step).sum())
