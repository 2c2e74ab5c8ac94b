"""Numbers -> words: the one place where units are converted and figures rounded. Pure.

An unknown prints as `n/a`, never as 0 or 1, and so does what is no number. Latencies print in ms, memory in MiB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dflash.results.stats import Interval

UNKNOWN = "n/a"
_MS_PER_S = 1_000
_BYTES_PER_MIB = 1024 * 1024


def to_ms(seconds: float) -> float:
    return seconds * _MS_PER_S


def to_mib(num_bytes: float) -> float:
    return num_bytes / _BYTES_PER_MIB


def _known(value: float | None) -> float | None:
    """None for what is no number too."""
    return None if value is None or not math.isfinite(value) else value


def _fixed(value: float, digits: int) -> str:
    """So many digits after the point; what rounds to zero has no sign."""
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text


def format_number(value: float | None, digits: int = 2) -> str:
    value = _known(value)
    return UNKNOWN if value is None else _fixed(value, digits)


def format_count(value: float | None) -> str:
    value = _known(value)
    return UNKNOWN if value is None else _fixed(value, 0)


def format_ms(seconds: float | None) -> str:
    """Seconds as ms with three significant digits or so, without the unit."""
    seconds = _known(seconds)
    if seconds is None:
        return UNKNOWN
    value = to_ms(seconds)
    return _fixed(value, 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2)


def format_rate(value: float | None) -> str:
    """Tokens a second, without the unit."""
    value = _known(value)
    return UNKNOWN if value is None else _fixed(value, 0 if value >= 1000 else 1)


def format_times(value: float | None) -> str:
    value = _known(value)
    return UNKNOWN if value is None else f"{value:.2f}x"


def format_percent(value: float | None) -> str:
    """A share; only exactly 1 prints as 100 %, and only exactly 0 as 0 %."""
    value = _known(value)
    if value is None:
        return UNKNOWN
    if 0 < value < 1:
        return f"{min(max(value * 100, 0.1), 99.9):.1f} %"
    return f"{value * 100:.0f} %"


def format_mib(num_bytes: float | None) -> str:
    num_bytes = _known(num_bytes)
    return UNKNOWN if num_bytes is None else _fixed(to_mib(num_bytes), 1)


def format_bounds(interval: Interval | None, digits: int = 2) -> str:
    """`[low, high]`, or nothing where there is no interval."""
    low, high = (None, None) if interval is None else (_known(interval.low), _known(interval.high))
    return "" if low is None or high is None else f"[{_fixed(low, digits)}, {_fixed(high, digits)}]"


def format_speedup(interval: Interval | None) -> str:
    """`1.08x [1.02, 1.15]`."""
    return (
        UNKNOWN if interval is None else f"{format_times(interval.value)} {format_bounds(interval)}".strip()
    )


def format_with_bounds(interval: Interval | None, digits: int = 2) -> str:
    """`1.42 [1.35, 1.49]`."""
    if interval is None:
        return UNKNOWN
    return f"{format_number(interval.value, digits)} {format_bounds(interval, digits)}".strip()


def format_agreement(interval: Interval | None) -> str:
    """`100 %`, or `87.5 % [75.0, 100.0]`."""
    if interval is None:
        return UNKNOWN
    bounds = interval
    if interval.low is not None and interval.high is not None:
        bounds = Interval(interval.value, interval.low * 100, interval.high * 100)
    return (
        f"{format_percent(interval.value)} {'' if interval.value == 1 else format_bounds(bounds, 1)}".strip()
    )


def format_counts(counts: Mapping[str, int]) -> str:
    """`length 3, stop 13`."""
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or UNKNOWN


def format_cache_mark(mark: str | None, share: float | None) -> str:
    """`cached (40.0 %)`, `cached` of a part whose share is not known, `cache unknown`, or nothing: beside a TTFT."""
    if mark != "cached":
        return "" if mark is None else "cache unknown"
    return "cached" if share is None else f"cached ({format_percent(share)})"


def format_limit(seconds: float) -> str:
    """A limit in words: `500 ms`, `2 s`."""
    return f"{seconds:g} s" if seconds >= 1 else f"{to_ms(seconds):g} ms"


def plain_text(text: str) -> str:
    """Text from a model, a server or a file as one line without control characters."""
    return "".join(character if character.isprintable() else " " for character in text)


def format_p_value(value: float | None) -> str:
    """Three significant digits; a p-value is never 0."""
    if value is None:
        return UNKNOWN
    return "below 0.001" if value < 0.001 else f"{value:.3g}"
