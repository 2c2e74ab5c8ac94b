"""The runs that were recorded of a suite: one line each in `history.jsonl`. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dflash.gate.calibrated import cell_key
from dflash.gate.gated_run import GatedRun
from dflash.gate.quantities import QUANTITIES
from dflash.results.records import RunInfo

_MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One run in the history of a suite."""

    run_id: str  # when it was begun, and its name
    created_at: str
    is_accepted: bool
    commit: str | None  # of dflash
    versions: Mapping[str, Any]
    values: Mapping[str, Mapping[str, float | None]]  # cell key -> quantity -> value


def history_entry(run: GatedRun, *, is_accepted: bool) -> HistoryEntry:
    """A run's values under their quantities' names, by cell."""
    git = run.info.environment.get("git")
    versions = run.info.environment.get("versions")
    values = {
        cell_key(cell): {
            name: quantity.value(run.sides[cell.cell_id])
            for name, quantity in QUANTITIES.items()
            if cell.cell_id in run.sides
        }
        for cell in run.info.cells
        if not cell.is_retired
    }
    return HistoryEntry(
        run_id(run.info),
        run.info.created_at,
        is_accepted,
        git.get("commit") if isinstance(git, Mapping) else None,
        dict(versions) if isinstance(versions, Mapping) else {},
        values,
    )


def run_id(info: RunInfo) -> str:
    """When a run was begun, and its name, as a file name: tells two runs of one name apart."""
    stamp = re.sub(r"[^0-9T]", "", info.created_at.partition("+")[0])
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", info.name)[:_MAX_NAME]
    return f"{stamp}-{name}"


def format_history(entries: Iterable[HistoryEntry]) -> bytes:
    """The lines of the file, the oldest run first."""
    ordered = sorted(entries, key=lambda item: item.created_at)
    return b"".join(json.dumps(asdict(item)).encode() + b"\n" for item in ordered)


def parse_line(line: str) -> HistoryEntry:
    """The entry of one line.

    Raises:
        ValueError: it is not what `format_history` writes.
        TypeError: the same.
    """
    entry = HistoryEntry(**json.loads(line))
    texts = (entry.run_id, entry.created_at)
    if not all(isinstance(text, str) for text in texts) or not isinstance(entry.is_accepted, bool):
        raise ValueError("run_id, created_at or is_accepted is of another type")
    if not isinstance(entry.values, Mapping) or not all(map(_are_values, entry.values.values())):
        raise ValueError("values is no table of numbers by cell")
    return entry


def _are_values(values: object) -> bool:
    return isinstance(values, Mapping) and all(
        value is None or _is_number(value) for value in values.values()
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
