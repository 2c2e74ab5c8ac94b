"""One arm over several data sets: geometric mean of speedups, arithmetic mean of acceptance lengths. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash.results.cell_summary import CellSummary, Group
from dflash.results.stats import arithmetic_mean, geometric_mean


@dataclass(frozen=True, slots=True)
class Average:
    """One arm over several data sets: geometric mean of speedups, arithmetic mean of acceptance lengths."""

    backend: str
    arm_label: str
    concurrency: int
    request_rate: float | None  # open loop
    settings: str  # where they tell it from another average of the same arm and load
    num_datasets: int
    speedup: float | None
    acceptance_length: float | None
    cells: tuple[CellSummary, ...] = ()  # one per data set


def averages_of(groups: Sequence[Group]) -> tuple[Average, ...]:
    """Of every arm that was run once on each of two data sets or more under equal settings; None where one of them
    has no figure.
    """
    members: dict[tuple[str, str, int, float | None, str], list[CellSummary]] = {}
    for group in groups:
        for cell in group.cells:
            if not cell.cell.arm.is_baseline:
                workload = cell.cell.workload
                load = (workload.concurrency, workload.request_rate)
                members.setdefault((cell.cell.backend, cell.label, *load, group.settings), []).append(cell)
    averages = []
    for (backend, label, concurrency, request_rate, settings), cells in members.items():
        datasets = {cell.cell.workload.dataset for cell in cells}
        if len(datasets) < 2 or len(datasets) != len(cells):
            continue
        averages.append(
            Average(
                backend,
                label,
                concurrency,
                request_rate,
                settings,
                len(datasets),
                geometric_mean_of_all([cell.number("speedup") for cell in cells]),
                arithmetic_mean_of_all([cell.number("acceptance_length") for cell in cells]),
                tuple(cells),
            )
        )
    return tuple(averages)


def geometric_mean_of_all(values: Sequence[float | None]) -> float | None:
    """Of speedups over data sets; None where one of them is not known."""
    known = [value for value in values if value is not None]
    return geometric_mean(known) if len(known) == len(values) else None


def arithmetic_mean_of_all(values: Sequence[float | None]) -> float | None:
    """Of acceptance lengths over data sets; None where one of them is not known."""
    known = [value for value in values if value is not None]
    return arithmetic_mean(known) if len(known) == len(values) else None
