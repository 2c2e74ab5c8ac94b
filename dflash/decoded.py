"""What a decoding loop gives and how it counts, for every in-process engine: ids, stamps, steps. No tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dflash.acceptance import histogram
from dflash.errors import RequestError, UsageError

Clock = Callable[[], int]
OnTokens = Callable[[tuple[int, ...]], None]


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one request gave: ids, stamps and counts. `block_size` None: plain decoding."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]  # up to and including the stop token
    finish_reason: Literal["stop", "length"]
    block_size: int | None
    sent_ns: int
    first_ns: int
    step_gaps_ns: tuple[int, ...]  # decode step by decode step
    step_num_tokens: tuple[int, ...]  # delivered
    step_num_accepted: tuple[int, ...]  # untrimmed; empty for plain decoding
    draft_ns: int | None
    verify_ns: int | None

    @property
    def last_ns(self) -> int:
        return self.first_ns + sum(self.step_gaps_ns)

    @property
    def num_decode_steps(self) -> int:
        return len(self.step_num_tokens)

    @property
    def num_draft_tokens(self) -> int:
        return (self.block_size - 1) * self.num_decode_steps if self.block_size else 0

    @property
    def num_accepted_tokens(self) -> int:
        return sum(self.step_num_accepted)

    @property
    def acceptance_histogram(self) -> tuple[int, ...]:
        """[k-1] = decode steps that delivered k tokens."""
        return histogram(self.step_num_tokens, self.block_size or 1)

    @property
    def acceptance_histogram_untrimmed(self) -> tuple[int, ...]:
        """[k-1] = verify steps that accepted k-1 draft tokens."""
        return histogram([accepted + 1 for accepted in self.step_num_accepted], self.block_size or 1)


@dataclass(slots=True)
class Progress:
    """What a loop has delivered so far."""

    clock: Clock
    on_tokens: OnTokens | None = None
    sent_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    output_ids: list[int] = field(default_factory=list)
    gaps_ns: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)

    def start(self) -> None:
        """The prompt ids are on the host and the device is idle."""
        self.sent_ns = self.clock()

    def add_first(self, token_ids: tuple[int, ...]) -> None:
        """The prefill's token is on the host."""
        self.first_ns = self.last_ns = self.clock()
        self._deliver(token_ids)

    def add_step(self, token_ids: tuple[int, ...], num_accepted: int | None = None) -> None:
        """What a decode step delivers is on the host; `num_accepted` only where it had a draft."""
        now_ns = self.clock()
        self.gaps_ns.append(now_ns - self.last_ns)
        self.last_ns = now_ns
        self.num_tokens.append(len(token_ids))
        if num_accepted is not None:
            self.num_accepted.append(num_accepted)
        self._deliver(token_ids)

    def _deliver(self, token_ids: tuple[int, ...]) -> None:
        self.output_ids.extend(token_ids)
        if self.on_tokens is not None:
            self.on_tokens(token_ids)

    def decoded(
        self,
        prompt_ids: tuple[int, ...],
        finish_reason: str | None,
        block_size: int | None,
        parts_ns: tuple[int | None, int | None] = (None, None),
    ) -> Decoded:
        """The request as it ended; `parts_ns` is the time of drafting and of verifying, where it is known."""
        return Decoded(
            prompt_ids=prompt_ids,
            output_ids=tuple(self.output_ids),
            finish_reason="stop" if finish_reason == "stop" else "length",
            block_size=block_size,
            sent_ns=self.sent_ns,
            first_ns=self.first_ns,
            step_gaps_ns=tuple(self.gaps_ns),
            step_num_tokens=tuple(self.num_tokens),
            step_num_accepted=tuple(self.num_accepted),
            draft_ns=parts_ns[0],
            verify_ns=parts_ns[1],
        )


def checked_prompt(prompt_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """The prompt's ids, each of which the target has an embedding for: MLX would read memory that is another's.

    Raises:
        RequestError: there is none, or one is outside the vocabulary.
    """
    ids = tuple(int(token_id) for token_id in prompt_ids)
    if not ids:
        raise RequestError("empty_prompt", "the prompt has no token", "give a prompt")
    outside = [token_id for token_id in ids if not 0 <= token_id < vocab_size]
    if outside:
        raise RequestError(
            "unknown_token",
            f"the prompt holds token id {outside[0]}, and the target's vocabulary is 0 to {vocab_size - 1}",
            "use the target's own tokenizer",
        )
    return ids


def checked_limit(max_new_tokens: int) -> int:
    """The limit itself.

    Raises:
        UsageError: it is below 1.
    """
    if max_new_tokens < 1:
        raise UsageError(f"max_new_tokens is {max_new_tokens}", "choose 1 or more")
    return max_new_tokens
