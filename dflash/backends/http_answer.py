"""What comes back over HTTP: whole answers, the ends of streams, and bodies of which only a part is wanted."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import orjson

from dflash.backends.deadline import Deadline
from dflash.backends.sse import SseEvent, one_line, read_document, server_message
from dflash.errors import RequestError

MAX_ERROR_BODY_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024  # of a whole answer; the counters of a large server are some 1 MB
DRAIN_S = 1.0  # how long to wait for the end of a stream that has said [DONE], to keep its connection


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer (status 2xx)."""

    status: int
    body: bytes = field(repr=False)
    sent_ns: int = 0  # of the first attempt
    received_ns: int = 0  # its last byte
    num_retries: int = 0

    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace")

    def document(self) -> Any:
        """The answer read as JSON.

        Raises:
            RequestError: `bad_answer`: it is none.
        """
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise RequestError(
                "bad_answer", f"the server's answer is no JSON: {one_line(self.text())}"
            ) from None


@dataclass(frozen=True, slots=True)
class StreamResult:
    """What the transport knows of a stream that ended well."""

    sent_ns: int  # of the first attempt: a wait for a server that refused is part of the request
    attempt_sent_ns: int  # of the attempt that was answered
    ended_ns: int
    num_retries: int
    num_events: int  # [DONE] and empty events left out
    done: bool  # whether the server said [DONE]


def retry_after_s(value: str | None, now_s: float | None = None) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or as an HTTP date; None where it is neither.

    Args:
        now_s: the time of day, in seconds since 1970 (default: now).
    """
    value = (value or "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
        if date.tzinfo is None:
            date = date.replace(tzinfo=timezone.utc)
        at_s = date.timestamp()
    except (TypeError, ValueError, OverflowError):  # a number that no date holds
        return None
    return max(0.0, at_s - (time.time() if now_s is None else now_s))


async def check_stream(response: aiohttp.ClientResponse) -> None:
    """Refuse an answer that is no event stream.

    Raises:
        RequestError: `not_a_stream`, or `server_error` where the answer is an error in spite of its status.
    """
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        fault = f"the stream is compressed ({one_line(encoding)}), which holds tokens back"
        raise RequestError("not_a_stream", fault, "turn compression off in the server or proxy")
    if "Content-Type" not in response.headers or response.content_type == "text/event-stream":
        return
    body = await read_at_most(response, MAX_ERROR_BODY_BYTES)
    with suppress(orjson.JSONDecodeError):
        orjson.loads(body)
        read_document(SseEvent(0, body))
    fault = f"a stream was asked for, {response.content_type} came: {server_message(body)}"
    raise RequestError("not_a_stream", fault)


async def read_whole(response: aiohttp.ClientResponse, request: str) -> bytes:
    """The body of an answer.

    Args:
        request: in words, e.g. "GET /metrics".

    Raises:
        RequestError: `stream_cut`: it broke off; `bad_answer`: it is larger than any answer that is asked for.
    """
    pieces, num_bytes = [], 0
    try:
        while piece := await response.content.readany():
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > MAX_BODY_BYTES:
                fault = f"the answer to {request} is larger than {MAX_BODY_BYTES // 2**20} MiB"
                raise RequestError("bad_answer", fault, "is it the address of this engine?")
    except aiohttp.ClientError:
        raise RequestError("stream_cut", f"the answer to {request} broke off") from None
    return b"".join(pieces)


async def read_at_most(response: aiohttp.ClientResponse, num_bytes: int) -> bytes:
    """The first bytes of a body; of one that breaks off, what came."""
    pieces, left = [], num_bytes
    with suppress(aiohttp.ClientError):
        while left > 0 and (piece := await response.content.read(left)):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)


async def drain(response: aiohttp.ClientResponse) -> None:
    """Read a stream that has said [DONE] to its end, so that its connection can be used again."""
    try:
        with Deadline(DRAIN_S, "the end of the stream"):
            while await response.content.readany():
                pass
    except (RequestError, aiohttp.ClientError):
        response.close()
