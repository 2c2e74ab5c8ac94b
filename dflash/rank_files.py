"""The lines of ranks other than the first: kept in folders of their own, and merged into the run's files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from dflash.results.records import ChunkRecord, DifferenceRecord, OutputRecord, RequestRecord
from dflash.results.store import FILE_OF, RunWriter

FOLDER = "ranks"  # in a run's folder, while the run is made
_KINDS = (OutputRecord, ChunkRecord, DifferenceRecord, RequestRecord)  # requests last, as they are written

Lines = Mapping[str, bytes]  # by the name of the file


def rank_folder(folder: Path, rank: int) -> Path:
    """Where a rank writes."""
    return folder / FOLDER / f"rank-{rank}"


def read_lines(folder: Path, rank: int) -> Lines:
    """What a rank has written, whole lines only: a torn last one is left out, and its request is run again."""
    found = {}
    for kind in _KINDS:
        path = rank_folder(folder, rank) / FILE_OF[kind]
        content = path.read_bytes() if path.exists() else b""
        found[FILE_OF[kind]] = content[: content.rfind(b"\n") + 1]
    return found


def left_lines(folder: Path) -> list[Lines]:
    """What ranks of an earlier process left unmerged."""
    names = sorted(path.name for path in (folder / FOLDER).glob("rank-*"))
    return [read_lines(folder, int(name.removeprefix("rank-"))) for name in names]


def merge_lines(writer: RunWriter, lines: Lines) -> int:
    """Append the lines of a rank to the run's files, those that are there already left out; the number of requests.

    A process may be killed between the merging and the removal of a rank's folder: nothing is doubled by that.
    """
    num_requests = 0
    for kind in _KINDS:
        content = lines.get(FILE_OF[kind], b"")
        if not content:
            continue
        path = writer.folder / FILE_OF[kind]
        known = set(path.read_bytes().splitlines(keepends=True)) if path.exists() else set()
        for line in content.splitlines(keepends=True):
            if line not in known:
                writer.append_line(path.name, line)
                num_requests += kind is RequestRecord
    writer.sync()
    return num_requests


def remove_folders(folder: Path) -> None:
    """Once everything is merged."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
