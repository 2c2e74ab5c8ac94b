"""The sums behind a pooled quantity, by prompt and repeat. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from dflash.gate.quantities import Quantity
from dflash.gate.sides import Side

Floats = NDArray[numpy.float64]
_RELATIVE_STEP = 1e-6  # of numeric derivatives


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedSums:
    """One row of sums for every prompt and repeat, and the formula over the summed rows."""

    names: tuple[str, ...]  # of the prompts that have a row in every repeat
    sums: Floats  # [prompts, repeats, columns]
    formula: Callable[..., Any]

    @property
    def num_repeats(self) -> int:
        return int(self.sums.shape[1])

    def of_prompts(self, names: Sequence[str]) -> RepeatedSums:
        """Those of these prompts, in this order."""
        if tuple(names) == self.names:
            return self
        places = {name: place for place, name in enumerate(self.names)}
        return RepeatedSums(tuple(names), self.sums[[places[name] for name in names]], self.formula)

    def of_repeats(self) -> list[float]:
        """The quantity in each repeat; NaN where a denominator is zero."""
        with numpy.errstate(divide="ignore", invalid="ignore"):
            values: list[float] = numpy.asarray(self.formula(*self.sums.sum(axis=0).T)).tolist()
        return values

    @property
    def repeats_agree(self) -> bool:
        """Whether two or more repeats gave the same sums for every prompt: the quantity does not vary here."""
        return self.num_repeats > 1 and len(self.names) > 0 and bool((self.sums == self.sums[:, :1]).all())

    def equals(self, other: RepeatedSums) -> bool:
        """Whether all prompts gave the same in all repeats, of which there need not be as many where all are equal."""
        if not self.names or self.names != other.names or self.sums.shape[2] != other.sums.shape[2]:
            return False
        first = self.sums[:, :1]
        return numpy.array_equal(self.sums, other.sums) or (
            bool((self.sums == first).all()) and bool((other.sums == first).all())
        )

    def request_variance(self) -> float:
        """The part of the variance of log(quantity) that is noise of single requests: N R s_e²; 0 for one repeat.

        Each prompt's sums in each repeat, times the gradient of log(formula), are its contribution to log(quantity);
        s_e² is the mean square of what prompt and repeat together leave unexplained of them, over (N - 1)(R - 1)
        degrees of freedom (two-way analysis of variance).
        """
        num_prompts, num_repeats, _ = self.sums.shape
        if num_prompts < 2 or num_repeats < 2:
            return 0.0
        parts = self.sums @ self._log_gradient()  # [prompts, repeats]
        rest = parts - parts.mean(axis=1, keepdims=True) - parts.mean(axis=0, keepdims=True) + parts.mean()
        mean_square = float((rest**2).sum()) / ((num_prompts - 1) * (num_repeats - 1))
        return float(num_prompts * num_repeats * mean_square)

    def _log_gradient(self) -> Floats:
        """d log(formula) / d total, for every total; central differences."""
        totals = self.sums.sum(axis=(0, 1))
        gradient = numpy.zeros(len(totals))
        for place, total in enumerate(totals):
            step = abs(total) * _RELATIVE_STEP
            if step:
                ends = numpy.stack([totals, totals])
                ends[:, place] += (step, -step)
                high, low = numpy.asarray(self.formula(*ends.T))
                gradient[place] = numpy.log(high / low) / (2 * step) if min(high, low) > 0 else 0.0
        return gradient


def repeated_sums(quantity: Quantity, side: Side) -> RepeatedSums | None:
    """The sums of a side; None for a quantity that is not made from sums over prompts, or was not measured."""
    if quantity.pooled is None:
        return None
    pooled = [quantity.pooled(side.of_repeat(repeat)) for repeat in side.repeats]
    if not pooled or not all(len(each.sums) for each in pooled):
        return None
    places = [{name: place for place, name in enumerate(each.sums)} for each in pooled]
    names = tuple(name for name in places[0] if all(name in other for other in places[1:]))
    if not names:
        return None
    rows = [each.rows()[[own[name] for name in names]] for each, own in zip(pooled, places, strict=True)]
    return RepeatedSums(names, numpy.stack(rows, axis=1), pooled[0].formula)
