"""What an engine counts of one answer, read from documents of any version: plain counts, and those of its drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import RequestError

# No answer holds as many tokens: a larger number is a fault of who counted, and would not fit into a column.
MAX_COUNT = 2**48
# Chunks that one token may be cut into, as by a parser of reasoning and tool calls; and some for the ends.
MAX_CHUNKS_PER_TOKEN, SPARE_CHUNKS = 4, 64

# SGLang renamed its counts twice (0.5.11, 0.5.12): (newest, …, oldest).
SGLANG_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
SGLANG_DRAFTED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
SGLANG_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")


@dataclass(frozen=True, slots=True)
class SpeculationCounts:
    """What an engine says of one request's drafts, as it counts them: accepted tokens that a stop or the limit then
    cut are included. None: it does not say."""

    num_verify_steps: int | None = None  # steps that had a draft
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    acceptance_histogram_untrimmed: tuple[int, ...] | None = (
        None  # [k] = verify steps that accepted k draft tokens
    )
    step_num_accepted: tuple[int, ...] | None = None  # by verify step
    step_num_drafted: tuple[int, ...] | None = None
    num_speculative_tokens: int | None = None  # B-1, where the engine tells it


def vllm_speculation(metrics: Mapping[str, Any]) -> SpeculationCounts | None:
    """The counts in vLLM's per-request `metrics` (server flag `--per-request-spec-decode-metrics`)."""
    counts = metrics.get("speculative_decoding")
    if not isinstance(counts, Mapping):
        return None
    return SpeculationCounts(
        num_verify_steps=count_of(counts.get("num_spec_steps")),
        num_draft_tokens=count_of(counts.get("num_draft_tokens")),
        num_accepted_tokens=count_of(counts.get("num_accepted_draft_tokens")),
        acceptance_histogram_untrimmed=ids_of(counts.get("acceptance_histogram")),
        step_num_accepted=ids_of(counts.get("per_step_accepted")),
        step_num_drafted=ids_of(counts.get("per_step_drafted")),
        num_speculative_tokens=count_of(counts.get("num_spec_tokens")),
    )


def sglang_speculation(meta_info: object) -> SpeculationCounts | None:
    """The counts in SGLang's `meta_info` or `spec_tokens_details`, under the names of any version since 0.5.

    `spec_accept_length` is left alone: it counts the prefill's token and drops with a cut last step.
    """
    if not isinstance(meta_info, Mapping) or count_of(meta_info.get("spec_verify_ct")) is None:
        return None
    return SpeculationCounts(
        num_verify_steps=count_of(meta_info["spec_verify_ct"]),
        num_draft_tokens=count_of(_first(meta_info, SGLANG_DRAFTED)),
        num_accepted_tokens=count_of(_first(meta_info, SGLANG_ACCEPTED)),
        acceptance_histogram_untrimmed=ids_of(_first(meta_info, SGLANG_HISTOGRAM)),
    )


def count_of(value: object) -> int | None:
    """A count; None for anything else.

    Raises:
        RequestError: `wrong_usage`: a number that counts nothing.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return None
    if value > MAX_COUNT:
        raise RequestError("wrong_usage", f"the server gives {value:.3g} as a count of tokens")
    return value


def ids_of(value: object) -> tuple[int, ...] | None:
    """A list of counts or token ids; None for anything else.

    Raises:
        RequestError: `wrong_usage`: a number that is neither.
    """
    if not isinstance(value, list) or not set(map(type, value)) <= {int} or min(value, default=0) < 0:
        return None
    count_of(max(value, default=0))
    return tuple(value)


def check_length(num_tokens: int, num_chunks: int, max_new_tokens: int | None) -> None:
    """Refuse an answer that is longer than was asked for, as soon as that is seen: it might never end.

    Args:
        num_tokens: that are counted so far; 0 where nothing counts them.
        num_chunks: that carried a token so far.

    Raises:
        RequestError: `wrong_usage`.
    """
    if max_new_tokens is None:
        return
    if num_tokens > max_new_tokens:
        fault = f"{num_tokens} output tokens came, at most {max_new_tokens} were asked for"
    elif num_chunks > MAX_CHUNKS_PER_TOKEN * max_new_tokens + SPARE_CHUNKS:
        fault = f"{num_chunks} chunks came for at most {max_new_tokens} output tokens that were asked for"
    else:
        return
    raise RequestError("wrong_usage", fault, "the server must honour the limit of output tokens")


def _first(values: Mapping[str, Any], names: Sequence[str]) -> object:
    return next((values[name] for name in names if values.get(name) is not None), None)
