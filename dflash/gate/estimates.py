"""How much a quantity changed between two runs, and the variance of that estimate. Pure.

The change is log(new / base) of the pooled quantity over the same prompts. Its variance has three parts:

- *prompts*: paired bootstrap over prompts (one draw for both runs; all turns and repeats of a prompt stay together),
  as in the reports: how much the change would move with other prompts, and with other noise of single requests;
- *between runs*, of times only: s² (1 / R_base + 1 / R_new), with s² from the repeats of both runs, pooled: what
  differs from one run of the same thing to the next. The noise of single requests is in it too, so that much of it is
  taken off again: N R s_e² of each run, with s_e² the mean square of what prompt and repeat together leave unexplained
  (two-way analysis of variance).

What is counted does not depend on the hour: its variance is that of the prompts. What does not vary on this machine is
compared exactly: its variance is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from dflash.gate.prompt_sums import RepeatedSums, repeated_sums
from dflash.gate.quantities import Quantity
from dflash.gate.records import Basis, CalibratedSpread, Change, RunSpread, Spread
from dflash.gate.sides import Side, cut_to_common
from dflash.results.stats import MIN_PROMPTS_FOR_INTERVAL, resample_sums


def estimate(
    quantity: Quantity,
    base: Side,
    new: Side,
    *,
    is_deterministic: bool = False,
    calibrated: CalibratedSpread | None = None,
) -> Change | None:
    """The change from `base` to `new`, over the turns that completed in every repeat of both.

    Args:
        is_deterministic: a calibration showed that the quantity does not vary here.
        calibrated: how whole runs vary; takes the place of what the repeats show.

    Returns:
        None where the quantity was not measured on both sides, or the base is 0 and the new value is not.
    """
    left_out = 0
    if not quantity.over_all:
        base, new, left_out = cut_to_common(base, new, paired=quantity.is_paired)
    sums = repeated_sums(quantity, base), repeated_sums(quantity, new)
    num_prompts = len(set(new.records.texts("prompt_id").tolist()))
    both: tuple[RepeatedSums, RepeatedSums] | None = None
    if sums[0] is not None and sums[1] is not None:
        known = set(sums[1].names)
        names = [name for name in sums[0].names if name in known]
        if len(names) < num_prompts:
            base, new = base.of_prompts(set(names)), new.of_prompts(set(names))
        both = sums[0].of_prompts(names), sums[1].of_prompts(names)
        num_prompts = len(names)
    values = quantity.value(base), quantity.value(new)
    if both is not None and is_exact(quantity, *both, is_deterministic=is_deterministic):
        return _change(values, "exact", Spread(num_prompts), (base, new), left_out)
    spread = _spread(quantity, (base, new), both, calibrated, num_prompts)
    return _change(values, _basis(spread, calibrated), spread, (base, new), left_out)


def estimate_value(quantity: Quantity, side: Side) -> Change | None:
    """A value as the change from itself to itself, with the spread of that one value."""
    sums = repeated_sums(quantity, side)
    num_prompts = len(set(side.records.texts("prompt_id").tolist())) if sums is None else len(sums.names)
    prompts = None if sums is None else _bootstrap_variance([sums])
    requests = 0.0 if sums is None else sums.request_variance()
    runs = run_spread([_values_of_repeats(quantity, side, sums)], requests)
    spread = Spread(num_prompts, prompts, runs)
    value = quantity.value(side)
    return _change((value, value), _basis(spread, None), spread, (side, side), 0)


def is_exact(quantity: Quantity, base: RepeatedSums, new: RepeatedSums, *, is_deterministic: bool) -> bool:
    """Counted and shown not to vary; or nothing at all differs, so that there is nothing to estimate.

    Repeats that do not agree outweigh a calibration that saw no variation.
    """
    if base.equals(new):
        return True
    return not quantity.is_time and all(
        each.repeats_agree or (is_deterministic and each.num_repeats == 1) for each in (base, new)
    )


def squares_about_mean(values: Sequence[float]) -> float:
    """sum((x - mean)²)."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


def run_spread(values: Sequence[Sequence[float]], requests: float) -> RunSpread | None:
    """How runs vary, from the repeats of one or both: s² = sum of their squares about their means / sum of (R - 1).

    Args:
        values: of each run, the quantity in each of its repeats.
        requests: what of it is noise of single requests.

    Returns:
        None where one has fewer than two repeats, or a value that has no logarithm.
    """
    if any(len(each) < 2 or not all(value > 0 for value in each) for each in values):
        return None
    logs = [[math.log(value) for value in each] for each in values]
    degrees = sum(len(each) - 1 for each in logs)
    variance = math.fsum(map(squares_about_mean, logs)) / degrees
    return RunSpread(variance, degrees, len(logs[0]), len(logs[1]) if len(logs) > 1 else 0, requests)


def _values_of_repeats(quantity: Quantity, side: Side, sums: RepeatedSums | None) -> list[float]:
    """The quantity in each repeat; NaN where it is not known."""
    if sums is not None:
        return sums.of_repeats()
    values = (quantity.value(side.of_repeat(repeat)) for repeat in side.repeats)
    return [math.nan if value is None else value for value in values]


def _bootstrap_variance(sums: Sequence[RepeatedSums]) -> float | None:
    """Variance of log(last / first), or of log(only), over draws of prompts, the same for all; None for too few."""
    if len(sums[0].names) < MIN_PROMPTS_FOR_INTERVAL:
        return None
    rows = [each.sums.sum(axis=1) for each in sums]  # [prompts, columns]
    resampled = resample_sums(numpy.concatenate(rows, axis=1))  # [resamples, columns of all]
    drawn = numpy.split(resampled, numpy.cumsum([own.shape[1] for own in rows])[:-1], axis=1)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        logs = [numpy.log(numpy.asarray(each.formula(*own.T))) for each, own in zip(sums, drawn, strict=True)]
        changes = logs[-1] - logs[0] if len(logs) > 1 else logs[0]
    changes = changes[numpy.isfinite(changes)]
    return float(numpy.var(changes, ddof=1)) if changes.size > 1 else None


def _spread(
    quantity: Quantity,
    sides: tuple[Side, Side],
    sums: tuple[RepeatedSums, RepeatedSums] | None,
    calibrated: CalibratedSpread | None,
    num_prompts: int,
) -> Spread:
    prompts = None if sums is None else _bootstrap_variance(sums)
    if not quantity.is_time and prompts is not None:
        return Spread(num_prompts, prompts)
    requests = 0.0 if sums is None or prompts is None else sum(each.request_variance() for each in sums)
    if calibrated is not None:
        runs = RunSpread(calibrated.variance, calibrated.num_runs - 1, 1, 1, requests)
        return Spread(num_prompts, prompts, runs)
    values = [
        _values_of_repeats(quantity, side, each)
        for side, each in zip(sides, sums or (None, None), strict=True)
    ]
    return Spread(num_prompts, prompts, run_spread(values, requests))


def _change(
    values: tuple[float | None, float | None],
    basis: Basis,
    spread: Spread,
    sides: tuple[Side, Side],
    left_out: int,
) -> Change | None:
    first, second = values
    if first is None or second is None or first == 0 != second:
        return None
    ratio = 1.0 if first == second else second / first
    log_ratio = math.log(ratio) if ratio > 0 else -math.inf
    base, new = sides
    return Change(
        first,
        second,
        log_ratio,
        basis,
        spread,
        spread.num_prompts,
        len(base.repeats),
        len(new.repeats),
        left_out,
    )


def _basis(spread: Spread, calibrated: CalibratedSpread | None) -> Basis:
    if spread.runs is None:
        return "prompts"
    if calibrated is not None:
        return "calibration"
    return "repeats" if spread.prompts is None else "prompts and repeats"
