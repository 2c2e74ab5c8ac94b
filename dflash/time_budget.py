"""How long a sweep may take: nothing new is begun once its time is used up."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

NS_PER_S = 1_000_000_000
_SECONDS = {"h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:(?P<h>[0-9.]+)h)?(?:(?P<m>[0-9.]+)m(?:in)?)?(?:(?P<s>[0-9.]+)s?)?")


def parse_duration(text: str) -> float:
    """`90`, `90s`, `30m`, `2h`, `1h30m` -> seconds.

    Raises:
        argparse.ArgumentTypeError: no duration, or none above 0.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    try:
        parts = {unit: float(value) for unit, value in match.groupdict().items() if value} if match else {}
    except ValueError:
        parts = {}
    seconds = sum(_SECONDS[unit] * value for unit, value in parts.items())
    if not seconds > 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: give hours, minutes or seconds, such as 90s, 30m or 1h30m"
        )
    return seconds


def format_duration(seconds: float) -> str:
    """`1h30m`, `45s`: what `parse_duration` reads."""
    hours, rest = divmod(seconds, _SECONDS["h"])
    minutes, rest = divmod(rest, _SECONDS["m"])
    words = [f"{value:g}{unit}" for value, unit in ((hours, "h"), (minutes, "m"), (rest, "s")) if value]
    return "".join(words) or "0s"


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """A moment after which nothing new is begun; None: there is none."""

    deadline_ns: int | None = None  # of `now_ns`
    now_ns: Callable[[], int] = time.perf_counter_ns
    reason: str = ""

    @classmethod
    def of(cls, seconds: float | None, now_ns: Callable[[], int] = time.perf_counter_ns) -> TimeBudget:
        """A budget that begins now."""
        if seconds is None:
            return cls(None, now_ns)
        reason = f"the time budget of {format_duration(seconds)} was used up"
        return cls(now_ns() + round(seconds * NS_PER_S), now_ns, reason)

    @property
    def is_used_up(self) -> bool:
        return self.deadline_ns is not None and self.now_ns() >= self.deadline_ns
