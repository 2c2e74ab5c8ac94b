"""In-process arms, prompt by prompt and back to back in alternating order, so that drift cancels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence

from dflash.asking import Answer, Asker, Place, context_of, first_difference, history_after
from dflash.backends.base import Backend, Message
from dflash.errors import RequestError
from dflash.group_end import GroupEnd
from dflash.line_recorder import LineRecorder
from dflash.plan import Group
from dflash.progress import Progress
from dflash.results.records import Cell
from dflash.resume import finished_units
from dflash.time_budget import TimeBudget


def arm_order(num_arms: int, number: int) -> tuple[int, ...]:
    """Order of the arms at the `number`-th prompt: even ones as planned, odd ones reversed.

    With more than two arms the order is also rotated every other time: every arm comes first as often.
    """
    shift = number // 2 % num_arms if num_arms > 2 else 0
    order = [(index + shift) % num_arms for index in range(num_arms)]
    return tuple(order if number % 2 == 0 else reversed(order))


class InterleavedRunner:
    """Runs groups on a backend whose arms are all live at once, one request at a time.

    Args:
        budget: no further prompt is begun once it is used up.
        share: of the prompts of a group, which are this process's; see `ranks.Ranks`.
    """

    def __init__(
        self,
        backend: Backend,
        recorder: LineRecorder,
        progress: Progress,
        stop: threading.Event,
        budget: TimeBudget,
        share: Callable[[int], bool] = lambda index: True,
    ) -> None:
        self._backend = backend
        self._recorder = recorder
        self._progress = progress
        self._budget = budget
        self._share = share
        self._asker = Asker(backend, recorder, progress, stop)

    def units_to_run(self, group: Group, rounds: Iterable[int]) -> list[tuple[int, int]]:
        """(prompt index, repeat) of every unit of these rounds that no earlier process finished, in order."""
        finished = finished_units(group, self._recorder.records_of(group.cells))
        return [
            (index, repeat)
            for number in rounds
            for index, repeat in group.units_of_round(number)
            if self._share(index) and (group.prompts[index].prompt_id, repeat) not in finished
        ]

    async def run_group(self, group: Group, round_number: int, skipped: Collection[str] = ()) -> GroupEnd:
        """Run what is left of a group in a round. Failed requests are recorded; whatever else an arm raises ends the
        group: a prompt is run in all its arms or not at all.

        Args:
            skipped: ids of cells that are not run; with one of them, none of the group is.
        """
        if any(cell.cell_id in skipped for cell in group.cells):
            return GroupEnd()
        units = self.units_to_run(group, [round_number])
        self._progress.start_group(group.cells, len(units))
        for index, repeat in units:
            if self._budget.is_used_up:
                return GroupEnd(is_cut=True)
            try:
                await self._run_unit(group, index, repeat, round_number)
            except Exception as error:
                return GroupEnd(failures={cell.cell_id: error for cell in group.cells})
            self._progress.end_unit()
        return GroupEnd()

    async def _run_unit(self, group: Group, index: int, repeat: int, round_number: int) -> None:
        """One prompt with all its turns and arms; outputs are compared when the last clock has stopped."""
        prompt = group.prompts[index]
        histories: list[tuple[Message, ...] | None] = [context_of(prompt)] * len(group.cells)
        turns: list[list[Answer | None]] = []
        for turn, text in enumerate(prompt.turns):
            answers: list[Answer | None] = [None] * len(group.cells)
            order = arm_order(len(group.cells), index + turn + repeat)
            for number, arm_index in enumerate(order):
                place = Place(prompt, turn, repeat, number, round=round_number)
                history = histories[arm_index]
                if history is None:
                    self._asker.record_unasked(group.cells[arm_index], place)
                    continue
                messages = (*history, Message("user", text))
                answers[arm_index] = await self._asker.ask(group.cells[arm_index], place, messages)
            turns.append(answers)
            if turn + 1 == len(prompt.turns):
                break
            # all arms see the same prompts: the baseline's answers; without a baseline each follows its own
            sources = [answers[0]] * len(answers) if group.has_baseline else answers
            histories = [_history_after(source) for source in sources]
        if group.has_baseline and group.workload.temperature == 0:
            for turn, answers in enumerate(turns):
                await self._compare(group, Place(prompt, turn, repeat), answers)

    async def _compare(self, group: Group, place: Place, answers: Sequence[Answer | None]) -> None:
        baseline = answers[0]
        if baseline is None:
            return
        for cell, answer in zip(group.cells[1:], answers[1:], strict=True):
            if answer is None:
                continue
            position = first_difference(baseline.generation.output_ids, answer.generation.output_ids)
            if position is not None:
                await self._record_difference(cell, place, baseline, answer, position)

    async def _record_difference(
        self, cell: Cell, place: Place, baseline: Answer, answer: Answer, position: int
    ) -> None:
        expected, given = baseline.generation.output_ids or (), answer.generation.output_ids or ()
        gap = None
        if self._backend.capabilities.has_logit_gap:
            try:
                gap = await self._backend.logit_gap(baseline.request, expected[:position])
            except RequestError as error:  # the measurements stand: only this explanation is missing
                self._progress.say(f"no logit gap for {baseline.request.request_id}: {error}")
        self._asker.record_difference(cell, place, expected, given, gap)


def _history_after(answer: Answer | None) -> tuple[Message, ...] | None:
    return None if answer is None else history_after(answer.request.messages, answer.generation.text)
