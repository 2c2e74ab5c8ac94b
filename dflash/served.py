"""Arms on servers: each server alone under load, in blocks that take turns, so that drift cancels."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass

from dflash.asking import Answer, Asker, Place, context_of, history_after, warmup_request
from dflash.backends.base import Message, ServerBackend
from dflash.errors import RequestError, UnavailableError
from dflash.group_end import GroupEnd
from dflash.load import Job, Load, LoopLag, rest, run_load
from dflash.output_differences import record_differences
from dflash.plan import Group, num_under_way, num_warmup_of
from dflash.progress import Progress
from dflash.recorder import RunRecorder
from dflash.results.records import Cell, RequestRecord, WindowRecord
from dflash.resume import finished_units_of_cell
from dflash.time_budget import TimeBudget

Unit = tuple[int, int]  # prompt index, repeat
MIN_ROUNDS_OF_BLOCK = 4  # requests per place: with fewer, most of a block is filling and draining the server
GONE_KINDS = ("connection_refused", "connection_failed", "connect_timeout", "disconnected", "stream_cut")


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of load on one arm."""

    arm_index: int
    number: int  # among the blocks of this arm
    units: tuple[Unit, ...]


def plan_blocks(units: Sequence[Sequence[Unit]], num_places: int, *, baseline_first: bool) -> list[Block]:
    """Two live servers are never loaded at once: blocks A B B A, each with half of the units.

    A single arm, or too few units to keep a server full in both halves: one block each.

    Args:
        units: of each arm, the baseline first: what is left to run.
        num_places: requests that the load keeps under way, of an open loop those of its first seconds (see
            `plan.num_under_way`): what it takes to fill a server once.
        baseline_first: A B A B instead, where the later arms need the baseline's answers.
    """
    longest = max(map(len, units), default=0)
    num_halves = 2 if len(units) > 1 and longest >= 2 * MIN_ROUNDS_OF_BLOCK * num_places else 1
    blocks = []
    for half in range(num_halves):
        order = range(len(units))
        for arm_index in reversed(order) if half and not baseline_first else order:
            mine = units[arm_index]
            start, end = (len(mine) * bound // num_halves for bound in (half, half + 1))
            if mine[start:end]:
                blocks.append(Block(arm_index, half, tuple(mine[start:end])))
    return blocks


class BaselineTexts:
    """What the baseline answered in every turn: the history that all arms of a workload see."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str, int, int], str | None] = {}

    def add(self, workload_id: str, prompt_id: str, repeat: int, turn: int, text: str | None) -> None:
        self._texts[workload_id, prompt_id, repeat, turn] = text

    def get(self, workload_id: str, prompt_id: str, repeat: int, turn: int) -> str | None:
        return self._texts.get((workload_id, prompt_id, repeat, turn))


class ServedRunner:
    """Runs groups on live servers.

    Args:
        budget: no further request is begun once it is used up.
        cooldown_s: of rest between two stretches of load.
        texts: the baseline's answers so far, added to as they come.
        has_baseline: whether the run has a baseline whose answers are the history, in this stage or an earlier one.
        launch: number of the start of a server that this process started.
    """

    def __init__(
        self,
        backend: ServerBackend,
        recorder: RunRecorder,
        progress: Progress,
        stop: threading.Event,
        budget: TimeBudget,
        *,
        cooldown_s: float,
        warmup_texts: Sequence[str],
        texts: BaselineTexts,
        has_baseline: bool,
        launch: int | None,
    ) -> None:
        self._backend = backend
        self._recorder = recorder
        self._progress = progress
        self._budget = budget
        self._cooldown_s = cooldown_s
        self._warmup_texts = warmup_texts
        self._texts = texts
        self._has_baseline = has_baseline
        self._launch = launch
        self._num_done = 0  # units
        self._asker = Asker(backend, recorder, progress, stop)
        self._num_gone = 0  # requests in a row that found no server

    def units_to_run(self, group: Group, rounds: Iterable[int]) -> list[tuple[int, Unit]]:
        """(arm index, unit) of all in these rounds that no earlier process finished."""
        numbers = list(rounds)
        return [
            (arm_index, unit)
            for arm_index, cell in enumerate(group.cells)
            for unit in self._units_of(group, cell, numbers)
        ]

    async def run_group(self, group: Group, round_number: int, skipped: Collection[str] = ()) -> GroupEnd:
        """Run what is left of a group in a round. Failed requests are recorded; an arm that fails for good leaves the
        others to go on without it.

        Args:
            skipped: ids of cells that are not run.
        """
        units = [
            () if cell.cell_id in skipped else self._units_of(group, cell, [round_number])
            for cell in group.cells
        ]
        self._progress.start_group(group.cells, sum(map(len, units)))
        if group.has_turns and self._has_baseline:
            for output in self._recorder.baseline_outputs(group.workload_id):
                self._texts.add(group.workload_id, output.prompt_id, output.repeat, output.turn, output.text)
        warm: set[int] = set()
        failures: dict[str, Exception] = {}
        is_cut = has_run = False
        num_places = num_under_way(group.workload.concurrency, group.workload.request_rate)
        for block in plan_blocks(units, num_places, baseline_first=group.has_turns):
            cell = group.cells[block.arm_index]
            if cell.cell_id in failures:
                continue
            if self._budget.is_used_up:
                is_cut = True
                break
            try:
                if has_run and self._cooldown_s:
                    await rest(self._cooldown_s)
                has_run = True
                if block.arm_index not in warm:
                    await self._warm_up(group, cell)
                    warm.add(block.arm_index)
                num_before = self._num_done
                await self._run_block(group, cell, block, round_number)
                is_cut = is_cut or self._num_done - num_before < len(block.units)
            except Exception as error:
                failures[cell.cell_id] = error
        is_last = round_number == group.config.repeats - 1
        if group.workload.temperature == 0 and (is_last or is_cut):
            record_differences(group, self._recorder)
        return GroupEnd(is_cut, failures)

    def _units_of(self, group: Group, cell: Cell, rounds: Iterable[int]) -> list[Unit]:
        return units_left(group, cell, self._recorder.records_of([cell]), rounds)

    async def _run_block(self, group: Group, cell: Cell, block: Block, round_number: int) -> None:
        """One window: what the server forgets and counts before, the load, what it counted."""
        workload = cell.workload
        load = Load(workload.concurrency, workload.request_rate, group.config.arrivals, workload.seed)
        number = self._recorder.next_block(cell)
        self._num_gone = 0
        jobs = [self._job(group, cell, number, round_number, unit) for unit in block.units]
        await self._backend.begin_window(cell.arm)
        num_added = self._recorder.num_added
        started_ns = time.perf_counter_ns()
        async with LoopLag() as lag:
            await run_load(load, jobs, self._budget.deadline_ns)
        ended_ns = time.perf_counter_ns()
        window = await self._backend.end_window(cell.arm)
        self._recorder.add_window(
            WindowRecord(
                cell_id=cell.cell_id,
                segment=self._recorder.segment,
                block=number,
                started_ns=started_ns,
                ended_ns=ended_ns,
                num_own_requests=self._recorder.num_added - num_added,
                loop_lag_p99_ns=lag.percentile_ns(99),
                loop_lag_max_ns=lag.max_ns,
                **asdict(window),
            )
        )

    def _job(self, group: Group, cell: Cell, block: int, round_number: int, unit: Unit) -> Job:
        async def converse(due_ns: int | None) -> None:
            index, repeat = unit
            prompt = group.prompts[index]
            history: tuple[Message, ...] | None = context_of(prompt)
            for turn, text in enumerate(prompt.turns):
                place = Place(
                    prompt,
                    turn,
                    repeat,
                    block=block,
                    due_ns=due_ns if turn == 0 else None,
                    round=round_number,
                    launch=self._launch,
                )
                if history is None:
                    self._asker.record_unasked(cell, place)
                    continue
                messages = (*history, Message("user", text))
                answer = await self._asker.ask(cell, place, messages)
                self._note_gone(cell, answer)
                history = history_after(messages, self._text_for_history(cell, place, answer))
            self._num_done += 1
            self._progress.end_unit()

        return converse

    def _text_for_history(self, cell: Cell, place: Place, answer: Answer | None) -> str | None:
        key = (cell.workload_id, place.prompt.prompt_id, place.repeat, place.turn)
        own = None if answer is None else answer.generation.text
        if cell.arm.is_baseline and len(place.prompt.turns) > 1:
            self._texts.add(*key, own)
        return self._texts.get(*key) if self._has_baseline and not cell.arm.is_baseline else own

    def _note_gone(self, cell: Cell, answer: Answer | None) -> None:
        """Nobody is helped by a thousand requests to a server that is not there."""
        last = self._recorder.last_error_kind if answer is None else None
        self._num_gone = self._num_gone + 1 if last in GONE_KINDS else 0
        workload = cell.workload
        if self._num_gone >= max(8, 2 * num_under_way(workload.concurrency, workload.request_rate)):
            raise UnavailableError(
                f"the server of {cell.arm.label} is gone: {self._num_gone} requests in a row found none ({last})",
                "start it again and resume the run",
            )

    async def _warm_up(self, group: Group, cell: Cell) -> None:
        """At the measured load, on prompts of their own, as long as the measured ones.

        An open loop that is slower than one request a second is warmed up at one: its requests do not meet.
        """
        workload = group.workload
        rate = workload.request_rate
        load = Load(
            workload.concurrency,
            None if rate is None else max(rate, 1.0),
            group.config.arrivals,
            workload.seed,
        )
        count = num_warmup_of(group.config, workload.concurrency)
        num_chars = round(statistics.median(prompt.num_chars for prompt in group.prompts))

        def job(number: int) -> Job:
            async def warm(due_ns: int | None) -> None:
                text = text_of_length(self._warmup_texts[number % len(self._warmup_texts)], num_chars)
                request = warmup_request(cell, number, text)
                try:
                    await self._backend.generate(request)
                except RequestError as error:
                    self._progress.say(f"warm-up failed: {request.request_id}: {error}")

            return warm

        await run_load(load, [job(number) for number in range(count)])


def units_left(
    group: Group, cell: Cell, records: Iterable[RequestRecord], rounds: Iterable[int]
) -> list[Unit]:
    """(prompt index, repeat) of a cell in these rounds, without those that `records` hold complete."""
    finished = finished_units_of_cell(group, cell, records)
    return [
        (index, repeat)
        for number in rounds
        for index, repeat in group.units_of_round(number)
        if (group.prompts[index].prompt_id, repeat) not in finished
    ]


def text_of_length(text: str, num_chars: int) -> str:
    """`text` cut to `num_chars` characters, or repeated up to them."""
    copies = -(-num_chars // (len(text) + 1))
    return "\n".join([text] * max(1, copies))[: max(1, num_chars)]
