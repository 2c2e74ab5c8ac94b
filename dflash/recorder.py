"""A run while it is made: `run.json` kept up to date, and every request on disk before the next begins."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import dflash
from dflash.config import MAX_RUN_NAME, BenchmarkConfig
from dflash.environment import without_home
from dflash.errors import UsageError
from dflash.interrupts import Interrupts
from dflash.plan import Group
from dflash.prompts import PromptSet, references_digest
from dflash.results.records import (
    AnswerRecord,
    Cell,
    CellStatus,
    ChunkRecord,
    CodeRecord,
    DatasetInfo,
    DifferenceRecord,
    OutputRecord,
    RequestRecord,
    RunInfo,
    Segment,
    WindowRecord,
)
from dflash.results.store import RunWriter, load_answers, load_run, read_info
from dflash.resume import check_same_identity, check_same_references, slot_of
from dflash.server_options import parse_slo

SECRET_FLAGS = ("--api-key", "--header")  # their values are in no file
HIDDEN = "HIDDEN"
_DIGEST_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Invocation:
    """How the run was asked for."""

    command: str = ""
    argv: tuple[str, ...] = ()


class RunRecorder:
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
        self._writer = writer
        self._config = config
        self._prompt_sets = prompt_sets
        self._invocation = invocation
        self._interrupts = interrupts
        self._save_outputs = config.save_outputs
        self._started_ns = time.perf_counter_ns()
        self._stored: RunInfo | None = None  # what earlier processes left
        self._num_blocks: dict[str, int] = {}  # by cell
        self.segment = 0
        self.records: list[RequestRecord] = []  # of earlier processes
        self.last_error_kind: str | None = None
        if not writer.is_new:
            run = load_run(writer.folder)
            self.records = list(run.records)
            # the notes as stored: what load_run says of torn lines gives way to what their repair says
            self._stored = replace(run.info, notes=read_info(writer.folder).notes)
            self.segment = len(run.info.segments)
        self._info: RunInfo | None = None

    def begin_stage(
        self,
        groups: Sequence[Group],
        environment: Mapping[str, Any],
        notes: Iterable[str],
        *,
        is_whole: bool = True,
    ) -> None:
        """Add the cells of `groups`; the first stage writes what the run is made from.

        Args:
            is_whole: no other stage follows: the run may hold no cell that this command leaves out.

        Raises:
            UsageError: the run was begun under another identity, or is damaged.
        """
        cells = tuple(cell for group in groups for cell in group.cells)
        datasets = tuple(_dataset_info(prompt_set) for prompt_set in self._prompt_sets)
        if self._stored is not None:
            check_same_identity(self._stored, cells, environment, is_whole=is_whole)
            check_same_references(self._stored, datasets)
        first = self._info is None
        info = self._first_info(environment, datasets) if self._info is None else self._info
        slots = {slot_of(cell) for cell in cells}
        others = tuple(cell for cell in info.cells if slot_of(cell) not in slots)
        if not first and environment.get("engine") != info.environment.get("engine"):
            name = f"engine of {', '.join(sorted({cell.arm.label for cell in cells}))}"
            info = replace(info, environment={**info.environment, name: environment.get("engine")})
        repairs = (
            (*self._writer.repair(), *_commit_note(self._stored.environment, environment))
            if first and self._stored is not None
            else ()
        )
        info = replace(
            info, cells=(*others, *cells), notes=tuple(dict.fromkeys((*info.notes, *notes, *repairs)))
        )
        self._update(info)
        if first:
            with self._interrupts.shield():
                self._write_answers(self._prompt_sets)

    def _first_info(self, environment: Mapping[str, Any], datasets: tuple[DatasetInfo, ...]) -> RunInfo:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        info = self._stored or RunInfo(
            name=self._writer.folder.name,
            created_at=now,
            dflash_version=dflash.__version__,
            environment=dict(environment),
        )
        segment = Segment(now, self._started_ns, public_words(self._invocation.argv))
        return replace(
            info,
            command=publishable(self._invocation.command),
            config=config_values(self._config),
            datasets=datasets,
            segments=(*info.segments, segment),
        )

    @property
    def folder(self) -> Path:
        return self._writer.folder

    def set_status(self, group: Group, status: CellStatus, reason: str | None = None) -> None:
        """Set the status of a group's cells; it is on disk when this returns."""
        ids = {cell.cell_id for cell in group.cells}
        info = self._begun()
        cells = tuple(
            replace(cell, status=status, reason=reason) if cell.cell_id in ids else cell
            for cell in info.cells
        )
        self._update(replace(info, cells=cells))

    def finish(self) -> None:
        """Stamp the segment's wall time."""
        wall_ns = time.perf_counter_ns() - self._started_ns
        info = self._begun()
        last = replace(info.segments[-1], wall_ns=wall_ns)
        self._update(replace(info, segments=(*info.segments[:-1], last)))

    def add(
        self, record: RequestRecord, output: OutputRecord | None = None, chunk: ChunkRecord | None = None
    ) -> None:
        """Append one request: the record last, so that its presence means that the rest is there."""
        self.last_error_kind = record.error_kind
        with self._interrupts.shield():
            if output is not None and self._save_outputs:
                self._writer.append(output)
            if chunk is not None:
                self._writer.append(chunk)
            self._writer.append(record)

    def add_difference(self, difference: DifferenceRecord) -> None:
        with self._interrupts.shield():
            self._writer.append(difference)

    def add_code_result(self, result: CodeRecord) -> None:
        with self._interrupts.shield():
            self._writer.append(result)

    def add_note(self, note: str) -> None:
        """Stamp a fact that a reader of the numbers must know."""
        info = self._begun()
        self._update(replace(info, notes=tuple(dict.fromkeys((*info.notes, note)))))

    def next_block(self, cell: Cell) -> int:
        """The number of the next stretch of load on a server, among those of this cell and process."""
        number = self._num_blocks.get(cell.cell_id, 0)
        self._num_blocks[cell.cell_id] = number + 1
        return number

    def add_window(self, window: WindowRecord) -> None:
        with self._interrupts.shield():
            self._writer.append(window)

    def baseline_cell(self, workload_id: str) -> Cell | None:
        """The baseline of a workload, of this stage or an earlier one."""
        cells = (cell for cell in self._begun().cells if cell.workload_id == workload_id)
        return next((cell for cell in cells if cell.arm.is_baseline), None)

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


def digest_of_ids(ids: Sequence[int] | None) -> str | None:
    """First 16 hexadecimal digits of the SHA-256 of the ids, comma-separated."""
    return None if ids is None else digest_of_text(",".join(map(str, ids)))


def digest_of_text(text: str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def config_values(config: BenchmarkConfig) -> dict[str, Any]:
    """Every setting as JSON takes it, without what is private; `slo` as limits in seconds."""
    values = asdict(config)
    values["api_key"] = None
    values["headers"] = [header.partition(":")[0] for header in config.headers]
    values["slo"] = None if config.slo is None else dict(parse_slo(config.slo))
    values["server_args"] = list(public_words(config.server_args))
    for name, value in values.items():
        if isinstance(value, Path):
            values[name] = publishable(str(value))
        elif isinstance(value, tuple):
            values[name] = list(value)
        elif isinstance(value, str):
            values[name] = publishable(value)
    return values


def public_words(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without what is secret: keys, header values, passwords in addresses."""
    words: list[str] = []
    for word in argv:
        flag, equals, _ = word.partition("=")
        if words and words[-1] in SECRET_FLAGS:
            words.append(HIDDEN)
        elif equals and flag in SECRET_FLAGS:
            words.append(f"{flag}={HIDDEN}")
        else:
            words.append(publishable(word))
    return tuple(words)


def publishable(text: str) -> str:
    """Text without the user and password of a URL, the home folder as `~`."""
    return without_home(re.sub(r"(?<=://)[^/\s]*@", "", text))


def new_run_folder(config: BenchmarkConfig) -> Path:
    """The folder of a new run; a name that was not given is made from the time and the contents."""
    if config.run_name is not None:
        return config.output_dir / config.run_name
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    contents = re.sub(r"[^A-Za-z0-9._+-]", "_", f"{config.backend}-{'+'.join(config.datasets)}")
    name = f"{stamp}-{contents}"[: MAX_RUN_NAME - 4]
    for number in range(1, 1000):
        folder = config.output_dir / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"cannot make the run folder {folder} ({error.strerror})", "choose another --output-dir"
            ) from error
        return folder
    raise UsageError(f"{config.output_dir} holds too many runs of one second", "name the run by --run")


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
