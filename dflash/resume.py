"""What a run that exists already is continued with: which cells go on, which begin, which give up their place. Pure.

A cell goes on where its identity is unchanged: what it completed is kept. Where a command asks for the same place in
the grid under another identity, a new cell begins and the earlier one is retired: its requests stay, it is shown
apart, and it is paired and averaged with nothing. Asked for again, it takes its place back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from dflash.errors import UsageError
from dflash.plan import IDENTITY_PARTS, Group, short_digest
from dflash.prompts import Prompt
from dflash.results.records import Arm, Cell, DatasetInfo, RequestRecord, RunInfo, Workload
from dflash.results.titles import load_words

Unit = tuple[str, int]  # prompt, repeat


@dataclass(frozen=True, slots=True)
class Placement:
    """The cells of a run after a command has claimed its own."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...]  # what began, was retired, or came back, and why


def place_cells(
    info: RunInfo,
    planned: Sequence[Cell],
    before: RunInfo,
    environment: Mapping[str, Any],
    measured: Collection[str],
    claimed: Collection[str] = (),
) -> Placement:
    """`planned` among the cells of the run.

    Args:
        before: the run as the last process left it: what its cells were measured under.
        environment: of the planned cells.
        measured: ids of cells that have a request; one without gives way and leaves no trace.
        claimed: ids of cells that this command has planned before.

    Raises:
        UsageError: in process, the run holds an arm of a planned workload that the command leaves out: a prompt runs
            in all its arms back to back, so that arm's requests would be superseded by none; or one prompt would
            retire many.
    """
    mine = {cell.cell_id for cell in planned}
    stored = {cell.cell_id: cell for cell in info.cells}
    free = [cell for cell in info.cells if not cell.is_retired and cell.cell_id not in {*mine, *claimed}]
    placed, notes, retired, gone = [], [], {}, set()
    for cell in planned:
        known = stored.get(cell.cell_id)
        if known is not None and known.is_retired:
            notes.append(f"{title_of(cell)} takes its place again: its identity is that of before")
        elif known is not None:
            is_timed = cell.is_timed and known.is_timed
            cell = replace(cell, status=known.status, reason=known.reason, is_timed=is_timed)
        placed.append(cell)
        if known is not None and not known.is_retired:
            continue
        rivals = [
            (old, _differences(old, cell, environment_of(before, old), environment))
            for old in free
            if slot_of(old) == slot_of(cell)
        ]
        if not rivals:
            continue
        old, differences = min(rivals, key=lambda rival: len(rival[1]))
        free.remove(old)
        if old.cell_id not in measured:
            gone.add(old.cell_id)
            continue
        _check_size(info, old, cell)
        reason = _reason(differences)
        retired[old.cell_id] = replace(old, status="retired", reason=reason)
        notes.append(f"{title_of(old)}: {reason}; a new cell begins, and the earlier one is kept, retired")
    _check_left_out(info, free, placed)
    others = [retired.get(cell.cell_id, cell) for cell in info.cells if cell.cell_id not in {*mine, *gone}]
    return Placement((*others, *placed), tuple(dict.fromkeys(notes)))


def check_same_references(
    info: RunInfo, datasets: Sequence[DatasetInfo], known: Mapping[str, str], prompts: Iterable[Prompt]
) -> None:
    """What was measured must be scored by the references that it was begun with.

    Args:
        known: the reference answers in the run's folder, by prompt id.
        prompts: that are to be run now.

    Raises:
        UsageError: names the data set or prompt whose reference answer or tests differ.
    """
    new = {(dataset.name, dataset.digest): dataset.references_digest for dataset in datasets}
    for old in info.datasets:
        now = new.get((old.name, old.digest), old.references_digest)
        if now != old.references_digest:
            _refuse_references(info, old.name, old.references_digest, now)
    for prompt in prompts:  # another choice of prompts may hold some of the same
        if known.get(prompt.prompt_id, prompt.answer) != prompt.answer:
            _refuse_references(info, prompt.prompt_id, known[prompt.prompt_id], prompt.answer)


def _refuse_references(info: RunInfo, name: str, was: str | None, now: str | None) -> None:
    raise UsageError(
        f"run {info.name!r} cannot be resumed, the reference answers of {name} differ: "
        f"it was {was!r} and is now {now!r}",
        "restore the data set that the run was begun with, or choose another name by --run",
    )


def finished_units(group: Group, records: Iterable[RequestRecord]) -> set[Unit]:
    """Prompts and repeats that completed in every arm and turn; all others are run again."""
    done = {
        (record.cell_id, record.prompt_id, record.turn, record.repeat)
        for record in records
        if record.completed
    }
    repeats = {repeat for _, _, _, repeat in done}
    return {
        (prompt.prompt_id, repeat)
        for prompt in group.prompts
        for repeat in repeats
        if all(
            (cell.cell_id, prompt.prompt_id, turn, repeat) in done
            for cell in group.cells
            for turn in range(len(prompt.turns))
        )
    }


def finished_units_of_cell(group: Group, cell: Cell, records: Iterable[RequestRecord]) -> set[Unit]:
    """Prompts and repeats of which every turn completed in `cell`: a server's requests stand alone."""
    return finished_units(replace(group, cells=(cell,)), records)


def slot_of(cell: Cell) -> tuple[object, ...]:
    """Where a cell stands in the grid."""
    workload, arm = cell.workload, cell.arm
    load = (workload.concurrency, workload.request_rate)
    return (cell.backend, workload.dataset, *load, arm.name, arm.block_size)


def title_of(cell: Cell) -> str:
    """`dflash B=4 on gsm8k, concurrency 1`."""
    return f"{cell.arm.label} on {cell.workload.dataset}, {load_words(cell)}"


def environment_of(info: RunInfo, cell: Cell) -> Mapping[str, Any]:
    """The fingerprint that a cell of the run was measured under, with its own engine's under `engine`."""
    engine = info.environment.get("engine")
    for name, value in info.environment.items():
        if name.startswith(ENGINE_OF) and cell.arm.label in name.removeprefix(ENGINE_OF).split(", "):
            engine = value
    return {**info.environment, "engine": engine}


ENGINE_OF = "engine of "  # in a run's environment: of the arms whose engine is not the first one's


def _reason(differences: Sequence[tuple[str, object, object]]) -> str:
    """The first field that differs with both values, the others by name."""
    name, was, now = differences[0]
    others = [other for other, _, _ in differences[1:] if other not in ("prompts_digest", "cell_id")]
    more = f"; also {', '.join(others)}" if others else ""
    return f"{name} differs: it was {was!r} and is now {now!r}{more}"


def _check_size(info: RunInfo, old: Cell, new: Cell) -> None:
    if (
        new.workload.num_prompts == 1 < old.workload.num_prompts
        and new.workload.dataset == old.workload.dataset
    ):
        raise UsageError(
            f"one prompt would retire the {old.workload.num_prompts} of {title_of(old)} in run {info.name!r}",
            "give a smoke test a name of its own by --run",
        )


def _check_left_out(info: RunInfo, free: Sequence[Cell], placed: Sequence[Cell]) -> None:
    planned = {(cell.workload_id, cell.backend) for cell in placed}
    for old in free:
        if (old.workload_id, old.backend) in planned and not old.on_server:
            raise UsageError(
                f"run {info.name!r} also holds {title_of(old)}, which this command leaves out",
                "give the lists that the run was begun with (more may be added), or another --run",
            )


def _differences(
    old: Cell, new: Cell, environment: Mapping[str, Any], new_environment: Mapping[str, Any]
) -> list[tuple[str, object, object]]:
    # a digest last: every other field says more
    names = sorted((item.name for item in fields(Workload)), key=lambda name: name == "prompts_digest")
    pairs: list[tuple[str, object, object]] = [
        (name, getattr(old.workload, name), getattr(new.workload, name)) for name in names
    ]
    pairs += [
        (f"arm {item.name}", getattr(old.arm, item.name), getattr(new.arm, item.name)) for item in fields(Arm)
    ]
    for part in IDENTITY_PARTS:
        before, now = dict(environment.get(part) or {}), dict(new_environment.get(part) or {})
        pairs += [(f"{part} {name}", before.get(name), now.get(name)) for name in sorted({*before, *now})]
    pairs.append(("cell_id", old.cell_id, new.cell_id))
    return [pair for pair in pairs if short_digest(pair[1]) != short_digest(pair[2])]
