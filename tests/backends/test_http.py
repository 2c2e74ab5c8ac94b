"""The HTTP client against real servers in this process, with every fault that they can have."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest
from aiohttp import web
from own_certificate import self_signed_context

from dflash.backends.base import RequestTimeouts
from dflash.backends.chat_stream import ChatStreamReader, ChatStreamRecord
from dflash.backends.deadline import Deadline
from dflash.backends.http import HttpClient
from dflash.backends.http_answer import StreamResult, retry_after_s
from dflash.backends.http_settings import (
    HttpSettings,
    RetryPolicy,
    is_this_machine,
    parse_base_url,
    proxy_for,
    read_api_key,
    server_address,
)
from dflash.errors import RequestError, UsageError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

KEY = "sk-very-secret-key"
IMPATIENT = RequestTimeouts(first_token_s=0.1)
QUICK_RETRIES = RetryPolicy(max_retries=3, max_total_s=30, first_wait_s=0.001)


def packet(document: object) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def content(text: str, finish: str | None = None) -> bytes:
    return packet({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


def usage(num_tokens: int) -> bytes:
    return packet({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": num_tokens}})


DONE = b"data: [DONE]\n\n"
GOOD = (content("Hel"), content("lo", "stop"), usage(2), DONE)


class Script:
    """Answers POST /v1/chat/completions; keeps what was asked and whether the client went away."""

    def __init__(self, *answers: Handler) -> None:
        self.answers = list(answers)  # the last one is repeated
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.gone = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        try:
            return await answer(request)
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise


def stream_of(
    *packets: bytes, then: str = "end", headers: dict[str, str] | None = None, before: str = ""
) -> Handler:
    """A handler that sends the packets one by one, and then ends, hangs, or cuts the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if before == "hang":
            await asyncio.sleep(30)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **(headers or {})})
        await response.prepare(request)
        for one in packets:
            await response.write(one)
            await asyncio.sleep(0)
        if then == "hang":
            while True:  # writes, so that a client that has gone is noticed
                await asyncio.sleep(0.01)
                await response.write(b": still there\n\n")
        if then == "cut":
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


def refuse(status: int, body: object = None, **headers: str) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, str):
            return web.Response(status=status, text=body, headers=named)
        return web.json_response(
            {"error": {"message": "busy"}} if body is None else body, status=status, headers=named
        )

    return answer


@asynccontextmanager
async def served(handler: Handler, ssl_context: ssl.SSLContext | None = None):
    """The address of a server whose every path is answered by `handler`."""
    app = web.Application()

    async def handle(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ssl_context)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]
    try:
        yield f"{'https' if ssl_context else 'http'}://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


class Waits:
    """Waits that are written down and take no time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def client_for(url: str, waits: Waits | None = None, **settings: Any) -> HttpClient:
    settings = {"retries": QUICK_RETRIES, **settings}
    made = HttpSettings(base_url=parse_base_url(url), **settings)
    return HttpClient(made) if waits is None else HttpClient(made, sleep=waits)


async def ask(client: HttpClient) -> tuple[StreamResult, ChatStreamRecord]:
    reader = ChatStreamReader()
    result = await client.stream("/v1/chat/completions", {"model": "m", "stream": True}, reader.feed)
    return result, reader.record()


def good(
    handler: Handler, waits: Waits | None = None, **settings: Any
) -> tuple[StreamResult, ChatStreamRecord]:
    async def run() -> tuple[StreamResult, ChatStreamRecord]:
        async with served(handler) as url, client_for(url, waits, **settings) as client:
            return await ask(client)

    return asyncio.run(run())


def failure(handler: Handler, waits: Waits | None = None, **settings: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        good(handler, waits, **settings)
    error = caught.value
    assert "\n" not in str(error)
    return error


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


# --- a good stream


def test_a_stream_is_read_and_stamped():
    script = Script(stream_of(*GOOD))
    result, record = good(script)
    assert record.text == "Hello"
    assert record.first_ns is not None
    assert result.sent_ns <= result.attempt_sent_ns < record.first_ns <= record.last_ns <= result.ended_ns
    assert (result.num_retries, result.num_events, result.done) == (0, 3, True)
    assert script.bodies == [b'{"model":"m","stream":true}']
    headers = script.requests[0].headers
    assert headers["Accept-Encoding"] == "identity"
    assert headers["Content-Type"] == "application/json"
    assert headers["Accept"] == "text/event-stream"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_a_stream_in_packets_of_any_size_gives_the_same_text(size):
    whole = b": hello\r\n\r\n" + b"".join((content("Grüße, "), content("世界 😀", "stop"), usage(5), DONE))
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    _, record = good(stream_of(*pieces))
    assert record.text == "Grüße, 世界 😀"


def test_a_stream_may_end_without_done():
    result, record = good(stream_of(*GOOD[:-1]))
    assert (record.text, result.done) == ("Hello", False)


def test_keep_alives_are_no_events():
    result, _ = good(stream_of(b": ping\n\n", b"data:\n\n", *GOOD))
    assert result.num_events == 3


def test_fault_32_an_event_of_a_megabyte_is_no_trouble():
    text = "x" * 1_000_000
    _, record = good(
        stream_of(content(text), content("", "stop"), usage(9), DONE),
    )
    assert record.text == text


def test_a_connection_is_used_again_after_done():
    async def ports() -> set[int]:
        seen: set[int] = set()

        async def answer(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            seen.add(request.transport.get_extra_info("peername")[1])
            return await stream_of(*GOOD)(request)

        async with served(answer) as url, client_for(url) as client:
            for _ in range(3):
                await ask(client)
        return seen

    assert len(asyncio.run(ports())) == 1


def test_a_server_that_goes_on_after_done_does_not_hold_the_request(monkeypatch):
    monkeypatch.setattr("dflash.backends.http_answer.DRAIN_S", 0.02)
    result, record = good(stream_of(*GOOD, then="hang"))
    assert (record.text, result.done) == ("Hello", True)


def test_many_streams_at_once_have_a_connection_each():
    async def run() -> list[str]:
        waiting = 0
        all_here = asyncio.Event()

        async def answer(request: web.Request) -> web.StreamResponse:
            nonlocal waiting
            waiting += 1
            if waiting == 150:
                all_here.set()
            await all_here.wait()  # answers only once every request is here
            return await stream_of(*GOOD)(request)

        async with served(answer) as url, client_for(url, max_connections=150) as client:
            answers = await asyncio.gather(*(ask(client) for _ in range(150)))
        return [record.text for _, record in answers]

    assert asyncio.run(run()) == ["Hello"] * 150


# --- refusals and retries


def test_a_refused_connection_is_tried_again_and_then_said():
    waits = Waits()

    async def run() -> None:
        async with client_for(f"http://127.0.0.1:{free_port()}", waits) as client:
            await ask(client)

    with pytest.raises(RequestError, match="retries: 3") as caught:
        asyncio.run(run())
    assert caught.value.kind == "connection_refused"
    assert waits.seconds == [0.001, 0.002, 0.004]


def test_a_server_that_comes_up_late_is_reached():
    async def run() -> StreamResult:
        port = free_port()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", stream_of(*GOOD))
        runner = web.AppRunner(app)

        async def start_it(seconds: float) -> None:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()

        settings = HttpSettings(base_url=parse_base_url(f"http://127.0.0.1:{port}"))
        async with HttpClient(settings, sleep=start_it) as client:
            result, _ = await ask(client)
        await runner.cleanup()
        return result

    result = asyncio.run(run())
    assert result.num_retries == 1
    assert result.sent_ns < result.attempt_sent_ns


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_after_the_time_it_names(status):
    waits = Waits()
    script = Script(refuse(status, Retry_After="7"), refuse(status), stream_of(*GOOD))
    result, record = good(script, waits)
    assert record.text == "Hello"
    assert result.num_retries == 2
    assert waits.seconds == [7.0, 0.002]
    assert len(script.requests) == 3


def test_fault_28_the_wait_for_a_refusing_server_is_part_of_the_request():
    result, record = good(
        Script(refuse(429), stream_of(*GOOD)), retries=replace(QUICK_RETRIES, first_wait_s=0.02)
    )
    assert record.first_ns is not None
    assert result.attempt_sent_ns - result.sent_ns >= 15_000_000
    assert record.first_ns - result.sent_ns > record.first_ns - result.attempt_sent_ns


def test_a_server_that_is_busy_for_ever_is_given_up():
    script = Script(refuse(503, {"detail": "warming up"}))
    error = failure(script, Waits())
    assert error.kind == "http_503"
    assert "warming up" in str(error)
    assert "retries: 3" in str(error)
    assert len(script.requests) == 4


def test_a_wait_that_would_be_too_long_is_not_begun():
    waits = Waits()
    error = failure(Script(refuse(429, Retry_After="31")), waits)
    assert error.kind == "http_429"
    assert "31 s more would pass 30 s" in str(error)
    assert waits.seconds == []


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500, 502, 504, 301])
def test_any_other_status_is_final(status):
    script = Script(refuse(status, Location="http://127.0.0.1:1/"))
    error = failure(script, Waits())
    assert error.kind == f"http_{status}"
    assert "busy" in str(error)
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"object": "error", "message": "too long", "code": 400}, "too long"),
        ({"error": {"message": "no\nsuch model"}}, "no such model"),
        ({"detail": [{"loc": ["body", "top_k"], "msg": "must be positive"}]}, "body.top_k: must be positive"),
        ("Bad Gateway\r\n" * 3, "Bad Gateway Bad Gateway"),
        ("", "answered with 400 Bad Request"),
    ],
)
def test_the_servers_own_message_is_passed_on(body, message):
    assert message in str(failure(Script(refuse(400, body))))


def test_a_long_message_is_cut():
    error = failure(Script(refuse(500, "trace " * 100_000)))
    assert len(str(error)) < 400


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5", 5.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("Thu, 01 Jan 1970 00:01:40", 90.0),
        ("-5", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after(value, seconds):
    assert retry_after_s(value, now_s=10.0) == seconds


# --- faults of the stream


def test_fault_27_an_error_within_the_stream_is_a_failure():
    error = failure(stream_of(content("a"), packet({"error": {"message": "engine died", "code": 500}}), DONE))
    assert error.kind == "server_error"
    assert "engine died" in str(error)
    named = failure(stream_of(b"event: error\n" + packet({"message": "engine died"}), *GOOD))
    assert named.kind == "server_error"


@pytest.mark.parametrize(
    ("packets", "kind"),
    [
        ((content("a"), usage(1), DONE), "no_finish_reason"),
        ((DONE,), "no_finish_reason"),
        ((), "no_finish_reason"),
        ((content("a", "stop"), DONE), "no_usage"),
        ((content("a", "abort"), usage(1), DONE), "bad_finish_reason"),
        ((content("a"), b"data: {not json\n\n"), "bad_event"),
        ((content("a"), b"\x00\xff\xfe\n\n", *GOOD), "bad_event"),
        ((content("a"), b'data: {"choices": 7}\n\n'), "bad_event"),
        ((content("a"), b'data: {"cut": "in the mid'), "stream_cut"),
    ],
)
def test_a_broken_stream_is_a_failure_of_its_kind(packets, kind):
    script = Script(stream_of(*packets))
    assert failure(script).kind == kind
    assert len(script.requests) == 1


def test_an_oversized_event_is_a_failure():
    megabyte = b"x" * 1_000_000
    error = failure(stream_of(b"data: ", *[megabyte] * 18))
    assert error.kind == "bad_event"
    assert "larger than" in str(error)


def test_a_cut_stream_is_a_failure_and_is_not_repeated_after_tokens():
    script = Script(stream_of(content("a"), then="cut"), stream_of(*GOOD))
    assert failure(script).kind == "stream_cut"
    assert len(script.requests) == 1


def test_a_server_that_closes_before_it_answers_is_not_asked_again():
    async def close(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        raise ConnectionResetError

    script = Script(close)
    assert failure(script).kind == "disconnected"
    assert len(script.requests) == 1


def test_an_answer_that_is_no_http_is_a_failure():
    async def run() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"hello there\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, client_for(f"127.0.0.1:{port}") as client:
            await ask(client)

    with pytest.raises(RequestError) as caught:
        asyncio.run(run())
    assert caught.value.kind == "bad_answer"


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ({"choices": [{"text": "whole"}]}, "not_a_stream", "application/json came"),
        ({"error": {"message": "no streams here"}}, "server_error", "no streams here"),
        ("<html>welcome</html>", "not_a_stream", "text/plain came: <html>welcome"),
    ],
)
def test_an_answer_that_is_no_stream_is_a_failure(body, kind, message):
    error = failure(Script(refuse(200, body)))
    assert error.kind == kind
    assert message in str(error)


def test_a_compressed_stream_is_refused():
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_compression(web.ContentCoding.gzip)
        await response.prepare(request)
        await response.write(b"".join(GOOD))
        return response

    error = failure(answer)
    assert error.kind == "not_a_stream"
    assert "compressed" in str(error)


# --- timeouts


def test_a_server_that_hangs_before_its_headers_is_a_first_token_timeout():
    error = failure(stream_of(before="hang"), timeouts=IMPATIENT)
    assert error.kind == "first_token_timeout"
    assert "waited 0.1 s for the first token" in str(error)


@pytest.mark.parametrize(
    "packets", [(), (packet({"choices": [{"delta": {"role": "assistant", "content": ""}}]}),)]
)
def test_headers_and_a_role_are_no_token(packets):
    assert failure(stream_of(*packets, then="hang"), timeouts=IMPATIENT).kind == "first_token_timeout"


def test_a_server_that_hangs_between_chunks_is_a_chunk_timeout_whatever_keep_alives_it_sends():
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(content("a"))
        for _ in range(200):  # a client that counts these as chunks sees a good end
            await asyncio.sleep(0.005)
            await response.write(b": still there\n\n")
        await response.write(b"".join((content("b", "stop"), usage(2), DONE)))
        return response

    error = failure(answer, timeouts=RequestTimeouts(between_chunks_s=0.1))
    assert error.kind == "chunk_timeout"
    assert "waited 0.1 s for the next chunk" in str(error)


def test_a_deadline_moves_with_every_chunk_and_ends_at_the_last_one():
    async def run() -> None:
        loop = asyncio.get_running_loop()
        now_s = real_s = loop.time()
        loop.time = lambda: now_s  # type: ignore[method-assign]

        async def let_pass(seconds: float) -> None:
            nonlocal now_s
            now_s += seconds
            for _ in range(3):
                await asyncio.sleep(0)

        with Deadline(100_000, "the end") as deadline:
            for _ in range(50):
                deadline.expect("chunk_timeout", 120, "the next chunk")
                await let_pass(119)
            assert now_s - real_s == pytest.approx(50 * 119)
            await let_pass(2)
            raise AssertionError("the deadline has passed")

    with pytest.raises(RequestError, match="waited 120 s for the next chunk") as caught:
        asyncio.run(run())
    assert caught.value.kind == "chunk_timeout"


def test_the_total_time_is_bounded():
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(content("a"))
            await asyncio.sleep(0.01)

    error = failure(answer, timeouts=RequestTimeouts(total_s=0.05))
    assert error.kind == "total_timeout"
    assert "0.05 s" in str(error)


def test_the_total_time_counts_the_waits_between_retries():
    retries = RetryPolicy(max_retries=3, max_total_s=30, first_wait_s=20)
    error = failure(Script(refuse(503)), timeouts=RequestTimeouts(total_s=0.05), retries=retries)
    assert error.kind == "total_timeout"


def test_a_connection_that_is_never_completed_is_a_connect_timeout():
    async def run() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()  # takes the client's hello and never says one
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        timeouts = RequestTimeouts(connect_s=0.05)
        async with server, client_for(f"https://127.0.0.1:{port}", timeouts=timeouts) as client:
            await ask(client)

    with pytest.raises(RequestError) as caught:
        asyncio.run(run())
    assert caught.value.kind == "connect_timeout"
    assert "0.05 s" in str(caught.value)


def test_a_deadline_leaves_a_cancel_from_outside_alone():
    async def run() -> None:
        begun = asyncio.Event()

        async def work() -> None:
            with Deadline(60, "work"):
                begun.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="cannot tell the two cancels apart")
def test_a_cancel_from_outside_wins_over_a_deadline_of_the_same_moment():
    async def run() -> None:
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()

        async def work() -> None:
            with Deadline(0.01, "work"):
                begun.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await begun.wait()
        passed_s = loop.time() + 0.02
        loop.call_at(passed_s, task.cancel)
        loop.time = lambda: passed_s + 1  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_a_deadline_that_was_met_cancels_nothing_later():
    async def run() -> None:
        with Deadline(0.01, "work") as deadline:
            deadline.expect("chunk_timeout", 0.005, "a chunk")
            deadline.expect("chunk_timeout", None, "a chunk")
        await asyncio.sleep(0.03)

    asyncio.run(run())


# --- cancelling


@pytest.mark.parametrize("packets", [None, (), (content("a"),)])
def test_cancelling_closes_the_connection_at_once_and_leaks_nothing(packets):
    async def run() -> None:
        hanging = stream_of(before="hang") if packets is None else stream_of(*packets, then="hang")
        script = Script(hanging)
        async with served(script) as url, client_for(url) as client:
            task = asyncio.create_task(ask(client))
            while not script.requests:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(script.gone.wait(), 10)
            assert client._session is not None
            connector = client._session.connector
            assert connector is not None
            assert not connector._acquired
            assert not any(connector._conns.values())

    asyncio.run(run())


def test_a_failed_stream_closes_its_connection():
    async def run() -> None:
        script = Script(stream_of(content("a"), b"data: garbage\n\n", then="hang"))
        async with served(script) as url, client_for(url) as client:
            with pytest.raises(RequestError):
                await ask(client)
            await asyncio.wait_for(script.gone.wait(), 10)

    asyncio.run(run())


def test_a_client_may_be_closed_twice_and_unopened():
    async def run() -> None:
        client = client_for("127.0.0.1:1")
        await client.aclose()
        await client.aclose()

    asyncio.run(run())


# --- whole answers


def test_whole_answers():
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/text":
            return web.Response(text="grün")
        return web.json_response({"method": request.method, "body": (await request.read()).decode()})

    async def run() -> None:
        async with served(answer) as url, client_for(url + "/v1/") as client:
            assert await client.get_json("/json") == {"method": "GET", "body": ""}
            assert await client.post_json("/json", {"a": 1}) == {"method": "POST", "body": '{"a":1}'}
            assert await client.get_text("/text") == "grün"
            reply = await client.fetch("POST", "/text")
            assert (reply.status, reply.num_retries) == (200, 0)
            assert reply.sent_ns < reply.received_ns
            with pytest.raises(RequestError) as caught:
                await client.get_json("/text")
            assert caught.value.kind == "bad_answer"

    asyncio.run(run())


def test_a_whole_answer_that_breaks_off_or_never_comes():
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    async def run() -> None:
        async with served(cut) as url, client_for(url) as client:
            with pytest.raises(RequestError) as caught:
                await client.get_text("/")
            assert caught.value.kind == "stream_cut"
        async with served(stream_of(before="hang")) as url, client_for(url) as client:
            with pytest.raises(RequestError, match="the answer to GET /health") as caught:
                await client.get_text("/health", timeout_s=0.05)
            assert caught.value.kind == "total_timeout"
        script = Script(refuse(503))
        async with served(script) as url, client_for(url) as client:
            with pytest.raises(RequestError):
                await client.get_text("/health", retry=False)
        assert len(script.requests) == 1

    asyncio.run(run())


# --- addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://127.0.0.1:8000/v1/", "http://localhost:8000"),
        ("http://[::1]:8000", "http://localhost:8000"),
        ("0.0.0.0:8000", "http://localhost:8000"),
        ("http://127.0.0.2:8000", "http://127.0.0.2:8000"),
        ("HTTPS://Gpu-1.Example/engine/v1", "https://gpu-1.example:443/engine"),
        ("gpu-1.example", "http://gpu-1.example:80"),
        ("http://[fe80::2]:8001", "http://[fe80::2]:8001"),
        ("http://me:swordfish@gpu-1.example:8001", "http://gpu-1.example:8001"),
    ],
)
def test_an_address_means_one_server_however_it_is_written(text, address):
    assert server_address(parse_base_url(text)) == address


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("http://localhost:8000/v1", "http://localhost:8000"),
        ("http://localhost:8000/v1/", "http://localhost:8000"),
        (" localhost:8000/v1/ ", "http://localhost:8000"),
        ("//localhost:8000", "http://localhost:8000"),
        ("example.org", "http://example.org"),
        ("https://Example.org/proxy/llm/v1", "https://example.org/proxy/llm"),
        ("https://example.org/v10", "https://example.org/v10"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("https://[2001:db8::1]", "https://[2001:db8::1]"),
        ("127.0.0.1:30000", "http://127.0.0.1:30000"),
    ],
)
def test_addresses_as_people_write_them(text, url):
    assert parse_base_url(text).url == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://",
        "ftp://host",
        "http://host:port",
        "http://host:70000",
        "::1:8000",
        "http://[::1",
        "http://host/?key=hush-hush",
        "http://host/#part",
        "http://two words",
        "ftp://user:hush-hush@host",
        "http://user:hush-hush@host:port",
        "http://user:hush/hush-hush@host",
        "http://us%3Aer:hush-hush@host",
        "http://user:hush#hush@host:port",
        "http://..:1",
        f"http://{'a' * 64}.test",
    ],
)
def test_what_is_no_address_is_refused_without_showing_a_secret(text):
    with pytest.raises(UsageError) as caught:
        parse_base_url(text)
    assert "hush" not in str(caught.value)


def test_a_password_in_the_address_is_sent_and_never_shown():
    script = Script(refuse(401, {"error": {"message": "pass word of user is wrong"}}))
    errors = []

    async def run() -> None:
        async with served(script) as url:
            with_password = url.replace("//", "//user:pass%20word@")
            settings = HttpSettings(base_url=parse_base_url(with_password), retries=QUICK_RETRIES)
            client = HttpClient(settings)
            for shown in (repr(client), repr(settings), repr(client.stamps()), settings.base_url.url):
                assert "pass" not in shown
            async with client:
                with pytest.raises(RequestError) as caught:
                    await ask(client)
                errors.append(str(caught.value))

    asyncio.run(run())
    assert script.requests[0].headers["Authorization"] == "Basic dXNlcjpwYXNzIHdvcmQ="
    assert "pass word" not in errors[0]
    assert "[hidden] of user is wrong" in errors[0]


# --- keys and headers


def test_the_key_and_the_headers_are_sent():
    script = Script(stream_of(*GOOD))
    good(script, api_key=KEY, headers={"X-Tenant": "team-blue"})
    assert script.requests[0].headers["Authorization"] == f"Bearer {KEY}"
    assert script.requests[0].headers["X-Tenant"] == "team-blue"


@pytest.mark.parametrize(
    "answer",
    [
        refuse(401, {"error": {"message": f"wrong key {KEY} for team-blue"}}),
        refuse(400, "x" * 290 + KEY),  # the cut to 300 characters goes through the key
        refuse(503, f"key {KEY} and token-in-header"),
        refuse(200, f"key {KEY} and token-in-header"),
        stream_of(packet({"error": f"{KEY} team-blue"})),
        stream_of(content("a"), f"data: {KEY} team-blue\n\n".encode()),
        stream_of(content("a"), then="cut"),
    ],
)
def test_keys_and_headers_are_in_no_error_log_or_repr(answer, caplog):
    caplog.set_level(logging.DEBUG)
    headers = {"X-Tenant": "team-blue", "X-Other": "Bearer token-in-header"}
    with pytest.raises(RequestError) as caught:
        good(Script(answer), Waits(), api_key=KEY, headers=headers)
    settings = HttpSettings(base_url=parse_base_url("http://h"), api_key=KEY, headers=headers)
    client = HttpClient(settings)
    chain = [caught.value, caught.value.__cause__]
    shown = [
        *map(str, chain),
        *map(repr, chain),
        caplog.text,
        repr(settings),
        repr(client),
        repr(client.stamps()),
    ]
    for secret in (KEY, KEY[:9], "team-blue", "token-in-header"):
        assert not any(secret in text for text in shown)


def test_a_key_comes_from_the_setting_or_the_environment():
    environment = {"MY_KEY": KEY, "EMPTY": ""}
    assert read_api_key(None, None, environment) is None
    assert read_api_key("given", "MY_KEY", environment) == "given"
    assert read_api_key(None, "MY_KEY", environment) == KEY
    for name in ("EMPTY", "OTHER"):
        with pytest.raises(UsageError, match=name):
            read_api_key(None, name, environment)


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": ""},
        {"api_key": "hush\n"},
        {"headers": {"X-A": "hush\r\nX-B: c"}},
        {"headers": {"X A": "hush"}},
        {"headers": {"Accept-Encoding": "hush"}},
        {"api_key": "hush", "headers": {"authorization": "hush"}},
        {"api_key": "hush", "base_url": parse_base_url("http://user:hush@h")},
    ],
)
def test_what_cannot_be_sent_is_refused_without_showing_it(settings):
    with pytest.raises(UsageError) as caught:
        HttpSettings(**{"base_url": parse_base_url("http://h"), **settings})
    assert "hush" not in str(caught.value)


# --- proxies and TLS


@pytest.mark.parametrize("trust_env", [True, False])
def test_this_machine_is_never_asked_through_a_proxy(monkeypatch, trust_env):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    _, record = good(stream_of(*GOOD), trust_env=trust_env)
    assert record.text == "Hello"


def test_a_proxy_is_used_only_when_asked_for(monkeypatch):
    async def run() -> dict[bool, str]:
        seen = {}

        async def proxy(request: web.Request) -> web.StreamResponse:
            return await stream_of(content(str(request.url.host), "stop"), usage(1), DONE)(request)

        async with served(proxy) as url:
            monkeypatch.setenv("http_proxy", url.replace("//", "//me:proxy-password@"))
            monkeypatch.setenv("no_proxy", "inside.test")
            for trust_env in (True, False):
                async with client_for("http://outside.test", trust_env=trust_env) as client:
                    assert client.stamps()["proxy"] is trust_env
                    assert "proxy-password" not in repr(client.stamps())
                    try:
                        seen[trust_env] = (await ask(client))[1].text
                    except RequestError as error:
                        seen[trust_env] = error.kind
            assert proxy_for(parse_base_url("http://inside.test")) is None
        return seen

    assert asyncio.run(run()) == {True: "outside.test", False: "connection_failed"}


@pytest.mark.parametrize(
    ("host", "is_this"),
    [
        ("localhost", True),
        ("api.localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("0.0.0.0", True),
        ("10.0.0.1", False),
        ("example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_this_machine(host, is_this):
    assert is_this_machine(host) is is_this


def test_tls_is_verified_unless_turned_off(tmp_path):
    context = self_signed_context(tmp_path)

    async def run() -> tuple[str, str]:
        async with served(stream_of(*GOOD), context) as url:
            async with client_for(url) as client:
                assert client.stamps()["verify_tls"] is True
                with pytest.raises(RequestError) as caught:
                    await ask(client)
            async with client_for(url, verify_tls=False) as client:
                assert client.stamps()["verify_tls"] is False
                return caught.value.kind, (await ask(client))[1].text

    assert asyncio.run(run()) == ("tls_failed", "Hello")


def test_a_host_that_does_not_exist_is_said():
    async def run() -> None:
        async with client_for("http://nowhere.invalid") as client:
            await client.get_text("/")

    with pytest.raises(RequestError, match=r"nowhere\.invalid") as caught:
        asyncio.run(run())
    assert caught.value.kind == "connection_failed"
