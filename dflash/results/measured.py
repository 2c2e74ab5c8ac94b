"""What a metric's value may be, and how it is asked for by its code name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dflash.results.stats import Interval

MetricValue = Interval | float | int | tuple[float | None, ...] | None


@dataclass(frozen=True, slots=True)
class Measured:
    """Metrics under their code names (see METHODOLOGY.md); None: not measured."""

    metrics: Mapping[str, MetricValue]

    def number(self, name: str) -> float | None:
        """The plain number, an interval's value included."""
        value = self.metrics.get(name)
        if isinstance(value, Interval):
            return value.value
        return value if isinstance(value, int | float) else None

    def interval(self, name: str) -> Interval | None:
        """The value with its interval; a plain number has none."""
        value = self.metrics.get(name)
        if isinstance(value, Interval):
            return value
        return Interval(value, None, None) if isinstance(value, int | float) else None

    def numbers(self, name: str) -> tuple[float | None, ...] | None:
        """A histogram or a curve."""
        value = self.metrics.get(name)
        return value if isinstance(value, tuple) else None
