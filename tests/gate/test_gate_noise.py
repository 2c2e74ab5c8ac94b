"""The measurement of false alarms and power: a small part of it, and that its seed decides it."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import numpy
import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "gate_noise.py"


@pytest.fixture(scope="module")
def gate_noise():
    spec = importlib.util.spec_from_file_location("gate_noise", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gate_noise"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gate_noise"]


def test_nothing_is_called_worse_and_what_changed_is_found(gate_noise):
    for place in (0, 1):
        row = gate_noise.ROWS[place]
        same = Counter(gate_noise.judge_pairs(row, 25, 7, is_changed=False))
        changed = Counter(gate_noise.judge_pairs(row, 10, 7, is_changed=True))
        assert same["worse"] <= 1, row.name
        assert changed["worse"] >= 9, row.name


def test_the_seed_decides(gate_noise):
    row = gate_noise.ROWS[0]
    one, again, other = (
        [item.last_ns for item in gate_noise.make_side(row.truth, 3, numpy.random.default_rng(seed)).records]
        for seed in (5, 5, 6)
    )
    assert one == again != other


def test_the_noise_is_the_one_that_is_said(gate_noise):
    truth = gate_noise.Truth(num_repeats=200)
    noise = numpy.random.default_rng(0)
    requests = gate_noise.time_factors(truth, noise)
    assert numpy.log(requests[requests < 1.25]).std() == pytest.approx(0.05, abs=0.002)
    assert (requests > 1.3).mean() == pytest.approx(0.01, abs=0.003)
    runs = numpy.log([gate_noise.run_factors(gate_noise.Truth(), noise)[0, 0] for _ in range(2000)])
    assert runs.std() == pytest.approx(0.007, abs=0.0005)
    ramps = [gate_noise.run_factors(gate_noise.Truth(factor_per_run=True), noise) for _ in range(500)]
    drifts = [ramp[-1, -1] / ramp[0, 0] - 1 for ramp in ramps]
    assert max(map(abs, drifts)) <= 0.01 + 1e-9
    assert numpy.mean(numpy.abs(drifts)) == pytest.approx(0.005, abs=0.001)


def test_a_row_says_whether_the_figures_are_reached(gate_noise):
    line = gate_noise.table_row(gate_noise.ROWS[2], 3, 2, 0)
    assert line.startswith("| acceptance length, not varying | `acceptance_length:-1%` | 0 of 3 |")
    assert line.endswith("2 of 2 (100.0 %) | yes |")
