"""One small protocol for all engines: open, generate, close.

A backend makes tokens and stamps times. It knows nothing of plans, folders, or metrics. All that it says
about a request is in a `Generation`; all about itself in a `BackendDescription`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dflash.results.records import Arm, FinishReason


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do; the runner refuses what it cannot before anything is loaded."""

    in_process: bool
    max_concurrency: int | None  # None: no limit of its own
    has_logit_gap: bool = False  # can tell how close the target's two best tokens were
    interleaves_arms: bool = False  # all arms live at once, back to back per prompt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target picks a token. Temperature 0 is greedy, and then top-p and top-k must be None."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    role: str  # "system", "user", "assistant"
    content: str


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt for one arm."""

    request_id: str
    arm: Arm
    messages: tuple[Message, ...]
    max_new_tokens: int
    sampling: Sampling = Sampling()
    seed: int = 0  # of this prompt: the same in every arm
    reasoning: str = "off"


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request gave. Fields mean the same as in `RequestRecord`, `OutputRecord` and `ChunkRecord`."""

    sent_ns: int
    first_ns: int | None
    last_ns: int | None
    finish_reason: FinishReason
    num_prompt_tokens: int | None
    num_output_tokens: int | None
    num_first_chunk_tokens: int | None
    num_cached_tokens: int | None = None
    num_decode_steps: int | None = None
    num_verify_steps: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    acceptance_histogram: tuple[int, ...] | None = None
    acceptance_histogram_untrimmed: tuple[int, ...] | None = None
    draft_ns: int | None = None
    verify_ns: int | None = None
    peak_memory_bytes: int | None = None
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    text: str | None = None
    chunk_gaps_ns: tuple[int, ...] = ()
    chunk_num_tokens: tuple[int, ...] = ()
    step_num_accepted: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class BackendDescription:
    """What was opened: goes into the identity of every cell and into the report's fingerprint."""

    target: str
    target_revision: str | None
    dtype: str
    arms: tuple[Arm, ...]  # the requested arms, completed with draft name and revision
    weights_bytes: Mapping[str, int] = field(default_factory=dict)  # by arm name
    environment: Mapping[str, Any] = field(default_factory=dict)  # device, versions, what moves a number
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """What a backend is made from; each engine reads what concerns it and refuses contradictions."""

    model: str | None = None  # None: the engine's default (in process: the quickstart pair)
    draft_model: str | None = None
    dtype: str | None = None  # None: float32 on CPU, the checkpoint's on GPU
    device: str | None = None  # None: CUDA where there is one, else CPU
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    force_block_size: bool = False  # allow a block larger than the draft was trained for
    base_url: str | None = None
    timeout_s: float | None = None
    script: str | None = None  # simulated backend: a scenario file
    extra: Mapping[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """An engine. All methods may block: in-process engines do their work inside `generate`."""

    name: str
    capabilities: Capabilities

    async def open(self, arms: Sequence[Arm]) -> BackendDescription:
        """Load or connect, and check that every arm can run.

        Raises:
            DFlashError: with the exit code that fits; nothing is left half-open.
        """
        ...

    async def generate(self, request: GenerationRequest) -> Generation:
        """Run one request.

        Raises:
            RequestError: this request failed; the next may succeed.
        """
        ...

    async def logit_gap(self, request: GenerationRequest, prefix_ids: Sequence[int]) -> float | None:
        """Gap between the target's two best next-token logits after the prompt and `prefix_ids`, or None.

        One extra forward, called only after the clocks of all arms have stopped.
        """
        ...

    async def aclose(self) -> None:
        """Release everything; safe to call twice."""
        ...


BackendFactory = Callable[[BackendSettings], Backend]
