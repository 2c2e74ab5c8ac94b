"""A run while it is made: `run.json` kept up to date, and every request on disk before the next begins."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dflash
from dflash.config import BenchmarkConfig
from dflash.interrupts import Interrupts
from dflash.line_recorder import LineRecorder
from dflash.plan import IDENTITY_PARTS, Group
from dflash.prompts import PromptSet, references_digest
from dflash.publishing import config_values, public_words, publishable
from dflash.rank_files import Lines, left_lines, merge_lines, remove_folders
from dflash.results.records import AnswerRecord, Cell, CellStatus, DatasetInfo, OutputRecord, RunInfo, Segment
from dflash.results.store import RunWriter, load_answers, load_run, read_info
from dflash.resume import ENGINE_OF, check_same_references, place_cells, slot_of


@dataclass(frozen=True, slots=True)
class Invocation:
    """How the run was asked for."""

    command: str = ""
    argv: tuple[str, ...] = ()


class RunRecorder(LineRecorder):
    """Owns a run's folder: begins it, or goes on with the one that is there.

    A run is made in stages: engines that are not open at the same time bring their cells one after the other.
    """

    def __init__(
        self,
        writer: RunWriter,
        config: BenchmarkConfig,
        prompt_sets: Sequence[PromptSet],
        invocation: Invocation,
        interrupts: Interrupts,
    ) -> None:
        super().__init__(writer, interrupts, save_outputs=config.save_outputs)
        self._config = config
        self._prompt_sets = prompt_sets
        self._invocation = invocation
        self._started_ns = time.perf_counter_ns()
        self._stored: RunInfo | None = None  # what earlier processes left
        self._claimed: frozenset[str] = frozenset()  # ids of the cells of this command so far
        if not writer.is_new:
            self._stored = self._mend()
            self.records = list(load_run(writer.folder).records)
            self.segment = len(self._stored.segments)
        self._measured = frozenset(record.cell_id for record in self.records)
        self._info: RunInfo | None = None

    def _mend(self) -> RunInfo:
        """What earlier processes left half-written, mended and said in the run, whatever comes next."""
        info = read_info(self._writer.folder)
        notes = list(self._writer.repair())
        merged = sum(merge_lines(self._writer, lines) for lines in left_lines(self._writer.folder))
        if merged:
            notes.append(
                f"{merged} requests of processes that ended early were merged when the run was resumed"
            )
        remove_folders(self._writer.folder)
        if notes:
            info = replace(info, notes=tuple(dict.fromkeys((*info.notes, *notes))))
            self._writer.write_info(info)
        return info

    def begin_stage(
        self,
        groups: Sequence[Group],
        environment: Mapping[str, Any],
        notes: Iterable[str],
        others: Sequence[Segment] = (),
    ) -> tuple[str, ...]:
        """Add the cells of `groups`; the first stage writes what the run is made from.

        Args:
            others: the segments of the other processes that make the run, where there are any.

        Returns:
            What became of cells that were there: one line for each that began anew, was retired, or came back.

        Raises:
            UsageError: the run is damaged, or cannot be continued with these cells (see `resume.place_cells`).
        """
        datasets = tuple(_dataset_info(prompt_set) for prompt_set in self._prompt_sets)
        if self._stored is not None:
            prompts = [prompt for prompt_set in self._prompt_sets for prompt in prompt_set.prompts]
            check_same_references(self._stored, datasets, load_answers(self._writer.folder), prompts)
        first = self._info is None
        info = self._first_info(environment, datasets, others) if self._info is None else self._info
        placement = place_cells(
            info,
            [cell for group in groups for cell in group.cells],
            self._stored or info,
            environment,
            self._measured,
            self._claimed,
        )
        self._claimed |= {cell.cell_id for group in groups for cell in group.cells}
        if not first and environment.get("engine") != info.environment.get("engine"):
            name = ENGINE_OF + ", ".join(sorted({cell.arm.label for group in groups for cell in group.cells}))
            info = replace(info, environment={**info.environment, name: environment.get("engine")})
        moved = _commit_note(self._stored.environment, environment) if first and self._stored else ()
        added = (*notes, *moved, *placement.notes)
        info = replace(info, cells=placement.cells, notes=tuple(dict.fromkeys((*info.notes, *added))))
        self._update(info)
        if first:
            with self._interrupts.shield():
                self._write_answers(self._prompt_sets)
        return placement.notes

    def add_unopened(self, groups: Sequence[Group], status: CellStatus, reason: str) -> None:
        """Cells whose engine was never opened in this process, under what is known of them.

        One that the run holds in the same place already has the status instead, unless it is complete.
        """
        info = self._begun()
        cells = list(info.cells)
        for cell in (cell for group in groups for cell in group.cells):
            places = [
                number
                for number, other in enumerate(cells)
                if slot_of(other) == slot_of(cell)
                and not other.is_retired
                and other.cell_id not in self._claimed
            ]
            if not places:
                cells.append(replace(cell, status=status, reason=reason))
            elif cells[places[0]].status != "completed":
                cells[places[0]] = replace(cells[places[0]], status=status, reason=reason)
        self._update(replace(info, cells=tuple(cells)))

    def _first_info(
        self, environment: Mapping[str, Any], datasets: tuple[DatasetInfo, ...], others: Sequence[Segment]
    ) -> RunInfo:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        info = self._stored or RunInfo(
            name=self._writer.folder.name,
            created_at=now,
            dflash_version=dflash.__version__,
            environment=dict(environment),
        )
        segments = info.segments
        if any(info.environment.get(part) != environment.get(part) for part in IDENTITY_PARTS):
            # the run's fingerprint is that of its newest cells; earlier processes keep theirs
            segments = tuple(
                replace(segment, environment=segment.environment or info.environment) for segment in segments
            )
            info = replace(info, environment=dict(environment))
        known = {(dataset.name, dataset.digest): dataset for dataset in (*info.datasets, *datasets)}
        segment = new_segment(self._started_ns, self._invocation.argv)
        return replace(
            info,
            command=publishable(self._invocation.command),
            config=config_values(self._config),
            datasets=tuple(known.values()),
            segments=(*segments, segment, *others),
        )

    @property
    def folder(self) -> Path:
        return self._writer.folder

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Those of this command, as they stand."""
        return tuple(cell for cell in self._begun().cells if cell.cell_id in self._claimed)

    def set_status(self, cells: Sequence[Cell], status: CellStatus, reason: str | None = None) -> None:
        """Set the status of cells; it is on disk when this returns, with every line that was written before."""
        ids = {cell.cell_id for cell in cells}
        info = self._begun()
        cells = tuple(
            replace(cell, status=status, reason=reason) if cell.cell_id in ids else cell
            for cell in info.cells
        )
        self._writer.sync()
        self._update(replace(info, cells=cells))

    def end_cells(self, ends: Mapping[CellStatus, CellStatus], reason: str) -> None:
        """Set the status of this command's cells that have one of the given ones: {"running": "interrupted"}."""
        for before, after in ends.items():
            cells = [
                cell
                for cell in self._begun().cells
                if cell.cell_id in self._claimed and cell.status == before
            ]
            if cells:
                self.set_status(cells, after, reason)

    def finish(self, others: Sequence[int] = ()) -> None:
        """Stamp the wall time of this process's segment, and of the other processes' in the order of ranks."""
        wall_ns = time.perf_counter_ns() - self._started_ns
        info = self._begun()
        segments = list(info.segments)
        for number, value in enumerate((wall_ns, *others), start=self.segment):
            segments[number] = replace(segments[number], wall_ns=value)
        self._writer.sync()
        self._update(replace(info, segments=tuple(segments)))

    def merge(self, lines: Lines) -> None:
        """Take over what another process has written."""
        with self._interrupts.shield():
            merge_lines(self._writer, lines)

    def add_note(self, note: str) -> None:
        """Stamp a fact that a reader of the numbers must know."""
        info = self._begun()
        self._update(replace(info, notes=tuple(dict.fromkeys((*info.notes, note)))))

    def baseline_cell(self, workload_id: str) -> Cell | None:
        """The baseline of a workload, of this stage or an earlier one."""
        cells = (cell for cell in self._begun().cells if cell.workload_id == workload_id)
        return next((cell for cell in cells if cell.arm.is_baseline and not cell.is_retired), None)

    def baseline_outputs(self, workload_id: str) -> Iterator[OutputRecord]:
        """What the baseline of a workload said so far, where it was saved."""
        baseline = self.baseline_cell(workload_id)
        if baseline is None:
            return
        run = load_run(self._writer.folder)
        mine = (record for record in run.records if record.cell_id == baseline.cell_id)
        completed = {record.unit for record in mine if record.completed}
        for output in run.outputs():
            unit = (output.prompt_id, output.turn, output.repeat)
            if output.cell_id == baseline.cell_id and unit in completed:
                yield output

    def _begun(self) -> RunInfo:
        if self._info is None:
            raise RuntimeError("no stage was begun")
        return self._info

    def _write_answers(self, prompt_sets: Sequence[PromptSet]) -> None:
        known = load_answers(self._writer.folder)
        for prompt in (prompt for prompt_set in prompt_sets for prompt in prompt_set.prompts):
            if prompt.answer is not None and known.get(prompt.prompt_id) != prompt.answer:
                self._writer.append(AnswerRecord(prompt.prompt_id, prompt.answer))

    def _update(self, info: RunInfo) -> None:
        self._info = info
        with self._interrupts.shield():
            self._writer.write_info(info)


def new_segment(started_ns: int, argv: Sequence[str], rank: int = 0) -> Segment:
    """A process's share of a run, which begins now."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Segment(now, started_ns, public_words(argv), rank=rank)


def _dataset_info(prompt_set: PromptSet) -> DatasetInfo:
    return DatasetInfo(
        name=prompt_set.dataset,
        digest=prompt_set.digest,
        num_prompts=len(prompt_set.prompts),
        num_available=prompt_set.num_available,
        source=publishable(prompt_set.source),
        revision=prompt_set.revision,
        template_version=prompt_set.template_version,
        licence=prompt_set.licence,
        references_digest=references_digest(prompt_set.prompts),
    )


def _commit_note(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    old, new = (dict(values.get("git") or {}).get("commit") for values in (before, now))
    return () if old == new else (f"resumed at another commit of dflash: {old} before, {new} now",)
