"""What a simulated engine counts and remembers: one request's log, a rank's counters, its prefix cache."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class RequestLog:
    """What the server knows of one request. Times are `time.perf_counter_ns()` of the server's process."""

    number: int  # of arrival, from 0
    request_id: str
    route: str
    is_stream: bool
    arrival_ns: int
    dp_rank: int | None = None
    started_ns: int | None = None  # left the queue
    chunk_sent_ns: array[int] = field(default_factory=lambda: array("q"))  # of chunks that carry tokens
    chunk_num_tokens: list[int] = field(default_factory=list)
    ended_ns: int | None = None
    outcome: str = "waiting"  # then "running", "done", "client_left", or the fault that ended it
    fault: str | None = None
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_decode_steps: int = 0
    num_draft_tokens: int = 0
    step_num_accepted: list[int] = field(default_factory=list)  # untrimmed, of the steps that had a draft

    @property
    def num_verify_steps(self) -> int:
        return len(self.step_num_accepted)

    @property
    def num_accepted_tokens(self) -> int:
        return sum(self.step_num_accepted)

    def document(self) -> dict[str, Any]:
        """As it goes over HTTP."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["chunk_sent_ns"] = list(self.chunk_sent_ns)
        values["num_verify_steps"] = self.num_verify_steps
        values["num_accepted_tokens"] = self.num_accepted_tokens
        return values


@dataclass(slots=True)
class Counters:
    """Running totals of one DP rank. Sums of seconds are on the real clock."""

    num_arrived: int = 0
    num_prompt_tokens: int = 0  # of the requests that were prefilled
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_decode_steps: int = 0
    num_draft_tokens: int = 0
    steps_by_accepted: dict[int, int] = field(default_factory=dict)  # of the steps that had a draft
    finished: dict[str, int] = field(default_factory=dict)  # by reason: stop, length, abort
    # of the finished requests alone, by whether they streamed: requests, prompt, output, verify steps, cached
    totals_by_stream: dict[bool, list[int]] = field(default_factory=lambda: {False: [0] * 5, True: [0] * 5})
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    tpot_s: float = 0.0
    num_timed: int = 0

    @property
    def num_verify_steps(self) -> int:
        return sum(self.steps_by_accepted.values())

    @property
    def num_accepted_tokens(self) -> int:
        return sum(accepted * steps for accepted, steps in self.steps_by_accepted.items())

    @property
    def output_tok_s(self) -> float:
        return self.num_output_tokens / self.decode_s if self.decode_s else 0.0

    def num_accepted_at(self, position: int) -> int:
        """Steps that accepted the draft token at `position`, from 0."""
        return sum(steps for accepted, steps in self.steps_by_accepted.items() if accepted > position)

    def count_finished(self, log: RequestLog) -> None:
        """Count what the engines count only of requests that came to their end."""
        started_ns = log.started_ns or log.arrival_ns
        first_ns, last_ns = log.chunk_sent_ns[0], log.chunk_sent_ns[-1]
        self.num_timed += 1
        self.queue_s += (started_ns - log.arrival_ns) / _NS_PER_S
        self.prefill_s += (first_ns - started_ns) / _NS_PER_S
        self.decode_s += (last_ns - first_ns) / _NS_PER_S
        if log.num_output_tokens > 1:
            self.tpot_s += (last_ns - first_ns) / _NS_PER_S / (log.num_output_tokens - 1)
        sums = (log.num_prompt_tokens, log.num_output_tokens, log.num_verify_steps, log.num_cached_tokens)
        self.add_totals(log.is_stream, (1, *sums))

    def add_totals(self, is_stream: bool, amounts: Sequence[int]) -> None:
        """Add to `totals_by_stream`, in its order."""
        totals = self.totals_by_stream[is_stream]
        for place, amount in enumerate(amounts):
            totals[place] += amount


class PrefixCache:
    """Blocks of prompt tokens seen before. Like the engines, it computes a prompt's last token always."""

    def __init__(self, block_tokens: int, max_tokens: int) -> None:
        self._block_tokens, self._max_blocks = block_tokens, max_tokens // block_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def take(self, ids: Sequence[int]) -> int:
        """Remember a prompt; how many of its tokens, from the first on, were there already."""
        size, chain, known = self._block_tokens, 0, 0
        is_known = True
        for start in range(0, len(ids) // size * size, size):
            chain = hash((chain, *ids[start : start + size]))
            is_known = is_known and chain in self._blocks
            self._blocks[chain] = None
            self._blocks.move_to_end(chain)
            known += size * is_known
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)
        return min(known, (len(ids) - 1) // size * size)

    def clear(self) -> None:
        self._blocks.clear()
