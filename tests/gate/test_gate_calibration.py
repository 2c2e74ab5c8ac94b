"""A/A runs: false alarms, the smallest effect, what is deterministic; and how that is kept."""

from __future__ import annotations

import math

import pytest
from gated_runs import gated, made_up

from dflash.errors import UsageError
from dflash.gate.calibrated import Calibration, cell_key, load_calibration, write_calibration
from dflash.gate.calibration import calibrate
from dflash.gate.calibration_page import calibration_document, render_calibration
from dflash.gate.comparison import compare_runs
from dflash.gate.expressions import parse_gate
from dflash.gate.gated_run import Rules

NOISE = {"noise": 0.02, "run_noise": 0.01}


def runs(number: int = 4, **changes):
    return [gated(made_up(f"run-{seed}", seed=seed, **{**NOISE, **changes})) for seed in range(1, number + 1)]


def rules(*gates: str) -> Rules:
    return Rules(tuple(parse_gate(text) for text in gates or ("tpot_s:+5%", "acceptance_length:-2%")))


def entry(report, quantity: str, arm: str = "dflash"):
    (found,) = [
        item for item in report.gates if item.gate.quantity == quantity and item.pair.cell.arm.name == arm
    ]
    return found


def test_every_run_is_compared_with_every_other_both_ways():
    found = entry(calibrate(runs(4), rules()), "tpot_s")
    assert found.num_pairs == 12
    assert found.num_false_alarms == 0


def test_a_gate_that_is_too_tight_shows_its_false_alarms():
    report = calibrate(runs(6, num_repeats=1, run_noise=0.05, noise=0.001), rules("tpot_s:+0.1%"))
    assert entry(report, "tpot_s").num_false_alarms > 5


def test_the_smallest_effect_is_found_in_nearly_all_pairs():
    sides = runs(5)
    effect = entry(calibrate(sides, rules()), "tpot_s").smallest_effect
    assert effect is not None
    assert 0.05 <= effect < 0.2
    slowed = [
        gated(made_up(f"s{seed}", seed=seed, step_ms=30 * (1 + effect), **NOISE)) for seed in range(1, 6)
    ]
    verdicts = [
        item.verdict
        for base in range(5)
        for new in range(5)
        if base != new
        for item in compare_runs(sides[base], slowed[new], rules("tpot_s:+5%")).comparisons
        if item.pair.cell.arm.name == "dflash"
    ]
    assert verdicts.count("worse") >= 0.9 * len(verdicts)


def test_what_never_varied_is_deterministic():
    calibration = calibrate(runs(3), rules()).calibration
    cell = runs(1)[0].info.cells[1]
    assert calibration.is_deterministic(cell, "acceptance_length")
    assert not calibration.is_deterministic(cell, "tpot_s")
    varied = calibrate(runs(3, step_noise=0.02), rules()).calibration
    assert not varied.is_deterministic(cell, "acceptance_length")


def test_the_spread_is_that_of_whole_runs():
    sides = runs(5)
    calibration = calibrate(sides, rules()).calibration
    cell = sides[0].info.cells[1]
    spread = calibration.spread(cell, "tpot_s", 3)
    assert spread is not None
    from dflash.gate.quantities import QUANTITIES

    logs = [math.log(QUANTITIES["tpot_s"].value(run.sides["d"])) for run in sides]
    mean = sum(logs) / 5
    assert spread.variance == pytest.approx(sum((value - mean) ** 2 for value in logs) / 4)
    assert spread.num_runs == 5
    assert calibration.spread(cell, "tpot_s", 1) is None  # runs of another number of repeats


def test_two_runs_give_no_spread():
    calibration = calibrate(runs(2), rules()).calibration
    assert calibration.spread(runs(1)[0].info.cells[1], "tpot_s", 3) is None


def test_a_calibration_makes_single_repeats_comparable():
    one = {"num_repeats": 1}
    sides = runs(6, **one)
    calibration = calibrate(sides, rules()).calibration
    new = gated(made_up("slow", seed=40, step_ms=33.5, **one, **NOISE))
    report = compare_runs(sides[0], new, Rules((parse_gate("tpot_s:+5%"),), calibration=calibration))
    (comparison,) = [item for item in report.comparisons if item.pair.cell.arm.name == "dflash"]
    assert (comparison.verdict, comparison.basis) == ("worse", "calibration")


def test_a_calibration_is_kept_and_read_again(tmp_path):
    calibration = calibrate(runs(3), rules()).calibration
    path = tmp_path / "suite" / "calibration.json"
    write_calibration(path, calibration)
    assert load_calibration(path) == calibration


@pytest.mark.parametrize(
    "content", ["", "{}", '{"format_version": 9}', '{"format_version": 1, "spreads": [{}]}']
)
def test_a_damaged_calibration_is_refused(tmp_path, content):
    path = tmp_path / "calibration.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match="is no calibration"):
        load_calibration(path)


def test_another_workload_has_another_key():
    one, other = made_up().info.cells[1], made_up(workload={"prompts_digest": "d9"}).info.cells[1]
    assert cell_key(one) != cell_key(other)
    assert Calibration().spread(one, "tpot_s", 3) is None


@pytest.mark.parametrize("number", [0, 1])
def test_one_run_is_no_calibration(number):
    with pytest.raises(UsageError, match="two or more"):
        calibrate(runs(number), rules())


def test_the_page_and_the_document_say_the_same():
    report = calibrate(runs(3), rules())
    page, document = render_calibration(report), calibration_document(report)
    assert "run-1, run-2, run-3" in page
    assert "| `acceptance_length` | none: counted exactly |" in page
    assert document["gates"][0]["num_pairs"] == 6
    assert {item["gate"] for item in document["gates"]} == {"tpot_s:+5%", "acceptance_length:-2%"}


def test_runs_that_are_unlike_are_said():
    report = calibrate([*runs(2), gated(made_up("other", workload={"seed": 5}))], rules())
    assert entry(report, "tpot_s").verdicts["incomparable"] == 4
    assert "seed differs" in render_calibration(report)
