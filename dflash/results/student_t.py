"""Student's t distribution for any number of degrees of freedom, infinitely many included. Pure."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_MANY = 1e6  # degrees of freedom beyond which the normal distribution is the same to six digits
_TINY = 1e-300
_PRECISION = 1e-11
_MAX_TERMS = 500


def two_sided_p_value(t: float, degrees_of_freedom: float) -> float:
    """P(|T| > |t|)."""
    if math.isinf(t):
        return 0.0
    if degrees_of_freedom > _MANY:
        return 2 * NormalDist().cdf(-abs(t))
    return _incomplete_beta(degrees_of_freedom / (degrees_of_freedom + t * t), degrees_of_freedom / 2, 0.5)


@lru_cache(maxsize=4096)
def two_sided_quantile(confidence: float, degrees_of_freedom: float) -> float:
    """The t with P(|T| <= t) = confidence, by bisection.

    Raises:
        ValueError: confidence outside (0, 1), or no degrees of freedom.
    """
    if not 0 < confidence < 1 or not degrees_of_freedom > 0:
        raise ValueError(f"no quantile for {confidence} and {degrees_of_freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while two_sided_p_value(high, degrees_of_freedom) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if two_sided_p_value(middle, degrees_of_freedom) > 1 - confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast below this point
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # modified Lentz: the fraction as a product of ratios of successive numerators and denominators
    numerator, denominator = 1.0, 0.0
    value = 1.0
    for term in range(_MAX_TERMS):
        half = term // 2
        if term == 0:
            coefficient = 1.0
        elif term % 2 == 0:
            coefficient = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        else:
            coefficient = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        denominator = 1 + coefficient * denominator
        denominator = 1 / (denominator if abs(denominator) > _TINY else _TINY)
        numerator = 1 + coefficient / numerator
        numerator = numerator if abs(numerator) > _TINY else _TINY
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < 1e-14:
            break
    return front * (value - 1) / a
