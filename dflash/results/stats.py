"""Percentiles, means, and pooled metrics with their percentile bootstrap. Knows nothing of requests or arms.

The bootstrap unit is the prompt: everything that belongs to one prompt (its turns, its repeats, and both
arms of a paired metric) is summed first, then prompts are drawn with replacement and their sums are
pooled again. Thereby both arms always see the same draw, and a resample costs one matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

CONFIDENCE = 0.95
NUM_RESAMPLES = 2_000
BOOTSTRAP_SEED = 0
MIN_PROMPTS_FOR_INTERVAL = 5

# Resamples are drawn in blocks of about this many draws, so that memory stays bounded for very large runs.
_DRAWS_PER_BLOCK = 1_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval over prompts;

    `low` and `high` are None where there are too few prompts.
    """

    value: float
    low: float | None
    high: float | None


def ratio(numerator: Any, denominator: Any) -> Any:
    """numerator / denominator, on numbers or arrays alike."""
    return numerator / denominator


def ratio_of_ratios(numerator: Any, divisor: Any, other_numerator: Any, other_divisor: Any) -> Any:
    """(numerator / divisor) / (other_numerator / other_divisor), on numbers or arrays alike."""
    return (numerator / divisor) / (other_numerator / other_divisor)


def one_plus_ratio(numerator: Any, denominator: Any) -> Any:
    """1 + numerator / denominator, on numbers or arrays alike."""
    return 1 + numerator / denominator


@dataclass(frozen=True, slots=True)
class Pooled:
    """A metric as the sums it is pooled from:

    One row of sums per prompt, and the formula over the summed columns.
    """

    sums: Mapping[str, tuple[float, ...]]  # prompt id -> its sums; every row of the same length
    formula: Callable[..., Any]  # of the summed columns; the same expression serves numbers and arrays

    @classmethod
    def of(cls, rows: Iterable[tuple[str, tuple[float, ...]]], formula: Callable[..., Any]) -> Pooled:
        """Sum the rows of each prompt (its turns and repeats) into one."""
        sums: dict[str, tuple[float, ...]] = {}
        for prompt_id, row in rows:
            known = sums.get(prompt_id)
            sums[prompt_id] = row if known is None else tuple(a + b for a, b in zip(known, row, strict=True))
        return cls(sums, formula)

    def value(self) -> float | None:
        """The formula over all prompts; None where there is nothing to pool or a denominator is zero."""
        if not self.sums:
            return None
        totals = (math.fsum(column) for column in zip(*self.sums.values(), strict=True))
        try:
            value = float(self.formula(*totals))
        except ZeroDivisionError:
            return None
        return value if math.isfinite(value) else None

    def interval(self) -> Interval | None:
        """Value with its percentile bootstrap over prompts: 95 %, 2,000 resamples, seed 0.

        A resample whose denominator is zero has no value and is left out.
        """
        value = self.value()
        if value is None:
            return None
        if len(self.sums) < MIN_PROMPTS_FOR_INTERVAL:
            return Interval(value, None, None)
        import numpy

        rows = numpy.asarray(list(self.sums.values()), dtype=numpy.float64)  # [prompts, columns]
        resampled = resample_sums(rows)  # [resamples, columns]
        with numpy.errstate(divide="ignore", invalid="ignore"):
            values = numpy.asarray(self.formula(*resampled.T))
        values = values[numpy.isfinite(values)]
        if values.size == 0:
            return Interval(value, None, None)
        tail = 100 * (1 - CONFIDENCE) / 2
        low, high = numpy.percentile(values, [tail, 100 - tail])
        return Interval(value, float(low), float(high))


def resample_sums(rows: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """Column sums of 2,000 draws of prompts with replacement.

    Args:
        rows: [prompts, columns].

    Returns:
        [resamples, columns].
    """
    import numpy

    num_prompts = len(rows)
    generator = numpy.random.default_rng(BOOTSTRAP_SEED)
    block = max(1, _DRAWS_PER_BLOCK // num_prompts)
    parts = []
    for start in range(0, NUM_RESAMPLES, block):
        size = min(block, NUM_RESAMPLES - start)
        draws = generator.integers(0, num_prompts, size=(size, num_prompts))
        # How often each prompt was drawn turns the sum over draws into one product.
        offsets = numpy.arange(size)[:, None] * num_prompts
        counts = numpy.bincount((draws + offsets).ravel(), minlength=size * num_prompts)
        parts.append(counts.reshape(size, num_prompts) @ rows)
    return numpy.concatenate(parts)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear interpolation between the two nearest ranks; None for no values.

    Args:
        percent: 0..100.
    """
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def arithmetic_mean(values: Sequence[float]) -> float | None:
    """sum / count; None for no values."""
    return math.fsum(values) / len(values) if values else None


def geometric_mean(values: Sequence[float]) -> float | None:
    """exp(mean(log)); None for no values or where one is not positive."""
    if not values or min(values) <= 0:
        return None
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))
