"""What cells have in common, in words: for tables, pages and pictures alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from dflash.results.finding import plural
from dflash.results.records import Cell

Value = TypeVar("Value")


class HasCells(Protocol):
    """A group of cells that have their workload in common."""

    @property
    def first(self) -> Cell: ...

    @property
    def from_runs(self) -> str: ...


OfCells = TypeVar("OfCells", bound=HasCells)
NO_CAP = 100_000  # a concurrency from here on caps no open loop


def load_words(cell: Cell) -> str:
    """How many requests were under way, or how many were due a second."""
    workload = cell.workload
    if workload.request_rate is None:
        return f"concurrency {workload.concurrency}"
    cap = f", at most {workload.concurrency} under way" if workload.concurrency < NO_CAP else ""
    return f"open loop at {workload.request_rate:g} requests/s{cap}"


def group_title(group: HasCells) -> str:
    """What the cells of a group have in common."""
    return " · ".join(part for part in _title_parts(group) if part)


def short_titles(groups: Sequence[OfCells]) -> list[tuple[str, OfCells]]:
    """Every group with as much of its title as tells it from the others: `gsm8k`, or `gsm8k · concurrency 8`."""
    parts = [_title_parts(group) for group in groups]
    needed = [place for place in range(4) if len({part[place] for part in parts}) > 1] or [0]
    return [
        (" · ".join(part[place] for place in needed if part[place]), group)
        for part, group in zip(parts, groups, strict=True)
    ]


def what_differs(groups: Sequence[HasCells]) -> str:
    """What `short_titles` are the names of: `data set`, `load`, or `workload` where it is several things."""
    parts = [_title_parts(group) for group in groups]
    names = [
        name
        for place, name in enumerate(("data set", "backend", "load", "run"))
        if len({p[place] for p in parts}) > 1
    ]
    return names[0] if len(names) == 1 else "workload"


def _title_parts(group: HasCells) -> tuple[str, str, str, str]:
    cell = group.first
    runs = f"run {group.from_runs}" if group.from_runs else ""
    return cell.workload.dataset, cell.backend, load_words(cell), runs


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
        f"target {_either(load.target for load in loads)} · {_either(load.dtype for load in loads)} · "
        f"temperature {_either(f'{load.temperature:g}' for load in loads)} · "
        f"at most {_either(load.max_new_tokens for load in loads)} new tokens"
    )


def _either(values: Iterable[object]) -> str:
    return " or ".join(_distinct(map(str, values)))


def _distinct(values: Iterable[Value]) -> list[Value]:
    return list(dict.fromkeys(values))
