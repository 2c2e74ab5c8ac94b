from __future__ import annotations

import math
import random
import tracemalloc

import numpy
import pytest

from dflash.results import stats
from dflash.results.stats import Interval, Pooled, ratio, ratio_of_ratios


def plain_bootstrap(rows: list[tuple[float, ...]], formula) -> tuple[float, float]:
    """The definition word by word: draw prompts, pool their sums, sort, read the two percentiles."""
    draws = numpy.random.default_rng(0).integers(0, len(rows), size=(2000, len(rows)))
    values = []
    for draw in draws.tolist():
        pooled = [0.0] * len(rows[0])
        for prompt in draw:
            for column, share in enumerate(rows[prompt]):
                pooled[column] += share
        values.append(formula(*pooled))
    values.sort()

    def at(share: float) -> float:
        place = share * (len(values) - 1)
        below = math.floor(place)
        above = math.ceil(place)
        return values[below] * (1 - (place - below)) + values[above] * (place - below)

    return at(0.025), at(0.975)


@pytest.mark.parametrize(("formula", "width"), [(ratio, 2), (ratio_of_ratios, 4)])
def test_interval_equals_a_plain_implementation(formula, width):
    generator = random.Random(3)
    rows = [tuple(generator.uniform(1, 9) for _ in range(width)) for _ in range(13)]
    interval = Pooled.of(((f"p{i}", row) for i, row in enumerate(rows)), formula).interval()
    low, high = plain_bootstrap(rows, formula)
    assert interval.value == pytest.approx(formula(*(sum(column) for column in zip(*rows, strict=True))))
    assert interval.low == pytest.approx(low, rel=1e-12)
    assert interval.high == pytest.approx(high, rel=1e-12)
    assert interval.low < interval.value < interval.high


def test_turns_and_repeats_of_a_prompt_are_one_unit():
    once = Pooled.of([(f"p{i}", (float(i), 2.0)) for i in range(6)], ratio)
    halves = Pooled.of([(f"p{i}", (i / 2, 1.0)) for i in range(6) for _ in range(2)], ratio)
    assert halves.interval() == once.interval()


def test_equal_prompts_have_an_interval_of_no_width():
    interval = Pooled.of([(f"p{i}", (3.0, 2.0)) for i in range(20)], ratio).interval()
    assert interval == Interval(1.5, 1.5, 1.5)


@pytest.mark.parametrize(("num_prompts", "has_interval"), [(4, False), (5, True)])
def test_fewer_than_five_prompts_have_no_interval(num_prompts, has_interval):
    interval = Pooled.of([(f"p{i}", (float(i + 1), 1.0)) for i in range(num_prompts)], ratio).interval()
    assert (interval.low is not None) == has_interval
    assert (interval.high is not None) == has_interval


def test_nothing_and_zero_denominators_are_unknown():
    assert Pooled.of([], ratio).value() is None
    assert Pooled.of([], ratio).interval() is None
    assert Pooled.of([("p", (1.0, 0.0))], ratio).value() is None


def test_resamples_without_a_value_are_left_out():
    rows = [("a", (2.0, 1.0)), *((f"p{i}", (0.0, 0.0)) for i in range(5))]
    assert Pooled.of(rows, ratio).interval() == Interval(2.0, 2.0, 2.0)


def test_blocks_bound_memory_and_give_the_same_kind_of_interval(monkeypatch):
    rows = numpy.random.default_rng(1).uniform(1, 2, size=(300, 2))
    whole = stats.resample_sums(rows)
    monkeypatch.setattr(stats, "_DRAWS_PER_BLOCK", 30_000)
    tracemalloc.start()
    blocked = stats.resample_sums(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert blocked.shape == whole.shape == (2000, 2)
    assert numpy.allclose(blocked, whole, rtol=1e-12)
    assert peak < 300 * 2000 * 8  # one count per draw would already be more


def test_percentile_and_means():
    assert stats.percentile([], 50) is None
    assert stats.percentile([4.0, 1.0, 2.0], 50) == 2.0
    assert stats.percentile([1.0, 2.0], 75) == 1.75
    assert stats.percentile([7.0], 99) == 7.0
    assert stats.arithmetic_mean([]) is None
    assert stats.geometric_mean([]) is None
    assert stats.geometric_mean([1.0, 0.0]) is None


def test_the_published_averages_come_out():
    """Paper, table 1, Qwen3-4B at temperature 0: printed averages 4.91 (speedup) and 6.54 (tau)."""
    speedups = [5.15, 6.09, 5.68, 5.21, 4.78, 5.41, 2.85]
    lengths = [6.53, 7.84, 7.27, 6.64, 6.09, 7.09, 4.35]
    assert round(stats.geometric_mean(speedups), 2) == 4.91
    assert round(stats.arithmetic_mean(lengths), 2) == 6.54
