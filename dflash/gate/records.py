"""The frozen records of the gate, and nothing else.

A change is relative: new / base - 1. Inside, changes are logarithms of that ratio, so that a fall and the rise that
makes up for it weigh the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dflash.results.records import Cell

Verdict = Literal["better", "worse", "same", "inconclusive", "incomparable"]
VERDICTS: tuple[Verdict, ...] = (
    "worse",
    "incomparable",
    "inconclusive",
    "better",
    "same",
)  # the gravest first
# What a field that differs stands in the way of: everything, times alone, or nothing (it is listed).
Scope = Literal["all", "times", "listed"]
# What an interval covers. "exact": the quantity does not vary on this machine, and has none.
Basis = Literal["exact", "prompts and repeats", "repeats", "prompts", "calibration", "baseline runs"]


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition that fails a comparison: a change beyond `change`, or a new value beyond a limit.

    Exactly one of `change`, `below` and `above` is set.
    """

    text: str  # as it was given
    quantity: str
    change: float | None = None  # relative, with its sign: -0.05 fails on a fall by more than 5 %
    below: float | None = None  # fails where the new value is below
    above: float | None = None
    only: Mapping[str, Any] = field(
        default_factory=dict
    )  # of cells: dataset, arm, block_size, concurrency, backend
    is_default: bool = False  # nobody asked for it: where no cell has the quantity, nothing is missed

    @property
    def is_limit(self) -> bool:
        return self.change is None

    def means(self, cell: Cell) -> bool:
        """Whether the gate is for this cell."""
        of_cell = {
            "dataset": cell.workload.dataset,
            "arm": cell.arm.name,
            "block_size": cell.arm.block_size,
            "concurrency": cell.workload.concurrency,
            "backend": cell.backend,
        }
        return all(of_cell[name] == value for name, value in self.only.items())

    @property
    def minimum_effect(self) -> float:
        """The smallest change that counts, as a logarithm: |log(1 + change)|; 0 for a limit."""
        return 0.0 if self.change is None else abs(math.log1p(self.change))


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field in which two runs differ."""

    field: str
    base: Any
    new: Any
    scope: Scope
    is_allowed: bool = False  # by `--allow`


@dataclass(frozen=True, slots=True)
class CellPair:
    """The same cell in two runs. `new` is None where the new run lacks it, `base` where the base does."""

    base: Cell | None
    new: Cell | None
    differences: tuple[FieldDifference, ...] = ()

    @property
    def cell(self) -> Cell:
        cell = self.new or self.base
        if cell is None:
            raise ValueError("a pair has at least one cell")
        return cell

    def refused(self, is_time: bool) -> tuple[FieldDifference, ...]:
        """The differences that forbid comparing a quantity."""
        scopes = ("all", "times") if is_time else ("all",)
        return tuple(item for item in self.differences if item.scope in scopes and not item.is_allowed)


@dataclass(frozen=True, slots=True)
class RunSpread:
    """How a logarithm of a quantity varies from one repeat of a run to the next, or from run to run."""

    variance: float  # s² of one repeat, pooled over both runs; of a calibration: of one whole run
    degrees_of_freedom: float
    num_base: int  # that the base is the mean of
    num_new: int  # 0: the spread is of one run's value, and of no change
    requests: float = (
        0.0  # noise of single requests in `of_change`, which the part of the prompts holds as well
    )
    of_whole_runs: bool = False  # num_base and num_new are runs, and not repeats of one

    @property
    def of_change(self) -> float:
        """s² (1 / R_base + 1 / R_new)."""
        return self.variance * sum(1 / number for number in (self.num_base, self.num_new) if number)

    @property
    def between(self) -> float:
        """What the part of the prompts does not hold."""
        return max(0.0, self.of_change - self.requests)


@dataclass(frozen=True, slots=True)
class CalibratedSpread:
    """s² of log(quantity) over whole runs in which nothing changed."""

    variance: float
    num_runs: int


@dataclass(frozen=True, slots=True)
class Spread:
    """The variance of an estimated change (a logarithm), by where it comes from.

    A part that is not known is None: then the interval does not cover it.
    """

    num_prompts: int = 0
    prompts: float | None = None  # paired bootstrap over prompts
    runs: RunSpread | None = None
    is_pooled: bool = False  # the quantity is made from sums over prompts, so that `prompts` can be known

    @property
    def variance(self) -> float:
        """Prompts + what differs between runs."""
        return (self.prompts or 0.0) + (self.runs.between if self.runs else 0.0)

    @property
    def degrees_of_freedom(self) -> float:
        """Satterthwaite: V² / sum(V_i² / f_i) over the parts V_i as they were estimated, with f_i degrees each.

        At least the smallest f_i: what is taken off for the noise of requests must not make V less certain than that.
        """
        whole = self.variance
        if whole <= 0:
            return math.inf
        parts: list[tuple[float, float]] = []
        if self.prompts is not None:
            parts.append((self.prompts, max(1, self.num_prompts - 1)))
        if self.runs is not None:
            parts.append((self.runs.of_change, self.runs.degrees_of_freedom))
        found = 1 / sum((part / whole) ** 2 / degrees for part, degrees in parts)
        return max(found, min(degrees for _, degrees in parts))


@dataclass(frozen=True, slots=True)
class Change:
    """How much a quantity changed, before it is judged."""

    base: float
    new: float
    log_ratio: float  # log(new / base)
    basis: Basis
    spread: Spread
    num_prompts: int
    num_base_repeats: int
    num_new_repeats: int
    num_left_out: int = 0  # turns of prompts that did not complete in every repeat of all runs
    num_base_runs: int = 1

    @property
    def relative(self) -> float:
        return math.expm1(self.log_ratio)


@dataclass(frozen=True, slots=True)
class Needed:
    """How many repeats, runs of the baseline, or prompts would make an interval narrow enough to tell.

    None: no number of them.
    """

    repeats: int | None = None
    prompts: int | None = None
    base_runs: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One gate at one cell, judged. `low` and `high` bound the relative change at `confidence`."""

    gate: Gate
    pair: CellPair
    verdict: Verdict
    reason: str
    base: float | None = None
    new: float | None = None
    relative: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    basis: Basis | None = None
    p_value: float | None = None  # of no change, before correction
    num_prompts: int = 0
    num_base_repeats: int = 0
    num_new_repeats: int = 0
    num_left_out: int = 0  # turns that did not complete in every repeat of all runs
    num_base_runs: int = 1
    needed: Needed | None = None


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of a change of speed: relative change with its 95 % interval."""

    relative: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class SpeedSplit:
    """A change of decode speed as the product of two: acceptance length and 1 / step time."""

    pair: CellPair
    decode_tok_s: Factor
    acceptance_length: Factor | None  # None: plain decoding, or steps that were not counted
    decode_step_s: Factor | None
    baseline_tpot_s: Factor | None  # of the run's own baseline: the other side of a speedup
    sentence: str


@dataclass(frozen=True, slots=True)
class GateReport:
    """Everything that an output prints about a comparison of two runs."""

    base_name: str
    new_name: str
    comparisons: tuple[Comparison, ...]
    splits: tuple[SpeedSplit, ...]
    pairs: tuple[CellPair, ...]
    notes: tuple[str, ...]
    num_tested: int  # comparisons that the correction for multiplicity is over
    strict: bool = False
    exit_code: int = 0

    @property
    def verdict(self) -> Verdict:
        """The gravest of all verdicts."""
        found = {comparison.verdict for comparison in self.comparisons}
        return next((verdict for verdict in VERDICTS if verdict in found), "incomparable")
