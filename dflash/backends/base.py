"""One small protocol for all engines: open, generate, close.

A backend makes tokens and stamps times. It knows nothing of plans, folders, or metrics. All that it says
about a request is in a `Generation`; all about itself in a `BackendDescription`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from dflash.decoded import OnTokens
from dflash.results.records import Arm, CountersState, FinishReason, PrefixCacheState


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do; the runner refuses what it cannot before anything is loaded."""

    in_process: bool
    max_concurrency: int | None  # None: no limit of its own
    has_logit_gap: bool = False  # can tell how close the target's two best tokens were
    interleaves_arms: bool = False  # all arms live at once, back to back per prompt
    has_servers: bool = False  # arms are servers: see `ServerBackend`
    opens_at_once: bool = False  # nothing is loaded: a plan may open it for what it says of itself


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
    num_retries: int = 0  # refusals before the request was taken
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
    dtype: str | None  # None: not known
    arms: tuple[Arm, ...]  # the requested arms, completed with draft name and revision
    weights_bytes: Mapping[str, int] = field(default_factory=dict)  # by arm name
    environment: Mapping[str, Any] = field(default_factory=dict)  # device, versions, what moves a number
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartedAs:
    """What is known of a server from its start. None: not known."""

    dtype: str | None = None
    method: str | None = None  # how it drafts, in the engine's word in lower case


NOT_STARTED = StartedAs()  # by this process


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that produces the tokens of one arm."""

    url: str  # base URL; a trailing /v1 is accepted
    arm: str | None = None  # None: found out from the server
    metrics_url: str | None = None  # of its Prometheus counters; None: /metrics at `url`
    started_as: StartedAs = NOT_STARTED  # holds where the server itself does not say


@dataclass(frozen=True, slots=True)
class RequestTimeouts:
    """How long a server is waited for, in seconds; None: for ever."""

    connect_s: float = 10.0
    first_token_s: float | None = 300.0
    between_chunks_s: float | None = 120.0
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """What a backend is made from; each engine reads what concerns it and refuses contradictions."""

    model: str | None = None  # None: the engine's default (in process: the quickstart pair)
    draft_model: str | None = None
    dtype: str | None = None  # None: float32 on CPU, the checkpoint's on GPU
    device: str | None = None  # None: a GPU where there is one, else CPU
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    force_block_size: bool = False  # allow a block larger than the draft was trained for
    draft_bits: int | None = None  # MLX: quantise the draft; None: as it is
    endpoints: tuple[Endpoint, ...] = ()  # empty: the engine's own port on this machine
    block_size: int | None = None  # of a server: only compared with what it says
    reasoning: str = "off"  # that will be asked for
    sampling: Sampling = Sampling()  # that will be asked for
    route: str = "chat"  # or "completions", "generate" (SGLang's own)
    timeouts: RequestTimeouts = RequestTimeouts()
    api_key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    verify_tls: bool = True
    max_concurrency: int = 1  # that will be asked for
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


class InProcessBackend(Backend, Protocol):
    """An engine in this process that loads a pair, and hands tokens on as they come."""

    def run(self, request: GenerationRequest, on_tokens: OnTokens | None = None) -> Generation:
        """As `generate`; `on_tokens` is called with the ids of each step as they come."""
        ...

    def detokenise(self, token_ids: Sequence[int]) -> str:
        """The text of output ids, special tokens left out."""
        ...


@runtime_checkable
class NotesAtEnd(Protocol):
    """An engine that knows, once it has run, what a reader of its numbers must know."""

    def closing_notes(self) -> tuple[str, ...]:
        """Facts to stamp on the run, asked before the engine is closed."""
        ...


@dataclass(frozen=True, slots=True)
class ServerWindow:
    """What a server counted between two moments, beside what our own requests say. None: it does not say."""

    counters: CountersState
    counters_reason: str | None = None  # in words, where the state is not "settled"
    prefix_cache: PrefixCacheState = "unknown"
    num_drafts: int | None = None  # steps that had a draft
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None  # tokens cut by a stop or the limit are counted
    num_accepted_tokens_per_position: tuple[int, ...] | None = None
    num_generation_tokens: int | None = None
    num_prompt_tokens: int | None = None
    num_requests: int | None = None


class ServerBackend(Backend, Protocol):
    """An engine behind HTTP: an arm is a server.

    `open` takes the arms of the settings' endpoints in their order (an unnamed one has the name "" and is found
    out), refuses a label or a block size that the server contradicts, and describes all of them. `generate` sends
    to the server of `request.arm`; many may be under way at once in one event loop.
    """

    async def begin_window(self, arm: Arm) -> None:
        """Outside of every clock and with nothing under way: make the server forget prompts that it has seen, where
        it offers that, and read its counters.

        Raises:
            UnavailableError: the server is gone.
        """
        ...

    async def end_window(self, arm: Arm) -> ServerWindow:
        """Read the counters until they stand still, and give what was added since `begin_window`; never raises for
        counters that cannot be read."""
        ...


class RunningServer(Protocol):
    """An engine's server that this process started."""

    @property
    def url(self) -> str: ...

    @property
    def started_as(self) -> StartedAs:
        """By its command line, and by its log."""
        ...


BackendFactory = Callable[[BackendSettings], Backend]
