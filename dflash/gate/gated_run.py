"""A run as it is compared, and what it is held to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash.gate.calibrated import Calibration, cell_key
from dflash.gate.records import Gate
from dflash.gate.sides import Side, sides_of
from dflash.gate.words import count_of
from dflash.results.records import Cell, RunInfo
from dflash.results.summary import RunSummary
from dflash.results.task_scores import NOT_SCORED, Outcomes

_NOTHING = Side.empty()


@dataclass(frozen=True, slots=True)
class GatedRun:
    """A run as it is compared."""

    info: RunInfo
    sides: Mapping[str, Side]  # by cell id
    errors: tuple[str, ...] = ()  # what the run's own checks found broken
    others: tuple[GatedRun, ...] = ()  # of a base: further runs of the same thing

    @classmethod
    def of(cls, info: RunInfo, summary: RunSummary, outcomes: Outcomes = NOT_SCORED) -> GatedRun:
        errors = tuple(
            f"{cell.cell.arm.label} on {cell.cell.workload.dataset}: {finding.sentence}"
            for cell in summary.cells
            for finding in cell.findings
            if finding.severity == "error"
        )
        return cls(info, sides_of(info, summary, outcomes), errors)

    @property
    def name(self) -> str:
        if not self.others:
            return self.info.name
        return f"{self.info.name} and {count_of(len(self.others), 'more run')}"

    def side_of(self, cell: Cell) -> Side:
        """What was measured in a cell; nothing, where it has no record."""
        return self.sides.get(cell.cell_id, _NOTHING)

    def side_like(self, cell: Cell) -> Side | None:
        """The side of another run's cell; None where it has none."""
        key = cell_key(cell)
        return next((self.sides.get(own.cell_id) for own in self.info.cells if cell_key(own) == key), None)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a comparison is held to."""

    gates: tuple[Gate, ...]
    allow: tuple[str, ...] = ()
    strict: bool = False
    calibration: Calibration = field(default_factory=Calibration)
