"""In-process arms, prompt by prompt and back to back in alternating order, so that drift cancels."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields

from dflash.backends.base import Backend, Generation, GenerationRequest, Message, Sampling
from dflash.command_line import one_line
from dflash.errors import RequestError
from dflash.plan import Group
from dflash.progress import Progress
from dflash.prompts import Prompt
from dflash.reasoning import strip_reasoning
from dflash.recorder import RunRecorder, digest_of_ids, digest_of_text
from dflash.results.records import Cell, ChunkRecord, DifferenceRecord, OutputRecord, RequestRecord
from dflash.resume import finished_units

_COPIED = {item.name for item in fields(RequestRecord)} & {item.name for item in fields(Generation)}


@dataclass(frozen=True, slots=True)
class _Answer:
    request: GenerationRequest
    generation: Generation


@dataclass(frozen=True, slots=True)
class _Place:
    """Which request this is, among those of its cell and among those around it."""

    prompt: Prompt
    turn: int
    repeat: int
    order: int


def arm_order(num_arms: int, number: int) -> tuple[int, ...]:
    """Order of the arms at the `number`-th prompt: even ones as planned, odd ones reversed.

    With more than two arms the order is also rotated every other time: every arm comes first as often.
    """
    shift = number // 2 % num_arms if num_arms > 2 else 0
    order = [(index + shift) % num_arms for index in range(num_arms)]
    return tuple(order if number % 2 == 0 else reversed(order))


def request_seed(seed: int, prompt_id: str, turn: int, repeat: int) -> int:
    """A seed from 0 to 2^63 - 1 that depends on nothing else: no arm, no order, nothing that ran before."""
    text = json.dumps([seed, prompt_id, turn, repeat], ensure_ascii=False)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class InterleavedRunner:
    """Runs groups on a backend whose arms are all live at once, one request at a time."""

    def __init__(
        self, backend: Backend, recorder: RunRecorder, progress: Progress, repeats: int, stop: threading.Event
    ) -> None:
        self._backend = backend
        self._recorder = recorder
        self._progress = progress
        self._repeats = repeats
        self._stop = stop

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
        context = tuple(Message(role, content) for role, content in prompt.context)
        histories: list[tuple[Message, ...] | None] = [context] * len(group.cells)
        turns: list[list[_Answer | None]] = []
        for turn, text in enumerate(prompt.turns):
            answers: list[_Answer | None] = [None] * len(group.cells)
            order = arm_order(len(group.cells), index + turn + repeat)
            for place, arm_index in enumerate(order):
                where = _Place(prompt, turn, repeat, place)
                history = histories[arm_index]
                if history is None:
                    self._record_unasked(group.cells[arm_index], where)
                    continue
                messages = (*history, Message("user", text))
                answers[arm_index] = await self._request(group.cells[arm_index], where, messages)
            turns.append(answers)
            # all arms see the same prompts: the baseline's answers; without a baseline each follows its own
            sources = [answers[0]] * len(answers) if group.has_baseline else answers
            histories = [_history_after(source) for source in sources]
        if group.has_baseline and group.workload.temperature == 0:
            for turn, answers in enumerate(turns):
                await self._compare(group, _Place(prompt, turn, repeat, 0), answers)

    async def _request(self, cell: Cell, where: _Place, messages: tuple[Message, ...]) -> _Answer | None:
        if self._stop.is_set():
            raise KeyboardInterrupt
        request = _make_request(cell, where, messages)
        try:
            generation = await self._backend.generate(request)
        except RequestError as error:
            self._record_failure(cell, where, error.kind, str(error))
            return None
        except (KeyboardInterrupt, asyncio.CancelledError):
            self._add(_record(cell, where, self._recorder.segment, finish_reason="cancelled"))
            raise
        except Exception as error:
            self._record_failure(cell, where, "internal", f"{type(error).__name__}: {error}")
            raise
        self._record_answer(cell, where, generation)
        return _Answer(request, generation)

    def _record_answer(self, cell: Cell, where: _Place, generation: Generation) -> None:
        segment = self._recorder.segment
        ids, text = generation.output_ids, generation.text
        copied = {name: getattr(generation, name) for name in _COPIED}
        output_digest = (
            digest_of_ids(ids) if ids is not None else None if text is None else digest_of_text(text)
        )
        record = _record(
            cell,
            where,
            segment,
            **copied,
            prompt_digest=digest_of_ids(generation.prompt_ids),
            output_digest=output_digest,
        )
        unit = (cell.cell_id, where.prompt.prompt_id, where.turn, where.repeat, segment)
        chunk = ChunkRecord(
            *unit, generation.chunk_gaps_ns, generation.chunk_num_tokens, generation.step_num_accepted
        )
        self._add(record, OutputRecord(*unit, ids, text), chunk)

    def _record_unasked(self, cell: Cell, where: _Place) -> None:
        self._record_failure(
            cell,
            where,
            "no_history",
            "not asked: the turn before, whose answer belongs to the prompt, failed",
        )

    def _record_failure(self, cell: Cell, where: _Place, kind: str, message: str) -> None:
        record = _record(cell, where, self._recorder.segment, error_kind=kind, error_message=message[:300])
        self._add(record)
        self._progress.say(one_line(f"failed: {_request_id(cell, where)}: {kind}: {message}"))

    def _add(
        self, record: RequestRecord, output: OutputRecord | None = None, chunk: ChunkRecord | None = None
    ) -> None:
        self._progress.add(record)
        self._recorder.add(record, output, chunk)

    async def _compare(self, group: Group, where: _Place, answers: Sequence[_Answer | None]) -> None:
        baseline = answers[0]
        if baseline is None:
            return
        for cell, answer in zip(group.cells[1:], answers[1:], strict=True):
            if answer is None:
                continue
            position = first_difference(baseline.generation.output_ids, answer.generation.output_ids)
            if position is not None:
                await self._record_difference(cell, where, baseline, answer, position)

    async def _record_difference(
        self, cell: Cell, where: _Place, baseline: _Answer, answer: _Answer, position: int
    ) -> None:
        expected, given = baseline.generation.output_ids or (), answer.generation.output_ids or ()
        gap = None
        if self._backend.capabilities.has_logit_gap:
            try:
                gap = await self._backend.logit_gap(baseline.request, expected[:position])
            except RequestError as error:  # the measurements stand: only this explanation is missing
                self._progress.say(f"no logit gap for {baseline.request.request_id}: {error}")
        self._recorder.add_difference(
            DifferenceRecord(
                cell_id=cell.cell_id,
                prompt_id=where.prompt.prompt_id,
                turn=where.turn,
                repeat=where.repeat,
                segment=self._recorder.segment,
                position=position,
                baseline_token_id=expected[position] if position < len(expected) else None,
                arm_token_id=given[position] if position < len(given) else None,
                logit_gap=gap,
            )
        )


def first_difference(expected: Sequence[int] | None, given: Sequence[int] | None) -> int | None:
    """Index of the first output token that differs; None where they are equal, or one is not known."""
    if expected is None or given is None or tuple(expected) == tuple(given):
        return None
    for index, (one, other) in enumerate(zip(expected, given, strict=False)):
        if one != other:
            return index
    return min(len(expected), len(given))


def _make_request(cell: Cell, where: _Place, messages: tuple[Message, ...]) -> GenerationRequest:
    workload = cell.workload
    return GenerationRequest(
        request_id=_request_id(cell, where),
        arm=cell.arm,
        messages=messages,
        max_new_tokens=workload.max_new_tokens,
        sampling=Sampling(workload.temperature, workload.top_p, workload.top_k),
        seed=request_seed(workload.seed, where.prompt.prompt_id, where.turn, where.repeat),
        reasoning=workload.reasoning,
    )


def _request_id(cell: Cell, where: _Place) -> str:
    return f"{where.prompt.prompt_id}:{where.turn}:{where.repeat}:{cell.arm.label}"


def _record(cell: Cell, where: _Place, segment: int, **values: object) -> RequestRecord:
    return RequestRecord(
        cell_id=cell.cell_id,
        prompt_id=where.prompt.prompt_id,
        category=where.prompt.category,
        turn=where.turn,
        repeat=where.repeat,
        segment=segment,
        order=where.order,
        **values,  # type: ignore[arg-type]
    )


def _history_after(answer: _Answer | None) -> tuple[Message, ...] | None:
    """The conversation up to and including the answer; None where there is none to go on from.

    Reasoning is no part of it, whatever the engine leaves in its text: the next turn's prompt is then the same for
    every engine.
    """
    if answer is None or answer.generation.text is None:
        return None
    return (*answer.request.messages, Message("assistant", strip_reasoning(answer.generation.text)))
