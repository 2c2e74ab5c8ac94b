"""An OpenAI-style stream, chat or plain completions, as vLLM and SGLang send it -> one frozen record.

A chunk carries a token when it has text, reasoning text, a piece of a tool call, or token ids; a chunk with only
the role, or with an empty text, does not. A chunk is not a token: how many tokens a chunk holds is known from its
token ids or from cumulative usage (`continuous_usage_stats`), and is unknown without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dflash.errors import RequestError

# A tool call is a natural end: both engines put it in the place of `stop`.
FINISH_REASONS: dict[str, Literal["stop", "length"]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "function_call": "stop",
}
# SGLang renamed its counts twice (0.5.11, 0.5.12): (newest, …, oldest).
SGLANG_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
SGLANG_DRAFTED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
SGLANG_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
SGLANG_CACHES = ("device", "host", "storage")


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


@dataclass(frozen=True, slots=True)
class ChatStreamRecord:
    """One answer. Times are those of packets, in ns; `first_ns` is None only where the answer has no token."""

    first_ns: int | None
    last_ns: int  # of the chunk with the finish reason
    finish_reason: Literal["stop", "length"]
    num_prompt_tokens: int | None
    num_output_tokens: int
    num_first_chunk_tokens: int | None
    chunk_arrivals_ns: tuple[int, ...]  # of the chunks that carry a token
    chunk_num_tokens: tuple[int, ...] | None  # of the same chunks
    text_pieces: tuple[str, ...]  # of the same chunks: reasoning, text, and tool calls as they came
    text: str  # without reasoning and tool calls
    reasoning: str
    output_ids: tuple[int, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None
    num_cached_tokens: int | None = None
    num_reasoning_tokens: int | None = None
    engine_finish_reason: str = ""  # in the engine's own word
    stop_reason: int | str | None = None  # the stop token's id or the stop text, where the engine names it
    speculation: SpeculationCounts | None = None
    engine_metrics: Mapping[str, Any] = field(default_factory=dict)  # vLLM's `metrics`, SGLang's `meta_info`

    @property
    def whole_text(self) -> str:
        """Everything that was generated, in the order in which it came: what agreement compares without ids."""
        return "".join(self.text_pieces)


class ChatStreamReader:
    """Takes the chunks of one stream in order; `record` is what they come to."""

    def __init__(self) -> None:
        # Of the chunks that carry a token. Lists of plain values: an object per chunk would bring garbage collections
        # into the middle of other streams.
        self._arrivals_ns: list[int] = []
        self._pieces: list[str] = []
        self._num_ids: list[int] = []
        self._usages: list[int | None] = []  # cumulative output tokens up to each, where it tells them
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._ids: list[int] = []
        self._whole_ids: tuple[int, ...] | None = None
        self._prompt_ids: tuple[int, ...] | None = None
        self._usage_so_far = 0  # the highest count of output tokens up to a chunk that carried one
        self._finish_has_token = False
        self._last_ns: int | None = None
        self._finish_reason = ""
        self._stop_reason: int | str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._metrics: Mapping[str, Any] = {}
        self._sglext: Mapping[str, Any] = {}

    def feed(self, arrival_ns: int, document: Mapping[str, Any]) -> bool:
        """Take one chunk; True where it carries a token.

        Raises:
            RequestError: `bad_event`: it is no chunk of a completion; `wrong_usage`: its usage contradicts an
                earlier one.
        """
        choices = document.get("choices")
        if choices is None and not any(document.get(name) for name in ("usage", "metrics", "sglext")):
            raise RequestError("bad_event", f"an event is no chunk of a completion: {_names(document)}")
        if choices is not None and (not isinstance(choices, list) or len(choices) > 1):
            raise RequestError("bad_event", "a chunk does not have exactly one choice")
        self._read_whole(document)
        usage = document.get("usage") or None
        total = self._read_usage(usage)
        choice = _mapping(choices[0], "choice") if choices else {}
        if choice.get("index") not in (None, 0):
            raise RequestError("bad_event", "the server sent a second answer to one request")
        has_token = self._read_choice(arrival_ns, choice, total)
        if usage is not None and self._last_ns is not None:
            self._usage = usage  # only a usage from the end on counts the whole answer
        return has_token

    def record(self) -> ChatStreamRecord:
        """The answer, once its stream has ended.

        Raises:
            RequestError: `no_finish_reason`, `no_usage`: the stream lacks it; `bad_finish_reason`: the engine gave up;
                `wrong_usage`: its counts contradict each other.
        """
        if self._last_ns is None:
            raise RequestError(
                "no_finish_reason", f"the stream ended without a finish reason{self._so_far()}"
            )
        finish_reason = FINISH_REASONS.get(self._finish_reason)
        if finish_reason is None:
            raise RequestError(
                "bad_finish_reason",
                f"the server ended the answer with {self._finish_reason!r}{self._so_far()}",
            )
        if self._usage is None:
            raise RequestError(
                "no_usage",
                "the stream ended without usage",
                "the server must honour stream_options.include_usage",
            )
        num_output_tokens = _count(self._usage.get("completion_tokens"))
        if num_output_tokens is None:
            raise RequestError("no_usage", "the server's usage does not count the output tokens")
        self._check_counts(num_output_tokens)
        arrivals_ns, pieces, sizes = list(self._arrivals_ns), list(self._pieces), self._chunk_sizes()
        if self._ends_without_text(num_output_tokens):
            arrivals_ns.append(self._last_ns)
            pieces.append("")
            sizes.append(num_output_tokens - self._usage_so_far)
        known = [size for size in sizes if size is not None]
        return ChatStreamRecord(
            first_ns=arrivals_ns[0] if arrivals_ns else None,
            last_ns=self._last_ns,
            finish_reason=finish_reason,
            num_prompt_tokens=_count(self._usage.get("prompt_tokens")),
            num_output_tokens=num_output_tokens,
            num_first_chunk_tokens=sizes[0] if sizes else 0,
            chunk_arrivals_ns=tuple(arrivals_ns),
            chunk_num_tokens=tuple(known) if len(known) == len(sizes) else None,
            text_pieces=tuple(pieces),
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            output_ids=tuple(self._ids) or self._whole_ids,
            prompt_ids=self._prompt_ids,
            num_cached_tokens=self._num_cached_tokens(),
            num_reasoning_tokens=self._num_reasoning_tokens(),
            engine_finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            speculation=(
                vllm_speculation(self._metrics)
                or sglang_speculation(self._metrics)
                or sglang_speculation(_only(self._sglext.get("spec_tokens_details")))
            ),
            engine_metrics=self._metrics,
        )

    def _read_whole(self, document: Mapping[str, Any]) -> None:
        """What stands beside the choices."""
        if document.get("prompt_token_ids"):
            self._prompt_ids = _ids(document["prompt_token_ids"])
        if document.get("metrics"):
            self._metrics = _mapping(document["metrics"], "metrics")
        if document.get("sglext"):
            self._sglext = {**self._sglext, **_mapping(document["sglext"], "sglext")}
            self._prompt_ids = _ids(self._sglext.get("input_ids")) or self._prompt_ids
            self._whole_ids = _ids(_only(self._sglext.get("output_ids"))) or self._whole_ids

    def _read_usage(self, usage: object) -> int | None:
        """The output tokens up to and including this chunk, where it says."""
        if usage is None:
            return None
        total = _count(_mapping(usage, "usage").get("completion_tokens"))
        if total is None:
            return None
        if total < self._usage_so_far:
            raise RequestError("wrong_usage", f"the output tokens fell from {self._usage_so_far} to {total}")
        return total

    def _read_choice(self, arrival_ns: int, choice: Mapping[str, Any], usage_after: int | None) -> bool:
        delta = _mapping(choice.get("delta") or {}, "delta")
        reasoning = _text(delta.get("reasoning_content") or delta.get("reasoning"))  # some versions send both
        text = _text(choice.get("text")) or _text(delta.get("content"))
        ids = _ids(choice.get("token_ids"))
        if choice.get("prompt_token_ids"):
            self._prompt_ids = _ids(choice["prompt_token_ids"])
        if choice.get("meta_info"):
            self._metrics = _mapping(choice["meta_info"], "meta_info")
        piece = reasoning + text
        if "tool_calls" in delta or "function_call" in delta:
            piece += _tool_call_text(delta)
        has_token = bool(piece or ids)
        if has_token:
            if self._last_ns is not None:
                raise RequestError("bad_event", "tokens came after the finish reason")
            self._arrivals_ns.append(arrival_ns)
            self._pieces.append(piece)
            self._num_ids.append(len(ids or ()))
            self._usages.append(usage_after)
            if usage_after is not None:
                self._usage_so_far = usage_after
            self._text.append(text)
            self._reasoning.append(reasoning)
            self._ids.extend(ids or ())
        if choice.get("finish_reason") is not None and self._last_ns is None:
            self._last_ns = arrival_ns
            self._finish_has_token = has_token
            reason = choice["finish_reason"]
            self._finish_reason = str(reason.get("type") if isinstance(reason, Mapping) else reason)
            stop_reason = choice.get("stop_reason", choice.get("matched_stop"))
            self._stop_reason = stop_reason if isinstance(stop_reason, int | str) else None
        return has_token

    def _ends_without_text(self, num_output_tokens: int) -> bool:
        """Whether the last chunk brought a token without text, and so is not among those that carry one.

        That is known from cumulative usage (a stop token has no text), or where no other chunk carries a token.
        """
        is_counted = not self._ids and None not in self._usages
        return is_counted and num_output_tokens != self._usage_so_far

    def _chunk_sizes(self) -> list[int | None]:
        """Tokens of each chunk: its ids, else what it adds to the cumulative usage before it."""
        if self._ids:
            return list(self._num_ids)
        sizes: list[int | None] = []
        before = 0
        for total in self._usages:
            sizes.append(None if total is None else total - before)
            before = before if total is None else total
        return sizes

    def _check_counts(self, num_output_tokens: int) -> None:
        ids = self._ids or self._whole_ids
        if ids and len(ids) != num_output_tokens:
            raise RequestError(
                "wrong_usage",
                f"the usage counts {num_output_tokens} output tokens, {len(ids)} token ids came",
            )
        counted = self._usages[-1] if self._usages and self._finish_has_token else None
        if num_output_tokens < max(self._usage_so_far, bool(self._usages)) or counted not in (
            None,
            num_output_tokens,
        ):
            raise RequestError(
                "wrong_usage",
                f"the usage counts {num_output_tokens} output tokens, "
                f"the chunks before it count {self._usage_so_far or 'at least 1'}",
            )

    def _num_cached_tokens(self) -> int | None:
        """Prompt tokens from a prefix cache, where the engine says: in the usage, or in SGLang's own fields."""
        found = _count(self._usage_detail("prompt_tokens_details").get("cached_tokens"))
        if found is None:
            found = _count(self._metrics.get("cached_tokens"))
        caches = self._sglext.get("cached_tokens_details")
        if found is None and isinstance(caches, Mapping):
            counts = [_count(caches.get(name)) for name in SGLANG_CACHES]
            found = sum(count for count in counts if count is not None) if counts[0] is not None else None
        return found

    def _num_reasoning_tokens(self) -> int | None:
        found = _count(self._usage_detail("completion_tokens_details").get("reasoning_tokens"))
        return _count((self._usage or {}).get("reasoning_tokens")) if found is None else found

    def _usage_detail(self, name: str) -> Mapping[str, Any]:
        return _mapping((self._usage or {}).get(name) or {}, name)

    def _so_far(self) -> str:
        return f", after {len(self._usages)} chunks"


def vllm_speculation(metrics: Mapping[str, Any]) -> SpeculationCounts | None:
    """The counts in vLLM's per-request `metrics` (server flag `--per-request-spec-decode-metrics`)."""
    counts = metrics.get("speculative_decoding")
    if not isinstance(counts, Mapping):
        return None
    return SpeculationCounts(
        num_verify_steps=_count(counts.get("num_spec_steps")),
        num_draft_tokens=_count(counts.get("num_draft_tokens")),
        num_accepted_tokens=_count(counts.get("num_accepted_draft_tokens")),
        acceptance_histogram_untrimmed=_ids(counts.get("acceptance_histogram")),
        step_num_accepted=_ids(counts.get("per_step_accepted")),
        step_num_drafted=_ids(counts.get("per_step_drafted")),
        num_speculative_tokens=_count(counts.get("num_spec_tokens")),
    )


def sglang_speculation(meta_info: object) -> SpeculationCounts | None:
    """The counts in SGLang's `meta_info` or `spec_tokens_details`, under the names of any version since 0.5.

    `spec_accept_length` is left alone: it counts the prefill's token and drops with a cut last step.
    """
    if not isinstance(meta_info, Mapping) or _count(meta_info.get("spec_verify_ct")) is None:
        return None
    return SpeculationCounts(
        num_verify_steps=_count(meta_info["spec_verify_ct"]),
        num_draft_tokens=_count(_first(meta_info, SGLANG_DRAFTED)),
        num_accepted_tokens=_count(_first(meta_info, SGLANG_ACCEPTED)),
        acceptance_histogram_untrimmed=_ids(_first(meta_info, SGLANG_HISTOGRAM)),
    )


def _tool_call_text(delta: Mapping[str, Any]) -> str:
    """The names and arguments in a piece of a tool call, or of the older function call."""
    calls = delta.get("tool_calls") or []
    if not isinstance(calls, list):
        raise RequestError("bad_event", "tool calls are no list")
    functions = [_mapping(call, "tool call").get("function") for call in calls] + [delta.get("function_call")]
    pieces = []
    for function in functions:
        if function:
            function = _mapping(function, "function")
            pieces += [_text(function.get("name")), _text(function.get("arguments"))]
    return "".join(pieces)


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RequestError("bad_event", f"a chunk's {name} is no object")
    return value


def _text(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestError("bad_event", "a chunk's text is no text")
    return value


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _ids(value: object) -> tuple[int, ...] | None:
    """A list of counts or token ids; None for anything else."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int} or min(value, default=0) < 0:
        return None
    return tuple(value)


def _first(values: Mapping[str, Any], names: Sequence[str]) -> object:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _only(value: object) -> object:
    """The one entry of a list with one entry per answer; anything else as it is."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _names(document: Mapping[str, Any]) -> str:
    return f"it has {', '.join(map(repr, list(document)[:5])) or 'nothing'}"
