"""Which baseline an arm is compared with: one of its own run, or of another run that is like it. Pure.

A speedup pairs cells of equal workload, backend and machine. Within a run that holds by how it was planned; between
runs every field is compared, and where one differs the pair is refused and the field is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from dflash.results.fingerprint import machine_fingerprint, same_value, thread_settings
from dflash.results.records import Cell, RunInfo, Workload

PLACE_OF_ENGINE = ("device", "num_threads", "route")  # of what an engine tells of itself: must be equal
TOLD_PARTS = ("machine", "versions", "engine")  # of a run's environment: what else differs there is told
_HISTORY_OWN = "history=own"  # how the note of a cell begins whose later turns follow its own answers
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class PlacedCell:
    """A cell, and the run that it was measured in."""

    run: int  # index into the runs that are reported together
    cell: Cell


@dataclass(frozen=True, slots=True)
class Refusal:
    """Two cells of different runs that are not compared, and why: the first fields that differ."""

    arm: PlacedCell
    baseline: PlacedCell
    differences: tuple[tuple[str, object, object], ...]  # field, in the arm's run, in the baseline's

    @property
    def words(self) -> str:
        """`max_new_tokens differs (64, there 128)`."""
        shown = [
            f"{name} differs ({_shown(own)}, there {_shown(other)})"
            for name, own, other in self.differences[:_MOST_SHOWN]
        ]
        more = len(self.differences) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")


def group_cells(infos: Sequence[RunInfo]) -> list[list[PlacedCell]]:
    """Cells that may be compared: equal workload, backend and machine. Baselines first, then by arm and block size.

    Retired cells are compared with nothing.
    """
    members: dict[tuple[object, ...], list[PlacedCell]] = {}
    places: list[dict[str, object]] = []
    for run, info in enumerate(infos):
        for cell in info.cells:
            if cell.is_retired:
                continue
            place = _place(cell, info)
            known = next(
                (number for number, other in enumerate(places) if not _differing(place, other)), None
            )
            if known is None:
                known = len(places)
                places.append(place)
            key = (cell.workload_id, cell.backend, known)
            members.setdefault(key, []).append(PlacedCell(run, cell))
    for cells in members.values():
        cells.sort(key=_order)
    return list(members.values())


def baseline_for(arm: PlacedCell, group: Sequence[PlacedCell]) -> PlacedCell | None:
    """The baseline of the arm's own run; without one, the first of another run in the group. None: there is none."""
    if arm.cell.arm.is_baseline:
        return None
    baselines = [placed for placed in group if placed.cell.arm.is_baseline]
    own = next((placed for placed in baselines if placed.run == arm.run), None)
    if own is not None or has_own_history(arm.cell):
        return own
    return next((placed for placed in baselines if not has_own_history(placed.cell)), None)


def refusal_for(
    arm: PlacedCell, infos: Sequence[RunInfo], placed_cells: Sequence[PlacedCell]
) -> Refusal | None:
    """Of the baselines of other runs the one that is most like the arm, and what differs; None where there is none."""
    found = [
        Refusal(arm, other, tuple(cell_differences(arm, other, infos)))
        for other in placed_cells
        if other.cell.arm.is_baseline and other.run != arm.run
    ]
    return min(found, key=lambda refusal: len(refusal.differences), default=None)


def cell_differences(
    one: PlacedCell, other: PlacedCell, infos: Sequence[RunInfo]
) -> list[tuple[str, object, object]]:
    """Every field of workload, backend and machine that differs: its name and both values. A digest comes last."""
    names = sorted((item.name for item in fields(Workload)), key=lambda name: name == "prompts_digest")
    pairs: list[tuple[str, object, object]] = [("backend", one.cell.backend, other.cell.backend)]
    pairs += [(name, getattr(one.cell.workload, name), getattr(other.cell.workload, name)) for name in names]
    differences = [pair for pair in pairs if pair[1] != pair[2]]
    differences += _differing(_place(one.cell, infos[one.run]), _place(other.cell, infos[other.run]))
    histories = ["own" if has_own_history(placed.cell) else "of the baseline" for placed in (one, other)]
    if "own" in histories:
        differences.append(("history", histories[0], histories[1]))
    # of equal fields the ids may differ yet: one may be of a release that knew fewer fields
    ids = (one.cell.workload_id, other.cell.workload_id)
    return differences if differences or ids[0] == ids[1] else [("workload_id", *ids)]


def told_differences(one: RunInfo, other: RunInfo) -> list[tuple[str, object, object]]:
    """What two runs that are compared may differ in, and a reader must know: versions, the engine's settings."""
    return _differing(
        *(
            {f"{part} {name}": value for part in TOLD_PARTS for name, value in _part(info, part)}
            for info in (one, other)
        )
    )


def has_own_history(cell: Cell) -> bool:
    """Whether later turns follow the arm's own answers: then its prompts are not those of another arm."""
    return any(note.startswith(_HISTORY_OWN) for note in cell.notes)


def _place(cell: Cell, info: RunInfo) -> dict[str, object]:
    """What a cell was measured on. The threads of a client do not move what a server measures."""
    place: dict[str, object] = {
        f"machine {name}": value for name, value in machine_fingerprint(info.environment).items()
    }
    if not cell.on_server:
        place |= {f"threads {name}": value for name, value in thread_settings(info.environment).items()}
    engine = _part(info, "engine")
    return place | {f"engine {name}": value for name, value in engine if name in PLACE_OF_ENGINE}


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """Name and both values of what is not the same; the first word of a name says where it is from."""
    return [
        (name, one.get(name), other.get(name))
        for name in dict.fromkeys((*one, *other))
        if not same_value(name.partition(" ")[2], one.get(name), other.get(name))
    ]


def _part(info: RunInfo, part: str) -> list[tuple[str, Any]]:
    values = info.environment.get(part)
    return sorted(values.items()) if isinstance(values, Mapping) else []


def _order(placed: PlacedCell) -> tuple[object, ...]:
    arm = placed.cell.arm
    return (not arm.is_baseline, arm.name, arm.block_size or 0, placed.run)


def _shown(value: object) -> str:
    return "not known" if value is None else str(value)
