"""A change of decode speed as a product: decode speed = acceptance length / step time. Pure.

What the acceptance length lost is the draft's doing, what the step time gained is the engine's. (The two make up the
speed exactly where the first chunk holds one token; see METHODOLOGY.md.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dflash.gate.estimates import estimate
from dflash.gate.intervals import half_width
from dflash.gate.quantities import QUANTITIES
from dflash.gate.records import CellPair, Change, Factor, SpeedSplit
from dflash.gate.sides import Side
from dflash.gate.words import signed_percent
from dflash.results.pairing import pairs_of
from dflash.results.stats import CONFIDENCE


def split_speed(pair: CellPair, base: Side, new: Side, *, others: Sequence[Side] = ()) -> SpeedSplit | None:
    """The change of decode speed of a cell and its two factors; None where there is no decode speed to compare.

    Args:
        others: the base's further runs, of the same thing.
    """
    bases = (base, *others)
    speed = _factor(bases, new, "decode_tok_s")
    if speed is None:
        return None
    is_baseline = pair.cell.arm.is_baseline
    acceptance = None if is_baseline else _factor(bases, new, "acceptance_length")
    step = _factor(bases, new, "decode_step_s")
    *plain, new_plain = (_baseline_of(side) for side in (*bases, new))
    known = [side for side in plain if side is not None]
    baseline = (
        _factor(known, new_plain, "tpot_s") if new_plain is not None and len(known) == len(bases) else None
    )
    sentence = _sentence(speed, acceptance, step, baseline, is_baseline=is_baseline)
    return SpeedSplit(pair, speed, acceptance, step, baseline, sentence)


def _baseline_of(side: Side) -> Side | None:
    return None if side.pairing is None else Side(pairs_of(side.pairing.pairs).baseline)


def _factor(bases: Sequence[Side], new: Side, name: str) -> Factor | None:
    change = estimate(QUANTITIES[name], bases[0], new, others=bases[1:])
    if change is None or not math.isfinite(change.log_ratio):
        return None
    if change.basis == "exact":
        return Factor(change.relative, change.relative, change.relative)
    if not _has_interval(change):
        return Factor(change.relative, None, None)
    width = half_width(change.spread, CONFIDENCE)
    low, high = math.expm1(change.log_ratio - width), math.expm1(change.log_ratio + width)
    return Factor(change.relative, low, high)


def _has_interval(change: Change) -> bool:
    return change.spread.variance > 0


def _sentence(
    speed: Factor,
    acceptance: Factor | None,
    step: Factor | None,
    baseline: Factor | None,
    *,
    is_baseline: bool,
) -> str:
    known = [factor for factor in (speed, acceptance, step, baseline) if factor is not None]
    if all(factor.relative == 0 for factor in known):
        return "decode speed unchanged"
    whole = f"decode speed {signed_percent(speed.relative)}"
    if is_baseline or acceptance is None or step is None:
        return f"{whole}{'' if is_baseline else ': steps were not counted, so it cannot be split'}"
    parts = [
        f"acceptance length {signed_percent(acceptance.relative)}{_meaning(acceptance, 'the draft', False)}",
        f"step time {signed_percent(step.relative)}{_meaning(step, 'the engine', True)}",
    ]
    text = f"{whole} = {' and '.join(parts)}"
    if baseline is not None and _is_clear(baseline):
        faster = "faster" if baseline.relative < 0 else "slower"
        text += f"; the baseline's TPOT changed by {signed_percent(baseline.relative)}: plain decoding got {faster}"
    return text


def _meaning(factor: Factor, who: str, is_time: bool) -> str:
    if not _is_clear(factor):
        return " (no clear change)"
    if is_time:
        return f" ({who} got {'slower' if factor.relative > 0 else 'faster'})"
    return f" ({who} got {'better' if factor.relative > 0 else 'worse'})"


def _is_clear(factor: Factor) -> bool:
    """Whether the interval excludes no change."""
    if factor.low is None or factor.high is None:
        return False
    return factor.low > 0 or factor.high < 0
