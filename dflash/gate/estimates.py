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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dflash.gate.quantities import Quantity
from dflash.gate.records import Basis, CalibratedSpread, Change, RunSpread, Spread
from dflash.gate.sides import Side, common_turns
from dflash.results.stats import MIN_PROMPTS_FOR_INTERVAL, resample_sums

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]

_RELATIVE_STEP = 1e-6  # of numeric derivatives


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
        turns, left_out = common_turns(base, new, paired=quantity.is_paired)
        base, new = base.of_turns(turns), new.of_turns(turns)
    base_rows, new_rows = rows_by_prompt(quantity, base), rows_by_prompt(quantity, new)
    if base_rows is not None and new_rows is not None:
        names = [name for name in base_rows if name in new_rows]
        if len(names) < max(len(base_rows), len(new_rows)):
            base, new = base.of_prompts(set(names)), new.of_prompts(set(names))
        base_rows, new_rows = ({name: rows[name] for name in names} for rows in (base_rows, new_rows))
        num_prompts = len(names)
    else:
        num_prompts = len({record.prompt_id for record in new.records})
    values = quantity.value(base), quantity.value(new)
    if is_exact(quantity, base_rows, new_rows, is_deterministic=is_deterministic):
        return _change(values, "exact", Spread(num_prompts), (base, new), left_out)
    spread = _spread(quantity, (base, new), (base_rows, new_rows), calibrated, num_prompts)
    return _change(values, _basis(spread, calibrated), spread, (base, new), left_out)


def estimate_value(quantity: Quantity, side: Side) -> Change | None:
    """A value as the change from itself to itself, with the spread of that one value."""
    rows = rows_by_prompt(quantity, side)
    num_prompts = len(rows) if rows is not None else len(set(side.records.texts("prompt_id").tolist()))
    prompts = None if rows is None else _bootstrap_variance(quantity, (side,), (rows,))
    requests = 0.0 if rows is None else request_variance(quantity, side, rows)
    spread = Spread(num_prompts, prompts, run_spread(quantity, (side,), requests))
    value = quantity.value(side)
    return _change((value, value), _basis(spread, None), spread, (side, side), 0)


PromptRows = dict[str, list[tuple[float, ...]]]


def rows_by_prompt(quantity: Quantity, side: Side) -> PromptRows | None:
    """The sums behind a quantity: for every prompt one row per repeat; of prompts that have a row in all of them.

    None for a quantity that is not made from sums over prompts.
    """
    if quantity.pooled is None:
        return None
    sums = [quantity.pooled(side.of_repeat(repeat)).sums for repeat in side.repeats]
    if not sums:
        return {}
    return {name: [one[name] for one in sums] for name in sums[0] if all(name in one for one in sums)}


def repeats_agree(rows: PromptRows | None) -> bool:
    """Whether two or more repeats gave the same sums for every prompt: then the quantity does not vary here."""
    return bool(rows) and all(
        len(each) > 1 and each.count(each[0]) == len(each) for each in (rows or {}).values()
    )


def is_exact(
    quantity: Quantity, base: PromptRows | None, new: PromptRows | None, *, is_deterministic: bool
) -> bool:
    """Counted and shown not to vary; or nothing at all differs, so that there is nothing to estimate."""
    if quantity.is_time:
        return base is not None and bool(base) and base == new
    return (
        is_deterministic or (repeats_agree(base) and repeats_agree(new)) or (base is not None and base == new)
    )


def squares_about_mean(values: Sequence[float]) -> float:
    """sum((x - mean)²)."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


def run_spread(quantity: Quantity, sides: Sequence[Side], requests: float) -> RunSpread | None:
    """How runs vary, from the repeats of both: s² = sum of both runs' squares about their means / (sum of R - 1).

    None where one has fewer than two repeats, or a value that has no logarithm.
    """
    logs = []
    for side in sides:
        values = [quantity.value(side.of_repeat(repeat)) for repeat in side.repeats]
        logs.append([math.log(value) for value in values if value is not None and value > 0])
        if len(values) < 2 or len(logs[-1]) < len(values):
            return None
    degrees = sum(len(each) - 1 for each in logs)
    variance = math.fsum(map(squares_about_mean, logs)) / degrees
    return RunSpread(variance, degrees, len(logs[0]), len(logs[1]) if len(logs) > 1 else 0, requests)


def request_variance(quantity: Quantity, side: Side, rows: PromptRows) -> float:
    """The part of the variance of log(quantity) that is noise of single requests: N R s_e².

    Each prompt's sums in each repeat, times the gradient of log(formula), are its contribution to log(quantity); s_e²
    is the mean square of what prompt and repeat together leave unexplained of them, over (N - 1)(R - 1) degrees of
    freedom.
    """
    import numpy

    sums = numpy.asarray(list(rows.values()), dtype=numpy.float64)  # [prompts, repeats, columns]
    num_prompts, num_repeats, _ = sums.shape
    if num_prompts < 2 or num_repeats < 2 or quantity.pooled is None:
        return 0.0
    gradient = _log_gradient(quantity.pooled(side).formula, sums.sum(axis=(0, 1)))
    parts = sums @ gradient  # [prompts, repeats]
    rest = parts - parts.mean(axis=1, keepdims=True) - parts.mean(axis=0, keepdims=True) + parts.mean()
    mean_square = float((rest**2).sum()) / ((num_prompts - 1) * (num_repeats - 1))
    return float(num_prompts * num_repeats * mean_square)


def _log_gradient(formula: Callable[..., Any], totals: Floats) -> Floats:
    """d log(formula) / d total, for every total; central differences."""
    import numpy

    gradient = numpy.zeros(len(totals))
    for place, total in enumerate(totals):
        step = abs(total) * _RELATIVE_STEP
        if step:
            high, low = totals.copy(), totals.copy()
            high[place] += step
            low[place] -= step
            values = float(formula(*high)), float(formula(*low))
            gradient[place] = (
                (math.log(values[0]) - math.log(values[1])) / (2 * step) if min(values) > 0 else 0.0
            )
    return gradient


def _bootstrap_variance(
    quantity: Quantity, sides: Sequence[Side], rows: Sequence[PromptRows]
) -> float | None:
    """Variance of log(last / first), or of log(only), over draws of prompts, the same for all sides."""
    num_prompts = len(rows[0])
    if num_prompts < MIN_PROMPTS_FOR_INTERVAL or quantity.pooled is None:
        return None
    import numpy

    sums = [numpy.asarray(list(each.values()), dtype=numpy.float64).sum(axis=1) for each in rows]
    resampled = resample_sums(numpy.concatenate(sums, axis=1))  # [resamples, columns of all sides]
    width = sums[0].shape[1]
    with numpy.errstate(divide="ignore", invalid="ignore"):
        logs = [
            numpy.log(numpy.asarray(quantity.pooled(side).formula(*resampled[:, place : place + width].T)))
            for place, side in zip(range(0, width * len(sides), width), sides, strict=True)
        ]
        changes = logs[-1] - logs[0] if len(logs) > 1 else logs[0]
    changes = changes[numpy.isfinite(changes)]
    return float(numpy.var(changes, ddof=1)) if changes.size > 1 else None


def _spread(
    quantity: Quantity,
    sides: tuple[Side, Side],
    rows: tuple[PromptRows | None, PromptRows | None],
    calibrated: CalibratedSpread | None,
    num_prompts: int,
) -> Spread:
    known = [each for each in rows if each is not None]
    prompts = _bootstrap_variance(quantity, sides, known) if len(known) == 2 else None
    if not quantity.is_time and prompts is not None:
        return Spread(num_prompts, prompts)
    requests = sum(request_variance(quantity, side, each) for side, each in zip(sides, known, strict=False))
    if calibrated is not None:
        return Spread(
            num_prompts, prompts, RunSpread(calibrated.variance, calibrated.num_runs - 1, 1, 1, requests)
        )
    return Spread(num_prompts, prompts, run_spread(quantity, sides, requests))


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
