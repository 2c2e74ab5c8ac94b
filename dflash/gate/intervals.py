"""The width of an interval, and what would make it narrow enough. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from dflash.gate.records import Needed, Spread
from dflash.results.stats import MIN_PROMPTS_FOR_INTERVAL
from dflash.results.student_t import two_sided_quantile

MIN_REPEATS = 3  # from which a spread between runs can be told
MAX_REPEATS = 20  # more are not asked for, of runs of a baseline neither
MAX_PROMPTS = 100_000


def half_width(spread: Spread, confidence: float) -> float:
    """Half of the interval of the change: t(confidence, degrees of freedom) · sqrt(variance)."""
    if spread.variance == 0:
        return 0.0
    return two_sided_quantile(confidence, spread.degrees_of_freedom) * math.sqrt(spread.variance)


def needed_to_tell(spread: Spread, width: float, confidence: float, *, is_time: bool = True) -> Needed:
    """The least number of repeats of each run, or of prompts, for which half of the interval is at most `width`.

    Where the spread is that of whole runs, of runs that the baseline is made of. One of them is changed, the others
    stay. It is as good as the spread that was seen: an outlook, no promise.
    """
    if is_time and spread.runs is None:
        return Needed(repeats=MIN_REPEATS)
    if width <= 0:
        return Needed()
    repeats = base_runs = None
    if spread.runs is not None:
        fewest = max(MIN_REPEATS, spread.runs.num_base, spread.runs.num_new)
        more = _with_base_runs if spread.runs.of_whole_runs else _with_repeats
        numbers = range(fewest, MAX_REPEATS + 1)
        found = next((n for n in numbers if half_width(more(spread, n), confidence) <= width), None)
        base_runs, repeats = (found, None) if spread.runs.of_whole_runs else (None, found)
    if spread.prompts is None or half_width(_with_prompts(spread, MAX_PROMPTS), confidence) > width:
        return Needed(repeats, None, base_runs)
    low, high = max(spread.num_prompts, MIN_PROMPTS_FOR_INTERVAL), MAX_PROMPTS
    while low < high:
        middle = (low + high) // 2
        if half_width(_with_prompts(spread, middle), confidence) > width:
            low = middle + 1
        else:
            high = middle
    return Needed(repeats, low, base_runs)


def _with_base_runs(spread: Spread, number: int) -> Spread:
    """With a baseline of so many runs. The noise of requests is left as it is, which errs towards more runs."""
    if spread.runs is None:
        return spread
    return replace(
        spread, runs=replace(spread.runs, num_base=number, num_new=1, degrees_of_freedom=number - 1)
    )


def _with_repeats(spread: Spread, number: int) -> Spread:
    """With so many repeats of each run. The prompts' part shrinks by the noise of requests that is in it."""
    if spread.runs is None or spread.runs.of_change == 0:
        return spread
    num_new = number if spread.runs.num_new else 0
    # as many more as repeats: what other cells tell grows alike
    now = spread.runs.num_base + spread.runs.num_new - (2 if num_new else 1)
    then = number + num_new - (2 if num_new else 1)
    degrees = spread.runs.degrees_of_freedom * then / max(1, now)
    runs = replace(spread.runs, num_base=number, num_new=num_new, degrees_of_freedom=degrees)
    runs = replace(runs, requests=spread.runs.requests * runs.of_change / spread.runs.of_change)
    prompts = spread.prompts
    if prompts is not None:
        prompts = max(runs.requests, prompts - spread.runs.requests + runs.requests)
    return Spread(spread.num_prompts, prompts, runs)


def _with_prompts(spread: Spread, number: int) -> Spread:
    """With so many prompts: their part and the noise of requests shrink, what whole runs differ by does not."""
    share = spread.num_prompts / number
    prompts = None if spread.prompts is None else spread.prompts * share
    runs = spread.runs
    if runs is not None and runs.of_change > 0:
        requests = runs.requests * share
        whole = runs.between + requests
        runs = replace(runs, variance=runs.variance * whole / runs.of_change, requests=requests)
    return Spread(number, prompts, runs)
