"""What a command would run, without running it: cells, their requests, and their ids where nothing must be loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dflash.backends import BACKENDS, create_backend
from dflash.config import BenchmarkConfig, check_concurrency
from dflash.datasets.catalogue import CUSTOM, expand_datasets, find_dataset
from dflash.environment import fingerprint
from dflash.errors import DFlashError
from dflash.plan import max_new_tokens_of, num_prompts_asked, num_warmup_of, planned_arms
from dflash.prompt_sets import load_prompt_sets
from dflash.prompts import PromptSet
from dflash.results.finding import plural
from dflash.results.records import Arm, Cell
from dflash.results.titles import capped, words_of_load
from dflash.server_options import SERVER_BACKENDS
from dflash.stages import backend_settings, make_stages

if TYPE_CHECKING:
    from dflash.results.store import Run

_IN_PROCESS = 1  # requests at a time, of every backend that is no server
_AS_SET = ("max_new_tokens", "temperature", "top_p", "top_k", "seed", "reasoning", "request_rate")


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell as far as it is known before its engine is opened."""

    backend: str
    dataset: str
    concurrency: int | None  # None: an open loop that nobody capped
    request_rate: float | None
    arm: str  # "": a running server says what it is
    block_size: int | None  # None beside an arm that drafts: the draft's own
    num_prompts: int | None  # None: nobody knows how many there are
    num_requests: int | None  # all turns and rounds; turns are counted only where the prompts are at hand
    num_warmup_requests: int
    max_new_tokens: int
    temperature: float
    repeats: int
    cell_id: str | None = None  # of the named run, or of an engine that opens at once
    status: str | None = None  # in the named run
    num_completed: int | None = None  # of its requests there


def list_cells(config: BenchmarkConfig) -> tuple[PlannedCell, ...]:
    """Every cell of a sweep in order.

    Data sets are read where they are shipped, given as a file, or in the cache; nothing is fetched.

    Raises:
        UsageError: a load that the engine cannot take, or a named run that cannot be read.
    """
    run = _named_run(config)
    found: list[PlannedCell] = []
    for part in config.all_parts:
        if part.backend not in SERVER_BACKENDS:
            check_concurrency(part.loads, part.backend, _IN_PROCESS)
        sets = {name: _at_hand(part, name) for name in part.dataset_names}
        ids = _ids(part, sets)
        for dataset in part.dataset_names:
            for concurrency in part.loads:
                for arm in planned_arms(part):
                    cell = _planned(part, dataset, concurrency, arm, sets[dataset])
                    cell_id = ids.get((dataset, concurrency, arm))
                    found.append(
                        replace(cell, cell_id=cell_id) if run is None else _in_run(cell, part, run, cell_id)
                    )
    return tuple(found)


def list_lines(cells: Sequence[PlannedCell]) -> Iterator[str]:
    """The plan in words, one line a cell, and the sum."""
    for cell in cells:
        arm = cell.arm or "what the server is"
        own = "of the draft's own block size" if cell.block_size is None else f"B={cell.block_size}"
        block = "" if cell.arm in ("baseline", "") else f" {own}"
        heat = "" if cell.temperature == 0 else f", temperature {cell.temperature:g}"
        prompts = "unknown prompts" if cell.num_prompts is None else plural(cell.num_prompts, "prompt")
        requests = "" if cell.num_requests is None else f", {plural(cell.num_requests, 'request')}"
        known = "" if cell.cell_id is None else f"  {cell.cell_id}"
        status = (
            "" if cell.status is None else f"  {cell.status.replace('_', ' ')} ({cell.num_completed} done)"
        )
        size = f"{prompts}{requests} in {plural(cell.repeats, 'round')}, at most {cell.max_new_tokens} new tokens{heat}"
        yield (
            f"{cell.backend}  {cell.dataset}  {words_of_load(cell.concurrency, cell.request_rate)}  {arm}{block}  "
            f"{size}{known}{status}"
        )
    total = sum(cell.num_requests or 0 for cell in cells)
    warm = sum(cell.num_warmup_requests for cell in cells)
    unknown = sum(cell.num_requests is None for cell in cells)
    but = f", without {plural(unknown, 'cell')} of unknown size" if unknown else ""
    yield f"{plural(len(cells), 'cell')}, about {plural(total, 'request')}{but}, and {warm} to warm up"


def list_document(cells: Sequence[PlannedCell]) -> dict[str, Any]:
    """`{"cells": [...], "num_requests": n}`; what is not known is null, and makes the sum null."""
    counts = [cell.num_requests for cell in cells]
    known = [count for count in counts if count is not None]
    return {
        "cells": [asdict(cell) for cell in cells],
        "num_requests": sum(known) if len(known) == len(counts) else None,
        "num_warmup_requests": sum(cell.num_warmup_requests for cell in cells),
    }


def _planned(
    part: BenchmarkConfig, dataset: str, concurrency: int, arm: Arm, prompt_set: PromptSet | None
) -> PlannedCell:
    num_prompts, num_turns = _sizes(part, dataset, prompt_set)
    launches = part.repeats if part.serve else 1
    return PlannedCell(
        backend=part.backend,
        dataset=dataset,
        concurrency=capped(concurrency, part.request_rate),
        request_rate=part.request_rate,
        arm=arm.name,
        block_size=arm.block_size,
        num_prompts=num_prompts,
        num_requests=None if num_turns is None else num_turns * part.repeats,
        num_warmup_requests=num_warmup_of(part, concurrency) * launches,
        max_new_tokens=max_new_tokens_of(part, dataset),
        temperature=part.temperature,
        repeats=part.repeats,
    )


def _sizes(
    part: BenchmarkConfig, dataset: str, prompt_set: PromptSet | None
) -> tuple[int | None, int | None]:
    """Prompts, and the requests of one round: exact where the prompts are at hand, else one turn each."""
    asked = num_prompts_asked(part)
    if prompt_set is not None:
        prompts = prompt_set.prompts
        num_uses = prompt_set.num_requests or len(prompts)
        return len(prompts), sum(len(prompts[use % len(prompts)].turns) for use in range(num_uses))
    num_rows = None if dataset == CUSTOM else find_dataset(dataset).num_rows
    if num_rows is None:
        return (asked, asked) if part.smoke else (None, None)
    return min(asked, num_rows), asked if part.repeat else min(asked, num_rows)


def _at_hand(part: BenchmarkConfig, dataset: str) -> PromptSet | None:
    """The prompts where nothing must be fetched for them; None where something must, or where they are refused."""
    from dflash.dataset_store import datasets_cache_folder, read_stored

    try:
        if part.dataset_file is None:
            if dataset == CUSTOM:
                return None
            if read_stored(find_dataset(dataset), part.datasets_cache or datasets_cache_folder()) is None:
                return None
        (found,) = load_prompt_sets(replace(part, datasets=(dataset,), quiet=True, list_only=False, parts=()))
    except DFlashError:
        return None
    return found


def _ids(part: BenchmarkConfig, sets: Mapping[str, PromptSet | None]) -> dict[tuple[str, int, Arm], str]:
    """Cell ids of an engine that opens at once, by data set, concurrency and planned arm; else none."""
    if any(found is None for found in sets.values()) or BACKENDS[part.backend][2] is not None:
        return {}  # what needs an extra is not imported for a list
    backend = create_backend(part.backend, backend_settings(part))
    if not backend.capabilities.opens_at_once:
        return {}
    import asyncio

    arms = planned_arms(part)
    description = asyncio.run(backend.open(arms))
    environment = fingerprint() | {"engine": dict(description.environment)}
    (stage,) = make_stages(replace(part, parts=()), lambda _: [found for found in sets.values() if found])
    ids = {}
    for group in stage.groups(description, environment):
        for planned, cell in zip(arms, group.cells, strict=True):
            ids[group.workload.dataset, group.workload.concurrency, planned] = cell.cell_id
    return ids


def _named_run(config: BenchmarkConfig) -> Run | None:
    if config.run_name is None or not (config.output_dir / config.run_name).exists():
        return None
    from dflash.results.store import load_run

    return load_run(config.output_dir / config.run_name)


def _in_run(planned: PlannedCell, part: BenchmarkConfig, run: Run, cell_id: str | None) -> PlannedCell:
    """The cell as the named run holds it: by its id where that is known, else by its place and settings."""
    counts = Counter(record.cell_id for record in run.records if record.completed)
    for cell in run.info.cells:
        is_it = _is_like(cell, planned, part) if cell_id is None else cell.cell_id == cell_id
        if is_it and not cell.is_retired:
            return replace(
                planned, cell_id=cell.cell_id, status=cell.status, num_completed=counts[cell.cell_id]
            )
    return replace(planned, cell_id=cell_id)


def _is_like(cell: Cell, planned: PlannedCell, part: BenchmarkConfig) -> bool:
    workload = cell.workload
    wanted = {name: getattr(part, name) for name in _AS_SET} | {"max_new_tokens": planned.max_new_tokens}
    concurrency = capped(workload.concurrency, workload.request_rate)
    return (
        (cell.backend, workload.dataset, concurrency, cell.arm.name)
        == (planned.backend, planned.dataset, planned.concurrency, planned.arm)
        and planned.block_size in (None, cell.arm.block_size)
        and all(getattr(workload, name) == value for name, value in wanted.items())
        and planned.num_prompts in (None, workload.num_prompts)
    )


def notes_of_groups(config: BenchmarkConfig) -> list[str]:
    """Which data sets the names that stand for several leave out."""
    notes = [note for part in config.all_parts for note in expand_datasets(part.datasets)[1]]
    return list(dict.fromkeys(notes))
