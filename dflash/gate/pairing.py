"""Which cells of two runs are the same, and in which fields they differ. Pure.

A cell is known again by backend, data set, load, arm name and block size. Whatever else makes it another measurement
(prompts, sampling, thinking setting, target, engine arguments, …) must be equal, or else the pair is refused and the
field named. Versions and the draft's revision may differ, and are listed. The machine must be the same for times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from dflash.errors import UsageError
from dflash.gate.records import CellPair, FieldDifference, Scope
from dflash.gate.sides import Side, first_unlike_prompt
from dflash.results.fingerprint import FIELDS, machine_fingerprint, same_value, thread_settings
from dflash.results.records import Arm, Cell, RunInfo, Workload

PROMPT_TOKENS = "prompt_tokens"
STATUS = "status"
_SLOT = ("dataset", "concurrency", "request_rate")  # of a workload: what a cell is known by
_ARM_FIELDS: Mapping[str, Scope] = {
    "acceptance_rule": "all",
    "draft": "all",
    "draft_revision": "listed",
    "server_args": "all",
    "server": "listed",
}
_CONFIG_FIELDS: Mapping[str, Scope] = {
    "server_args": "all",
    "attn_implementation": "all",
    "route": "all",
    "arrivals": "all",
    "num_warmup": "listed",
}
# Of what an engine says of itself. What is not named here is a setting, and must be equal.
_ENGINE_SCOPES: Mapping[str, Scope] = {
    "engine_version": "listed",
    "torch": "listed",
    "transformers": "listed",
    "mlx": "listed",
    "few_row_linear_layers": "listed",
    "grouped_attention": "listed",
    "device": "times",
    "num_threads": "times",
}
_PREFIXES = ("machine", "threads", "engine")


def pair_cells(base: RunInfo, new: RunInfo) -> tuple[CellPair, ...]:
    """Every cell of both runs, in the order of the new one; what only the base has comes last.

    Where several cells of a run share a place in the grid (a suite may override settings), those that differ in the
    fewest fields are paired first.
    """
    candidates = [
        (pair, place, other)
        for place, cell in enumerate(new.cells)
        for other, known in enumerate(base.cells)
        if not cell.is_retired and not known.is_retired and slot_of(cell) == slot_of(known)
        for pair in (CellPair(known, cell, tuple(_differences(known, cell, base, new))),)
    ]
    candidates.sort(
        key=lambda item: len(item[0].refused(is_time=True))
    )  # stable: the first in the grid first
    found: dict[int, CellPair] = {}
    taken: set[int] = set()
    for pair, place, other in candidates:
        if place not in found and other not in taken:
            found[place] = pair
            taken.add(other)
    only_base = [cell for place, cell in enumerate(base.cells) if place not in taken and not cell.is_retired]
    return (
        *(
            found.get(place, CellPair(None, cell))
            for place, cell in enumerate(new.cells)
            if not cell.is_retired
        ),
        *(CellPair(cell, None) for cell in only_base),
    )


def with_prompt_tokens(pair: CellPair, base: Side, new: Side) -> CellPair:
    """The pair, with the first prompt that was rendered to other tokens as a difference."""
    unlike = first_unlike_prompt(base, new)
    if unlike is None:
        return pair
    prompt_id, before, now = unlike
    difference = FieldDifference(PROMPT_TOKENS, f"{prompt_id}: {before}", f"{prompt_id}: {now}", "all")
    return replace(pair, differences=(*pair.differences, difference))


def allow_fields(pairs: Sequence[CellPair], allowed: Sequence[str]) -> tuple[CellPair, ...]:
    """The pairs, with the differences in these fields let pass.

    Args:
        allowed: names as a refusal gives them, or `machine`, `threads`, `engine` for all of theirs.

    Raises:
        UsageError: a name that no field can have.
    """
    for name in allowed:
        check_field(name)
    return tuple(
        replace(
            pair,
            differences=tuple(
                replace(item, is_allowed=item.field in allowed or item.field.partition(".")[0] in allowed)
                for item in pair.differences
            ),
        )
        for pair in pairs
    )


def check_field(name: str) -> None:
    """Refuse what `--allow` can never mean."""
    prefix, _, rest = name.partition(".")
    if prefix in _PREFIXES and (prefix != "machine" or rest in ("", *FIELDS)):
        return
    if prefix in ("versions", "git") or name in _listed_fields():
        raise UsageError(
            f"--allow {name}: this may differ in any case, and is listed", "leave that --allow out"
        )
    known = known_fields()
    if name not in known:
        raise UsageError(
            f"--allow {name}: there is no such field",
            f"give the name that the refusal gives, such as {', '.join(known[:4])} or machine.cpu",
        )


def known_fields() -> tuple[str, ...]:
    """The fields that must be equal, those of machine, threads and engine aside."""
    workload = (item.name for item in fields(Workload) if item.name not in _SLOT)
    others = (
        name for table in (_ARM_FIELDS, _CONFIG_FIELDS) for name, scope in table.items() if scope == "all"
    )
    return tuple(dict.fromkeys((*workload, *others, PROMPT_TOKENS, STATUS)))


def _listed_fields() -> tuple[str, ...]:
    return tuple(
        name for table in (_ARM_FIELDS, _CONFIG_FIELDS) for name, scope in table.items() if scope == "listed"
    )


def slot_of(cell: Cell) -> tuple[object, ...]:
    """What a cell is known by in another run."""
    return (
        cell.backend,
        *(getattr(cell.workload, name) for name in _SLOT),
        cell.arm.name,
        cell.arm.block_size,
    )


def _differences(base: Cell, new: Cell, base_info: RunInfo, new_info: RunInfo) -> Iterator[FieldDifference]:
    for name, before, now, scope in _compared(base, new, base_info, new_info):
        if not same_value(name.rpartition(".")[2], before, now):
            yield FieldDifference(name, before, now, scope)
    for cell in (base, new):
        if cell.status != "completed":
            yield FieldDifference(STATUS, base.status, new.status, "all")
            return


def _compared(
    base: Cell, new: Cell, base_info: RunInfo, new_info: RunInfo
) -> Iterator[tuple[str, Any, Any, Scope]]:
    # a digest last: every other field says more
    names = sorted((item.name for item in fields(Workload)), key=lambda name: name == "prompts_digest")
    for name in names:
        if name not in _SLOT:
            yield name, getattr(base.workload, name), getattr(new.workload, name), "all"
    for item in fields(Arm):
        if item.name in _ARM_FIELDS:
            yield item.name, getattr(base.arm, item.name), getattr(new.arm, item.name), _ARM_FIELDS[item.name]
    for name, scope in _CONFIG_FIELDS.items():
        yield name, base_info.config.get(name), new_info.config.get(name), scope
    before, now = base_info.environment, new_info.environment
    yield from _of_part("machine", machine_fingerprint(before), machine_fingerprint(now), "times")
    yield from _of_part("threads", thread_settings(before), thread_settings(now), "times")
    yield from _of_part("versions", _part(before, "versions"), _part(now, "versions"), "listed")
    yield from _of_part("git", _part(before, "git"), _part(now, "git"), "listed")
    engines = _of_part("engine", _engine_of(base, base_info), _engine_of(new, new_info), "all")
    for name, one, other, scope in engines:
        yield name, one, other, _ENGINE_SCOPES.get(name.partition(".")[2], scope)


def _of_part(
    part: str, base: Mapping[str, Any], new: Mapping[str, Any], scope: Scope
) -> Iterator[tuple[str, Any, Any, Scope]]:
    for name in sorted({*base, *new}):
        yield f"{part}.{name}", base.get(name), new.get(name), scope


def _engine_of(cell: Cell, info: RunInfo) -> Mapping[str, Any]:
    """What the cell's engine said of itself; engines that are started one after the other are told apart by arm."""
    for name, value in info.environment.items():
        arms = name.removeprefix("engine of ")
        if arms != name and cell.arm.label in arms.split(", ") and isinstance(value, Mapping):
            return value
    return _part(info.environment, "engine")


def _part(environment: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    value = environment.get(part)
    return value if isinstance(value, Mapping) else {}
