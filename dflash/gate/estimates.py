"""How much a quantity changed between two runs, and the variance of that estimate. Pure.

The change is log(new / base) of the pooled quantity over the same prompts. Its variance has three parts:

- *prompts*: paired bootstrap over prompts (one draw for both runs; all turns and repeats of a prompt stay together),
  as in the reports: how much the change would move with other prompts, and with other noise of single requests;
- *between runs*, of times only: s² (1 / R_base + 1 / R_new), with s² from the repeats of both runs, pooled: what
  differs from one run of the same thing to the next. The noise of single requests is in it too, so that much of it is
  taken off again: N R s_e² of each run, with s_e² the mean square of what prompt and repeat together leave unexplained
  (two-way analysis of variance).

A base of three or more runs of the same thing is their mean, mean(log base_i), and shows what whole runs differ by: s²
is then that of their values, and the part between runs s² (1 / K + 1), of K runs against the one new run.

What is counted does not depend on the hour: its variance is that of the prompts. What does not vary on this machine is
compared exactly: its variance is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy

from dflash.gate.prompt_sums import RepeatedSums, repeated_sums
from dflash.gate.quantities import Quantity
from dflash.gate.records import Basis, CalibratedSpread, Change, RunSpread, Spread
from dflash.gate.sides import Side, cut_to_common
from dflash.results.stats import MIN_PROMPTS_FOR_INTERVAL, resample_sums

MIN_BASE_RUNS = 3  # from which they show what whole runs differ by


def estimate(
    quantity: Quantity,
    base: Side,
    new: Side,
    *,
    others: Sequence[Side] = (),
    is_deterministic: bool = False,
    calibrated: CalibratedSpread | None = None,
) -> Change | None:
    """The change from `base` to `new`, over the turns that completed in every repeat of all runs.

    Args:
        others: the base's further runs, of the same thing.
        is_deterministic: a calibration showed that the quantity does not vary here.
        calibrated: how whole runs vary; takes the place of what the repeats show.

    Returns:
        None where the quantity was not measured on every side, or where there is no ratio of the values: the base is 0
        and the new value is not, or one of two latencies is no time at all.
    """
    sides, left_out = (base, *others, new), 0
    if not quantity.over_all or quantity.is_pooled(base):
        sides, left_out = cut_to_common(sides, paired=quantity.is_paired)
    sums = _common_sums([repeated_sums(quantity, side) for side in sides])
    num_prompts = len(set(sides[-1].records.texts("prompt_id").tolist()))
    if sums is not None and not sums:
        return None
    if sums is not None:
        if len(sums[0].names) < num_prompts:
            sides = tuple(side.of_prompts(set(sums[0].names)) for side in sides)
        num_prompts = len(sums[0].names)
    values = [quantity.value(side) for side in sides]
    if sums is not None and is_exact(quantity, sums, is_deterministic=is_deterministic):
        return _change(quantity, values, "exact", Spread(num_prompts), sides, left_out)
    spread, basis = _spread(quantity, sides, values, sums, calibrated, num_prompts)
    return _change(quantity, values, basis, spread, sides, left_out)


def _common_sums(sums: Sequence[RepeatedSums | None]) -> list[RepeatedSums] | None:
    """Those of the prompts that all have, nothing where there are none such; None where a side has no sums."""
    known = [each for each in sums if each is not None]
    if len(known) < len(sums):
        return None
    common = set.intersection(*(set(each.names) for each in known))
    names = [name for name in known[0].names if name in common]
    return [each.of_prompts(names) for each in known] if names else []


def estimate_value(quantity: Quantity, side: Side) -> Change | None:
    """A value as the change from itself to itself, with the spread of that one value."""
    sums = repeated_sums(quantity, side)
    num_prompts = len(set(side.records.texts("prompt_id").tolist())) if sums is None else len(sums.names)
    prompts = None if sums is None else _bootstrap_variance([sums])
    requests = 0.0 if sums is None else sums.request_variance()
    runs = run_spread([_values_of_repeats(quantity, side, sums)], requests)
    spread = Spread(num_prompts, prompts, runs, is_pooled=sums is not None)
    value = quantity.value(side)
    return _change(quantity, (value, value), _basis(spread), spread, (side, side), 0)


def is_exact(quantity: Quantity, sums: Sequence[RepeatedSums], *, is_deterministic: bool) -> bool:
    """Counted and shown not to vary; or nothing at all differs, so that there is nothing to estimate.

    Repeats that do not agree outweigh a calibration that saw no variation, and so do runs of the base.

    Args:
        sums: of the base, or of each run that it is made of, and last of the new run.
    """
    *bases, new = sums
    if all(base.equals(new) for base in bases):
        return True
    if quantity.is_time or not all(base.equals(bases[0]) for base in bases[1:]):
        return False
    is_shown = is_deterministic or len(bases) > 1
    return all(each.repeats_agree or (is_shown and each.num_repeats == 1) for each in sums)


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
    """Variance of log(last) - mean(log(others)), or of log(only), over draws of prompts, the same for all.

    None for too few prompts.
    """
    if len(sums[0].names) < MIN_PROMPTS_FOR_INTERVAL:
        return None
    rows = [each.sums.sum(axis=1) for each in sums]  # [prompts, columns]
    resampled = resample_sums(numpy.concatenate(rows, axis=1))  # [resamples, columns of all]
    drawn = numpy.split(resampled, numpy.cumsum([own.shape[1] for own in rows])[:-1], axis=1)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        logs = [numpy.log(numpy.asarray(each.formula(*own.T))) for each, own in zip(sums, drawn, strict=True)]
        changes = logs[-1] - numpy.mean(logs[:-1], axis=0) if len(logs) > 1 else logs[0]
    changes = changes[numpy.isfinite(changes)]
    return float(numpy.var(changes, ddof=1)) if changes.size > 1 else None


def _spread(
    quantity: Quantity,
    sides: Sequence[Side],
    values: Sequence[float | None],
    sums: Sequence[RepeatedSums] | None,
    calibrated: CalibratedSpread | None,
    num_prompts: int,
) -> tuple[Spread, Basis]:
    prompts = None if sums is None else _bootstrap_variance(sums)
    spread = Spread(num_prompts, prompts, is_pooled=sums is not None)
    if not quantity.is_time and prompts is not None:
        return spread, "prompts"
    *bases, new = (0.0,) * len(sides) if sums is None or prompts is None else map(_request_variance, sums)
    requests = math.fsum(bases) / len(bases) ** 2 + new  # of the mean of the base's runs
    if len(bases) > 1:
        return replace(spread, runs=base_spread(values[:-1], requests)), "baseline runs"
    if calibrated is not None:
        runs = RunSpread(calibrated.variance, calibrated.num_runs - 1, 1, 1, requests, of_whole_runs=True)
        return replace(spread, runs=runs), "calibration"
    of_repeats = [
        _values_of_repeats(quantity, side, each)
        for side, each in zip(sides, sums or (None,) * len(sides), strict=True)
    ]
    spread = replace(spread, runs=run_spread(of_repeats, requests))
    return spread, _basis(spread)


def _request_variance(sums: RepeatedSums) -> float:
    return sums.request_variance()


def base_spread(values: Sequence[float | None], requests: float) -> RunSpread | None:
    """How whole runs vary, from those that the base is made of: s² of their logarithms, K - 1 degrees of freedom.

    Returns:
        None where there are fewer than three, or one has no logarithm.
    """
    logs = [math.log(value) for value in values if value is not None and value > 0]
    if len(logs) < max(MIN_BASE_RUNS, len(values)):
        return None
    variance = squares_about_mean(logs) / (len(logs) - 1)
    return RunSpread(variance, len(logs) - 1, len(logs), 1, requests, of_whole_runs=True)


def _change(
    quantity: Quantity,
    values: Sequence[float | None],
    basis: Basis,
    spread: Spread,
    sides: Sequence[Side],
    left_out: int,
) -> Change | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    *bases, new = known
    base = _mean(bases)
    if base == 0 != new or (quantity.is_latency and min(base, new) <= 0):
        return None
    ratio = 1.0 if base == new else new / base
    return Change(
        base,
        new,
        math.log(ratio) if ratio > 0 else -math.inf,
        basis,
        spread,
        spread.num_prompts,
        len(sides[0].repeats),
        len(sides[-1].repeats),
        left_out,
        len(bases),
    )


def _mean(values: Sequence[float]) -> float:
    """exp(mean(log x)), as logarithms are averaged; of what has no logarithm the arithmetic mean."""
    if len(values) == 1 or min(values) <= 0:
        return math.fsum(values) / len(values)
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _basis(spread: Spread) -> Basis:
    if spread.runs is None:
        return "prompts"
    return "repeats" if spread.prompts is None else "prompts and repeats"
