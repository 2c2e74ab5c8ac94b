"""A run while it is made: `run.json` kept up to date, and every request on disk before the next begins."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
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
from dflash.prompts import PromptSet
from dflash.results.records import (
    AnswerRecord,
    CellStatus,
    ChunkRecord,
    CodeRecord,
    DatasetInfo,
    DifferenceRecord,
    OutputRecord,
    RequestRecord,
    RunInfo,
    Segment,
)
from dflash.results.store import RunWriter, load_answers, load_run, read_info
from dflash.resume import check_same_identity

_DIGEST_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Invocation:
    """How the run was asked for."""

    command: str = ""
    argv: tuple[str, ...] = ()


class RunRecorder:
    """Owns a run's folder: begins it, or goes on with the one that is there.

    Raises:
        UsageError: the run was begun under another identity, or is damaged.
    """

    def __init__(
        self,
        writer: RunWriter,
        config: BenchmarkConfig,
        groups: Sequence[Group],
        prompt_sets: Sequence[PromptSet],
        environment: Mapping[str, Any],
        notes: Iterable[str],
        invocation: Invocation,
        interrupts: Interrupts,
    ) -> None:
        self._writer = writer
        self._interrupts = interrupts
        self._save_outputs = config.save_outputs
        self.records: list[RequestRecord] = []  # of earlier processes
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        cells = tuple(cell for group in groups for cell in group.cells)
        info = RunInfo(
            name=writer.folder.name,
            created_at=now,
            dflash_version=dflash.__version__,
            environment=dict(environment),
        )
        if not writer.is_new:
            run = load_run(writer.folder)
            check_same_identity(run.info, cells, environment)
            self.records = list(run.records)
            # the notes as stored: what load_run says of torn lines gives way to what their repair says
            info = replace(run.info, notes=read_info(writer.folder).notes)
            notes = (*notes, *writer.repair(), *_commit_note(run.info.environment, environment))
        self._started_ns = time.perf_counter_ns()
        segment = Segment(now, self._started_ns, tuple(publishable(word) for word in invocation.argv))
        self.segment = len(info.segments)
        self._info = replace(
            info,
            command=publishable(invocation.command),
            config=config_values(config),
            datasets=tuple(_dataset_info(prompt_set) for prompt_set in prompt_sets),
            cells=cells,
            segments=(*info.segments, segment),
            notes=tuple(dict.fromkeys((*info.notes, *notes))),
        )
        with interrupts.shield():
            writer.write_info(self._info)
            self._write_answers(prompt_sets)

    @property
    def folder(self) -> Path:
        return self._writer.folder

    def set_status(self, group: Group, status: CellStatus, reason: str | None = None) -> None:
        """Set the status of a group's cells; it is on disk when this returns."""
        ids = {cell.cell_id for cell in group.cells}
        cells = tuple(
            replace(cell, status=status, reason=reason) if cell.cell_id in ids else cell
            for cell in self._info.cells
        )
        self._update(replace(self._info, cells=cells))

    def finish(self) -> None:
        """Stamp the segment's wall time."""
        wall_ns = time.perf_counter_ns() - self._started_ns
        last = replace(self._info.segments[-1], wall_ns=wall_ns)
        self._update(replace(self._info, segments=(*self._info.segments[:-1], last)))

    def add(
        self, record: RequestRecord, output: OutputRecord | None = None, chunk: ChunkRecord | None = None
    ) -> None:
        """Append one request: the record last, so that its presence means that the rest is there."""
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
        self._update(replace(self._info, notes=tuple(dict.fromkeys((*self._info.notes, note)))))

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
    """Every setting as JSON takes it, without what is private."""
    values = asdict(config)
    for name, value in values.items():
        if isinstance(value, Path):
            values[name] = publishable(str(value))
        elif isinstance(value, tuple):
            values[name] = list(value)
        elif isinstance(value, str):
            values[name] = publishable(value)
    return values


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
    )


def _commit_note(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    old, new = (dict(values.get("git") or {}).get("commit") for values in (before, now))
    return () if old == new else (f"resumed at another commit of dflash: {old} before, {new} now",)
