"""Server-sent events: any cut of a stream gives the same events, and a broken stream is an error."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from dflash.backends.sse import DONE, SseEvent, SseParser, one_line, read_document, server_message
from dflash.errors import RequestError

STREAMS = (
    "vllm-0.32.0/base.stream.txt",
    "vllm-0.32.0/dflash.stream.txt",
    "vllm-0.32.0/ngram.stream.txt",
    "sglang-0.5.23/base-chat_stream.txt",
    "sglang-0.5.23/base-generate_stream.txt",
    "sglang-0.5.23/dflash-chat_stream.txt",
    "sglang-0.5.23/dflash-generate_stream.txt",
)
EVERYTHING = (
    b"\xef\xbb\xbf: a comment first\r\n"
    b"data: one\n\n"
    b"data:two\r\n\r\n"
    b"data:  three, with a blank\r\rdata: first\ndata\ndata:third\r\n\n"
    b'event: error\nid: 7\nretry: 10\ndata: {"a": 1}\n\n'
    b":\n\n: keep-alive\n\nevent: ping\n\n"
    b"data: of\r\ndata: two lines\r\n\r\n"
    b"x-own: unknown\ndata: \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\n\n"
    b"data:\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [
    (b"one", b""),
    (b"two", b""),
    (b" three, with a blank", b""),
    (b"first\n\nthird", b""),
    (b'{"a": 1}', b"error"),
    (b"of\ntwo lines", b""),
    ("ä€😀".encode(), b""),
    (b"", b""),
    (b"[DONE]", b""),
]


def recorded_stream(shared_folder: Path, name: str) -> bytes:
    """A recorded answer, without the line that the recording tool put behind it."""
    content = (shared_folder / "samples" / name).read_bytes()
    return content[: content.rindex(DONE) + len(DONE)] + b"\n\n"


def parse(packets: list[bytes], parser: SseParser | None = None) -> list[SseEvent]:
    """All events; packet i arrives at i."""
    parser = parser or SseParser()
    events = [event for index, packet in enumerate(packets) for event in parser.feed(packet, index)]
    parser.close()
    return events


def contents(events: list[SseEvent]) -> list[tuple[bytes, bytes]]:
    return [(event.data, event.name) for event in events]


def cut_at(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def test_every_form_of_the_standard_is_read():
    assert contents(parse([EVERYTHING])) == EVENTS


def test_a_stream_cut_at_any_one_byte_gives_the_same_events():
    for place in range(len(EVERYTHING) + 1):
        assert contents(parse([EVERYTHING[:place], EVERYTHING[place:]])) == EVENTS, place


def test_a_stream_that_comes_byte_by_byte_gives_the_same_events():
    assert contents(parse([bytes([byte]) for byte in EVERYTHING])) == EVENTS


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_any_cut_of_a_recorded_stream_gives_the_same_events(shared_folder, name, line_end):
    plain = recorded_stream(shared_folder, name)
    stream = plain.replace(b"\n", line_end)
    expected = [(block.removeprefix(b"data: "), b"") for block in plain.split(b"\n\n") if block]
    generator = random.Random(0)
    assert len(expected) > 5
    for _ in range(20):
        places = [generator.randrange(len(stream) + 1) for _ in range(generator.choice([1, 3, 30, 1000]))]
        events = parse(cut_at(stream, places))
        assert contents(events) == expected
        assert [event.arrival_ns for event in events] == sorted(event.arrival_ns for event in events)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_an_event_has_the_stamp_of_the_packet_that_completed_it(line_end):
    packets = [
        b"data: a",
        line_end,
        line_end + b"data: b" + line_end + line_end + b"da",
        b"ta: c" + line_end * 2,
    ]
    assert [(event.data, event.arrival_ns) for event in parse(packets)] == [(b"a", 2), (b"b", 2), (b"c", 3)]


def test_a_lone_cr_ends_an_event_without_waiting_for_what_may_follow_it():
    parser = SseParser()
    assert contents(list(parser.feed(b"data: a\r\n\r", 0))) == [(b"a", b"")]
    assert list(parser.feed(b"\n", 1)) == []
    assert contents(list(parser.feed(b"data: b\r\n\r\n", 2))) == [(b"b", b"")]


def test_a_byte_order_mark_counts_only_at_the_start():
    mark = b"\xef\xbb\xbf"
    for place in range(4):
        stream = mark + b"data: a\n\n"
        assert contents(parse([stream[:place], b"", stream[place:]])) == [(b"a", b"")]
    assert contents(parse([b"data: " + mark + b"a\n\n"])) == [(mark + b"a", b"")]
    with pytest.raises(RequestError, match="no field"):
        parse([b"data: a\n\n" + mark + b"data: b\n\n"])


@pytest.mark.parametrize(
    "end", [b"data: a", b"data: a\n", b"data: a\r", b"da", b"event: error\n", b"\xef\xbb"]
)
def test_a_stream_that_ends_inside_an_event_is_cut(end):
    with pytest.raises(RequestError) as caught:
        parse([b"data: whole\n\n" if end != b"\xef\xbb" else b"", end])
    assert caught.value.kind == "stream_cut"


@pytest.mark.parametrize("end", [b"", b"\n", b": bye", b": bye\n", b"id: 3\n"])
def test_a_stream_may_end_between_events(end):
    assert contents(parse([b"data: a\n\n" + end])) == [(b"a", b"")]


@pytest.mark.parametrize(
    "garbage", [b"<html>\n", b"Internal Server Error\n", b"\x00\xff: x\n", b"{}\n", b" data: x\n"]
)
def test_garbage_is_an_error_and_the_events_before_it_are_not_lost(garbage):
    parser = SseParser()
    events = parser.feed(b"data: a\n\n" + garbage, 0)
    assert next(events).data == b"a"
    with pytest.raises(RequestError) as caught:
        next(events)
    assert caught.value.kind == "bad_event"


@pytest.mark.parametrize(
    "packets",
    [
        [b"data: " + b"x" * 200 + b"\n\n"],
        [b"data: ", *[b"x" * 30] * 5],
        [b"data: " + b"x" * 40 + b"\n"] * 3,
        [b": " + b"x" * 200],
    ],
)
def test_an_event_larger_than_the_bound_is_an_error(packets):
    with pytest.raises(RequestError, match="larger than 100 bytes") as caught:
        parse(packets, SseParser(max_event_bytes=100))
    assert caught.value.kind == "bad_event"


def test_the_bound_is_for_one_event_not_for_the_stream():
    events = parse([b"data: " + b"x" * 60 + b"\n\n"] * 50, SseParser(max_event_bytes=100))
    assert len(events) == 50


@pytest.mark.parametrize(
    ("data", "name", "kind", "message"),
    [
        (b"not json", b"", "bad_event", "not json"),
        (b'{"cut": ', b"", "bad_event", "cut"),
        (b'{"text": "\xc3"}', b"", "bad_event", "text"),
        (b"[1]", b"", "bad_event", "[1]"),
        (
            b'{"error": {"message": "out of\\n memory", "code": 500}}',
            b"",
            "server_error",
            "error: out of memory",
        ),
        (b'{"error": "flat"}', b"", "server_error", "error: flat"),
        (b'{"object": "error", "message": "older form", "code": 400}', b"", "server_error", "older form"),
        (b'{"message": "named"}', b"error", "server_error", "named"),
        (b"plain", b"error", "server_error", "plain"),
        (b"", b"error", "server_error", "without a message"),
    ],
)
def test_what_is_no_chunk_is_an_error(data, name, kind, message):
    with pytest.raises(RequestError) as caught:
        read_document(SseEvent(0, data, name))
    assert caught.value.kind == kind
    assert message in str(caught.value)


def test_a_chunk_is_read_and_an_empty_event_only_keeps_alive():
    assert read_document(SseEvent(0, '{"text": "ä", "error": null}'.encode())) == {"text": "ä", "error": None}
    assert read_document(SseEvent(0, b" ")) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long", "type": "BadRequestError", "code": 400}}', "too long"),
        (b'{"object": "error", "message": "unknown model", "code": 404}', "unknown model"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (
            b'{"detail": [{"loc": ["body", "n"], "msg": "too small"}, {"loc": ["body", 0], "msg": "missing"}]}',
            "body.n: too small; body.0: missing",
        ),
        (b"Bad\r\n  Gateway\x1b[31m", "Bad Gateway\ufffd[31m"),
        (b'{"status": "sad"}', '{"status": "sad"}'),
        (b"\xff", "\ufffd"),
        (b"", ""),
    ],
)
def test_a_servers_own_message_is_found_in_every_form(body, message):
    assert server_message(body) == message


def test_recorded_refusals_give_their_message(shared_folder):
    import orjson

    folder = shared_folder / "samples" / "sglang-0.5.23"
    said = {
        name: server_message(
            orjson.dumps(orjson.loads((folder / f"dflash-{name}.json").read_bytes())["body"])
        )
        for name in ("bad_temp", "too_long", "get_load")
    }
    assert said["bad_temp"].startswith("temperature must be a non-negative")
    assert said["too_long"].startswith("The input (5001 tokens) is longer")
    assert said["get_load"] == "Not Found"


def test_a_message_is_cut_to_one_short_line():
    line = one_line("word\n" * 100_000)
    assert len(line) == 300
    assert line.endswith("…")
    assert "\n" not in line
