"""The frozen records that cross rooms, and nothing else.

Times are integer nanoseconds of one monotonic clock (`time.perf_counter_ns`), counts are integers, and `None`
means "not measured". Everything else is derived when it is read (see `metrics.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FORMAT_VERSION = 2  # older ones are read too, see `format_history.py`

FinishReason = Literal["stop", "length", "cancelled", "error"]
# Of a server's counters: read until they stood still; still moving; begun anew in between; not there; not to be had.
CountersState = Literal["settled", "unsettled", "reset", "missing", "unreadable"]
# Of a server's prefix cache before a window: emptied; there is none; not known.
PrefixCacheState = Literal["reset", "off", "unknown"]
# Beside how a cell ended: never begun, as the time budget was used up; given up for one of another identity.
CellStatus = Literal["planned", "running", "completed", "failed", "interrupted", "not_run", "retired"]
BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request (one prompt, one turn, one arm): a line of `records.jsonl`."""

    cell_id: str
    prompt_id: str
    category: str | None = None
    turn: int = 0
    repeat: int = 0
    segment: int = 0  # index into Run.segments: the process whose clock the stamps belong to
    order: int = 0  # place among the arms that ran back to back for this prompt
    block: int = 0  # of a server: which of its cell's stretches of load, see `WindowRecord`
    round: int = 0  # which of `--repeats`: every cell is run once in each
    launch: int | None = (
        None  # of a server that the run started: number of the start among those of its segment
    )
    num_retries: int = 0  # refusals by the server before it took the request

    due_ns: int | None = None  # when the load pattern wanted it sent
    sent_ns: int | None = None
    first_ns: int | None = None  # first output token known on the host
    last_ns: int | None = None  # last output token known on the host

    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None  # up to and including the stop token; the prefill's token included
    num_first_chunk_tokens: int | None = None
    num_cached_tokens: int | None = None  # prompt tokens served from a prefix cache
    finish_reason: FinishReason = "error"

    num_decode_steps: int | None = None  # target forwards after prefill that delivered a token
    num_verify_steps: int | None = None  # those of them that had a draft
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None  # untrimmed: tokens cut by a stop or the limit are counted
    acceptance_histogram: tuple[int, ...] | None = None  # [k-1] = decode steps that delivered k tokens
    acceptance_histogram_untrimmed: tuple[int, ...] | None = None  # [k-1] = verify steps that accepted k-1

    draft_ns: int | None = None  # sum over steps, where the engine knows
    verify_ns: int | None = None
    peak_memory_bytes: int | None = None  # above the resting level of the loaded models

    prompt_digest: str | None = None  # of the rendered prompt's token ids
    output_digest: str | None = None  # of the output's token ids (text where there are none)
    error_kind: str | None = None
    error_message: str | None = None

    @property
    def completed(self) -> bool:
        """Whether the request ended by a stop token or at its limit."""
        return self.finish_reason in ("stop", "length")

    @property
    def unit(self) -> tuple[str, int, int]:
        """What pairs two arms' records: prompt, turn, repeat."""
        return (self.prompt_id, self.turn, self.repeat)


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """What one request said: a line of `outputs.jsonl`."""

    cell_id: str
    prompt_id: str
    turn: int = 0
    repeat: int = 0
    segment: int = 0  # as in the request's record: tells a superseded attempt from the last one
    output_ids: tuple[int, ...] | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """When one request's tokens came: a line of `chunks.jsonl`. Chunk 0 arrived at `first_ns`."""

    cell_id: str
    prompt_id: str
    turn: int = 0
    repeat: int = 0
    segment: int = 0  # as in the request's record: tells a superseded attempt from the last one
    gaps_ns: tuple[int, ...] = ()  # [i] = arrival of chunk i+1 minus arrival of chunk i
    num_tokens: tuple[int, ...] = ()  # [i] = tokens delivered in chunk i; one longer than gaps_ns
    num_accepted: tuple[int, ...] | None = None  # [i] = draft tokens accepted at verify step i, untrimmed


@dataclass(frozen=True, slots=True)
class DifferenceRecord:
    """Where an arm's output leaves the baseline's: a line of `differences.jsonl`.

    Written after the clocks of both arms have stopped.
    """

    cell_id: str  # of the arm that is not the baseline
    prompt_id: str
    turn: int = 0
    repeat: int = 0
    segment: int = 0  # as in the request's record: tells a superseded attempt from the last one
    position: int = 0  # index of the first output token that differs (one output may just be longer)
    baseline_token_id: int | None = None  # None: the baseline had ended
    arm_token_id: int | None = None
    logit_gap: float | None = None  # between the target's two best logits there; None: cannot be known


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """One stretch of load on one server, beside what the server itself counted: a line of `windows.jsonl`."""

    cell_id: str
    segment: int = 0
    block: int = 0
    started_ns: int = 0  # before the first request was due
    ended_ns: int = 0  # after the last answer
    counters: CountersState = "missing"
    counters_reason: str | None = None
    prefix_cache: PrefixCacheState = "unknown"
    num_drafts: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    num_accepted_tokens_per_position: tuple[int, ...] | None = None
    num_generation_tokens: int | None = None
    num_prompt_tokens: int | None = None
    num_requests: int | None = None
    num_own_requests: int | None = None  # of ours in this stretch, those that failed among them
    loop_lag_p99_ns: int | None = None  # of this process's event loop: how late it woke up
    loop_lag_max_ns: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """The reference answer of one prompt: a line of `answers.jsonl`. Outputs are scored by it when read."""

    prompt_id: str
    answer: str


@dataclass(frozen=True, slots=True)
class CodeRecord:
    """Whether one request's code passed its tests: a line of `code.jsonl`. The last one of a request counts.

    Written where code may be executed (`--execute-code`), after every clock has stopped.
    """

    cell_id: str
    prompt_id: str
    turn: int = 0
    repeat: int = 0
    segment: int = 0  # as in the request's record: tells a superseded attempt from the last one
    passed: bool | None = None  # None: it could not be tried
    reason: str | None = None  # "passed", "failed", "timeout", "memory", "no_code", …


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of producing the tokens."""

    name: str  # "baseline", "dflash", …
    block_size: int | None = None  # B = 1 anchor + B-1 draft tokens; None for the baseline
    acceptance_rule: str | None = None  # e.g. "equality"
    draft: str | None = None
    draft_revision: str | None = None
    server_args: tuple[str, ...] = ()
    server: str | None = None  # address of one that ran before; None: in process, or the run started it

    @property
    def is_baseline(self) -> bool:
        return self.name == BASELINE

    @property
    def label(self) -> str:
        """Short name for a table row: `baseline`, `dflash B=8`."""
        return self.name if self.block_size is None else f"{self.name} B={self.block_size}"


@dataclass(frozen=True, slots=True)
class Workload:
    """What is decoded, whoever decodes it. Two cells may be paired only when these are equal."""

    target: str
    target_revision: str | None
    dtype: str | None  # None: not known
    dataset: str
    prompts_digest: str  # of the messages (turns and template version) and their order
    num_prompts: int
    max_new_tokens: int
    temperature: float
    top_p: float | None
    top_k: int | None
    seed: int
    reasoning: str  # "off", "on", or a level
    concurrency: int = 1
    request_rate: float | None = None  # open loop: requests a second


@dataclass(frozen=True, slots=True)
class Cell:
    """Workload + arm + place: one row of a report."""

    cell_id: str
    workload_id: str
    arm_id: str
    backend: str
    workload: Workload
    arm: Arm
    status: CellStatus = "planned"
    reason: str | None = None  # why it failed or was cut short
    weights_bytes: int | None = None  # of the models that this arm uses
    on_server: bool = False  # its requests stand alone; in process, a prompt is run in all arms or again
    notes: tuple[str, ...] = ()  # facts that a reader of the numbers must know
    num_requests: int | None = None  # planned: prompts, turns and repeats; None: not known (runs of format 1)
    is_timed: bool = True  # False: processes shared a device, so no time of its requests was kept

    @property
    def is_one_at_a_time(self) -> bool:
        """Whether its requests never overlap, so that the sum of E2EL is the busy time: in process."""
        workload = self.workload
        return not self.on_server and workload.concurrency == 1 and workload.request_rate is None

    @property
    def is_retired(self) -> bool:
        """Whether another cell has taken its place: it is paired and averaged with nothing."""
        return self.status == "retired"


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Which prompts of a data set a run uses, and where they came from."""

    name: str
    digest: str  # as in the workload
    num_prompts: int
    num_available: int | None = None  # to choose from
    source: str | None = None  # for people
    revision: str | None = None  # commit of the source, or digest of the file
    template_version: str | None = None
    licence: str | None = None
    references_digest: str | None = None  # of the reference answers and tests that outputs are scored by


@dataclass(frozen=True, slots=True)
class Segment:
    """One process's share of a run: stamps of different segments have different origins."""

    started_at: str  # ISO 8601, UTC
    clock_origin_ns: int  # the monotonic clock at that moment
    argv: tuple[str, ...] = ()
    wall_ns: int | None = None  # busy time of the segment; None while it runs
    rank: int = 0  # of the process, where several made the run together
    environment: Mapping[str, Any] | None = None  # its fingerprint, where that is not the run's present one


@dataclass(frozen=True, slots=True)
class RunInfo:
    """`run.json`: everything about a run but its requests."""

    name: str
    created_at: str  # ISO 8601, UTC
    format_version: int = FORMAT_VERSION
    dflash_version: str = ""
    command: str = ""  # the exact command line, secrets left out
    environment: Mapping[str, Any] = field(default_factory=dict)  # machine and version fingerprint
    config: Mapping[str, Any] = field(default_factory=dict)  # every setting of the run
    datasets: tuple[DatasetInfo, ...] = ()
    cells: tuple[Cell, ...] = ()
    segments: tuple[Segment, ...] = ()
    notes: tuple[str, ...] = ()
