"""What the cells of a comparison tell each other about the spread between runs. Pure.

Three repeats of two runs leave four degrees of freedom, too few once several comparisons are corrected for. But the
cells ran on one machine: their spreads are draws from one distribution, which all of them together show. Each cell's
s² is drawn towards it, the more so the more alike they are (empirical Bayes; G. K. Smyth, "Linear models and empirical
Bayes methods for assessing differential expression in microarray experiments", 2004, section 6.2): with d0 and s0² of
that distribution, s² becomes (d0 s0² + d s²) / (d0 + d) with d0 + d degrees of freedom.

Where cells share what varies (arms that are run in turns do), d0 + d is too large for each of them; but then they also
fail together, and the correction for several comparisons, which takes them for independent, is too strict by more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dflash.gate.estimates import squares_about_mean
from dflash.gate.records import RunSpread

_SERIES_FROM = 8.0  # the asymptotic series of digamma and trigamma are good from here on
_MOST_DEGREES = 1e8


def moderated(spreads: Sequence[RunSpread]) -> list[RunSpread]:
    """The spreads of one quantity in several cells, each with what the others tell about it.

    Those without any variance are left alone, and so is a single one.
    """
    known = [item for item in spreads if item.variance > 0]
    if len(known) < 2:
        return list(spreads)
    prior_degrees, prior_variance = _prior(known)
    most = sum(item.degrees_of_freedom for item in known)
    return [
        item if item.variance == 0 else _towards(item, prior_degrees, prior_variance, most)
        for item in spreads
    ]


def _prior(spreads: Sequence[RunSpread]) -> tuple[float, float]:
    """(d0, s0²): by the mean and the variance of log s², which for d degrees of freedom are those of chi²."""
    halves = [item.degrees_of_freedom / 2 for item in spreads]
    logs = [
        math.log(item.variance) - digamma(half) + math.log(half)
        for item, half in zip(spreads, halves, strict=True)
    ]
    mean = math.fsum(logs) / len(logs)
    own = math.fsum(map(trigamma, halves)) / len(halves)
    excess = squares_about_mean(logs) / (len(logs) - 1) - own
    if excess <= 0:  # no more unlike than chance makes them: all draws of one variance
        degrees = sum(item.degrees_of_freedom for item in spreads)
        return math.inf, math.fsum(item.variance * item.degrees_of_freedom for item in spreads) / degrees
    half = inverse_trigamma(excess)
    return 2 * half, math.exp(mean + digamma(half) - math.log(half))


def _towards(item: RunSpread, degrees: float, variance: float, most: float) -> RunSpread:
    own = item.degrees_of_freedom
    if math.isinf(degrees):
        return replace(item, variance=variance, degrees_of_freedom=most)
    together = (degrees * variance + own * item.variance) / (degrees + own)
    return replace(item, variance=together, degrees_of_freedom=min(degrees + own, most))


def digamma(x: float) -> float:
    """d log gamma(x) / dx, for x > 0: by recurrence up to 8, then the asymptotic series (DLMF 5.11.2)."""
    value = 0.0
    while x < _SERIES_FROM:
        value -= 1 / x
        x += 1
    square = 1 / (x * x)
    return value + math.log(x) - 1 / (2 * x) - square * (1 / 12 - square * (1 / 120 - square / 252))


def trigamma(x: float) -> float:
    """d² log gamma(x) / dx², for x > 0; as `digamma`."""
    value = 0.0
    while x < _SERIES_FROM:
        value += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    return value + 1 / x + square / 2 + square / x * (1 / 6 - square * (1 / 30 - square / 42))


def inverse_trigamma(value: float) -> float:
    """The x with trigamma(x) = value, by bisection; at most 1e8."""
    low, high = 1e-8, _MOST_DEGREES
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if trigamma(middle) > value else (low, middle)
    return math.sqrt(low * high)
