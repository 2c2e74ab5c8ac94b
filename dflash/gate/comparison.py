"""Two runs, or two sets of records, under gates -> everything that is said about them. Pure.

Every gate is tried at every pair of cells that it names. All comparisons that rest on an interval are one family: they
are corrected for multiplicity together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash.errors import EXIT_DONE, EXIT_NOT_COMPARABLE, EXIT_WORSE
from dflash.gate.calibrated import Calibration
from dflash.gate.estimates import estimate, estimate_value
from dflash.gate.factors import split_speed
from dflash.gate.families import JudgedChange, Member, judge_family
from dflash.gate.gated_run import GatedRun, Rules
from dflash.gate.judge import Judged, judge_limit
from dflash.gate.pairing import allow_fields, pair_cells, with_prompt_tokens
from dflash.gate.quantities import OUTPUTS_UNCHANGED, QUANTITIES, Quantity
from dflash.gate.reasons import (
    has_no_meaning,
    notes_of,
    refusal_of,
    same_run,
    unlike_facts,
    why_not_measured,
)
from dflash.gate.records import (
    CellPair,
    Change,
    Comparison,
    Gate,
    GateReport,
    SpeedSplit,
)
from dflash.gate.sides import Side
from dflash.results.paired_metrics import agreement, pair_units
from dflash.results.records import Cell
from dflash.results.stats import CONFIDENCE

_SPEEDS = ("speedup", "decode_tok_s", "tpot_s")  # what acceptance length and step time make up


@dataclass(frozen=True, slots=True)
class _Trial:
    """One gate at one pair of cells, before it is judged."""

    gate: Gate
    pair: CellPair
    refusal: str | None = None
    change: Change | None = None
    value: float | None = None  # of a limit
    base: float | None = None  # of a limit: what it was

    @property
    def is_change(self) -> bool:
        return self.change is not None and not self.gate.is_limit


@dataclass(frozen=True, slots=True)
class Judgement:
    """Every gate at every pair of cells, judged together."""

    pairs: tuple[CellPair, ...]
    comparisons: tuple[Comparison, ...]
    unused: tuple[Gate, ...]  # that somebody asked for, and no cell has
    num_tested: int


def judge_runs(base: GatedRun, new: GatedRun, rules: Rules) -> Judgement:
    """Pair the cells, and judge every gate at every pair that it means.

    Raises:
        UsageError: an allowed field that there is none of.
    """
    pairs = allow_fields(_with_tokens(pair_cells(base.info, new.info), base, new), rules.allow)
    gates = _unlike(rules.gates)
    trials = [
        trial
        for pair in pairs
        for gate in gates
        if gate.means(pair.cell)
        for trial in (_try(gate, pair, base, new, rules.calibration),)
        if trial is not None
    ]
    tried = {id(trial.gate) for trial in trials}
    unused = tuple(gate for gate in gates if id(gate) not in tried and not gate.is_default)
    comparisons, num_tested = _judge(trials)
    return Judgement(pairs, comparisons, unused, num_tested)


def compare_runs(base: GatedRun, new: GatedRun, rules: Rules) -> GateReport:
    """What is said about two runs: verdicts, what a change of speed is due to, and what a reader must know.

    Raises:
        UsageError: an allowed field that there is none of.
    """
    judged = judge_runs(base, new, rules)
    splits = tuple(
        split
        for pair in judged.pairs
        if pair.base is not None and pair.new is not None and not pair.refused(is_time=True)
        for split in (
            split_speed(
                pair, base.side_of(pair.base), new.side_of(pair.new), others=_other_sides(base, pair.base)
            ),
        )
        if split is not None
    )
    comparisons = tuple(_with_factors(comparison, splits) for comparison in judged.comparisons)
    broken = [
        f"an error of the {which} run: {sentence}"
        for which, run in (("base", base), ("new", new))
        for sentence in run.errors
    ]
    itself = same_run([run.info for run in (base, *base.others)], new.info)
    notes = (*broken, *itself, *notes_of(judged.pairs, judged.unused, comparisons))
    report = GateReport(
        base.name,
        new.info.name,
        comparisons,
        splits,
        judged.pairs,
        notes,
        judged.num_tested,
        rules.strict,
    )
    return replace(report, exit_code=_exit_code(report, judged.unused))


def _unlike(gates: Sequence[Gate]) -> list[Gate]:
    """Every gate once: given twice it fails no more."""
    found: list[Gate] = []
    for gate in gates:
        if gate not in found:
            found.append(gate)
    return found


def _with_tokens(pairs: Sequence[CellPair], base: GatedRun, new: GatedRun) -> list[CellPair]:
    return [
        pair
        if pair.base is None or pair.new is None
        else with_prompt_tokens(pair, base.side_of(pair.base), new.side_of(pair.new))
        for pair in pairs
    ]


def _try(
    gate: Gate, pair: CellPair, base: GatedRun, new: GatedRun, calibration: Calibration
) -> _Trial | None:
    """None: the quantity has no meaning for this cell, or nothing is there to compare with."""
    quantity = QUANTITIES[gate.quantity]
    if not _applies(quantity, pair.cell) or pair.base is None:
        return None
    if pair.new is None:
        return _Trial(gate, pair, "the new run lacks this cell")
    sides = base.side_of(pair.base), new.side_of(pair.new)
    refused = pair.refused(quantity.is_time)
    if refused:
        return _Trial(gate, pair, refusal_of(refused))
    if quantity.is_time and not (pair.base.is_timed and pair.new.is_timed):
        return _Trial(gate, pair, "no time was kept, because processes shared a device")
    unlike = unlike_facts(quantity, *sides)
    if unlike is not None:
        return _Trial(gate, pair, unlike)
    if gate.is_limit:
        return _try_limit(gate, pair, quantity, sides)
    change = estimate(
        quantity,
        *sides,
        others=_other_sides(base, pair.base),
        is_deterministic=calibration.is_deterministic(pair.new, quantity.name),
        calibrated=calibration.spread(pair.new, quantity.name, len(sides[1].repeats)),
    )
    if change is not None:
        return _Trial(gate, pair, change=change)
    values = [quantity.value(side) for side in sides]
    if values == [None, None] and (quantity.is_paired or has_no_meaning(quantity, sides)):
        return None  # neither run has a baseline to pair with, or limits, or answers to be scored by
    return _Trial(gate, pair, why_not_measured(quantity, values))


def _try_limit(gate: Gate, pair: CellPair, quantity: Quantity, sides: tuple[Side, Side]) -> _Trial | None:
    if quantity.name == OUTPUTS_UNCHANGED:
        value = agreement(pair_units(sides[0].records, sides[1].records))
        refusal = None if value is not None else "no output of the new run can be compared with the base's"
        return _Trial(gate, pair, refusal, value=value)
    value = quantity.value(sides[1])
    if value is None:
        if quantity.value(sides[0]) is None and (quantity.is_paired or has_no_meaning(quantity, sides)):
            return None
        return _Trial(gate, pair, f"{quantity.name} was not measured in the new run")
    change = estimate_value(quantity, sides[1]) if quantity.is_time else None
    return _Trial(gate, pair, value=value, base=quantity.value(sides[0]), change=change)


def _other_sides(base: GatedRun, cell: Cell) -> tuple[Side, ...]:
    sides = (run.side_like(cell) for run in base.others)
    return tuple(side for side in sides if side is not None)


def _applies(quantity: Quantity, cell: Cell) -> bool:
    """A baseline has no speedup over itself, and accepts nothing; sampled outputs are not compared."""
    if cell.arm.is_baseline and (quantity.is_paired or quantity.is_of_drafts):
        return False
    return cell.workload.temperature == 0 or not quantity.greedy_only


def _judge(trials: Sequence[_Trial]) -> tuple[tuple[Comparison, ...], int]:
    """All changes are one family; limits are judged one by one."""
    places = [place for place, trial in enumerate(trials) if trial.is_change]
    members = [
        Member(trial.gate, trial.change, trial.pair.cell.cell_id)
        for trial in (trials[place] for place in places)
        if trial.change is not None
    ]
    judged = dict(zip(places, judge_family(members), strict=True))
    comparisons = tuple(
        _changed(trial, judged[place]) if place in judged else _limited(trial)
        for place, trial in enumerate(trials)
    )
    tested = {
        (trials[place].gate.quantity, trials[place].pair.cell.cell_id)
        for place, item in judged.items()
        if item.p_value is not None
    }
    return comparisons, len(tested)


def _changed(trial: _Trial, item: JudgedChange) -> Comparison:
    change = item.change
    comparison = Comparison(
        trial.gate,
        trial.pair,
        item.judged.verdict,
        item.judged.reason,
        base=change.base,
        new=change.new,
        relative=change.relative,
        confidence=None if change.basis == "exact" else item.confidence,
        p_value=item.p_value,
    )
    return _filled(comparison, item.judged, change)


def _limited(trial: _Trial) -> Comparison:
    """A limit, or what could not be compared."""
    gate = trial.gate
    if trial.refusal is not None or trial.value is None:
        return Comparison(gate, trial.pair, "incomparable", trial.refusal or "")
    judged = judge_limit(gate, QUANTITIES[gate.quantity], trial.value, trial.change, CONFIDENCE)
    comparison = Comparison(gate, trial.pair, judged.verdict, judged.reason, base=trial.base, new=trial.value)
    return _filled(comparison, judged, trial.change)


def _with_factors(comparison: Comparison, splits: Sequence[SpeedSplit]) -> Comparison:
    """A speed that changed, with the factor that it is due to."""
    if comparison.verdict not in ("worse", "better") or comparison.gate.quantity not in _SPEEDS:
        return comparison
    split = next((split for split in splits if split.pair is comparison.pair), None)
    if split is None or split.acceptance_length is None:
        return comparison
    return replace(comparison, reason=f"{comparison.reason}; {split.sentence}")


def _filled(comparison: Comparison, judged: Judged, change: Change | None) -> Comparison:
    comparison = replace(comparison, low=judged.low, high=judged.high, needed=judged.needed)
    if change is None:
        return comparison
    return replace(
        comparison,
        basis=change.basis,
        num_prompts=change.num_prompts,
        num_base_repeats=change.num_base_repeats,
        num_new_repeats=change.num_new_repeats,
        num_left_out=change.num_left_out,
        num_base_runs=change.num_base_runs,
    )


def _exit_code(report: GateReport, unused: Sequence[Gate]) -> int:
    """1: worse, or not to be told and `strict`. 5: nothing compared, or a gated cell is incomparable."""
    found = {comparison.verdict for comparison in report.comparisons}
    if "worse" in found or (report.strict and "inconclusive" in found):
        return EXIT_WORSE
    if not found or "incomparable" in found or unused:
        return EXIT_NOT_COMPARABLE
    return EXIT_DONE
