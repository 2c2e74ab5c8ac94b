"""What cells have in common, in words: for tables, pages and pictures alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from dflash.results.finding import plural
from dflash.results.records import Cell, Workload

Value = TypeVar("Value")


class HasCells(Protocol):
    """A group of cells that have their workload in common."""

    @property
    def first(self) -> Cell: ...

    @property
    def settings(self) -> str: ...

    @property
    def from_runs(self) -> str: ...


OfCells = TypeVar("OfCells", bound=HasCells)
NO_CAP = 100_000  # the concurrency of an open loop that nobody capped; no number to be shown


def load_words(cell: Cell) -> str:
    """How many requests were under way, or how many were due a second."""
    workload = cell.workload
    return words_of_load(capped(workload.concurrency, workload.request_rate), workload.request_rate)


def words_of_load(concurrency: int | None, request_rate: float | None) -> str:
    """The same of a load that no cell has yet; `concurrency` None: of an open loop that nobody capped."""
    if request_rate is None:
        return f"concurrency {concurrency}"
    at_most = "" if concurrency is None else f", at most {concurrency} under way"
    return f"open loop at {request_rate:g} requests/s{at_most}"


def short_load_words(workload: Workload) -> str:
    """The same where there is little room: `c=8`, `4 req/s`, `4 req/s, c<=16`."""
    if workload.request_rate is None:
        return f"c={workload.concurrency}"
    cap = capped(workload.concurrency, workload.request_rate)
    return f"{workload.request_rate:g} req/s{'' if cap is None else f', c<={cap}'}"


def capped(concurrency: int, request_rate: float | None) -> int | None:
    """The most requests that the load has under way; None: an open loop without a limit."""
    return None if request_rate is not None and concurrency >= NO_CAP else concurrency


def workload_fields(workload: Workload) -> dict[str, Any]:
    """Every field of a workload as it is shown: an open loop that nobody capped has no concurrency."""
    return asdict(workload) | {"concurrency": capped(workload.concurrency, workload.request_rate)}


def group_title(group: HasCells) -> str:
    """What the cells of a group have in common."""
    return " · ".join(part for part in _title_parts(group) if part)


def short_titles(groups: Sequence[OfCells]) -> list[tuple[str, OfCells]]:
    """Every group with as much of its title as tells it from the others: `gsm8k`, or `gsm8k · concurrency 8`."""
    parts = [_title_parts(group) for group in groups]
    needed = [place for place in range(len(_PARTS)) if len({part[place] for part in parts}) > 1] or [0]
    return [
        (" · ".join(part[place] for place in needed if part[place]), group)
        for part, group in zip(parts, groups, strict=True)
    ]


def what_differs(groups: Sequence[HasCells]) -> str:
    """What `short_titles` are the names of: `data set`, `load`, or `workload` where it is several things."""
    parts = [_title_parts(group) for group in groups]
    names = [name for place, name in enumerate(_PARTS) if len({part[place] for part in parts}) > 1]
    return names[0] if len(names) == 1 else "workload"


_PARTS = ("data set", "backend", "load", "settings", "run")


def _title_parts(group: HasCells) -> tuple[str, str, str, str, str]:
    """In the order of `_PARTS`."""
    cell = group.first
    return cell.workload.dataset, cell.backend, load_words(cell), *parts_beside_load(group)


def parts_beside_load(group: HasCells) -> tuple[str, str]:
    """What tells a group from another of equal data set, backend and load: settings, runs; empty where nothing must."""
    return group.settings, f"run {group.from_runs}" if group.from_runs else ""


def run_title(cells: Sequence[Cell]) -> str:
    """The same of several groups, none left out: `2 data sets (gsm8k, humaneval) · vllm · concurrency 1, 8`."""
    datasets = _distinct(cell.workload.dataset for cell in cells)
    named = (
        datasets[0] if len(datasets) == 1 else f"{plural(len(datasets), 'data set')} ({', '.join(datasets)})"
    )
    closed = _distinct(cell.workload.concurrency for cell in cells if cell.workload.request_rate is None)
    loads = [f"concurrency {', '.join(map(str, closed))}"] if closed else []
    loads += _distinct(load_words(cell) for cell in cells if cell.workload.request_rate is not None)
    return f"{named} · {', '.join(_distinct(cell.backend for cell in cells))} · {'; '.join(loads)}"


def target_line(*cells: Cell) -> str:
    """The target and how it was sampled, of all of the cells."""
    loads = [cell.workload for cell in cells]
    return (
        f"target {_either(load.target for load in loads)} · {_either(load.dtype or 'dtype n/a' for load in loads)} · "
        f"temperature {_either(f'{load.temperature:g}' for load in loads)} · "
        f"at most {_either(sorted(load.max_new_tokens for load in loads))} new tokens"
    )


def _either(values: Iterable[object]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    words = _distinct(map(str, values))
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _distinct(values: Iterable[Value]) -> list[Value]:
    return list(dict.fromkeys(values))
