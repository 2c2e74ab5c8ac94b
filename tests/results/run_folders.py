"""Run folders on disk, from records made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dflash.results.records import RunInfo
from dflash.results.store import AnyRecord, Run, RunWriter, load_run


def write_run(folder: Path, info: RunInfo, records: Iterable[AnyRecord] = ()) -> Run:
    """Write a run as the runner does, and read it back."""
    writer = RunWriter(folder)
    writer.write_info(info)
    for record in records:
        writer.append(record)
    writer.close()
    return load_run(folder)
