"""What the first of several processes tells the others of a run, and what they give back at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash.errors import UsageError
from dflash.plan import Group
from dflash.rank_files import Lines, rank_folder
from dflash.recorder import RunRecorder
from dflash.results.records import Cell, RequestRecord
from dflash.results.store import RunWriter


@dataclass(frozen=True, slots=True)
class Begun:
    """The run that rank 0 began or goes on with."""

    folder: Path
    segment: int  # of rank 0; the others' follow
    done: tuple[RequestRecord, ...]  # what earlier processes completed: identities only
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank ended its share."""

    complete: frozenset[str]  # ids of cells of which all was run
    failures: Mapping[str, str]  # reasons by cell
    was_interrupted: bool
    wall_ns: int
    lines: Lines  # of other ranks than the first


def tell(recorder: RunRecorder, groups: Sequence[Group], *, is_heard: bool) -> Begun:
    """The run as the others must know it; nothing is gathered for nobody."""
    done = tuple(
        RequestRecord(
            record.cell_id, record.prompt_id, turn=record.turn, repeat=record.repeat, finish_reason="stop"
        )
        for record in (recorder.records if is_heard else ())
        if record.completed
    )
    cells = tuple(cell for group in groups for cell in group.cells)
    return Begun(recorder.folder, recorder.segment, done, cells)


def check_same_cells(rank: int, begun: Begun, groups: Sequence[Group]) -> None:
    """Every rank must decode the same: models, prompts, settings.

    Raises:
        UsageError: names the first cell that is another one here.
    """
    mine = [cell for group in groups for cell in group.cells]
    for cell, other in zip(mine, begun.cells, strict=False):
        if (cell.workload_id, cell.arm_id) != (other.workload_id, other.arm_id):
            raise UsageError(
                f"rank {rank} would run another {cell.arm.label} on {cell.workload.dataset} than rank 0",
                "give every host the same models and data sets",
            )
    if len(mine) != len(begun.cells):
        raise UsageError(f"rank {rank} plans other cells than rank 0", "give every host the same command")


def open_share(folder: Path, rank: int) -> RunWriter:
    """The files of a rank; what a killed process left there stays, and is sent along at the end."""
    writer = RunWriter(rank_folder(folder, rank), is_part=True)
    writer.repair()
    return writer
