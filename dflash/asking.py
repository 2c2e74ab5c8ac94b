"""One request: asked of the engine, and kept as records whatever comes of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter

from dflash.backends.base import Backend, Generation, GenerationRequest, Message, Sampling
from dflash.command_line import one_line
from dflash.digests import digest_of_ids, digest_of_text
from dflash.errors import RequestError
from dflash.line_recorder import LineRecorder
from dflash.progress import Progress
from dflash.prompts import Prompt
from dflash.reasoning import strip_reasoning
from dflash.results.records import Cell, ChunkRecord, DifferenceRecord, OutputRecord, RequestRecord

WARMUP_MAX_NEW_TOKENS = 32
_COPIED = sorted({item.name for item in fields(RequestRecord)} & {item.name for item in fields(Generation)})
_copied_values = attrgetter(*_COPIED)
_encode_json = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked and what came."""

    request: GenerationRequest
    generation: Generation


@dataclass(frozen=True, slots=True)
class Place:
    """Which request this is, among those of its cell and among those around it."""

    prompt: Prompt
    turn: int
    repeat: int
    order: int = 0
    block: int = 0
    due_ns: int | None = None  # when the load wanted it sent
    round: int = 0  # of `--repeats`
    launch: int | None = None  # of a server that this process started


class Asker:
    """Asks one engine, and writes down every request: an answer, a failure, a cancellation.

    Args:
        stop: when set, no further request is begun.
    """

    def __init__(
        self, backend: Backend, recorder: LineRecorder, progress: Progress, stop: threading.Event
    ) -> None:
        self._backend = backend
        self._recorder = recorder
        self._progress = progress
        self._stop = stop

    async def ask(self, cell: Cell, place: Place, messages: tuple[Message, ...]) -> Answer | None:
        """The answer; None where the request failed, which is recorded.

        Raises:
            KeyboardInterrupt, asyncio.CancelledError: recorded as cancelled.
            Exception: whatever is no fault of this one request; recorded too.
        """
        if self._stop.is_set():
            raise KeyboardInterrupt
        request = make_request(cell, place, messages)
        sent_ns = time.perf_counter_ns()
        try:
            generation = await self._backend.generate(request)
        except RequestError as error:
            self.record_failure(cell, place, error.kind, str(error), sent_ns)
            return None
        except (KeyboardInterrupt, asyncio.CancelledError):
            stamps = _stamps_of_failure(cell, sent_ns)
            self._add(self._record(cell, place, finish_reason="cancelled", **stamps))
            raise
        except Exception as error:
            self.record_failure(cell, place, "internal", f"{type(error).__name__}: {error}", sent_ns)
            raise
        self._record_answer(cell, place, generation)
        return Answer(request, generation)

    def record_failure(
        self, cell: Cell, place: Place, kind: str, message: str, sent_ns: int | None = None
    ) -> None:
        stamps = _stamps_of_failure(cell, sent_ns)
        record = self._record(cell, place, error_kind=kind, error_message=message[:300], **stamps)
        self._add(record)
        self._progress.say(one_line(f"failed: {request_id_of(cell, place)}: {kind}: {message}"))

    def record_unasked(self, cell: Cell, place: Place) -> None:
        """A turn whose history is not there."""
        self.record_failure(
            cell,
            place,
            "no_history",
            "not asked: the turn before, whose answer belongs to the prompt, failed",
        )

    def record_difference(
        self,
        cell: Cell,
        place: Place,
        expected: Sequence[int],
        given: Sequence[int],
        logit_gap: float | None = None,
    ) -> None:
        """Where `given` leaves the baseline's `expected` output; they are not equal."""
        position = first_difference(expected, given)
        assert position is not None
        self._recorder.add_difference(
            DifferenceRecord(
                cell_id=cell.cell_id,
                prompt_id=place.prompt.prompt_id,
                turn=place.turn,
                repeat=place.repeat,
                segment=self._recorder.segment,
                position=position,
                baseline_token_id=expected[position] if position < len(expected) else None,
                arm_token_id=given[position] if position < len(given) else None,
                logit_gap=logit_gap,
            )
        )

    def _record_answer(self, cell: Cell, place: Place, generation: Generation) -> None:
        ids, text = generation.output_ids, generation.text
        copied = dict(zip(_COPIED, _copied_values(generation), strict=True))
        output_digest = (
            digest_of_ids(ids) if ids is not None else None if text is None else digest_of_text(text)
        )
        record = self._record(
            cell,
            place,
            **copied,
            prompt_digest=digest_of_ids(generation.prompt_ids),
            output_digest=output_digest,
        )
        unit = (cell.cell_id, place.prompt.prompt_id, place.turn, place.repeat, self._recorder.segment)
        chunk = ChunkRecord(
            *unit, generation.chunk_gaps_ns, generation.chunk_num_tokens, generation.step_num_accepted
        )
        self._add(record, OutputRecord(*unit, ids, text), chunk)

    def _add(
        self, record: RequestRecord, output: OutputRecord | None = None, chunk: ChunkRecord | None = None
    ) -> None:
        self._progress.add(self._recorder.add(record, output, chunk))

    def _record(self, cell: Cell, place: Place, **values: object) -> RequestRecord:
        return RequestRecord(
            cell_id=cell.cell_id,
            prompt_id=place.prompt.prompt_id,
            category=place.prompt.category,
            turn=place.turn,
            repeat=place.repeat,
            segment=self._recorder.segment,
            order=place.order,
            block=place.block,
            due_ns=place.due_ns,
            round=place.round,
            launch=place.launch,
            **values,  # type: ignore[arg-type]
        )


def _stamps_of_failure(cell: Cell, sent_ns: int | None) -> dict[str, int]:
    """A server was busy with a request that failed. In process nothing else runs, and engines have their own clock."""
    if sent_ns is None or not cell.on_server:
        return {}
    return {"sent_ns": sent_ns, "last_ns": time.perf_counter_ns()}


def make_request(cell: Cell, place: Place, messages: tuple[Message, ...]) -> GenerationRequest:
    """What the engine is asked. The seed is the same in every arm."""
    workload = cell.workload
    return GenerationRequest(
        request_id=request_id_of(cell, place),
        arm=cell.arm,
        messages=messages,
        max_new_tokens=workload.max_new_tokens,
        sampling=Sampling(workload.temperature, workload.top_p, workload.top_k),
        seed=request_seed(workload.seed, place.prompt.prompt_id, place.turn, place.repeat),
        reasoning=workload.reasoning,
    )


def warmup_request(cell: Cell, number: int, text: str) -> GenerationRequest:
    """An unmeasured request in the manner of a cell's own; no prompt of a data set is used for it."""
    workload = cell.workload
    return GenerationRequest(
        request_id=f"warmup/{number}:{cell.arm.label}",
        arm=cell.arm,
        messages=(Message("user", text),),
        max_new_tokens=min(workload.max_new_tokens, WARMUP_MAX_NEW_TOKENS),
        sampling=Sampling(workload.temperature, workload.top_p, workload.top_k),
        seed=request_seed(workload.seed, f"warmup/{number}", 0, 0),
        reasoning=workload.reasoning,
    )


def request_id_of(cell: Cell, place: Place) -> str:
    return f"{place.prompt.prompt_id}:{place.turn}:{place.repeat}:{cell.arm.label}"


@lru_cache(maxsize=64)  # the same in every arm
def request_seed(seed: int, prompt_id: str, turn: int, repeat: int) -> int:
    """A seed from 0 to 2^63 - 1 that depends on nothing else: no arm, no order, nothing that ran before."""
    text = _encode_json([seed, prompt_id, turn, repeat])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def first_difference(expected: Sequence[int] | None, given: Sequence[int] | None) -> int | None:
    """Index of the first output token that differs; None where they are equal, or one is not known."""
    if expected is None or given is None or tuple(expected) == tuple(given):
        return None
    for index, (one, other) in enumerate(zip(expected, given, strict=False)):
        if one != other:
            return index
    return min(len(expected), len(given))


def context_of(prompt: Prompt) -> tuple[Message, ...]:
    """The messages that precede the first turn."""
    return tuple(Message(role, content) for role, content in prompt.context)


def history_after(messages: tuple[Message, ...], text: str | None) -> tuple[Message, ...] | None:
    """The conversation up to and including an answer; None where there is none to go on from.

    Reasoning is no part of it, whatever the engine leaves in its text: the next turn's prompt is then the same for
    every engine.
    """
    if text is None:
        return None
    return (*messages, Message("assistant", strip_reasoning(text)))
