"""Run folders: write as results come, read back, repair nothing silently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.results.records import ChunkRecord, DifferenceRecord, OutputRecord, RequestRecord, RunInfo

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Run:
    """A run as read from its folder. Outputs and chunks are large: they are read when asked for."""

    folder: Path
    info: RunInfo
    records: tuple[RequestRecord, ...]
    differences: tuple[DifferenceRecord, ...] = ()

    def outputs(self) -> Iterator[OutputRecord]:
        raise NotImplementedError

    def chunks(self) -> Iterator[ChunkRecord]:
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        raise NotImplementedError


def load_run(path: str | Path) -> Run:
    raise NotImplementedError
