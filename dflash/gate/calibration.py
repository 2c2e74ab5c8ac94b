"""Runs in which nothing changed (A/A) -> what the gates make of them, and how the quantities vary here. Pure.

Every run is compared with every other, both ways round, as if it were a change; or, where the runs are to be the
baseline together, every run with all others together. A verdict `worse` is a false alarm.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from dflash.errors import UsageError
from dflash.gate.calibrated import Calibration, CellSpread, cell_key
from dflash.gate.comparison import judge_runs
from dflash.gate.estimates import MIN_BASE_RUNS, squares_about_mean
from dflash.gate.gated_run import GatedRun, Rules
from dflash.gate.pairing import slot_of
from dflash.gate.prompt_sums import repeated_sums
from dflash.gate.quantities import QUANTITIES, Quantity
from dflash.gate.reasons import why_unused
from dflash.gate.records import CellPair, Comparison, Gate, Verdict
from dflash.gate.sides import Side, whole_turns
from dflash.results.fingerprint import machine_fingerprint
from dflash.results.records import Cell
from dflash.results.stats import percentile

FOUND_SHARE = 0.95  # the smallest effect that is seen: found in this share of the pairs


@dataclass(frozen=True, slots=True)
class GateCalibration:
    """One gate at one cell, over all ordered pairs of runs."""

    gate: Gate
    pair: CellPair
    verdicts: Mapping[Verdict, int]
    smallest_effect: (
        float | None
    )  # relative, in the direction of harm; None: limits, and what could not be compared
    reason: str | None = None  # of the first pair that could not be compared

    @property
    def num_pairs(self) -> int:
        return sum(self.verdicts.values())

    @property
    def num_false_alarms(self) -> int:
        return self.verdicts.get("worse", 0)


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """What a calibration prints and keeps."""

    calibration: Calibration
    gates: tuple[GateCalibration, ...]
    notes: tuple[str, ...] = ()
    as_baseline: bool = False  # every run was compared with all others together

    @property
    def is_of_like_runs(self) -> bool:
        """Whether every pair could be compared: only then is the spread one of noise."""
        return all(gate.reason is None for gate in self.gates)


def calibrate(runs: Sequence[GatedRun], rules: Rules, *, as_baseline: bool = False) -> CalibrationReport:
    """Compare every run with every other under the gates, and measure how each quantity varies.

    Args:
        as_baseline: the runs are to be the baseline together: each is compared with all others together.

    Raises:
        UsageError: fewer than two runs (as a baseline: four), or one run twice.
    """
    if len(runs) < 2:
        raise UsageError(f"--calibrate got {len(runs)} run", "give two or more runs in which nothing changed")
    if as_baseline and len(runs) <= MIN_BASE_RUNS:
        raise UsageError(
            f"{len(runs)} runs are too few for a baseline of several",
            f"give {MIN_BASE_RUNS + 1} or more, or accept one",
        )
    if len({(run.info.name, run.info.created_at) for run in runs}) < len(runs):
        raise UsageError("--calibrate got the same run twice", "give runs that were made one after the other")
    found: dict[tuple[str, tuple[object, ...]], list[Comparison]] = {}
    unused: dict[str, str] = {}
    for base, new in _against_all_others(runs) if as_baseline else permutations(runs, 2):
        judged = judge_runs(base, new, rules)
        unused |= {gate.text: why_unused(gate, judged.pairs) for gate in judged.unused}
        for comparison in judged.comparisons:
            found.setdefault((comparison.gate.text, slot_of(comparison.pair.cell)), []).append(comparison)
    gates = tuple(_gate_calibration(comparisons) for comparisons in found.values())
    calibration = Calibration(
        tuple(_spreads(runs)),
        machine_fingerprint(runs[0].info.environment),
        tuple(run.info.name for run in runs),
    )
    notes = list(unused.values())
    if len(runs) < 3:
        notes.append("two runs tell little of the spread between runs; it is kept from three runs on")
    return CalibrationReport(calibration, gates, tuple(notes), as_baseline)


def _against_all_others(runs: Sequence[GatedRun]) -> Iterator[tuple[GatedRun, GatedRun]]:
    for place, new in enumerate(runs):
        first, *others = (run for other, run in enumerate(runs) if other != place)
        yield replace(first, others=tuple(others)), new


def smallest_effects(comparisons: Sequence[Comparison]) -> list[float]:
    """Of each comparison the change (a logarithm, towards harm) that would just have made it `worse`.

    With an estimate e of harm, half of the interval w and a minimum effect m, adding d makes it worse where
    e + d > max(w, m); where the interval covers prompts alone, where e + d - w > m.
    """
    effects = []
    for item in comparisons:
        if item.relative is None or item.low is None or item.high is None or item.relative <= -1:
            continue
        quantity, least = QUANTITIES[item.gate.quantity], item.gate.minimum_effect
        harm = math.log1p(item.relative) * (1 if quantity.worse == "higher" else -1)
        width = (math.log1p(item.high) - math.log1p(item.low)) / 2
        alone = quantity.is_time and item.basis == "prompts"
        effects.append((least + width if alone else max(width, least)) - harm)
    return effects


def _gate_calibration(comparisons: Sequence[Comparison]) -> GateCalibration:
    first = comparisons[0]
    smallest = percentile(smallest_effects(comparisons), 100 * FOUND_SHARE)
    reason = next((item.reason for item in comparisons if item.verdict == "incomparable"), None)
    verdicts = Counter(item.verdict for item in comparisons)
    is_higher = QUANTITIES[first.gate.quantity].worse == "higher"
    effect = (
        None if smallest is None or first.gate.is_limit else math.expm1(smallest if is_higher else -smallest)
    )
    return GateCalibration(first.gate, first.pair, dict(verdicts), effect, reason)


def _spreads(runs: Sequence[GatedRun]) -> list[CellSpread]:
    """Every quantity of every cell that all runs have, with equally many repeats."""
    spreads = []
    for cell in runs[0].info.cells:
        sides = [side for run in runs for side in (run.side_like(cell),) if side is not None]
        numbers = {len(side.repeats) for side in sides}
        if len(sides) < len(runs) or len(numbers) != 1:
            continue
        for quantity in QUANTITIES.values():
            spread = _spread(cell, quantity, sides, numbers.copy().pop())
            if spread is not None:
                spreads.append(spread)
    return spreads


def _spread(cell: Cell, quantity: Quantity, sides: Sequence[Side], num_repeats: int) -> CellSpread | None:
    if quantity.limit_only:
        return None
    cut = list(sides)
    if not quantity.over_all or quantity.is_pooled(sides[0]):
        turns = set.intersection(*(whole_turns(side, quantity.is_paired) for side in sides))
        cut = [side.of_turns(turns) for side in sides]
    values = [quantity.value(side) for side in cut]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    first, *others = (repeated_sums(quantity, side) for side in cut)
    same = first is not None and all(other is not None and first.equals(other) for other in others)
    is_deterministic = (
        same and not quantity.is_time and first is not None and (num_repeats == 1 or first.repeats_agree)
    )
    logs = [math.log(value) for value in known if value > 0]
    variance = squares_about_mean(logs) / (len(logs) - 1) if len(logs) == len(known) else None
    return CellSpread(cell_key(cell), quantity.name, len(sides), num_repeats, variance, is_deterministic)
