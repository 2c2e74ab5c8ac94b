"""One run, from the opened engine to the records that are read back; what was measured is kept in any case."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from dflash.asking import warmup_request
from dflash.backends import create_backend
from dflash.backends.base import (
    Backend,
    BackendSettings,
    Endpoint,
    ServerBackend,
)
from dflash.command_line import one_line
from dflash.config import BenchmarkConfig
from dflash.datasets.catalogue import expand_datasets
from dflash.environment import fingerprint
from dflash.errors import RequestError, TooManyFailuresError
from dflash.interleaved import InterleavedRunner
from dflash.interrupts import Interrupts
from dflash.plan import (
    Group,
    make_groups,
    num_warmup_of,
    planned_arms,
)
from dflash.progress import Progress
from dflash.prompt_sets import load_warmup_texts
from dflash.prompts import PromptSet
from dflash.recorder import Invocation, RunRecorder, new_run_folder
from dflash.results.records import BASELINE, Arm
from dflash.results.store import INFO_FILE, Run, RunWriter, load_run
from dflash.served import BaselineTexts, ServedRunner
from dflash.server_options import SERVER_BACKENDS, api_key_of, endpoints_of, headers_of, timeouts_of
from dflash.serving import launch_arm, with_block_size

SLOW_S = 3.0  # without a sign of life


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that was begun: what was measured, and what ended it early or must be said of it."""

    run: Run
    error: BaseException | None = None


def backend_settings(config: BenchmarkConfig) -> BackendSettings:
    """What an engine needs to know of the settings."""
    return BackendSettings(
        model=config.model,
        draft_model=config.draft_model,
        dtype=config.dtype,
        device=config.device,
        attn_implementation=config.attn_implementation,
        trust_remote_code=config.trust_remote_code,
        force_block_size=config.force_block_size,
        endpoints=endpoints_of(config) if config.backend in SERVER_BACKENDS else (),
        block_size=config.block_sizes[0] if len(config.block_sizes) == 1 else None,
        reasoning=config.reasoning,
        route=config.route,
        timeouts=timeouts_of(config),
        api_key=api_key_of(config, os.environ),
        headers=headers_of(config),
        verify_tls=config.verify_tls,
        max_concurrency=max(config.loads),
        script=config.script,
    )


def failure_of(run: Run, max_error_rate: float) -> TooManyFailuresError | None:
    """The error that stands for too many failed requests in any one cell, or None."""
    for cell in run.info.cells:
        records = [record for record in run.records if record.cell_id == cell.cell_id]
        failed = [record for record in records if record.finish_reason == "error"]
        if not failed or len(failed) <= max_error_rate * len(records):
            continue
        kinds = Counter(record.error_kind for record in failed)
        return TooManyFailuresError(
            f"{len(failed)} of {len(records)} requests failed: {cell.arm.label}, {cell.workload.dataset}: "
            + ", ".join(f"{kind} {count}" for kind, count in kinds.items())
            + f"; the first said {failed[0].error_message!r}",
            "mend the cause and resume the run, or allow more by --max-error-rate",
        )
    return None


class Execution:
    """One call of `execute`, from the opened engine to the run that was read back."""

    def __init__(
        self,
        config: BenchmarkConfig,
        backend: Backend,
        prompt_sets: Sequence[PromptSet],
        progress: Progress,
        interrupts: Interrupts,
        invocation: Invocation,
    ) -> None:
        self._config = config
        self._backend = backend
        self._prompt_sets = prompt_sets
        self._progress = progress
        self._interrupts = interrupts
        self._invocation = invocation
        self._stop = threading.Event()
        self._writer: RunWriter | None = None
        self._recorder: RunRecorder | None = None
        self._error: BaseException | None = None
        self._texts = BaselineTexts()

    def run(self) -> Outcome:
        name = self._config.run_name
        if name is not None and (self._config.output_dir / name / INFO_FILE).exists():
            # opened now, so that a second process is refused before a model is loaded
            self._writer = RunWriter(self._config.output_dir / name)
        try:
            self._run_coroutine()
        except KeyboardInterrupt as error:  # from the event loop itself
            if self._recorder is None:
                raise
            self._error = self._error or error
        finally:
            self._progress.close()
            if self._writer is not None:
                self._writer.close()
        assert self._writer is not None
        run = load_run(self._writer.folder)
        return Outcome(run, self._error or failure_of(run, self._config.max_error_rate))

    def _run_coroutine(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self._open_and_run())
            return
        # inside a notebook's loop: one of our own in a thread, which a Ctrl-C stops after the current request
        thread = threading.Thread(target=self._run_in_thread)
        thread.start()
        try:
            thread.join()
        except KeyboardInterrupt:
            self._stop.set()
            thread.join()
        if self._recorder is None and self._error is not None:
            raise self._error

    def _run_in_thread(self) -> None:
        try:
            asyncio.run(self._open_and_run())
        except BaseException as error:  # carried over to the thread that waits
            self._error = self._error or error

    async def _open_and_run(self) -> None:
        if self._config.serve:
            await self._serve_arms()
        else:
            await self._run_stage(planned_arms(self._config))
        assert self._recorder is not None
        self._recorder.finish()
        if self._config.execute_code and self._error is None:
            self._execute_code(self._recorder)

    async def _serve_arms(self) -> None:
        """One server after the other: two at once would share the machine."""
        for planned in planned_arms(self._config):
            try:
                arm = with_block_size(self._config, planned)
                async with launch_arm(self._config, arm, self._progress.say) as server:
                    settings = replace(
                        backend_settings(self._config),
                        model=None,  # whatever it calls what it was started with
                        endpoints=(Endpoint(server.url, arm.name),),
                        block_size=arm.block_size,
                    )
                    self._backend = create_backend(self._config.backend, settings)
                    await self._run_stage((arm,))
            except Exception as error:
                if self._recorder is None:  # nothing was measured
                    raise
                self._recorder.add_note(one_line(f"{planned.label} was not served: {error}"))
                self._error = self._error or error
            if self._error is not None:
                return

    async def _run_stage(self, arms: Sequence[Arm]) -> None:
        """What one opened engine contributes: all arms, or one of several that are served in turn."""
        config = self._config
        try:
            with self._said_if_slow(f"opening the engine {config.backend}"):
                description = await self._backend.open(arms)
            environment: dict[str, Any] = fingerprint() | {"engine": dict(description.environment)}
            has_baseline = BASELINE in config.arms if config.serve else None
            groups = make_groups(
                config, self._prompt_sets, description, environment, has_baseline=has_baseline
            )
            recorder = self._begin_stage(groups, environment, description.notes)
            await self._run_groups(groups, recorder)
        finally:
            await self._close_backend()

    @contextmanager
    def _said_if_slow(self, text: str) -> Iterator[None]:
        """Tell what is waited for once it takes long; nothing is being timed yet."""
        timer = threading.Timer(SLOW_S, self._progress.say, (text,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _begin_stage(
        self, groups: Sequence[Group], environment: dict[str, Any], notes: Sequence[str]
    ) -> RunRecorder:
        set_notes = [note for prompt_set in self._prompt_sets for note in prompt_set.notes]
        set_notes += expand_datasets(self._config.datasets)[1]
        with self._interrupts.shield():  # a run folder is whole or not there
            if self._writer is None:
                self._writer = RunWriter(new_run_folder(self._config))
            recorder = self._recorder or RunRecorder(
                self._writer, self._config, self._prompt_sets, self._invocation, self._interrupts
            )
            recorder.begin_stage(groups, environment, (*notes, *set_notes), is_whole=not self._config.serve)
            self._recorder = recorder
        return recorder

    async def _close_backend(self) -> None:
        try:
            await self._backend.aclose()
        except Exception as error:
            if self._recorder is None:  # otherwise the run stands, whatever closing says
                raise
            self._progress.say(f"closing the engine failed: {type(error).__name__}: {error}")

    async def _run_groups(self, groups: Sequence[Group], recorder: RunRecorder) -> None:
        runner = self._make_runner(groups, recorder)
        num_units = [len(runner.units_to_run(group)) for group in groups]
        current = groups[0]
        try:
            self._progress.start(sum(num_units))
            if sum(num_units) and not self._backend.capabilities.has_servers:
                with self._said_if_slow("warming up"):
                    await self._warm_up(groups[0])
            for group in groups:
                current = group
                recorder.set_status(group, "running")
                await runner.run_group(group)
                recorder.set_status(group, "completed")
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            signal_name = self._interrupts.received
            reason = f"interrupted by {signal_name}" if signal_name else "interrupted"
            self._error = error if isinstance(error, KeyboardInterrupt) else KeyboardInterrupt()
            recorder.set_status(current, "interrupted", reason)
        except Exception as error:
            self._error = error
            recorder.set_status(current, "failed", one_line(f"{type(error).__name__}: {error}"))

    def _make_runner(
        self, groups: Sequence[Group], recorder: RunRecorder
    ) -> InterleavedRunner | ServedRunner:
        config = self._config
        if not self._backend.capabilities.has_servers:
            return InterleavedRunner(self._backend, recorder, self._progress, config.repeats, self._stop)
        return ServedRunner(
            cast(ServerBackend, self._backend),
            recorder,
            self._progress,
            config.repeats,
            self._stop,
            arrivals=config.arrivals,
            num_warmup=config.num_warmup,
            warmup_texts=load_warmup_texts(),
            texts=self._texts,
            has_baseline=any(recorder.baseline_cell(group.workload_id) is not None for group in groups),
        )

    def _execute_code(self, recorder: RunRecorder) -> None:
        """Try out what the arms wrote. Every clock has stopped; what goes wrong here loses no measurement."""
        from dflash.code_scoring import execute_answers

        prompts = [prompt for prompt_set in self._prompt_sets for prompt in prompt_set.prompts]
        try:
            execute_answers(recorder, prompts, self._progress)
        except KeyboardInterrupt as error:
            self._error = error
        except Exception as error:
            self._error = error
            self._progress.say(
                f"executing the code ended early: {one_line(f'{type(error).__name__}: {error}')}"
            )

    async def _warm_up(self, group: Group) -> None:
        """Requests that are not measured, in every arm; one that fails is said and passed over."""
        workload = group.workload
        texts = load_warmup_texts()
        for number in range(num_warmup_of(self._config, workload.concurrency)):
            text = texts[number % len(texts)]
            for cell in group.cells:
                request = warmup_request(cell, number, text)
                try:
                    await self._backend.generate(request)
                except RequestError as error:
                    self._progress.say(f"warm-up failed: {request.request_id}: {error}")
