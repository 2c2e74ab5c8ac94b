"""Percentiles, means, and pooled metrics with their percentile bootstrap. Knows nothing of requests or arms.

The bootstrap unit is the prompt: everything that belongs to one prompt (its turns, its repeats, and both
arms of a paired metric) is summed first, then prompts are drawn with replacement and their sums are
pooled again. Thereby both arms always see the same draw, and a resample costs one matrix product. How often each
prompt is drawn depends on the number of prompts alone: metrics over equally many share the draws and the product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

CONFIDENCE = 0.95
NUM_RESAMPLES = 2_000
BOOTSTRAP_SEED = 0
MIN_PROMPTS_FOR_INTERVAL = 5

# Resamples are drawn and multiplied in blocks of about this many draws: memory stays bounded for very large runs, and
# a block fits into the cache of a core.
_DRAWS_PER_BLOCK = 60_000
_MIN_RESAMPLES_PER_PRODUCT = 48  # the sums of all prompts are read once for so many
_MAX_KEPT_BYTES = 64_000_000  # of draws that are kept for the next metrics over as many prompts


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

    def rows(self) -> NDArray[numpy.float64]:
        """[prompts, columns]: the sums as they are drawn from."""
        import numpy

        if isinstance(self.sums, PromptSums):
            return self.sums.rows
        return numpy.asarray(list(self.sums.values()), dtype=numpy.float64)

    def value(self) -> float | None:
        """The formula over all prompts; None where there is nothing to pool or a denominator is zero."""
        if not self.sums:
            return None
        totals = [math.fsum(column) for column in self.rows().T.tolist()]
        try:
            value = float(self.formula(*totals))
        except ZeroDivisionError:
            return None
        return value if math.isfinite(value) else None

    def interval(self) -> Interval | None:
        """Value with its percentile bootstrap over prompts: 95 %, 2,000 resamples, seed 0.

        A resample whose denominator is zero has no value and is left out.
        """
        return intervals([self])[0]


class PromptSums(Mapping[str, "tuple[float, ...]"]):
    """Sums per prompt that are kept as one array: `Pooled.sums` of many prompts."""

    def __init__(
        self, prompt_ids: Sequence[str], numbers: NDArray[numpy.int64], rows: NDArray[numpy.float64]
    ) -> None:
        """Args:
        prompt_ids: of prompts by number.
        numbers: [prompts] the number of each; its id is read when it is asked for.
        rows: [prompts, columns].
        """
        self.rows = rows
        self._prompt_ids, self._numbers = prompt_ids, numbers
        self._places: dict[str, int] | None = None

    def __getitem__(self, prompt_id: str) -> tuple[float, ...]:
        if self._places is None:
            self._places = {name: place for place, name in enumerate(self)}
        return tuple(self.rows[self._places[prompt_id]].tolist())

    def __iter__(self) -> Iterator[str]:
        return map(self._prompt_ids.__getitem__, self._numbers.tolist())

    def __len__(self) -> int:
        return len(self._numbers)


def intervals(metrics: Sequence[Pooled]) -> list[Interval | None]:
    """`Pooled.interval` of each: those over equally many prompts share one matrix product."""
    values = [pooled.value() for pooled in metrics]
    alike: dict[int, list[int]] = {}
    for place, (pooled, value) in enumerate(zip(metrics, values, strict=True)):
        if value is not None and len(pooled.sums) >= MIN_PROMPTS_FOR_INTERVAL:
            alike.setdefault(len(pooled.sums), []).append(place)
    found = [None if value is None else Interval(value, None, None) for value in values]
    for places in alike.values():
        for place, (low, high) in zip(places, _bounds([metrics[place] for place in places]), strict=True):
            value = values[place]
            assert value is not None
            found[place] = Interval(value, low, high)
    return found


def _bounds(metrics: Sequence[Pooled]) -> Iterator[tuple[float | None, float | None]]:
    """Lower and upper end of metrics over equally many prompts."""
    import numpy

    rows = [pooled.rows() for pooled in metrics]
    resampled = resample_sums(numpy.concatenate(rows, axis=1))  # [resamples, columns of all]
    ends = numpy.cumsum([own.shape[1] for own in rows])[:-1]
    for pooled, own in zip(metrics, numpy.split(resampled, ends, axis=1), strict=True):
        with numpy.errstate(divide="ignore", invalid="ignore"):
            values = numpy.asarray(pooled.formula(*own.T))
        values = values[numpy.isfinite(values)]
        if values.size == 0:
            yield None, None
            continue
        tail = 100 * (1 - CONFIDENCE) / 2
        low, high = numpy.percentile(values, [tail, 100 - tail])
        yield float(low), float(high)


def resample_sums(rows: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """Column sums of 2,000 draws of prompts with replacement.

    Args:
        rows: [prompts, columns].

    Returns:
        [resamples, columns].
    """
    import numpy

    # How often each prompt was drawn turns the sum over draws into one product.
    return numpy.concatenate([counts.astype(numpy.float64) @ rows for counts in _draw_counts(len(rows))])


_kept_counts: dict[int, list[NDArray[numpy.uint8]]] = {}  # number of prompts -> blocks


def _draw_counts(num_prompts: int) -> Iterable[NDArray[numpy.uint8]]:
    """How often each prompt is drawn, [resamples of a block, prompts], block by block.

    The same for every metric over so many prompts; kept while there is room.
    """
    if num_prompts in _kept_counts:
        return _kept_counts[num_prompts]
    kept_bytes = sum(_kept_counts) * NUM_RESAMPLES
    if kept_bytes + num_prompts * NUM_RESAMPLES > _MAX_KEPT_BYTES:
        return _count_draws(num_prompts)
    return _kept_counts.setdefault(num_prompts, list(_count_draws(num_prompts)))


def _count_draws(num_prompts: int) -> Iterator[NDArray[numpy.uint8]]:
    import numpy

    block = max(1, _DRAWS_PER_BLOCK // num_prompts)
    together = max(1, _MIN_RESAMPLES_PER_PRODUCT // block)
    blocks = _count_blocks(num_prompts, block)
    while members := list(islice(blocks, together)):
        yield numpy.concatenate(members)


def _count_blocks(num_prompts: int, block: int) -> Iterator[NDArray[numpy.uint8]]:
    import numpy

    generator = numpy.random.default_rng(BOOTSTRAP_SEED)
    for start in range(0, NUM_RESAMPLES, block):
        size = min(block, NUM_RESAMPLES - start)
        draws = generator.integers(0, num_prompts, size=(size, num_prompts))
        draws += numpy.arange(size)[:, None] * num_prompts
        counts = numpy.bincount(draws.ravel(), minlength=size * num_prompts).reshape(size, num_prompts)
        # once on average; 256 times, which would not fit, in fewer than one of 10^500 draws
        yield counts.astype(numpy.uint8)


def percentile(values: Sequence[float] | NDArray[Any], percent: float) -> float | None:
    """Linear interpolation between the two nearest ranks; None for no values.

    Args:
        percent: 0..100.
    """
    return percentiles(values, (percent,))[0]


def percentiles(
    values: Sequence[float] | NDArray[Any], percents: Sequence[float]
) -> tuple[float | None, ...]:
    """`percentile` of each percentage; the values are put in order once."""
    import numpy

    if not len(values):
        return (None,) * len(percents)
    ordered = numpy.sort(numpy.asarray(values))
    places = [(len(ordered) - 1) * percent / 100 for percent in percents]
    return tuple(_between_ranks(ordered, place) for place in places)


def _between_ranks(ordered: NDArray[Any], place: float) -> float:
    below = math.floor(place)
    low, high = ordered[below].item(), ordered[min(below + 1, len(ordered) - 1)].item()
    return float(low + (high - low) * (place - below))


def arithmetic_mean(values: Sequence[float] | NDArray[Any]) -> float | None:
    """sum / count; None for no values."""
    numbers = values if isinstance(values, Sequence) else values.tolist()
    return math.fsum(numbers) / len(numbers) if numbers else None


def geometric_mean(values: Sequence[float]) -> float | None:
    """exp(mean(log)); None for no values or where one is not positive."""
    if not values or min(values) <= 0:
        return None
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))
