"""What one process measures, on disk before the next request begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from dflash.interrupts import Interrupts
from dflash.results.records import (
    Cell,
    ChunkRecord,
    CodeRecord,
    DifferenceRecord,
    OutputRecord,
    RequestRecord,
    WindowRecord,
)
from dflash.results.store import RunWriter


class LineRecorder:
    """Appends what becomes of every request to a folder.

    Attributes:
        segment: of the run: this process's share.
        records: of earlier processes, by which what is done is known.
        is_timed: False: no time is kept, as another process shares the device.
    """

    def __init__(self, writer: RunWriter, interrupts: Interrupts, *, save_outputs: bool) -> None:
        self._writer = writer
        self._interrupts = interrupts
        self._save_outputs = save_outputs
        self._num_blocks: dict[str, int] = {}  # by cell
        self._num_launches = 0
        self.segment = 0
        self.records: list[RequestRecord] = []
        self._sorted: list[RequestRecord] | None = None  # the records that `_by_cell` holds
        self._by_cell: dict[str, list[RequestRecord]] = {}
        self.is_timed = True
        self.last_error_kind: str | None = None
        self.num_added = 0  # requests, by this process

    def records_of(self, cells: Iterable[Cell]) -> Iterator[RequestRecord]:
        """What earlier processes recorded of these cells: a sweep asks again and again, and of a few at a time."""
        if self._sorted is not self.records:
            self._sorted, self._by_cell = self.records, {}
            for record in self.records:
                self._by_cell.setdefault(record.cell_id, []).append(record)
        return (record for cell in cells for record in self._by_cell.get(cell.cell_id, ()))

    def add(
        self, record: RequestRecord, output: OutputRecord | None = None, chunk: ChunkRecord | None = None
    ) -> RequestRecord:
        """Append one request: the record last, so that its presence means that the rest is there.

        Returns:
            The record as it is kept.
        """
        self.last_error_kind = record.error_kind
        if not self.is_timed:
            record = without_times(record)
            chunk = None if chunk is None else replace(chunk, gaps_ns=())
        with self._interrupts.shield():
            if output is not None and self._save_outputs:
                self._writer.append(output)
            if chunk is not None:
                self._writer.append(chunk)
            self._writer.append(record)
        self.num_added += 1
        return record

    def add_difference(self, difference: DifferenceRecord) -> None:
        with self._interrupts.shield():
            self._writer.append(difference)

    def add_code_result(self, result: CodeRecord) -> None:
        with self._interrupts.shield():
            self._writer.append(result)

    def add_window(self, window: WindowRecord) -> None:
        with self._interrupts.shield():
            self._writer.append(window)

    def next_block(self, cell: Cell) -> int:
        """The number of the next stretch of load on a server, among those of this cell and process."""
        number = self._num_blocks.get(cell.cell_id, 0)
        self._num_blocks[cell.cell_id] = number + 1
        return number

    def next_launch(self) -> int:
        """The number of the next server that this process starts."""
        self._num_launches += 1
        return self._num_launches - 1


def without_times(record: RequestRecord) -> RequestRecord:
    """The record with its counts and digests alone."""
    return replace(
        record, due_ns=None, sent_ns=None, first_ns=None, last_ns=None, draft_ns=None, verify_ns=None
    )
