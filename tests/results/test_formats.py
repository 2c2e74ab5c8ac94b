from __future__ import annotations

from dflash.results import formats
from dflash.results.stats import Interval


def test_unknown_prints_as_n_a():
    unknown = (
        formats.format_number,
        formats.format_count,
        formats.format_ms,
        formats.format_rate,
        formats.format_times,
        formats.format_percent,
        formats.format_mib,
        formats.format_speedup,
        formats.format_with_bounds,
        formats.format_agreement,
        formats.format_p_value,
    )
    assert {form(None) for form in unknown} == {"n/a"}


def test_units():
    assert formats.format_ms(0.0123) == "12.3"
    assert formats.format_ms(0.00123) == "1.23"
    assert formats.format_ms(12.3) == "12,300"
    assert formats.format_mib(3 * 1024 * 1024) == "3.0"
    assert formats.format_speedup(Interval(1.084, 1.02, 1.15)) == "1.08x [1.02, 1.15]"
    assert formats.format_speedup(Interval(1.084, None, None)) == "1.08x"


def test_only_all_prints_as_100_percent():
    assert formats.format_percent(1.0) == "100 %"
    assert formats.format_percent(0.9999) == "99.9 %"
    assert formats.format_percent(0.00001) == "0.1 %"
    assert formats.format_percent(0.0) == "0 %"


def test_a_p_value_is_never_zero():
    assert formats.format_p_value(0.0625) == "0.0625"
    assert formats.format_p_value(0.125) == "0.125"
    assert formats.format_p_value(1.0) == "1"
    assert formats.format_p_value(1e-9) == "below 0.001"


def test_what_rounds_to_zero_has_no_sign():
    assert formats.format_ms(-1e-9) == "0.00"
    assert formats.format_ms(-0.002) == "-2.00"
    assert formats.format_number(-0.004) == "0.00"
    assert formats.format_number(-0.0, 1) == "0.0"
    assert formats.format_count(-0.3) == "0"
    assert formats.format_rate(-0.04) == "0.0"
    assert formats.format_mib(-1.0) == "0.0"
    assert formats.format_bounds(Interval(0.0, -0.001, 0.5)) == "[0.00, 0.50]"
    assert formats.format_number(-1000.0) == "-1,000.00"
