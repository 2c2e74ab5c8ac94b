"""One run, from its first engine to the records that are read back; what was measured is kept in any case.

A sweep is a list of visits: an engine is opened, its groups run for a round or more, and it is closed. A cell that
fails, an engine that cannot be opened and a used-up time budget are recorded, and the sweep goes on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dflash.backends import create_backend
from dflash.backends.base import Backend, BackendDescription, Endpoint
from dflash.command_line import one_line
from dflash.config import BenchmarkConfig
from dflash.environment import fingerprint
from dflash.errors import CannotWriteError, UsageError
from dflash.interrupts import Interrupts
from dflash.outcome import Outcome as Outcome
from dflash.outcome import failure_of
from dflash.plan import planned_arms
from dflash.progress import Progress, said_if_slow
from dflash.prompt_sets import load_warmup_texts as load_warmup_texts
from dflash.ranks import Ranks
from dflash.recorder import Invocation
from dflash.results.records import BASELINE, Arm, CellStatus
from dflash.results.store import INFO_FILE, RunWriter
from dflash.serving import (
    as_started,
    check_arms,
    launch_arm,
    planned_as_started,
    target_as_named,
    with_block_size,
)
from dflash.stages import Stage, undescribed
from dflash.stages import backend_settings as backend_settings
from dflash.sweep import Sweep
from dflash.time_budget import TimeBudget


@dataclass(frozen=True, slots=True)
class Unopened:
    """Arms whose engine did not open."""

    stage: Stage
    arms: tuple[Arm, ...]
    reason: str


class Execution:
    """One call of `execute`, from the first engine to the run that was read back.

    Args:
        backend: not yet opened, for the first visit of the first stage.
    """

    def __init__(
        self,
        config: BenchmarkConfig,
        stages: Sequence[Stage],
        backend: Backend,
        progress: Progress,
        interrupts: Interrupts,
        invocation: Invocation,
        ranks: Ranks,
        budget: TimeBudget,
    ) -> None:
        self._config = config
        self._stages = stages
        self._backend: Backend | None = backend
        self._progress = progress
        self._ranks = ranks
        self._sweep = Sweep(
            config, stages, progress, interrupts, invocation, ranks, budget, lambda: load_warmup_texts()
        )
        self._budget = budget
        self._unopened: list[Unopened] = []
        self._described: dict[int, BackendDescription] = {}  # of a stage, by any of its engines
        self._visited: set[tuple[int, str]] = set()  # stage and arm

    def run(self) -> Outcome:
        sweep = self._sweep
        for stage in self._stages:
            if stage.config.serve:
                check_arms(stage.config, planned_arms(stage.config))
        name = self._config.run_name
        if (
            self._ranks.is_first
            and name is not None
            and (self._config.output_dir / name / INFO_FILE).exists()
        ):
            if not self._config.resume:
                raise UsageError(
                    f"run {name!r} exists, and --no-resume is given", "choose another name by --run"
                )
            # opened now, so that a second process is refused before a model is loaded
            sweep.writer = RunWriter(self._config.output_dir / name)
        try:
            self._run_coroutine()
        except KeyboardInterrupt as interrupt:  # from the event loop itself
            if not sweep.has_begun:
                raise
            sweep.interrupt(interrupt)
            sweep.end()
        except CannotWriteError as full:
            if not sweep.has_begun:
                raise
            sweep.end_unwritten(full)
        finally:
            self._progress.close()
            sweep.close()
        run = sweep.read_back()
        error = sweep.error or (
            failure_of(run, self._config.max_error_rate) if self._ranks.is_first else None
        )
        return Outcome(run, error, sweep.cut, self._ranks.is_first)

    def _run_coroutine(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self._run_visits())
            return
        # inside a notebook's loop: one of our own in a thread, which a Ctrl-C stops after the current request
        thread = threading.Thread(target=self._run_in_thread)
        thread.start()
        try:
            thread.join()
        except KeyboardInterrupt:
            self._sweep.stop.set()
            thread.join()
        if not self._sweep.has_begun and self._sweep.error is not None:
            raise self._sweep.error

    def _run_in_thread(self) -> None:
        try:
            asyncio.run(self._run_visits())
        except BaseException as error:  # carried over to the thread that waits
            self._sweep.error = self._sweep.error or error

    async def _run_visits(self) -> None:
        sweep = self._sweep
        for number, rounds in self._visits():
            # the first visit always begins: what it loads may use up the budget, and nothing would be there to resume
            is_late = bool(self._visited) and self._budget.is_used_up
            states = self._ranks.all_of((is_late, sweep.is_ended))
            if any(late for late, _ in states):
                sweep.cut = self._budget.reason
            if any(late or ended for late, ended in states):
                break
            if self._stages[number].config.serve:
                await self._serve_arms(number, rounds[0])
            else:
                await self._visit(number, planned_arms(self._stages[number].config), rounds)
        if not sweep.has_begun and sweep.error is not None:
            raise sweep.error
        self._record_unopened()
        sweep.end()

    def _visits(self) -> Iterator[tuple[int, Sequence[int]]]:
        """(number of the stage, rounds) in order: an engine that is the only one stays open from round to round."""
        rounds = range(self._config.repeats)
        if len(self._stages) == 1 and not self._stages[0].config.serve:
            yield 0, rounds
            return
        for number in rounds:
            for stage_number in range(len(self._stages)):
                yield stage_number, [number]

    async def _serve_arms(self, number: int, round_number: int) -> None:
        """One server after the other: two at once would share the machine. Every round starts them anew, every other
        in reversed order where no arm needs the baseline's answers."""
        stage = self._stages[number]
        arms = list(planned_arms(stage.config))
        if round_number % 2 and not stage.has_turns:
            arms.reverse()
        for planned in arms:
            if self._sweep.is_ended:
                return
            if self._sweep.is_done(number, planned.label, round_number):
                continue
            if self._visited and self._budget.is_used_up:
                self._sweep.cut = self._budget.reason
                return
            try:
                arm = with_block_size(stage.config, planned)
                async with launch_arm(stage.config, arm, self._progress.say) as server:
                    settings = replace(
                        backend_settings(stage.config),
                        model=None,  # whatever it calls what it was started with
                        endpoints=(Endpoint(server.url, arm.name, started_as=server.started_as),),
                        block_size=arm.block_size,
                    )
                    self._backend = create_backend(stage.config.backend, settings)
                    await self._visit(number, (arm,), [round_number], planned.label)
            except Exception as error:
                self._fail(number, (planned,), error, planned.label)

    async def _visit(
        self, number: int, arms: Sequence[Arm], rounds: Sequence[int], launched: str | None = None
    ) -> None:
        """Open an engine, run its groups, close it.

        Args:
            launched: name of the one arm whose server this process started.
        """
        stage = self._stages[number]
        settings = backend_settings(stage.config)
        device = self._ranks.device_of(settings.device) if stage.config.backend == "transformers" else None
        backend = self._backend
        if backend is None or (device is not None and device != settings.device):
            backend = create_backend(
                stage.config.backend, replace(settings, device=device or settings.device)
            )
        self._backend = None
        try:
            description = await self._open(number, backend, arms, launched)
            if description is not None:
                environment = fingerprint() | {"engine": dict(description.environment)}
                has_baseline = BASELINE in stage.config.arms if launched is not None else None
                groups = stage.groups(description, environment, has_baseline=has_baseline)
                if self._sweep.begin(number, groups, environment, description.notes, device, launched):
                    await self._sweep.run_groups(backend, groups, rounds, launched is not None)
        finally:
            await self._close(backend)

    async def _open(
        self, number: int, backend: Backend, arms: Sequence[Arm], launched: str | None
    ) -> BackendDescription | None:
        failure: Exception | None = None
        description = None
        try:
            with said_if_slow(self._progress, f"opening the engine {self._stages[number].config.backend}"):
                description = await backend.open(arms)
                self._check_block_size(self._stages[number].config, description, launched)
        except Exception as error:
            failure = error
        try:
            self._ranks.together(failure)
        except Exception as error:
            self._fail(number, arms, error, launched)
            return None
        assert description is not None
        if launched is not None:
            config = self._stages[number].config
            described = tuple(as_started(config, arm) for arm in description.arms)
            target = target_as_named(config, description.target)
            description = replace(description, target=target, arms=described)
        self._described[number] = description
        labels = (
            [arm.label for arm in planned_arms(self._stages[number].config)]
            if launched is None
            else [launched]
        )
        self._visited |= {(number, label) for label in labels}
        return description

    def _check_block_size(
        self, config: BenchmarkConfig, description: BackendDescription, launched: str | None
    ) -> None:
        """A block size that is typed for running servers is what they must have; a suite's may be for other engines."""
        is_typed = self._config.suite is None or "block_sizes" in self._config.typed
        drafts = any(not arm.is_baseline for arm in description.arms)
        if launched is None and config.block_sizes and is_typed and not drafts:
            raise UsageError(
                f"--block-size {config.block_sizes[0]} is for servers that draft, and none of those here does",
                "name the server that drafts, or drop it",
            )

    def _fail(self, number: int, arms: Sequence[Arm], error: Exception, launched: str | None) -> None:
        """An engine that did not open, or a server that did not start: the sweep goes on without it."""
        reason = one_line(f"not opened: {type(error).__name__}: {error}")
        self._visited |= {(number, launched or arm.label) for arm in arms}
        if not self._sweep.fail(number, launched, error, reason):
            self._unopened.append(Unopened(self._stages[number], tuple(arms), reason))
        if len(self._stages) > 1 or launched is not None:
            self._progress.say(f"{', '.join(arm.label for arm in arms)}: {reason}")

    def _record_unopened(self) -> None:
        """Cells of engines that did not open, and of those that the time budget left out."""
        for unopened in self._unopened:
            self._add_unopened(unopened.stage, unopened.arms, "failed", unopened.reason)
        if self._sweep.is_ended or not self._budget.is_used_up:
            return
        for number, stage in enumerate(self._stages):
            arms = [arm for arm in planned_arms(stage.config) if (number, arm.label) not in self._visited]
            if arms:
                self._sweep.cut = self._budget.reason
                self._add_unopened(stage, arms, "not_run", self._budget.reason)

    def _add_unopened(self, stage: Stage, arms: Sequence[Arm], status: CellStatus, reason: str) -> None:
        described = self._described.get(self._stages.index(stage))
        drafted = [_as_planned(stage.config, arm) for arm in arms]
        description = (
            undescribed(stage.config, drafted)
            if described is None
            else replace(described, arms=tuple(drafted))
        )
        environment = fingerprint() | {"engine": dict(description.environment)}
        groups = stage.groups(description, environment, has_baseline=BASELINE in stage.config.arms)
        self._sweep.add_unopened(groups, status, reason)

    async def _close(self, backend: Backend) -> None:
        try:
            await backend.aclose()
        except Exception as error:
            if not self._sweep.has_begun:  # otherwise the run stands, whatever closing says
                raise
            self._progress.say(f"closing the engine failed: {type(error).__name__}: {error}")


def _as_planned(config: BenchmarkConfig, arm: Arm) -> Arm:
    """An arm that was not opened, as far as the settings describe it."""
    if config.serve:
        return planned_as_started(config, arm)
    return arm if arm.is_baseline else replace(arm, draft=config.draft_model)
