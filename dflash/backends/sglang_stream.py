"""SGLang's own route `/generate`: what is asked, and its stream -> the same record as that of an OpenAI stream.

An event repeats all text and token ids that came before it, unless the server was started with
`--incremental-streaming-output`. What an event adds is the difference; one event may add several tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from dflash.backends.answer_counts import check_length, count_of, sglang_speculation
from dflash.backends.base import GenerationRequest
from dflash.backends.chat_stream import FINISH_REASONS, ChatStreamRecord, check_same_end
from dflash.backends.http import HttpClient
from dflash.backends.openai_server import reasoning_fields, sampling_fields
from dflash.errors import RequestError, UsageError

GENERATE_PATH = "/generate"
TOKENIZE_PATH = "/v1/tokenize"


class NativeStreamReader:
    """Takes the events of one stream in order; `record` is what they come to.

    Args:
        is_incremental: an event holds only what is new.
        prompt_ids: of the prompt that was sent, where they are known.
        max_new_tokens: the most output tokens that were asked for.
    """

    def __init__(
        self,
        *,
        is_incremental: bool = False,
        prompt_ids: tuple[int, ...] | None = None,
        max_new_tokens: int | None = None,
    ) -> None:
        self._max_new_tokens = max_new_tokens
        self._is_incremental, self._prompt_ids = is_incremental, prompt_ids
        self._text, self._ids = "", []  # type: tuple[str, list[int]]
        self._num_tokens = 0
        self._chunks: list[tuple[int, int, int]] = []  # arrival, tokens added, characters so far
        self._last_ns: int | None = None
        self._finish: Mapping[str, Any] = {}
        self._meta: Mapping[str, Any] = {}

    def feed(self, arrival_ns: int, document: Mapping[str, Any]) -> bool:
        """Take one event; True where it brings the answer on: by a token, or by its end.

        Raises:
            RequestError: `bad_event`: it is no event of an answer, or takes something back; `wrong_usage`: its count of
                tokens is not that of its token ids, or more came than was asked for; `bad_finish_reason`: it ends an
                answer that had ended.
        """
        meta, text, ids = document.get("meta_info"), document.get("text"), document.get("output_ids")
        if not isinstance(meta, dict) or not isinstance(text, str | None):
            raise RequestError("bad_event", f"an event is no part of an answer: it has {list(document)[:5]}")
        if document.get("index") not in (None, 0):
            raise RequestError("bad_event", "the server sent a second answer to one request")
        before = self._num_tokens
        self._read_ids(ids)
        self._read_count(meta, has_ids=ids is not None)
        self._text = self._text + (text or "") if self._is_incremental else text or self._text
        num_added = self._num_tokens - before
        if num_added:
            if self._last_ns is not None:
                raise RequestError("bad_event", "tokens came after the finish reason")
            self._chunks.append((arrival_ns, num_added, len(self._text)))
        had_ended = self._last_ns is not None
        if meta.get("finish_reason"):
            finish = _finish(meta["finish_reason"])
            if had_ended:
                check_same_end(str(self._finish.get("type")), str(finish.get("type")))
            else:
                self._last_ns, self._finish = arrival_ns, finish
        self._meta = meta
        check_length(self._num_tokens, len(self._chunks), self._max_new_tokens)
        return num_added > 0 or (self._last_ns is not None) > had_ended

    def record(self) -> ChatStreamRecord:
        """The answer, once its stream has ended.

        Raises:
            RequestError: `no_finish_reason`, `no_usage`: the stream lacks it; `bad_finish_reason`: the engine gave up.
        """
        so_far = f", after {len(self._chunks)} chunks"
        if self._last_ns is None:
            raise RequestError("no_finish_reason", f"the stream ended without a finish reason{so_far}")
        word = str(self._finish.get("type"))
        finish_reason = FINISH_REASONS.get(word)
        if finish_reason is None:
            why = self._finish.get("message")
            told = f" ({why})" if isinstance(why, str) and why else ""
            raise RequestError(
                "bad_finish_reason", f"the server ended the answer with {word!r}{told}{so_far}"
            )
        if not isinstance(self._meta.get("completion_tokens"), int):
            raise RequestError("no_usage", "the server does not count the output tokens")
        sizes = tuple(size for _, size, _ in self._chunks)
        matched = self._finish.get("matched")
        return ChatStreamRecord(
            first_ns=self._chunks[0][0] if self._chunks else None,
            last_ns=self._last_ns,
            finish_reason=finish_reason,
            num_prompt_tokens=count_of(self._meta.get("prompt_tokens")),
            num_output_tokens=self._num_tokens,
            num_first_chunk_tokens=sizes[0] if sizes else 0,
            chunk_arrivals_ns=tuple(arrival for arrival, _, _ in self._chunks),
            chunk_num_tokens=sizes,
            text_pieces=self._pieces(),
            text=self._text,
            reasoning="",
            output_ids=tuple(self._ids) or None,
            prompt_ids=self._prompt_ids,
            num_cached_tokens=count_of(self._meta.get("cached_tokens")),
            num_reasoning_tokens=count_of(self._meta.get("reasoning_tokens")),
            engine_finish_reason=word,
            stop_reason=matched if isinstance(matched, int | str) else None,
            speculation=sglang_speculation(self._meta),
            engine_metrics=self._meta,
        )

    def _read_ids(self, ids: object) -> None:
        if ids is None:
            return
        if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
            raise RequestError("bad_event", "an event's token ids are no list of integers")
        if self._is_incremental:
            self._ids += ids
            return
        num_known = len(self._ids)
        # Comparing all of them at every event would cost the square of the answer's length.
        if len(ids) < num_known or (num_known and ids[num_known - 1] != self._ids[-1]):
            raise RequestError("bad_event", "an event takes back token ids that were sent")
        self._ids = ids

    def _read_count(self, meta: Mapping[str, Any], *, has_ids: bool) -> None:
        """The tokens so far: of the ids, else as the event counts them."""
        counted = count_of(meta.get("completion_tokens"))
        if has_ids and counted is not None and counted != len(self._ids):
            raise RequestError(
                "wrong_usage", f"the usage counts {counted} output tokens, {len(self._ids)} token ids came"
            )
        num_tokens = len(self._ids) if has_ids else self._num_tokens if counted is None else counted
        if num_tokens < self._num_tokens:
            raise RequestError(
                "wrong_usage", f"the output tokens fell from {self._num_tokens} to {num_tokens}"
            )
        self._num_tokens = num_tokens

    def _pieces(self) -> tuple[str, ...]:
        """The text by chunks; what came with the finish reason alone belongs to the last one."""
        ends = [0, *(end for _, _, end in self._chunks)]
        if self._chunks:
            ends[-1] = len(self._text)
        return tuple(self._text[start:end] for start, end in pairwise(ends))


def native_body(request: GenerationRequest, prompt_ids: tuple[int, ...] | None) -> dict[str, Any]:
    """The JSON body of a streamed request; without `prompt_ids`, its one message as plain text.

    Raises:
        RequestError: `not_single_turn`: a conversation as plain text.
        UsageError: a reasoning setting with plain text.
    """
    prompt: dict[str, Any] = {"input_ids": list(prompt_ids)} if prompt_ids else _plain_text(request)
    sampling = sampling_fields(request.sampling, request.seed)
    if "seed" in sampling:
        sampling["sampling_seed"] = sampling.pop("seed")
    return {
        **prompt,
        "sampling_params": {**sampling, "max_new_tokens": request.max_new_tokens, "n": 1},
        "stream": True,
    }


async def render_prompt(client: HttpClient, model_id: str, request: GenerationRequest) -> tuple[int, ...]:
    """The token ids of the request's messages under the server's own chat template.

    Raises:
        RequestError: see `HttpClient.fetch`; `http_400`, `http_422`: the server tokenizes plain text only;
            `bad_answer`: no token ids.
    """
    messages = [{"role": message.role, "content": message.content} for message in request.messages]
    body = {"model": model_id, "messages": messages, **reasoning_fields(request.reasoning)}
    document = await client.post_json(TOKENIZE_PATH, body)
    ids = document.get("tokens") if isinstance(document, Mapping) else None
    if not isinstance(ids, list) or not ids or set(map(type, ids)) != {int}:
        raise RequestError("bad_answer", f"{TOKENIZE_PATH} gives no token ids")
    return tuple(ids)


def _plain_text(request: GenerationRequest) -> dict[str, Any]:
    mend = "use the route 'chat'"
    if request.reasoning != "off":
        raise UsageError(
            f"--reasoning {request.reasoning} needs a chat template, which this server does not lend to 'generate'",
            f"{mend}, or leave --reasoning out",
        )
    if len(request.messages) != 1:
        raise RequestError(
            "not_single_turn",
            f"the route 'generate' of this server takes one message, not {len(request.messages)}: "
            f"its {TOKENIZE_PATH} applies no chat template",
            mend,
        )
    return {"text": request.messages[0].content}


def _finish(reason: object) -> Mapping[str, Any]:
    return reason if isinstance(reason, Mapping) else {"type": reason}
