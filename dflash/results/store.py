"""Run folders: write as results come, read back, repair nothing silently.

A run folder holds `run.json` and one JSON-lines file per kind of record. A unit (one prompt of a workload
with all its arms) may have been begun in one process and run again in a later one; readers see only its last
attempt.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from dflash.errors import CannotWriteError, UsageError
from dflash.results.atomic_file import write_file
from dflash.results.line_format import decode_fields, decode_info, decode_line, encode_info, encode_line
from dflash.results.records import (
    AnswerRecord,
    ChunkRecord,
    CodeRecord,
    DifferenceRecord,
    OutputRecord,
    RequestRecord,
    RunInfo,
    WindowRecord,
)
from dflash.results.titles import capped

if TYPE_CHECKING:
    import pandas

INFO_FILE = "run.json"
RECORDS_FILE = "records.jsonl"
OUTPUTS_FILE = "outputs.jsonl"
CHUNKS_FILE = "chunks.jsonl"
DIFFERENCES_FILE = "differences.jsonl"
ANSWERS_FILE = "answers.jsonl"
CODE_FILE = "code.jsonl"
WINDOWS_FILE = "windows.jsonl"

PerRequest = RequestRecord | OutputRecord | ChunkRecord | DifferenceRecord | CodeRecord
AnyRecord = PerRequest | AnswerRecord | WindowRecord
Line = TypeVar("Line", RequestRecord, OutputRecord, ChunkRecord, DifferenceRecord, CodeRecord)
AnyLine = TypeVar(
    "AnyLine",
    RequestRecord,
    OutputRecord,
    ChunkRecord,
    DifferenceRecord,
    CodeRecord,
    AnswerRecord,
    WindowRecord,
)
FILE_OF: dict[type[AnyRecord], str] = {
    RequestRecord: RECORDS_FILE,
    OutputRecord: OUTPUTS_FILE,
    ChunkRecord: CHUNKS_FILE,
    DifferenceRecord: DIFFERENCES_FILE,
    CodeRecord: CODE_FILE,
    AnswerRecord: ANSWERS_FILE,
    WindowRecord: WINDOWS_FILE,
}


@dataclass(frozen=True, slots=True)
class Run:
    """A run as read from its folder. Outputs and chunks are large: they are read when asked for."""

    folder: Path
    info: RunInfo
    records: Sequence[RequestRecord]  # of the last attempt at each unit, in the order in which they came
    differences: tuple[DifferenceRecord, ...] = ()

    def outputs(self) -> Iterator[OutputRecord]:
        """What the requests in `records` said; nothing where outputs were not saved."""
        return self._of_last_attempts(OutputRecord)

    def chunks(self) -> Iterator[ChunkRecord]:
        """When the tokens of the requests in `records` came."""
        return self._of_last_attempts(ChunkRecord)

    def answers(self) -> dict[str, str]:
        """The reference answer of every prompt that has one, by prompt id."""
        return load_answers(self.folder)

    def code_results(self) -> Iterator[CodeRecord]:
        """Whether the code of the requests in `records` passed; nothing where none was executed."""
        return self._of_last_attempts(CodeRecord)

    def windows(self) -> list[WindowRecord]:
        """What servers counted, stretch by stretch of load; nothing in process."""
        return list(_each_line(self.folder, WindowRecord, []))

    def to_pandas(self) -> pandas.DataFrame:
        """One row per request: the fields of its record, and its cell's backend, data set, arm and load."""
        import pandas

        cells = {cell.cell_id: cell for cell in self.info.cells}
        names = [item.name for item in fields(RequestRecord)]
        rows = []
        for record in self.records:
            row = {name: getattr(record, name) for name in names}
            cell = cells.get(record.cell_id)
            if cell is not None:
                row |= {
                    "backend": cell.backend,
                    "dataset": cell.workload.dataset,
                    "arm": cell.arm.name,
                    "block_size": cell.arm.block_size,
                    "concurrency": capped(cell.workload.concurrency, cell.workload.request_rate),
                }
            rows.append(row)
        columns = [*names, "backend", "dataset", "arm", "block_size", "concurrency"]
        frame: pandas.DataFrame = pandas.DataFrame(rows, columns=columns)
        return frame

    def _of_last_attempts(self, kind: type[Line]) -> Iterator[Line]:
        return _of_attempts(_each_line(self.folder, kind, []), self.records)


def load_run(path: str | Path) -> Run:
    """Read the run in folder `path`.

    A last line that a crash cut short is passed over and said in `Run.info.notes`.

    Raises:
        UsageError: no such run, a run of a later format, or a damaged file.
    """
    from dflash.results.columns import RequestTable

    folder = Path(path)
    info = read_info(folder)
    notes: list[str] = []
    with _without_collections():
        lines = list(_each_line(folder, RequestRecord, notes, decode_fields))
        records = RequestTable.of_lines(last_attempts(info, lines))
    differences = _of_attempts(_each_line(folder, DifferenceRecord, notes), records)
    info = replace(info, notes=(*info.notes, *notes))
    return Run(folder, info, records, tuple(differences))


@contextmanager
def _without_collections() -> Iterator[None]:
    """While many objects are made and none is dropped, looking for unreachable ones among them finds nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def load_answers(folder: Path) -> dict[str, str]:
    """The reference answers in a run's folder, by prompt id; none where there is no such file."""
    return {line.prompt_id: line.answer for line in _each_line(folder, AnswerRecord, [])}


def read_info(folder: Path) -> RunInfo:
    """`run.json` of the run in `folder`.

    Raises:
        UsageError: no such run, a later format, or a damaged file.
    """
    if not folder.exists():
        raise UsageError(f"there is no run at {folder}", "name the folder of a run, such as reports/NAME")
    try:
        content = (folder / INFO_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            f"{folder} is not a run folder: it holds no {INFO_FILE}", "name the folder of a run"
        ) from None
    return decode_info(content, folder.name)


def last_attempts(info: RunInfo, records: list[RequestRecord]) -> list[RequestRecord]:
    """The records of the latest segment that touched their unit (workload, backend, prompt, repeat).

    In process all arms of a unit run back to back, so a unit that is run again replaces all of its rows. On servers
    a unit belongs to one cell; so it does in a retired cell, which nothing replaces any more.
    """
    if len({record.segment for record in records}) < 2:
        return records
    groups = {
        cell.cell_id: cell.cell_id if cell.on_server or cell.is_retired else (cell.workload_id, cell.backend)
        for cell in info.cells
    }

    def unit(record: RequestRecord) -> tuple[object, ...]:
        return (groups.get(record.cell_id, record.cell_id), record.prompt_id, record.repeat)

    latest: dict[tuple[object, ...], int] = {}
    for record in records:
        latest[unit(record)] = max(record.segment, latest.get(unit(record), 0))
    return [record for record in records if record.segment == latest[unit(record)]]


class RunWriter:
    """The one process that writes a run. Every line is on its way to the disk when `append` returns.

    Args:
        folder: made where it does not exist.
        is_part: one of several processes' share of a run, which has no `run.json` of its own.

    Raises:
        UsageError: the folder holds something else, cannot be written, or another process writes this run.
    """

    def __init__(self, folder: Path, *, is_part: bool = False) -> None:
        self.folder = folder
        self._files: dict[str, IO[bytes]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            known = (RECORDS_FILE, f".{INFO_FILE}")  # what a crash at the very start may leave
            foreign = [item.name for item in folder.iterdir() if not item.name.startswith(known)]
            if foreign and not is_part and not (folder / INFO_FILE).exists():
                raise UsageError(f"{folder} exists and is not a run folder", "choose another name by --run")
            records = (folder / RECORDS_FILE).open("ab", buffering=0)
        except OSError as error:
            raise _cannot_write(folder, error) from error
        self._files[RECORDS_FILE] = records
        self._lock(records)

    @property
    def is_new(self) -> bool:
        return not (self.folder / INFO_FILE).exists()

    def repair(self) -> tuple[str, ...]:
        """Cut the torn last lines that a crash left, so that what is appended stays apart.

        Returns what was cut, in words.
        """
        for partial in self.folder.glob(
            f".{INFO_FILE}.*.tmp"
        ):  # a process was killed before it took its place
            partial.unlink(missing_ok=True)
        notes = []
        for kind, name in FILE_OF.items():
            path = self.folder / name
            if not path.exists():
                continue
            content = path.read_bytes()
            complete, rest = _split_torn(content)
            if not rest:
                continue
            with path.open("r+b") as file:
                if _is_record(rest, kind):
                    file.seek(0, os.SEEK_END)
                    file.write(b"\n")
                else:
                    file.truncate(len(complete))
                    notes.append(
                        _torn_note(name, complete.count(b"\n") + 1, "was cut off when the run was resumed")
                    )
        return tuple(notes)

    def write_info(self, info: RunInfo) -> None:
        """Replace `run.json` in one step."""
        path = self.folder / INFO_FILE
        try:
            write_file(path, encode_info(info))
        except OSError as error:
            raise _cannot_write(path, error) from error

    def append(self, record: AnyRecord) -> None:
        """Add one line to the file of its kind."""
        self.append_line(FILE_OF[type(record)], encode_line(record))

    def append_line(self, name: str, line: bytes) -> None:
        """Add a line, newline included, to the file of this name."""
        try:
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = (self.folder / name).open("ab", buffering=0)
            rest = line[file.write(line) :]
            while rest:  # a part was taken: the next try takes more, or says why not
                num_written = file.write(rest)
                if not num_written:
                    raise OSError("the disk takes nothing more")
                rest = rest[num_written:]
        except OSError as error:
            raise _cannot_write(self.folder / name, error) from error

    def sync(self) -> None:
        """Wait until every line that was appended is on the disk."""
        for name, file in self._files.items():
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise _cannot_write(self.folder / name, error) from error

    def close(self) -> None:
        """Let go of the files and of the lock; safe to call twice."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _lock(self, file: IO[bytes]) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: the run is not guarded against a second process
            return
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise UsageError(
                f"run {self.folder.name!r} is being written by another process",
                "wait until it has ended, or choose another name by --run",
            ) from None


def _attempt_key(record: PerRequest) -> tuple[str, str, int, int]:
    return (record.cell_id, record.prompt_id, record.turn, record.repeat)


def _of_attempts(lines: Iterable[Line], records: Sequence[RequestRecord]) -> Iterator[Line]:
    """The lines that belong to these records."""
    from dflash.results.columns import table_of

    segments: dict[tuple[str, str, int, int], int] | None = None
    for line in lines:
        if segments is None:  # most files have no line
            table = table_of(records)
            segments = dict(zip(table.keys, table.integers("segment").values.tolist(), strict=True))
        if segments.get(_attempt_key(line)) == line.segment:
            yield line


def _each_line(
    folder: Path,
    kind: type[AnyLine],
    notes: list[str],
    decode: Callable[[bytes, type[AnyLine]], AnyLine] = decode_line,
) -> Iterator[AnyLine]:
    """The records of a kind, one by one; where the last line was torn, a note is added when it is reached."""
    name = FILE_OF[kind]
    try:
        file = (folder / name).open("rb")
    except FileNotFoundError:
        return
    with file:
        for number, line in enumerate(file, start=1):
            try:
                record = decode(line, kind)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    notes.append(_torn_note(name, number, "was cut short by a crash and is passed over"))
                    return
                raise UsageError(
                    f"line {number} of {name} in run {folder.name!r} cannot be read ({error})",
                    "the file was damaged or edited: restore it, or delete that line",
                ) from error
            yield record


def _split_torn(content: bytes) -> tuple[bytes, bytes]:
    """Everything up to the last newline, and what follows it."""
    end = content.rfind(b"\n") + 1
    return content[:end], content[end:]


def _is_record(line: bytes, kind: type[AnyRecord]) -> bool:
    try:
        decode_line(line, kind)
    except ValueError:
        return False
    return True


def _torn_note(name: str, number: int, what: str) -> str:
    return f"line {number} of {name} {what}"


def _cannot_write(path: Path, error: OSError) -> CannotWriteError:
    return CannotWriteError(
        f"cannot write {path} ({error.strerror or error})", "free space, or choose another --output-dir"
    )
