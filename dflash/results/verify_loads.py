"""Does an arm accept the same under every load? Findings about cells that differ in nothing but their load. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from dflash.results.finding import Finding
from dflash.results.formats import format_with_bounds
from dflash.results.records import Cell
from dflash.results.stats import Interval

MAX_FALL = 0.05  # of the acceptance length at the lowest load


class MeasuredCell(Protocol):
    @property
    def cell(self) -> Cell: ...

    def interval(self, name: str) -> Interval | None: ...


def check_loads(cells: Sequence[MeasuredCell]) -> Mapping[str, Finding]:
    """By cell id, where the acceptance length is below that of the same arm at its lowest concurrency.

    Which tokens a target confirms does not depend on how many requests run: a fall says that an engine drafts or
    verifies otherwise in a batch. By more than 5 %, and with intervals that do not overlap.
    """
    arms: dict[tuple[object, ...], list[MeasuredCell]] = {}
    for item in cells:
        cell = item.cell
        if cell.on_server and not cell.arm.is_baseline and cell.workload.request_rate is None:
            key = (cell.backend, replace(cell.workload, concurrency=1), cell.arm)
            arms.setdefault(key, []).append(item)
    found: dict[str, Finding] = {}
    for members in arms.values():
        members.sort(key=lambda item: item.cell.workload.concurrency)
        lowest = members[0]
        for item in members[1:]:
            finding = _fall(lowest, item)
            if finding is not None:
                found[item.cell.cell_id] = finding
    return found


def _fall(lowest: MeasuredCell, item: MeasuredCell) -> Finding | None:
    alone, loaded = lowest.interval("acceptance_length"), item.interval("acceptance_length")
    if alone is None or loaded is None or loaded.value >= (1 - MAX_FALL) * alone.value:
        return None
    if alone.low is None or loaded.high is None or loaded.high >= alone.low:
        return None
    sentence = (
        f"The acceptance length falls under load: {format_with_bounds(alone)} at concurrency "
        f"{lowest.cell.workload.concurrency}, {format_with_bounds(loaded)} here. It should not depend on the load: the "
        "engine drafts or verifies otherwise in a batch."
    )
    return Finding("acceptance_falls_under_load", "warning", sentence)
