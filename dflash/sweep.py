"""What a sweep has measured and what is left of it: the recorder, the groups, and how its cells end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from dflash.backends.base import Backend, NotesAtEnd, ServerBackend
from dflash.code_scoring import execute_code
from dflash.command_line import one_line
from dflash.config import BenchmarkConfig
from dflash.datasets.catalogue import expand_datasets
from dflash.errors import CannotWriteError, UsageError
from dflash.interleaved import InterleavedRunner
from dflash.interrupts import Interrupts
from dflash.line_recorder import LineRecorder
from dflash.load import rest
from dflash.plan import Group
from dflash.progress import Progress, said_if_slow
from dflash.prompts import PromptSet
from dflash.rank_files import Lines, read_lines, remove_folders
from dflash.rank_shares import Begun, RankEnd, check_same_cells, open_share, tell
from dflash.ranks import RankError, Ranks, ranks_words
from dflash.recorder import Invocation, RunRecorder, new_segment
from dflash.results.records import Cell, CellStatus, RunInfo
from dflash.results.store import Run, RunWriter, load_run
from dflash.results.titles import load_words
from dflash.run_folder import new_run_folder
from dflash.served import BaselineTexts, ServedRunner, units_left
from dflash.stages import Stage
from dflash.time_budget import TimeBudget
from dflash.warm_up import warm_up


class Sweep:
    """Runs groups on engines that are opened for it, and keeps what becomes of every cell.

    Attributes:
        writer: of the run's folder, once it is opened.
        error: the first that ended a cell or the sweep.
        cut: why not everything was run, where the time budget says so.
        stop: when set, no further request is begun.
    """

    def __init__(
        self,
        config: BenchmarkConfig,
        stages: Sequence[Stage],
        progress: Progress,
        interrupts: Interrupts,
        invocation: Invocation,
        ranks: Ranks,
        budget: TimeBudget,
        load_warmup_texts: Callable[[], Sequence[str]],
    ) -> None:
        self._config = config
        self._stages = stages
        self._progress = progress
        self._interrupts = interrupts
        self._invocation = invocation
        self._ranks = ranks
        self._budget = budget
        self._load_warmup_texts = load_warmup_texts
        self._started_ns = time.perf_counter_ns()
        self._texts = BaselineTexts()
        self._recorder: LineRecorder | None = None
        self._groups: dict[
            tuple[int, str], Sequence[Group]
        ] = {}  # of a stage and an arm whose server was started
        self._failures: dict[str, str] = {}  # reasons by cell: not tried again in this process
        self._complete: set[str] = set()
        self._has_run = self._has_ended = False
        self._unwritten = ""  # why the folder takes nothing more
        self._folder: Path | None = None  # of the run, on other ranks than the first
        self.writer: RunWriter | None = None
        self.error: BaseException | None = None
        self.is_ended = False  # by an interrupt, or a refusal
        self.cut = ""
        self.stop = threading.Event()

    @property
    def has_begun(self) -> bool:
        return self._recorder is not None

    @property
    def _run_recorder(self) -> RunRecorder | None:
        """The owner of `run.json`: on rank 0 only."""
        return self._recorder if isinstance(self._recorder, RunRecorder) else None

    def begin(
        self,
        number: int,
        groups: Sequence[Group],
        environment: dict[str, Any],
        notes: Sequence[str],
        device: str | None,
        launched: str | None,
    ) -> bool:
        """Add the cells of an opened engine to the run; False: it was refused, and the sweep ends."""
        try:
            shared = self._ranks.share_a_device(device)
            notes = (*notes, *ranks_words(self._ranks.num_ranks, shared))
            begun = self._begin(groups, environment, notes, shared)
            self._ranks.together(self._join(begun, groups))
        except Exception as error:
            self.error, self.is_ended = self.error or error, True
            return False
        assert self._recorder is not None
        self._recorder.is_timed = not shared
        if launched is not None:
            self._groups[number, launched] = groups
        return True

    def _begin(
        self, groups: Sequence[Group], environment: dict[str, Any], notes: Sequence[str], shared: bool
    ) -> Begun:
        segments = self._ranks.all_of(new_segment(self._started_ns, self._invocation.argv, self._ranks.rank))

        def begin() -> Begun:
            sets = self._prompt_sets()
            of_sets = [note for found in sets for note in found.notes]
            of_sets += [note for part in self._config.all_parts for note in expand_datasets(part.datasets)[1]]
            with self._interrupts.shield():  # a run folder is whole or not there
                if self.writer is None:
                    self.writer = RunWriter(new_run_folder(self._config))
                recorder = self._run_recorder or RunRecorder(
                    self.writer, self._config, sets, self._invocation, self._interrupts
                )
                timed = [
                    replace(group, cells=tuple(replace(cell, is_timed=not shared) for cell in group.cells))
                    for group in groups
                ]
                said = recorder.begin_stage(timed, environment, (*notes, *of_sets), segments[1:])
                self._recorder = recorder
            for line in said:
                self._progress.say(line)
            return tell(recorder, groups, is_heard=not self._ranks.is_alone)

        return self._ranks.of_first(begin)

    def _join(self, begun: Begun, groups: Sequence[Group]) -> Exception | None:
        """On other ranks than the first: a recorder of their own; or why this rank cannot take part."""
        if self._ranks.is_first:
            return None
        try:
            check_same_cells(self._ranks.rank, begun, groups)
            if self._recorder is None:
                self._folder = begun.folder
                self.writer = open_share(begun.folder, self._ranks.rank)
                self._recorder = LineRecorder(
                    self.writer, self._interrupts, save_outputs=self._config.save_outputs
                )
                self._recorder.segment = begun.segment + self._ranks.rank
        except UsageError as error:
            return error
        self._recorder.records = list(begun.done)
        return None

    async def run_groups(
        self, backend: Backend, groups: Sequence[Group], rounds: Sequence[int], is_launched: bool
    ) -> None:
        """Run what is left of the groups in these rounds; a cell that fails is recorded, and the others go on."""
        assert self._recorder is not None
        runner = self._make_runner(backend, groups, is_launched)
        last = self._config.repeats - 1
        current: Sequence[Cell] = groups[0].cells
        num_units = sum(len(runner.units_to_run(group, rounds)) for group in groups)
        try:
            self._progress.start(num_units)
            if num_units and not backend.capabilities.has_servers:
                with said_if_slow(self._progress, "warming up"):
                    await warm_up(backend, groups[0], self._load_warmup_texts(), self._progress)
            for number in rounds:
                for group in groups:
                    current = [cell for cell in group.cells if cell.cell_id not in self._failures]
                    has_work = bool(runner.units_to_run(group, [number])) and bool(current)
                    if has_work and self._budget.is_used_up:
                        self.cut = self._budget.reason
                        continue
                    if has_work:
                        await self._rest()
                        self._set_status(current, "running")
                    end = await runner.run_group(group, number, self._failures)
                    self._note_end(group, end.is_cut, end.failures, number == last)
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            self.interrupt(error if isinstance(error, KeyboardInterrupt) else KeyboardInterrupt(), current)
        finally:
            recorder = self._run_recorder
            if recorder is not None and isinstance(backend, NotesAtEnd):
                for note in backend.closing_notes():
                    recorder.add_note(note)

    def _note_end(self, group: Group, is_cut: bool, failures: Mapping[str, Exception], is_last: bool) -> None:
        for cell in group.cells:
            error = failures.get(cell.cell_id)
            if error is not None:
                reason = one_line(f"{type(error).__name__}: {error}")
                self.error = self.error or error
                self._failures[cell.cell_id] = reason
                self._set_status([cell], "failed", reason)
        if failures:
            title = f"{group.workload.dataset}, {load_words(group.cells[0])}"
            for reason in dict.fromkeys(self._failures[cell_id] for cell_id in failures):
                self._progress.say(f"{title}: failed: {reason}")
        if is_cut:
            self.cut = self._budget.reason
        elif is_last:
            whole = [cell for cell in group.cells if cell.cell_id not in self._failures]
            self._complete |= {cell.cell_id for cell in whole}
            if self._ranks.is_alone:
                self._set_status(whole, "completed")

    def _set_status(self, cells: Sequence[Cell], status: CellStatus, reason: str | None = None) -> None:
        if self._run_recorder is not None and cells:
            self._run_recorder.set_status(cells, status, reason)

    async def _rest(self) -> None:
        """Let the machine cool down between two cells."""
        if self._has_run and self._config.cooldown_s:
            await rest(self._config.cooldown_s)
        self._has_run = True

    def is_done(self, number: int, label: str, round_number: int) -> bool:
        """Whether the server of an arm need not be started (again): it failed, or nothing is left in this round."""
        groups = self._groups.get((number, label))
        if groups is None or self._recorder is None:
            return False
        cells = [
            (group, cell) for group in groups for cell in group.cells if cell.cell_id not in self._failures
        ]
        recorder = self._recorder
        if any(units_left(group, cell, recorder.records_of([cell]), [round_number]) for group, cell in cells):
            return False
        if round_number == self._config.repeats - 1:
            self._set_status([cell for _, cell in cells], "completed")
        return True

    def fail(self, number: int, label: str | None, error: Exception, reason: str) -> bool:
        """An engine did not open. True: its cells are known from an earlier round, and have failed."""
        self.error = self.error or error
        groups = self._groups.get((number, label)) if label is not None else None
        whole = (
            {cell.cell_id for cell in self._run_recorder.cells if cell.status == "completed"}
            if groups and self._run_recorder
            else set()
        )
        cells = [cell for group in groups or () for cell in group.cells if cell.cell_id not in whole]
        self._failures |= {cell.cell_id: reason for cell in cells}
        self._set_status(cells, "failed", reason)
        return bool(groups)

    def _prompt_sets(self) -> list[PromptSet]:
        """All that the sweep uses, each choice of prompts once."""
        sets = [found for stage in self._stages for sets in stage.prompt_sets for found in sets]
        return list({(found.dataset, found.digest): found for found in sets}.values())

    def add_unopened(self, groups: Sequence[Group], status: CellStatus, reason: str) -> None:
        """Cells whose engine was not opened in this process."""
        if self._run_recorder is not None:
            self._run_recorder.add_unopened(groups, status, reason)

    def interrupt(self, error: KeyboardInterrupt, current: Sequence[Cell] = ()) -> None:
        """The first Ctrl-C or SIGTERM ends the sweep; what was running is said to be interrupted."""
        name = self._interrupts.received
        reason = f"interrupted by {name}" if name else "interrupted"
        if not self.is_ended:
            self.error, self.is_ended = error, True
        recorder = self._run_recorder
        if recorder is not None:
            recorder.set_status(current, "interrupted", reason)
            recorder.end_cells({"running": "interrupted"}, reason)

    def end_unwritten(self, error: CannotWriteError) -> None:
        """The folder takes nothing more: the sweep ends, and what is there is kept."""
        self.error, self.is_ended, self._has_ended = self.error or error, True, True
        self._unwritten = str(error)
        if self._run_recorder is not None:
            with contextlib.suppress(CannotWriteError):  # there may be room for this, or not
                self._run_recorder.end_cells({"running": "interrupted"}, self._unwritten)

    def end(self) -> None:
        """Merge what other processes measured, say how every cell ended, and stamp the segment; once."""
        if self._has_ended:
            return
        self._has_ended = True
        if not self._ranks.is_alone:
            self._end_together()
        recorder = self._run_recorder
        if recorder is None:
            return
        if self.cut:
            recorder.end_cells({"running": "interrupted", "planned": "not_run"}, self.cut)
        if self._ranks.is_alone:
            recorder.finish()
        if self._config.execute_code and self.error is None:
            self.error = execute_code(recorder, self._prompt_sets(), self._progress)

    def _end_together(self) -> None:
        recorder, ranks = self._run_recorder, self._ranks
        lines: Lines = {} if self._folder is None else read_lines(self._folder, ranks.rank)
        end = RankEnd(
            frozenset(self._complete),
            dict(self._failures),
            isinstance(self.error, KeyboardInterrupt),
            time.perf_counter_ns() - self._started_ns,
            lines,
        )
        try:
            ends = ranks.to_first(end)
            if recorder is not None:
                self._merge(recorder, ends)
            ranks.together(None)
        except RankError as error:  # what it measured is in its folder, and is merged when the run is resumed
            self.error = self.error or error
            if recorder is not None:
                recorder.end_cells({"running": "interrupted"}, str(error))
                recorder.finish()
            return
        if self.writer is not None and recorder is None:
            self.writer.close()
        if self._folder is not None:
            remove_folders(self._folder)

    def _merge(self, recorder: RunRecorder, ends: Sequence[RankEnd]) -> None:
        for end in ends[1:]:
            recorder.merge(end.lines)
        failures = {cell_id: reason for end in ends for cell_id, reason in end.failures.items()}
        if failures and self.error is None:
            self.error = RankError(f"a cell failed on another process: {next(iter(failures.values()))}")
        if any(end.was_interrupted for end in ends):
            self.interrupt(KeyboardInterrupt())
        complete = frozenset.intersection(*(end.complete for end in ends))
        for cell in recorder.cells:
            if cell.cell_id in failures:
                recorder.set_status([cell], "failed", failures[cell.cell_id])
            elif cell.cell_id in complete:
                recorder.set_status([cell], "completed")
        recorder.finish([end.wall_ns for end in ends[1:]])
        remove_folders(recorder.folder)

    def close(self) -> None:
        """Let go of the run's folder."""
        if self.writer is not None:
            self.writer.close()

    def read_back(self) -> Run:
        """The run; on other ranks than the first only its folder."""
        if self._folder is not None:
            return Run(self._folder, RunInfo(self._folder.name, ""), ())
        assert self.writer is not None
        run = load_run(self.writer.folder)
        if not self._unwritten:
            return run
        cells = [
            replace(cell, status="interrupted", reason=self._unwritten) if cell.status == "running" else cell
            for cell in run.info.cells
        ]
        return replace(run, info=replace(run.info, cells=tuple(cells)))

    def _make_runner(
        self, backend: Backend, groups: Sequence[Group], is_launched: bool
    ) -> InterleavedRunner | ServedRunner:
        assert self._recorder is not None
        if not backend.capabilities.has_servers:
            return InterleavedRunner(
                backend, self._recorder, self._progress, self.stop, self._budget, self._ranks.is_mine
            )
        recorder = cast(RunRecorder, self._recorder)
        return ServedRunner(
            cast(ServerBackend, backend),
            recorder,
            self._progress,
            self.stop,
            self._budget,
            cooldown_s=self._config.cooldown_s,
            warmup_texts=self._load_warmup_texts(),
            texts=self._texts,
            has_baseline=any(recorder.baseline_cell(group.workload_id) is not None for group in groups),
            launch=recorder.next_launch() if is_launched else None,
        )
