"""Numbers of the gate -> words. Pure."""

from __future__ import annotations

from dflash.results.formats import UNKNOWN, format_ms, format_number, format_percent

_SHARES = ("agreement", "error_rate", "outputs_unchanged", "task_score")


def value_of(quantity: str, value: float | None) -> str:
    """A quantity's value with its unit: times in ms, shares in percent, rates in tokens or requests a second."""
    if value is None:
        return UNKNOWN
    if quantity in _SHARES:
        return format_percent(value)
    if quantity.endswith("_tok_s"):
        return f"{format_number(value, 1)} tok/s"
    if quantity.endswith("_req_s"):
        return f"{format_number(value, 3)} req/s"
    if quantity.endswith("_s") or "_s_p" in quantity:
        return f"{format_ms(value)} ms"
    if quantity.endswith("speedup"):
        return f"{format_number(value, 3)}x"
    return format_number(value, 3)


def signed_percent(relative: float | None) -> str:
    """A relative change with its sign: `-4.93 %`, `+0.02 %`, `0 %` for none at all."""
    if relative is None:
        return UNKNOWN
    return "0 %" if relative == 0 else f"{100 * relative:+.2f} %"


def percent_of(share: float) -> str:
    """`5 %`, `2.5 %`."""
    return f"{100 * share:.4g} %"


def percent_interval(low: float | None, high: float | None) -> str:
    """`[-6.10, -3.62] %`, or nothing where there is none."""
    return "" if low is None or high is None else f"[{100 * low:+.2f}, {100 * high:+.2f}] %"


def count_of(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
