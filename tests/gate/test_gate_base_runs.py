"""A baseline of several runs: the mean of their logarithms, and what whole runs differ by."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from gated_runs import gated, made_up

from dflash.errors import UsageError
from dflash.gate.calibration import calibrate
from dflash.gate.calibration_page import render_calibration
from dflash.gate.comparison import compare_runs
from dflash.gate.estimates import base_spread, estimate
from dflash.gate.expressions import parse_gate
from dflash.gate.gated_run import Rules
from dflash.gate.intervals import half_width, needed_to_tell
from dflash.gate.quantities import QUANTITIES
from dflash.gate.records import RunSpread, Spread

TPOT = QUANTITIES["tpot_s"]


def made(seed: int, **changes):
    """A run whose repeats share a factor of the whole run, which no repeat shows."""
    factor = 1 + 0.01 * math.sin(3 * seed)
    return gated(made_up(f"run-{seed}", seed=seed, step_ms=30 * factor * changes.pop("slower", 1), **changes))


def together(*seeds: int, **changes):
    first, *others = (made(seed, **changes) for seed in seeds)
    return replace(first, others=tuple(others))


def test_the_base_is_the_mean_of_the_logarithms():
    sides = [made(seed).sides["d"] for seed in range(4)]
    change = estimate(TPOT, sides[0], sides[3], others=sides[1:3])
    assert change is not None
    logs = [math.log(TPOT.value(side)) for side in sides]
    assert change.log_ratio == pytest.approx(logs[3] - statistics.mean(logs[:3]))
    assert change.base == pytest.approx(math.exp(statistics.mean(logs[:3])))
    assert (change.num_base_runs, change.basis) == (3, "baseline runs")


def test_whole_runs_differ_by_the_variance_of_their_values():
    sides = [made(seed, noise=0.01).sides["d"] for seed in range(6)]
    change = estimate(TPOT, sides[0], sides[5], others=sides[1:5])
    assert change is not None
    runs = change.spread.runs
    assert runs is not None
    assert runs.variance == pytest.approx(
        statistics.variance(math.log(TPOT.value(side)) for side in sides[:5])
    )
    assert runs.degrees_of_freedom == 4
    assert runs.of_change == pytest.approx(runs.variance * (1 + 1 / 5))


def test_two_runs_tell_no_spread():
    assert base_spread([1.0, 1.1], 0.0) is None
    assert base_spread([1.0, None, 1.1, 1.2], 0.0) is None


def test_a_count_that_no_run_shows_to_vary_is_compared_exactly():
    acceptance = QUANTITIES["acceptance_length"]
    sides = [made(seed, num_repeats=1).sides["d"] for seed in range(4)]
    other = made(9, num_repeats=1, acceptance=2.9).sides["d"]
    assert estimate(acceptance, sides[0], other, others=sides[1:]).basis == "exact"
    varying = [made(seed, num_repeats=1, step_noise=0.05).sides["d"] for seed in range(4)]
    assert estimate(acceptance, varying[0], other, others=varying[1:]).basis == "prompts"


def test_a_slow_run_is_worse_than_the_baseline_and_a_usual_one_the_same():
    rules = Rules((parse_gate("tpot_s:+5%"),))
    base = together(*range(1, 9))
    slow = compare_runs(base, made(20, slower=1.08), rules)
    usual = compare_runs(base, made(21), rules)
    assert [item.verdict for item in slow.comparisons] == ["same", "worse"]
    assert [item.verdict for item in usual.comparisons] == ["same", "same"]
    assert slow.base_name == "run-1 and 7 more runs"
    assert slow.comparisons[1].num_base_runs == 8


def test_a_run_of_the_baseline_itself_is_said():
    report = compare_runs(together(1, 2, 3, 4), made(3), Rules((parse_gate("tpot_s:+5%"),)))
    assert any("the new run is one of those that the base is made of" in note for note in report.notes)


def test_more_runs_of_the_baseline_are_named_where_they_would_tell():
    spread = Spread(64, 0.0, RunSpread(0.01**2, 2, 3, 1, 0.0, of_whole_runs=True))
    assert half_width(spread, 0.95) > 0.025
    needed = needed_to_tell(spread, 0.025, 0.95)
    assert needed.repeats is None
    assert needed.base_runs is not None
    enough = RunSpread(0.01**2, needed.base_runs - 1, needed.base_runs, 1, 0.0, of_whole_runs=True)
    assert half_width(Spread(64, 0.0, enough), 0.95) <= 0.025


def test_runs_for_a_baseline_are_each_compared_with_all_others():
    rules = Rules((parse_gate("tpot_s:+5%"),))
    report = calibrate([made(seed) for seed in range(1, 7)], rules, as_baseline=True)
    assert [item.num_pairs for item in report.gates] == [6, 6]
    assert all(item.num_false_alarms == 0 for item in report.gates)
    assert "Every run is compared with all others together: run-1" in render_calibration(report)
    with pytest.raises(UsageError, match="3 runs are too few"):
        calibrate([made(seed) for seed in range(3)], rules, as_baseline=True)
