"""Runs that are named for a report and cannot be read: what is said of them, beside the report of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dflash.errors import UsageError
from dflash.results.store import Run, load_run
from dflash.results.summary import RunSummary, summarise_run, summarise_runs


@dataclass(frozen=True, slots=True)
class UnreadRun:
    """A folder that holds no run that can be read, and why."""

    folder: Path
    error: UsageError

    @property
    def words(self) -> str:
        return f"{self.error}"


def load_runs(folders: Sequence[Path]) -> tuple[list[Run], list[UnreadRun]]:
    """Read every run that can be read.

    Raises:
        UsageError: a folder that is not there, or is named twice: that is a slip of the command line, not a run.
    """
    runs: list[Run] = []
    unread: list[UnreadRun] = []
    seen: set[Path] = set()
    for folder in folders:
        if not folder.exists():
            raise UsageError(f"there is no run at {folder}", "name the folder of a run, such as reports/NAME")
        if folder.resolve() in seen:
            raise UsageError(f"{folder} is named twice", "name every run once")
        seen.add(folder.resolve())
        try:
            runs.append(load_run(folder))
        except UsageError as error:
            unread.append(UnreadRun(folder, error))
    return _with_own_names(runs), unread


def _with_own_names(runs: Sequence[Run]) -> list[Run]:
    """Where runs have equal names, all are called by their folders, with as much of the path as tells them apart."""
    if len({run.info.name for run in runs}) == len(runs):
        return list(runs)
    paths = [run.folder.resolve().parts for run in runs]
    depths = range(1, max(map(len, paths)) + 1)
    depth = next(depth for depth in depths if len({path[-depth:] for path in paths}) == len(runs))
    return [
        replace(run, info=replace(run.info, name="/".join(path[-depth:])))
        for run, path in zip(runs, paths, strict=True)
    ]


def summarise_readable(runs: Sequence[Run]) -> tuple[list[Run], RunSummary, list[UnreadRun]]:
    """Sum up those runs whose further files (outputs, chunks, windows, …) can be read too."""
    try:
        return list(runs), summarise_runs(runs), []
    except UsageError:
        whole: list[Run] = []
        unread: list[UnreadRun] = []
        for run in runs:
            try:
                summarise_run(run)
            except UsageError as error:
                unread.append(UnreadRun(run.folder, error))
            else:
                whole.append(run)
        return whole, summarise_runs(whole), unread
