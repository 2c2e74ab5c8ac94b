"""What a run that exists already may be continued with, and what of it is done. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from dflash.errors import UsageError
from dflash.plan import IDENTITY_PARTS, Group, short_digest
from dflash.results.records import Arm, Cell, DatasetInfo, RequestRecord, RunInfo, Workload

Unit = tuple[str, int]  # prompt, repeat


def check_same_identity(
    info: RunInfo, cells: Sequence[Cell], environment: Mapping[str, Any], *, is_whole: bool = True
) -> None:
    """Every cell of the run must be among `cells`, unchanged; more may be added.

    Args:
        is_whole: False: `cells` are some of those that the command will bring, and only these are compared.

    Raises:
        UsageError: names the first field that differs, with both values.
    """
    planned = {slot_of(cell): cell for cell in cells}
    for old in info.cells:
        new = planned.get(slot_of(old))
        if new is None and not is_whole:
            continue
        if new is None:
            others = {cell.backend for cell in cells}
            if old.backend not in others:
                _refuse(info, "backend", old.backend, ", ".join(sorted(others)))
            raise UsageError(
                f"run {info.name!r} also holds {old.arm.label} on {old.workload.dataset} at concurrency "
                f"{old.workload.concurrency}, which this command leaves out",
                "give the lists that the run was begun with (more may be added), or another --run",
            )
        if new.cell_id == old.cell_id:
            continue
        for name, before, now in _differences(old, new, info.environment, environment):
            _refuse(info, name, before, now)


def check_same_references(info: RunInfo, datasets: Sequence[DatasetInfo]) -> None:
    """What was measured must be scored by the references that it was begun with.

    Raises:
        UsageError: names the data set whose reference answers or tests differ.
    """
    new = {dataset.name: dataset.references_digest for dataset in datasets}
    for old in info.datasets:
        if old.name in new and new[old.name] != old.references_digest:
            _refuse(info, f"the reference answers of {old.name}", old.references_digest, new[old.name])


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
    workload = cell.workload
    return (cell.backend, workload.dataset, workload.concurrency, cell.arm.name, cell.arm.block_size)


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


def _refuse(info: RunInfo, name: str, before: object, now: object) -> None:
    raise UsageError(
        f"run {info.name!r} cannot be resumed, {name} differs: it was {before!r} and is now {now!r}",
        "repeat the settings that the run was begun with, or choose another name by --run",
    )
