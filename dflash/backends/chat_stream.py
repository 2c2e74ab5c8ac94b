"""An OpenAI-style stream, chat or plain completions, as vLLM and SGLang send it -> one frozen record.

A chunk carries a token when it has text, reasoning text, a piece of a tool call, or token ids; a chunk with only
the role, or with an empty text, does not. A chunk is not a token: how many tokens a chunk holds is known from its
token ids or from cumulative usage (`continuous_usage_stats`), and is unknown without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dflash.backends.answer_counts import (
    SpeculationCounts as SpeculationCounts,
)
from dflash.backends.answer_counts import (
    check_length,
    count_of,
    ids_of,
)
from dflash.backends.answer_counts import (
    sglang_speculation as sglang_speculation,
)
from dflash.backends.answer_counts import (
    vllm_speculation as vllm_speculation,
)
from dflash.errors import RequestError

# A tool call is a natural end: both engines put it in the place of `stop`.
FINISH_REASONS: dict[str, Literal["stop", "length"]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "function_call": "stop",
}
SGLANG_CACHES = ("device", "host", "storage")
# Tokens whose text an engine may hold back until the end: those of one character of four bytes.
MAX_HELD_BACK_TOKENS = 4


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
    def holds_several(self) -> bool:
        """Whether most chunks after the first hold several tokens, as those of a server that drafts; not of one that
        is a little ahead of its client and merges some. Without sizes: whether a chunk holds two on average."""
        if self.chunk_num_tokens is None:
            return self.num_output_tokens - 1 > 2 * (len(self.chunk_arrivals_ns) - 1) > 0
        sizes = self.chunk_num_tokens[1:]
        return 2 * sum(size > 1 for size in sizes) > len(sizes)

    @property
    def whole_text(self) -> str:
        """Everything that was generated, in the order in which it came: what agreement compares without ids."""
        return "".join(self.text_pieces)


class ChatStreamReader:
    """Takes the chunks of one stream in order; `record` is what they come to.

    Args:
        max_new_tokens: the most output tokens that were asked for.
    """

    def __init__(self, max_new_tokens: int | None = None) -> None:
        self._max_new_tokens = max_new_tokens
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
        self._most_counted = 0  # the same, of any chunk
        self._usage_at_finish: int | None = None
        self._last_ns: int | None = None
        self._finish_reason = ""
        self._stop_reason: int | str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._metrics: Mapping[str, Any] = {}
        self._sglext: Mapping[str, Any] = {}

    def feed(self, arrival_ns: int, document: Mapping[str, Any]) -> bool:
        """Take one chunk; True where it brings the answer on: by a token, seen or counted, or by its end.

        Raises:
            RequestError: `bad_event`: it is no chunk of a completion; `wrong_usage`: its usage contradicts an
                earlier one, or more came than was asked for; `bad_finish_reason`: it ends an answer that had ended.
        """
        choices = document.get("choices")
        if choices is None and not any(document.get(name) for name in ("usage", "metrics", "sglext")):
            raise RequestError("bad_event", f"an event is no chunk of a completion: {_names(document)}")
        if choices is not None and (not isinstance(choices, list) or len(choices) > 1):
            raise RequestError("bad_event", "a chunk does not have exactly one choice")
        self._read_whole(document)
        usage = document.get("usage") or None
        num_counted, had_ended = self._most_counted, self._last_ns is not None
        total = self._read_usage(usage)
        choice = _mapping(choices[0], "choice") if choices else {}
        if choice.get("index") not in (None, 0):
            raise RequestError("bad_event", "the server sent a second answer to one request")
        has_token = self._read_choice(arrival_ns, choice, total)
        has_ended = self._last_ns is not None
        if usage is not None and has_ended:
            self._usage = usage  # only a usage from the end on counts the whole answer
        check_length(max(len(self._ids), self._most_counted), len(self._pieces), self._max_new_tokens)
        return has_token or self._most_counted > num_counted or has_ended > had_ended

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
        num_output_tokens = count_of(self._usage.get("completion_tokens"))
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
            num_prompt_tokens=count_of(self._usage.get("prompt_tokens")),
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
            self._prompt_ids = ids_of(document["prompt_token_ids"])
        if document.get("metrics"):
            self._metrics = _mapping(document["metrics"], "metrics")
        if document.get("sglext"):
            self._sglext = {**self._sglext, **_mapping(document["sglext"], "sglext")}
            self._prompt_ids = ids_of(self._sglext.get("input_ids")) or self._prompt_ids
            self._whole_ids = ids_of(_only(self._sglext.get("output_ids"))) or self._whole_ids

    def _read_usage(self, usage: Any) -> int | None:
        """The output tokens up to and including this chunk, where it says."""
        if usage is None:
            return None
        total = count_of(_mapping(usage, "usage").get("completion_tokens"))
        if total is None:
            return None
        if total < self._most_counted:
            raise RequestError("wrong_usage", f"the output tokens fell from {self._most_counted} to {total}")
        counted_at_end = None if self._usage is None else self._usage.get("completion_tokens")
        if counted_at_end is not None and total != counted_at_end:
            fault = f"the usage counts {counted_at_end} output tokens at the end, and then {total}"
            raise RequestError("wrong_usage", fault)
        before, after = ((told or {}).get("prompt_tokens") for told in (self._usage, usage))
        if before and after and before != after:
            fault = f"the usage counts {before} prompt tokens at the end, and then {after}"
            raise RequestError("wrong_usage", fault)
        self._most_counted = total
        return total

    def _read_choice(self, arrival_ns: int, choice: Mapping[str, Any], usage_after: int | None) -> bool:
        delta = _mapping(choice.get("delta") or {}, "delta")
        reasoning = _text(delta.get("reasoning_content") or delta.get("reasoning"))  # some versions send both
        text = _text(choice.get("text")) or _text(delta.get("content"))
        ids = ids_of(choice.get("token_ids"))
        if choice.get("prompt_token_ids"):
            self._prompt_ids = ids_of(choice["prompt_token_ids"])
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
        reason = choice.get("finish_reason") or None  # some servers say "" while there is none
        if reason is not None:
            word = str(reason.get("type") if isinstance(reason, Mapping) else reason)
            if self._last_ns is not None:
                check_same_end(self._finish_reason, word)
                return has_token
            self._last_ns, self._finish_reason = arrival_ns, word
            self._usage_at_finish = usage_after
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
        if num_output_tokens < max(self._usage_so_far, bool(self._usages)) or self._usage_at_finish not in (
            None,
            num_output_tokens,
        ):
            raise RequestError(
                "wrong_usage",
                f"the usage counts {num_output_tokens} output tokens, "
                f"the chunks before it count {self._most_before_end() or 'at least 1'}",
            )
        sizes = [size for size in self._chunk_sizes() if size is not None]
        num_late = num_output_tokens - self._usage_so_far
        if self._ends_without_text(num_output_tokens) and self._usages and self._usage_at_finish is None:
            most = max(sizes) + MAX_HELD_BACK_TOKENS
            if num_late > most:
                raise RequestError(
                    "wrong_usage",
                    f"the usage counts {num_output_tokens} output tokens, the chunks before it count "
                    f"{self._usage_so_far}: no end without text holds the other {num_late}",
                )

    def _most_before_end(self) -> int:
        return self._usage_so_far if self._usage_at_finish is None else self._usage_at_finish

    def _num_cached_tokens(self) -> int | None:
        """Prompt tokens from a prefix cache, where the engine says: in the usage, or in SGLang's own fields."""
        found = count_of(self._usage_detail("prompt_tokens_details").get("cached_tokens"))
        if found is None:
            found = count_of(self._metrics.get("cached_tokens"))
        caches = self._sglext.get("cached_tokens_details")
        if found is None and isinstance(caches, Mapping):
            counts = [count_of(caches.get(name)) for name in SGLANG_CACHES]
            found = sum(count for count in counts if count is not None) if counts[0] is not None else None
        return found

    def _num_reasoning_tokens(self) -> int | None:
        found = count_of(self._usage_detail("completion_tokens_details").get("reasoning_tokens"))
        return count_of((self._usage or {}).get("reasoning_tokens")) if found is None else found

    def _usage_detail(self, name: str) -> Mapping[str, Any]:
        return _mapping((self._usage or {}).get(name) or {}, name)

    def _so_far(self) -> str:
        return f", after {len(self._usages)} chunks"


def check_same_end(first: str, second: str) -> None:
    """Refuse an answer that ends twice, and not alike.

    Raises:
        RequestError: `bad_finish_reason`.
    """
    if FINISH_REASONS.get(first) is None or FINISH_REASONS.get(first) != FINISH_REASONS.get(second):
        raise RequestError(
            "bad_finish_reason", f"the server ended the answer with {first!r} and then with {second!r}"
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


def _only(value: object) -> object:
    """The one entry of a list with one entry per answer; anything else as it is."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _names(document: Mapping[str, Any]) -> str:
    return f"it has {', '.join(map(repr, list(document)[:5])) or 'nothing'}"
