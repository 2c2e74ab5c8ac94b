from __future__ import annotations

import math

import pytest

from dflash.results.student_t import two_sided_p_value, two_sided_quantile


@pytest.mark.parametrize(
    ("confidence", "degrees", "t"),
    [  # from printed tables
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 4, 2.776),
        (0.99, 4, 4.604),
        (0.95, 10, 2.228),
        (0.999, 3, 12.924),
        (0.95, 120, 1.980),
        (0.95, math.inf, 1.960),
    ],
)
def test_quantiles_are_those_of_the_tables(confidence, degrees, t):
    assert two_sided_quantile(confidence, degrees) == pytest.approx(t, abs=6e-4)


@pytest.mark.parametrize("degrees", [1, 2.5, 7.3, 400])
def test_a_quantile_has_its_p_value(degrees):
    assert two_sided_p_value(two_sided_quantile(0.9, degrees), degrees) == pytest.approx(0.1, abs=1e-9)


def test_one_degree_of_freedom_is_the_arctangent():
    assert two_sided_p_value(3.0, 1) == pytest.approx(1 - 2 / math.pi * math.atan(3.0), abs=1e-12)


def test_extremes():
    assert two_sided_p_value(0.0, 3) == 1
    assert two_sided_p_value(math.inf, 3) == 0
    for confidence, degrees in ((0.0, 3), (1.0, 3), (0.95, 0)):
        with pytest.raises(ValueError, match="no quantile"):
            two_sided_quantile(confidence, degrees)
