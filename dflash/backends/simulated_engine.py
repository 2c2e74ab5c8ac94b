"""The engine behind the simulated servers: queue, batch, prefix cache, counters and log, on the event loop's clock.

One timer per chunk and no task per token: a chunk is counted, stamped and handed over in the timer's own call.
Due times are absolute, so that late timers do not add up.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from dflash.backends.scenario import Fault, Scenario
from dflash.backends.simulated_counters import Counters, PrefixCache, RequestLog
from dflash.backends.simulated_model import (
    STOP_ID,
    UNICODE_WORDS,
    WORDS,
    Script,
    differing,
    make_script,
)
from dflash.errors import UsageError

_NS_PER_S = 1_000_000_000
_KEPT_ANSWERS = 4096


@dataclass(frozen=True, slots=True)
class Answer:
    """A script cut into chunks: the prefill's token, then what each step delivers."""

    script: Script
    chunk_ids: tuple[tuple[int, ...], ...]
    chunk_texts: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(self.chunk_texts)


class Rank:
    """One DP rank: its batch, queue, cache and counters."""

    def __init__(self, cache: PrefixCache) -> None:
        self.counters = Counters()
        self.since_flush = Counters()  # only its steps are counted
        self.running: set[Job] = set()
        self.waiting: deque[Job] = deque()
        self.cache = cache


class Job:
    """One request in the engine."""

    __slots__ = (
        "answer",
        "done",
        "due_s",
        "emit",
        "fault",
        "gate",
        "is_over",
        "log",
        "next_chunk",
        "prompt",
        "rank",
        "timer",
    )

    def __init__(
        self, answer: Answer, prompt: tuple[int, ...], rank: Rank, log: RequestLog, fault: Fault | None
    ) -> None:
        self.answer, self.prompt, self.rank, self.log, self.fault = answer, prompt, rank, log, fault
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.emit: Callable[[int], None] = lambda index: None  # takes a chunk at its time
        self.gate: Callable[[], bool] | None = None  # asked before every chunk; False: not now
        self.due_s = 0.0
        self.next_chunk = 0
        self.is_over = False
        self.timer: asyncio.TimerHandle | asyncio.Handle | None = None

    def fails_with(self, action: str) -> bool:
        return self.fault is not None and self.fault.action == action


class SimulatedEngine:
    """See the module. Made and used inside a running event loop.

    Args:
        block_size: B; None: the scenario's. A baseline has none.
        cache_block_tokens: what the prefix cache counts in (vLLM: blocks of 16; SGLang: single tokens).
        time_scale: of every scripted time; 0: as fast as possible.
        verifies_every_step: also where an n-gram look-up finds nothing (SGLang).

    Raises:
        UsageError: a block size that the scenario's draft cannot have, or of a baseline.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        arm: str,
        block_size: int | None,
        cache_block_tokens: int,
        time_scale: float,
        verifies_every_step: bool = False,
    ) -> None:
        self._verifies_every_step = verifies_every_step
        self.scenario, self.settings, self.arm, self.time_scale = scenario, scenario.server, arm, time_scale
        self.block_size = _block_size(scenario, arm, block_size)
        self._loop = asyncio.get_running_loop()
        self._answers: OrderedDict[tuple[object, ...], Answer] = OrderedDict()
        self.ranks = [
            Rank(PrefixCache(cache_block_tokens, self.settings.cache_tokens))
            for _ in range(self.settings.dp_ranks)
        ]
        self._next_rank = 0
        self.log: deque[RequestLog] = deque(maxlen=int(self.settings.log_requests))

    @property
    def is_idle(self) -> bool:
        return not any(rank.running or rank.waiting for rank in self.ranks)

    def answer(self, key: tuple[object, ...], max_new_tokens: int, ignore_stop: bool) -> Answer:
        """What a conversation gets, made once."""
        call = (*key, max_new_tokens, ignore_stop)
        answer = self._answers.get(call)
        if answer is None:
            script = make_script(
                self.scenario,
                key,
                arm=self.arm,
                block_size=self.block_size,
                max_new_tokens=max_new_tokens,
                ignore_stop=ignore_stop,
                draft_share=self.settings.ngram_draft_share if self.arm == "ngram" else 1.0,
                verifies_every_step=self._verifies_every_step,
            )
            answer = self._answers[call] = cut_into_chunks(script, self.settings.unicode_text)
            if len(self._answers) > _KEPT_ANSWERS:
                self._answers.popitem(last=False)
        return answer

    def make_job(self, answer: Answer, prompt: tuple[int, ...], log: RequestLog, fault: Fault | None) -> Job:
        """A job on the next rank, not yet in its queue."""
        number, self._next_rank = self._next_rank, (self._next_rank + 1) % len(self.ranks)
        log.dp_rank = number if len(self.ranks) > 1 else None
        log.num_prompt_tokens = len(prompt)
        if fault is not None and fault.action == "differ":
            changed = replace(answer.script, output_ids=differing(answer.script.output_ids, fault.position))
            answer = cut_into_chunks(changed, self.settings.unicode_text)
        return Job(answer, prompt, self.ranks[number], log, fault)

    def submit(self, job: Job) -> None:
        job.rank.counters.num_arrived += 1
        if len(job.rank.running) < self.settings.max_running_requests:
            self._start(job)
        else:
            job.rank.waiting.append(job)

    def end(self, job: Job, outcome: str) -> None:
        """Take a job out before its time; nothing happens to one that is over."""
        if job.is_over:
            return
        if job in job.rank.waiting:
            job.rank.waiting.remove(job)
        self._leave(job, outcome, "abort")

    def resume(self, job: Job) -> None:
        """Go on with a job whose gate had held it back: its next chunk is due now."""
        if not job.is_over:
            job.due_s = self._loop.time()
            self._tick(job)

    def end_all(self, outcome: str) -> None:
        for rank in self.ranks:
            for job in (*rank.waiting, *rank.running):
                self.end(job, outcome)

    def reset_counters(self) -> None:
        for rank in self.ranks:
            rank.counters, rank.since_flush = Counters(), Counters()

    def flush_cache(self) -> bool:
        """Forget all prompts; False, and nothing done, while a request runs or waits."""
        if not self.is_idle:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        for rank in self.ranks:
            rank.cache.clear()
            rank.since_flush = Counters()

    def foreign_traffic(self, num_tokens: int) -> None:
        """Count one request of somebody else's on the first rank, its drafts all accepted."""
        counters, width = self.ranks[0].counters, (self.block_size or 1) - 1
        steps = -(-(num_tokens - 1) // (width + 1))
        counters.num_arrived += 1
        counters.num_prompt_tokens += num_tokens
        counters.num_output_tokens += num_tokens
        counters.num_decode_steps += steps
        if width:
            counters.steps_by_accepted[width] = counters.steps_by_accepted.get(width, 0) + steps
            counters.num_draft_tokens += width * steps
        counters.finished["stop"] = counters.finished.get("stop", 0) + 1
        counters.add_totals(True, (1, num_tokens, num_tokens, steps if width else 0, 0))

    def _start(self, job: Job) -> None:
        job.rank.running.add(job)
        log, counters = job.log, job.rank.counters
        log.outcome = "running"
        log.started_ns = time.perf_counter_ns()
        if self.settings.prefix_cache:
            log.num_cached_tokens = job.rank.cache.take(job.prompt)
        counters.num_prompt_tokens += log.num_prompt_tokens
        counters.num_cached_tokens += log.num_cached_tokens
        job.due_s = self._loop.time()
        computed = 1 - log.num_cached_tokens / max(log.num_prompt_tokens, 1)
        self._schedule(job, job.answer.script.prefill_ns * computed)

    def _schedule(self, job: Job, duration_ns: float) -> None:
        if self.time_scale == 0:
            job.timer = self._loop.call_soon(self._tick, job)
            return
        load = 1 + self.settings.slowdown_per_request * (len(job.rank.running) - 1)
        job.due_s += duration_ns * self.time_scale * load / _NS_PER_S
        job.timer = self._loop.call_at(job.due_s, self._tick, job)

    def _tick(self, job: Job) -> None:
        """A chunk is due."""
        if job.is_over or (job.gate is not None and not job.gate()):
            return
        index = job.next_chunk
        job.next_chunk = index + 1
        self._count(job, index)
        steps = job.answer.script.steps
        if index < len(steps):
            job.log.chunk_sent_ns.append(time.perf_counter_ns())
            job.emit(index)
            step = steps[index]
            self._schedule(job, step.draft_ns + step.target_ns)
            return
        job.log.finish_reason = job.answer.script.finish_reason
        job.log.chunk_sent_ns.append(time.perf_counter_ns())
        job.emit(index)
        self._leave(job, "done", job.answer.script.finish_reason)

    def _count(self, job: Job, index: int) -> None:
        log, counters = job.log, job.rank.counters
        num_tokens = len(job.answer.chunk_ids[index])
        log.chunk_num_tokens.append(num_tokens)
        log.num_output_tokens += num_tokens
        counters.num_output_tokens += num_tokens
        if index == 0:
            return
        log.num_decode_steps += 1
        counters.num_decode_steps += 1
        accepted = job.answer.script.steps[index - 1].num_accepted
        if accepted is not None:
            width = job.answer.script.num_step_draft_tokens
            log.step_num_accepted.append(accepted)
            log.num_draft_tokens += width
            counters.num_draft_tokens += width
            counters.steps_by_accepted[accepted] = counters.steps_by_accepted.get(accepted, 0) + 1
            recent = job.rank.since_flush.steps_by_accepted
            recent[accepted] = recent.get(accepted, 0) + 1

    def _leave(self, job: Job, outcome: str, reason: str) -> None:
        job.is_over = True
        if job.timer is not None:
            job.timer.cancel()
        log, counters = job.log, job.rank.counters
        log.outcome, log.ended_ns = outcome, time.perf_counter_ns()
        job.rank.running.discard(job)
        if log.started_ns is not None:
            counters.finished[reason] = counters.finished.get(reason, 0) + 1
        if reason != "abort":
            counters.count_finished(log)
        if not job.done.done():
            job.done.set_result(None)
        if job.rank.waiting and len(job.rank.running) < self.settings.max_running_requests:
            self._start(job.rank.waiting.popleft())


def cut_into_chunks(script: Script, unicode_text: bool) -> Answer:
    """Texts that, put together, are the words of the ids with a space between; the stop token has none."""
    words = UNICODE_WORDS if unicode_text else WORDS
    ids = script.output_ids
    pieces = ["" if token == STOP_ID else f" {words[token % len(words)]}" for token in ids]
    pieces[0] = pieces[0].lstrip(" ")
    ends = [1]
    for step in script.steps:
        ends.append(ends[-1] + step.num_tokens)
    starts = [0, *ends[:-1]]
    return Answer(
        script,
        tuple(ids[start:end] for start, end in zip(starts, ends, strict=True)),
        tuple("".join(pieces[start:end]) for start, end in zip(starts, ends, strict=True)),
    )


def _block_size(scenario: Scenario, arm: str, block_size: int | None) -> int | None:
    if arm == "baseline":
        if block_size is not None:
            raise UsageError("a baseline has no block size", "leave --block-size out, or name another --arm")
        return None
    size = scenario.block_size if block_size is None else block_size
    if not 2 <= size <= scenario.max_block_size:
        raise UsageError(
            f"block size {size} is not from 2 to {scenario.max_block_size}, which the draft was trained for",
            "choose another --block-size",
        )
    return size
