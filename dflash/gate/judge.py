"""From a change to a verdict with its reason. Pure.

- `worse`, `better`: the interval excludes no change, **and** the change exceeds the gate's minimum effect.
- `same`: neither, and the interval is narrow enough: its half width is at most the minimum effect.
- `inconclusive`: neither, and it is not: a change of the minimum effect could hide in it.

Where the spread between runs of a time is not known (one repeat, no calibration), the interval covers prompts alone
and says too little. Then `worse`, `better` and `same` need the whole interval on their side of the minimum effect.

Several comparisons are corrected by Holm's method: the i-th smallest of m p-values is tested at 0.05 / (m - i + 1)
until one is not below it, and every interval is given at the confidence at which its comparison was tested.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dflash.gate.intervals import MIN_REPEATS, half_width, needed_to_tell
from dflash.gate.quantities import Quantity
from dflash.gate.records import Change, Gate, Needed, Verdict
from dflash.gate.words import count_of, percent_interval, percent_of, signed_percent, value_of
from dflash.results.stats import CONFIDENCE, MIN_PROMPTS_FOR_INTERVAL
from dflash.results.student_t import two_sided_p_value

LEVEL = 1 - CONFIDENCE


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict with what it rests on; the bounds are relative changes (of a limit: values)."""

    verdict: Verdict
    reason: str
    low: float | None = None
    high: float | None = None
    needed: Needed | None = None


def p_value(change: Change) -> float | None:
    """Of no change, two-sided; None where nothing is tested: exact quantities, and spreads that are not known."""
    if change.basis == "exact" or change.spread.variance == 0 or not math.isfinite(change.log_ratio):
        return None
    spread = change.spread
    return two_sided_p_value(change.log_ratio / math.sqrt(spread.variance), spread.degrees_of_freedom)


def holm_levels(p_values: Sequence[float], level: float = LEVEL) -> list[float]:
    """The level at which each hypothesis is tested, in the order given.

    Those after the first that is not rejected are tested at its level, at which Holm's method stops.
    """
    levels = [level] * len(p_values)
    current, is_stopped = level, False
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if not is_stopped:
            current = level / (len(p_values) - rank)
            is_stopped = p_values[place] > current
        levels[place] = current
    return levels


def judge_change(gate: Gate, quantity: Quantity, change: Change, confidence: float) -> Judged:
    """The verdict on a gate that names a change."""
    sign = 1 if quantity.worse == "higher" else -1
    harm, least = sign * change.log_ratio, gate.minimum_effect
    if change.basis == "exact":
        return _judge_exactly(change, harm, least, gate)
    if not math.isfinite(harm):
        return Judged("worse" if harm > 0 else "better", f"{_moved(change)}: nothing is left of it")
    if change.spread.is_pooled and change.spread.prompts is None:
        return Judged(
            "inconclusive",
            f"{_moved(change)} over {count_of(change.num_prompts, 'prompt')}: nothing is concluded from fewer than "
            f"{MIN_PROMPTS_FOR_INTERVAL}",
            needed=Needed(prompts=MIN_PROMPTS_FOR_INTERVAL),
        )
    if change.spread.variance == 0:
        if change.spread.runs is not None:  # every repeat of every prompt shows the same change
            return _judge_exactly(change, harm, least, gate)
        return Judged(
            "inconclusive",
            f"{_moved(change)}, and one value of each run has no spread: {_would_do(Needed(MIN_REPEATS))}",
            needed=Needed(MIN_REPEATS),
        )
    width = half_width(change.spread, confidence)
    low, high = math.expm1(change.log_ratio - width), math.expm1(change.log_ratio + width)
    bounds = percent_interval(low, high)
    if quantity.is_time and change.spread.runs is None:
        return _judge_by_prompts_alone(change, harm, width, least, low, high, gate)
    if abs(harm) > width and abs(harm) > least:
        verdict: Verdict = "worse" if harm > 0 else "better"
        return Judged(
            verdict,
            f"{_moved(change)} {bounds}: the interval excludes no change, and it is more than {_least(gate)}",
            low,
            high,
        )
    if width <= least:
        return Judged("same", f"{_moved(change)} {bounds}: no more than {_least(gate)}", low, high)
    if abs(harm) > width:  # a change, but smaller than what counts, and perhaps not
        text = (
            f"{_moved(change)} {bounds}: a change, but it cannot be told whether by more than {_least(gate)}"
        )
    else:
        text = f"{_moved(change)} {bounds}: a change of {_least(gate)} could hide in this interval"
    needed = needed_to_tell(change.spread, least, confidence, is_time=quantity.is_time)
    return Judged("inconclusive", f"{text}; {_would_do(needed)}", low, high, needed)


def judge_limit(
    gate: Gate, quantity: Quantity, value: float, change: Change | None, confidence: float
) -> Judged:
    """The verdict on a gate that names a limit: counted things as they are, times by their interval.

    Args:
        change: from the value to itself, with the spread of the value; None: counted.
    """
    is_broken = value < gate.below if gate.below is not None else value > (gate.above or 0)
    limit = gate.below if gate.below is not None else gate.above or 0.0
    side = "below" if gate.below is not None else "above"
    shown = value_of(quantity.name, value)
    if not is_broken:
        return Judged("same", f"{shown}: not {side} {value_of(quantity.name, limit)}")
    broken = f"{shown}: {side} {value_of(quantity.name, limit)}"
    if change is None or change.spread.variance == 0:
        return Judged("worse", broken)
    width = half_width(change.spread, confidence)
    low, high = value * math.exp(-width), value * math.exp(width)
    bounds = f"[{value_of(quantity.name, low)}, {value_of(quantity.name, high)}]"
    if low <= limit <= high:
        needed = (
            needed_to_tell(change.spread, abs(math.log(value / limit)), confidence) if limit > 0 else Needed()
        )
        return Judged(
            "inconclusive",
            f"{broken}, but its interval {bounds} includes that limit; {_would_do(needed)}",
            low,
            high,
            needed,
        )
    return Judged("worse", f"{broken}, and so is its interval {bounds}", low, high)


def _judge_exactly(change: Change, harm: float, least: float, gate: Gate) -> Judged:
    relative = change.relative
    if harm == 0:
        return Judged("same", "equal in both runs", relative, relative)
    if abs(harm) <= least:
        return Judged(
            "same", f"{_moved(change)}, counted exactly: no more than {_least(gate)}", relative, relative
        )
    verdict: Verdict = "worse" if harm > 0 else "better"
    return Judged(verdict, f"{_moved(change)}, counted exactly: more than {_least(gate)}", relative, relative)


def _judge_by_prompts_alone(
    change: Change, harm: float, width: float, least: float, low: float, high: float, gate: Gate
) -> Judged:
    bounds = percent_interval(low, high)
    covers = "the interval covers prompts and not the spread between runs"
    if abs(harm) - width > least:
        verdict: Verdict = "worse" if harm > 0 else "better"
        return Judged(
            verdict, f"{_moved(change)} {bounds}: all of it is more than {_least(gate)}; {covers}", low, high
        )
    if abs(harm) + width < least:
        return Judged(
            "same", f"{_moved(change)} {bounds}: all of it is less than {_least(gate)}; {covers}", low, high
        )
    needed = Needed(MIN_REPEATS)
    return Judged(
        "inconclusive", f"{_moved(change)} {bounds}: {covers}; {_would_do(needed)}", low, high, needed
    )


def _moved(change: Change) -> str:
    return signed_percent(change.relative)


def _least(gate: Gate) -> str:
    return percent_of(abs(gate.change or 0.0))


def _would_do(needed: Needed) -> str:
    ways = []
    if needed.base_runs is not None:
        ways.append(f"a baseline of {needed.base_runs} runs")
    if needed.repeats is not None:
        ways.append(f"{count_of(needed.repeats, 'repeat')} of each run")
    if needed.prompts is not None:
        ways.append(count_of(needed.prompts, "prompt"))
    if not ways:
        return "neither more repeats nor more prompts alone would tell: quieten the machine, or allow a larger change"
    return f"{' or '.join(ways)} would tell"
