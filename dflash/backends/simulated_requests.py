"""What a simulated server reads from a generation request, whichever route it came by."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash.backends.simulated_engine import Job
from dflash.backends.simulated_model import prompt_ids

DONE = b"data: [DONE]\n\n"
_unseeded = itertools.count()


class ApiError(Exception):
    """A request that is refused; the message is the one that the engine gives.

    Args:
        kind: the engine's name of the fault; None: the one that goes with the status.
    """

    def __init__(
        self, message: str, *, status: int = 400, kind: str | None = None, parameter: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.kind, self.parameter = message, status, kind, parameter


class Format(ABC):
    """How one answer goes over the wire. Made when the request is known to be answered."""

    headers_at_once = True  # False: with the first token

    @abstractmethod
    def events(self, index: int) -> Sequence[bytes]:
        """The whole events of one chunk of tokens, each a packet of its own."""

    @abstractmethod
    def ending(self) -> Sequence[bytes]:
        """What comes after the last chunk, `[DONE]` included."""

    @abstractmethod
    def error_event(self, message: str) -> bytes:
        """The engine's own error inside a stream that has begun."""

    @abstractmethod
    def document(self) -> Mapping[str, Any]:
        """The answer as one document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One generation request."""

    key: tuple[object, ...]  # what the tokens depend on
    prompt: tuple[int, ...]
    prompt_text: str  # what a fault's `prompt` is looked for in
    max_new_tokens: int
    ignore_stop: bool
    is_stream: bool
    request_id: str
    make_format: Callable[[Job], Format] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The conversation or text that a request asks about."""

    key: tuple[object, ...]
    ids: tuple[int, ...]
    text: str


def read_messages(body: Mapping[str, Any]) -> Prompt:
    """The prompt of a chat request, with the key that the engine in process makes of the same messages.

    Raises:
        ApiError: no list of messages with role and content.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError("messages: a list with at least one message is required", parameter="messages")
    pairs = []
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ApiError("messages: every message needs a role", parameter="messages")
        pairs.append((message["role"], _content(message.get("content"))))
    options = body.get("chat_template_kwargs") or {}
    effort = body.get("reasoning_effort") or options.get("reasoning_effort")
    reasoning = effort or ("on" if options.get("enable_thinking") else "off")
    ids = tuple(token for _, content in pairs for token in prompt_ids(content))
    return Prompt(key=(*pairs, str(reasoning)), ids=ids or (1,), text=pairs[-1][1])


def read_text(prompt: object, name: str = "prompt") -> Prompt:
    """The prompt of a plain request: a text, or a list of ids; the same ids give the same answer.

    Raises:
        ApiError: something else, or several prompts at once.
    """
    if isinstance(prompt, str):
        ids = prompt_ids(prompt) or (1,)
        return Prompt(key=("prompt", ids, "off"), ids=ids, text=prompt)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        ids = tuple(prompt)
        return Prompt(key=("prompt", ids, "off"), ids=ids, text="")
    raise ApiError(f"{name}: one text or one list of token ids is required (no batch here)", parameter=name)


def sampling_key(temperature: float, seed: object) -> object:
    """None where the target picks greedily; without a seed, every request samples anew."""
    if temperature == 0:
        return None
    return f"unseeded {next(_unseeded)}" if seed is None else seed


def read_number(values: Mapping[str, Any], name: str, default: float) -> float:
    """A number, or the default where there is none.

    Raises:
        ApiError: something else.
    """
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ApiError(f"{name} must be a finite number, got {value}.", parameter=name)
    return value


def usage_wanted(body: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a stream ends with its usage, and whether every chunk carries it too."""
    options = body.get("stream_options") or {}
    at_the_end = bool(options.get("include_usage"))
    return at_the_end, at_the_end and bool(options.get("continuous_usage_stats"))


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)
