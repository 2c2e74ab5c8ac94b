"""In-process arms, prompt by prompt and back to back in alternating order, so that drift cancels."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from dflash.asking import Answer, Asker, Place, context_of, first_difference, history_after
from dflash.backends.base import Backend, Message
from dflash.errors import RequestError
from dflash.plan import Group
from dflash.progress import Progress
from dflash.recorder import RunRecorder
from dflash.results.records import Cell
from dflash.resume import finished_units


def arm_order(num_arms: int, number: int) -> tuple[int, ...]:
    """Order of the arms at the `number`-th prompt: even ones as planned, odd ones reversed.

    With more than two arms the order is also rotated every other time: every arm comes first as often.
    """
    shift = number // 2 % num_arms if num_arms > 2 else 0
    order = [(index + shift) % num_arms for index in range(num_arms)]
    return tuple(order if number % 2 == 0 else reversed(order))


class InterleavedRunner:
    """Runs groups on a backend whose arms are all live at once, one request at a time."""

    def __init__(
        self, backend: Backend, recorder: RunRecorder, progress: Progress, repeats: int, stop: threading.Event
    ) -> None:
        self._backend = backend
        self._recorder = recorder
        self._progress = progress
        self._repeats = repeats
        self._asker = Asker(backend, recorder, progress, stop)

    def units_to_run(self, group: Group) -> list[tuple[int, int]]:
        """(prompt index, repeat) of every unit that no earlier process finished, in order."""
        finished = finished_units(group, self._recorder.records)
        return [
            (index, repeat)
            for index, repeat in group.units(self._repeats)
            if (group.prompts[index].prompt_id, repeat) not in finished
        ]

    async def run_group(self, group: Group) -> None:
        """Run what is left of a group. Failed requests are recorded; whatever else is raised ends the run."""
        units = self.units_to_run(group)
        self._progress.start_group(group.cells, len(units))
        for index, repeat in units:
            await self._run_unit(group, index, repeat)
            self._progress.end_unit()

    async def _run_unit(self, group: Group, index: int, repeat: int) -> None:
        """One prompt with all its turns and arms; outputs are compared when the last clock has stopped."""
        prompt = group.prompts[index]
        histories: list[tuple[Message, ...] | None] = [context_of(prompt)] * len(group.cells)
        turns: list[list[Answer | None]] = []
        for turn, text in enumerate(prompt.turns):
            answers: list[Answer | None] = [None] * len(group.cells)
            order = arm_order(len(group.cells), index + turn + repeat)
            for number, arm_index in enumerate(order):
                place = Place(prompt, turn, repeat, number)
                history = histories[arm_index]
                if history is None:
                    self._asker.record_unasked(group.cells[arm_index], place)
                    continue
                messages = (*history, Message("user", text))
                answers[arm_index] = await self._asker.ask(group.cells[arm_index], place, messages)
            turns.append(answers)
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
