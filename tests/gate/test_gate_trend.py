from __future__ import annotations

import random
from itertools import pairwise

import pytest

from dflash.gate.trend import find_steps


def noisy(levels: list[float], seed: int = 0, noise: float = 0.007) -> list[float]:
    generator = random.Random(seed)
    return [level * (1 + generator.gauss(0, noise)) for level in levels]


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_found_at_its_place(seed):
    (step,) = find_steps(noisy([100.0] * 9 + [104.0] * 9, seed))
    assert step.kind == "step"
    assert abs(step.place - 9) <= 1
    assert step.relative == pytest.approx(0.04, abs=0.012)


@pytest.mark.parametrize("seed", range(5))
def test_a_creep_is_found_though_no_single_change_is_large(seed):
    values = noisy([100 * 1.004**run for run in range(24)], seed)
    assert max(abs(b / a - 1) for a, b in pairwise(values)) < 0.04
    steps = find_steps(values)
    assert [step.kind for step in steps] == ["creep"]
    assert steps[0].relative > 0.03


def test_noise_alone_is_rarely_called_a_step():
    found = sum(bool(find_steps(noisy([100.0] * 20, seed))) for seed in range(300))
    assert found <= 9  # 1 % is meant: 3


def test_two_steps_are_both_found():
    steps = find_steps(noisy([100.0] * 8 + [110.0] * 8 + [102.0] * 8))
    assert [step.place for step in steps] == [8, 16]


def test_too_few_runs_show_nothing():
    assert find_steps([100.0, 100.1, 120.0, 120.1, 120.0]) == ()


def test_what_never_varies_but_once_is_a_step():
    assert [step.place for step in find_steps([3.0] * 5 + [2.9] * 5)] == [5]
    assert find_steps([3.0] * 10) == ()
