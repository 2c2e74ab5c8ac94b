"""What a calibration found about a machine, as it is kept and looked up. Reading and writing aside pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dflash.errors import UsageError
from dflash.gate.records import CalibratedSpread
from dflash.results.atomic_file import write_file
from dflash.results.fingerprint import Fingerprint, same_machine
from dflash.results.records import Cell

FORMAT_VERSION = 1
CALIBRATION_FILE = "calibration.json"


@dataclass(frozen=True, slots=True)
class CellSpread:
    """How one quantity of one cell varied over runs in which nothing changed."""

    cell: str  # see `cell_key`
    quantity: str
    num_runs: int
    num_repeats: int  # of each run
    variance: float | None  # s² of log(quantity) over the runs
    is_deterministic: bool  # the same sums for every prompt in every repeat of every run


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found, and on which machine; empty: nothing."""

    spreads: tuple[CellSpread, ...] = ()
    fingerprint: Fingerprint = field(default_factory=dict)
    runs: tuple[str, ...] = ()

    def is_deterministic(self, cell: Cell, quantity: str) -> bool:
        return any(item.is_deterministic for item in self._of(cell, quantity))

    def spread(self, cell: Cell, quantity: str, num_repeats: int) -> CalibratedSpread | None:
        """How whole runs of this cell vary; only from runs of as many repeats, and from three or more."""
        for item in self._of(cell, quantity):
            if item.num_repeats == num_repeats and item.num_runs >= 3 and item.variance is not None:
                return CalibratedSpread(item.variance, item.num_runs)
        return None

    def _of(self, cell: Cell, quantity: str) -> list[CellSpread]:
        key = cell_key(cell)
        return [item for item in self.spreads if item.cell == key and item.quantity == quantity]


def cell_key(cell: Cell) -> str:
    """What a cell is known by over runs: its place in the grid, its prompts and what it samples."""
    workload = cell.workload
    rate = "" if workload.request_rate is None else f" rate={workload.request_rate:g}"
    return (
        f"{cell.backend} {workload.dataset} {cell.arm.label} c={workload.concurrency}{rate} "
        f"{workload.target} {workload.dtype} t={workload.temperature:g} n={workload.max_new_tokens} "
        f"prompts={workload.prompts_digest}"
    )


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Keep a calibration.

    Raises:
        UsageError: it cannot be written.
    """
    values = {"format_version": FORMAT_VERSION, **asdict(calibration)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, (json.dumps(values, indent=2, default=str) + "\n").encode())
    except OSError as error:
        raise UsageError(
            f"cannot write {path} ({error.strerror or error})", "choose another --baselines"
        ) from error


def load_calibration(path: Path) -> Calibration:
    """The calibration in a file.

    Raises:
        UsageError: no such file, damaged, or of a later format.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return _parse(values)
    except OSError as error:
        raise UsageError(
            f"cannot read {path} ({error.strerror or error})", "make one by --calibrate"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} is no calibration ({error})", "make it anew by --calibrate") from error


def check_machine(calibration: Calibration, fingerprint: Fingerprint) -> None:
    """Refuse what was found on another machine.

    Raises:
        UsageError: it was.
    """
    if calibration.fingerprint and not same_machine(calibration.fingerprint, fingerprint):
        raise UsageError(
            "the calibration is of another machine than the new run", "make one here by --calibrate"
        )


def _parse(values: Mapping[str, Any]) -> Calibration:
    if values["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format_version is {values['format_version']!r}")
    spreads = tuple(CellSpread(**item) for item in values["spreads"])
    return Calibration(spreads, dict(values["fingerprint"]), tuple(values["runs"]))
