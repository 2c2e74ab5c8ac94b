"""The variance of a change, counted by hand."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from gated_runs import gated, made_up

from dflash.gate.estimates import estimate, squares_about_mean
from dflash.gate.intervals import half_width, needed_to_tell
from dflash.gate.judge import holm_levels
from dflash.gate.prompt_sums import repeated_sums
from dflash.gate.quantities import QUANTITIES
from dflash.gate.records import CalibratedSpread, RunSpread, Spread

TPOT = QUANTITIES["tpot_s"]


def side(**changes):
    return gated(made_up(**changes)).sides["d"]


def test_the_change_is_the_logarithm_of_the_pooled_ratio():
    change = estimate(TPOT, side(), side(step_ms=33.0))
    assert change is not None
    assert change.log_ratio == pytest.approx(math.log(1.1), abs=1e-6)


def test_between_runs_is_the_pooled_variance_of_the_repeats_logarithms():
    base, new = side(run_noise=0.02, seed=1), side(run_noise=0.02, seed=2)
    change = estimate(TPOT, base, new)
    assert change is not None
    assert change.spread.runs is not None
    logs = [[math.log(TPOT.value(one.of_repeat(repeat))) for repeat in range(3)] for one in (base, new)]
    assert change.spread.runs.variance == pytest.approx(sum(map(statistics.variance, logs)) / 2)
    assert change.spread.runs.degrees_of_freedom == 4
    assert change.spread.runs.of_change == pytest.approx(change.spread.runs.variance * 2 / 3)


def test_a_factor_of_a_whole_repeat_is_no_noise_of_requests():
    sums = repeated_sums(TPOT, side(run_noise=0.05, seed=1))
    assert sums is not None
    assert sums.request_variance() < 1e-5


def test_the_noise_of_requests_is_told_from_that_of_repeats():
    """Requests off by 5 %: the variance of the pooled log is 0.05² times the sum of squared shares, over 3."""
    found = []
    for seed in range(20):
        sums = repeated_sums(TPOT, side(noise=0.05, run_noise=0.01, num_prompts=64, seed=seed))
        assert sums is not None
        found.append(sums.request_variance())
    weights = [61 + 12 * prompt - 1 for prompt in range(64)]
    shares = [weight / sum(weights) for weight in weights]
    expected = 0.05**2 * sum(share**2 for share in shares) / 3
    assert statistics.mean(found) == pytest.approx(expected, rel=0.1)


def test_the_noise_of_requests_is_counted_once():
    spread = Spread(128, prompts=4.0, runs=RunSpread(9.0, 4, 3, 3, requests=4.0))
    assert spread.runs is not None
    assert spread.runs.of_change == pytest.approx(6.0)
    assert spread.variance == pytest.approx(4.0 + 2.0)
    assert Spread(128, prompts=4.0, runs=RunSpread(3.0, 4, 3, 3, requests=4.0)).variance == 4.0


def test_few_repeats_give_few_degrees_of_freedom():
    mostly_runs = Spread(128, prompts=1e-6, runs=RunSpread(1.0, 4, 3, 3))
    mostly_prompts = Spread(128, prompts=1.0, runs=RunSpread(1e-6, 4, 3, 3))
    assert mostly_runs.degrees_of_freedom == pytest.approx(4, rel=1e-3)
    assert mostly_prompts.degrees_of_freedom == pytest.approx(127, rel=1e-3)
    assert half_width(mostly_runs, 0.95) == pytest.approx(2.776 * math.sqrt(2 / 3), rel=1e-3)


def test_a_calibration_takes_the_place_of_the_repeats():
    change = estimate(
        TPOT, side(noise=0.01, seed=1), side(noise=0.01, seed=2), calibrated=CalibratedSpread(0.0004, 11)
    )
    assert change is not None
    assert change.basis == "calibration"
    assert change.spread.runs is not None
    assert change.spread.runs.of_change == pytest.approx(0.0008)
    assert change.spread.runs.degrees_of_freedom == 10


def test_a_calibration_that_saw_no_variation_makes_a_count_exact():
    one = {"num_repeats": 1}
    quantity = QUANTITIES["acceptance_length"]
    sides = side(**one), side(acceptance=2.9, **one)
    (by_prompts, exactly) = (estimate(quantity, *sides, is_deterministic=known) for known in (False, True))
    assert by_prompts is not None
    assert exactly is not None
    assert (by_prompts.basis, exactly.basis) == ("prompts", "exact")


def test_repeats_that_vary_outweigh_a_calibration():
    change = estimate(
        QUANTITIES["acceptance_length"], side(), side(step_noise=0.05, seed=2), is_deterministic=True
    )
    assert change is not None
    assert change.basis == "prompts"


def test_too_few_prompts_leave_the_repeats_alone():
    change = estimate(TPOT, side(num_prompts=4, run_noise=0.01, seed=1), side(num_prompts=4, seed=2))
    assert change is not None
    assert change.basis == "repeats"
    assert change.spread.prompts is None


def test_the_noise_of_what_is_counted_is_that_of_prompts():
    change = estimate(
        QUANTITIES["acceptance_length"], side(step_noise=0.05, seed=1), side(step_noise=0.05, seed=2)
    )
    assert change is not None
    assert change.spread.runs is None
    assert change.spread.prompts is not None


def test_needed_repeats_are_the_least_that_are_narrow_enough():
    spread = Spread(128, prompts=0.0, runs=RunSpread(0.0004, 4, 3, 3))
    needed = needed_to_tell(spread, 0.02, 0.95)
    assert needed.repeats is not None
    for number, is_enough in ((needed.repeats, True), (needed.repeats - 1, False)):
        there = Spread(128, prompts=0.0, runs=RunSpread(0.0004, 2 * (number - 1), number, number))
        assert (half_width(there, 0.95) <= 0.02) is is_enough


def test_needed_prompts_shrink_with_their_number():
    needed = needed_to_tell(Spread(100, prompts=0.0004), 0.02, 0.95, is_time=False)
    assert needed.repeats is None
    assert needed.prompts == pytest.approx(100 * (1.96 * 0.02 / 0.02) ** 2, rel=0.02)


def test_holm_tests_the_smallest_hardest_and_stops():
    assert holm_levels([0.001, 0.04, 0.012], 0.05) == pytest.approx([0.05 / 3, 0.05, 0.025])
    assert holm_levels([0.03, 0.001, 0.5], 0.05) == pytest.approx([0.025, 0.05 / 3, 0.025])
    assert holm_levels([], 0.05) == []


def test_squares_about_the_mean():
    values = [random.Random(0).random() for _ in range(9)]
    assert squares_about_mean(values) == pytest.approx(8 * statistics.variance(values))
