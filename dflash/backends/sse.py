"""Server-sent events, parsed from bytes as they arrive.

The format is the one of the WHATWG HTML standard, section 9.2.6 (interpreting an event stream), with two
deliberate differences: a stream that ends inside an event is an error there (the standard drops the event), and
so is a line that has not the form of a field (the standard ignores it), since both hide a broken answer. Nothing
here decodes text before an event is whole, so a character cut between two packets is never seen in half.

`read_document` and `server_message` say what an event, or the body of a refusal, holds: the engines and the
frameworks below them each wrap an error in a form of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from dflash.errors import RequestError

MAX_EVENT_BYTES = 16 * 1024 * 1024
MAX_MESSAGE_CHARS = 300
DONE = b"[DONE]"  # OpenAI-style servers send it as the data of the last event

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
FIELD_NAME = re.compile(rb"[A-Za-z][A-Za-z0-9_-]*\Z")
FIELDS_WITHOUT_USE = (b"id", b"retry")


class SseEvent(NamedTuple):
    """One event: when the packet that completed it arrived, and its undecoded data."""

    arrival_ns: int
    data: bytes
    name: bytes = b""  # of the `event:` field; empty where there is none


class SseParser:
    """Events from the packets of one stream; nothing of an earlier event is kept.

    Args:
        max_event_bytes: the most that one event, or one unfinished line, may hold.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._head: bytes | None = b""  # the first bytes, while they may still be a byte order mark
        self._after_cr = False  # the last byte was a CR: an LF that follows belongs to it
        self._line: list[bytes] = []  # pieces of the unfinished line
        self._line_bytes = 0
        self._data: list[bytes] = []  # data lines of the unfinished event
        self._data_bytes = 0
        self._name = b""

    def feed(self, packet: bytes, arrival_ns: int) -> Iterator[SseEvent]:
        """The events that `packet` completes, in order. Must be exhausted before the next packet is fed.

        Raises:
            RequestError: `bad_event`: not an event stream, or an event larger than the bound.
        """
        if self._head is not None:
            packet = self._without_mark(packet)
        if packet and (self._after_cr or b"\r" in packet):
            packet = self._with_plain_line_ends(packet)
        lines = packet.split(b"\n")
        rest = lines.pop()
        if lines and self._line:
            lines[0] = b"".join((*self._line, lines[0]))
            self._line.clear()
            self._line_bytes = 0
        for line in lines:
            if line:
                self._read_line(line)
                continue
            event = SseEvent(arrival_ns, b"\n".join(self._data), self._name) if self._data else None
            self._data.clear()
            self._data_bytes = 0
            self._name = b""
            if event is not None:
                yield event
        if rest:
            self._line.append(rest)
            self._line_bytes += len(rest)
            self._check_size(self._line_bytes + self._data_bytes)

    def close(self) -> None:
        """Say that the stream has ended.

        Raises:
            RequestError: `stream_cut`: it ended inside an event.
        """
        rest = (self._head or b"") + b"".join(self._line)
        if self._data or self._name or (rest and not rest.startswith(b":")):
            raise RequestError("stream_cut", "the stream ended in the middle of an event")

    def _without_mark(self, packet: bytes) -> bytes:
        """The packet, with a byte order mark at the very start of the stream left out."""
        head = (self._head or b"") + packet
        if len(head) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(BYTE_ORDER_MARK)

    def _with_plain_line_ends(self, packet: bytes) -> bytes:
        """The packet with every CR LF and every lone CR as one LF, also where the two are in different packets."""
        if self._after_cr and packet.startswith(b"\n"):
            packet = packet[1:]
        self._after_cr = packet.endswith(b"\r")
        return packet.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _read_line(self, line: bytes) -> None:
        name, colon, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
            self._check_size(self._data_bytes)
        elif name == b"event":
            self._name = value
        elif not name or name in FIELDS_WITHOUT_USE:
            return  # a comment, which is how servers and proxies keep a connection alive
        elif not colon or not FIELD_NAME.match(name):
            raise RequestError("bad_event", "the stream holds a line that is no field of an event")

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_event_bytes:
            raise RequestError("bad_event", f"an event is larger than {self._max_event_bytes} bytes")


def read_document(event: SseEvent) -> dict[str, Any] | None:
    """The JSON object that an event holds; None for an event without data, which only keeps a connection alive.

    Raises:
        RequestError: `bad_event`: it holds something else; `server_error`: it tells of an error.
    """
    is_error = event.name == b"error"
    if not event.data.strip() and not is_error:
        return None
    try:
        document = orjson.loads(event.data)
    except orjson.JSONDecodeError:
        if is_error:
            raise RequestError("server_error", _error_fault(server_message(event.data))) from None
        raise RequestError("bad_event", f"an event is no JSON: {server_message(event.data)}") from None
    if is_error or (
        isinstance(document, dict) and (document.get("error") or document.get("object") == "error")
    ):
        raise RequestError("server_error", _error_fault(server_message(event.data)))
    if not isinstance(document, dict):
        raise RequestError("bad_event", f"an event is no JSON object: {server_message(event.data)}")
    return document


def server_message(body: bytes) -> str:
    """What a server says of an error, on one line of at most 300 characters; empty where it says nothing.

    Known forms: OpenAI's `{"error": {"message": …}}`, `{"error": …}`, `{"object": "error", "message": …}`, FastAPI's
    `{"detail": …}` with a text or with one entry per wrong field, and plain text.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return one_line(body.decode("utf-8", errors="replace"))
    return one_line(_message_of(document) or body.decode("utf-8", errors="replace"))


def one_line(text: str) -> str:
    """The text with every run of blanks as one, unprintable characters replaced, and cut to 300 characters."""
    line = " ".join(text[: 16 * MAX_MESSAGE_CHARS].split())
    line = "".join(character if character.isprintable() else "\ufffd" for character in line)
    return line if len(line) <= MAX_MESSAGE_CHARS else line[: MAX_MESSAGE_CHARS - 1] + "…"


def _message_of(document: object) -> str | None:
    """The innermost message of an error document; None where it has none of the known forms."""
    if isinstance(document, str):
        return document
    if isinstance(document, list):  # FastAPI: one entry per wrong field
        messages = [message for message in map(_message_of, document) if message]
        return "; ".join(messages) or None
    if not isinstance(document, dict):
        return None
    for name in ("error", "message", "detail", "msg"):
        message = _message_of(document.get(name))
        if message:
            place = document.get("loc")
            where = ".".join(map(str, place)) + ": " if isinstance(place, list) else ""
            return where + message
    return None


def _error_fault(message: str) -> str:
    return f"the server sent an error: {message}" if message else "the server sent an error without a message"
