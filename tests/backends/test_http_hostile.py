"""What a server may do to a client that trusts it: no end, dates without sense, repeated keys."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from made_up_vllm import MadeUpVllm, running, stream_of
from test_http import (
    DONE,
    GOOD,
    KEY,
    Script,
    client_for,
    content,
    failure,
    good,
    packet,
    refuse,
    served,
    usage,
)
from test_http import stream_of as packets_of

from dflash.backends import http_answer
from dflash.backends.base import BackendSettings, Endpoint, RequestTimeouts
from dflash.backends.http_answer import retry_after_s
from dflash.backends.openai_server import open_error
from dflash.backends.vllm import VllmBackend
from dflash.errors import RequestError, UnavailableError, UsageError
from dflash.results.records import Arm


@pytest.mark.parametrize(
    "value",
    [
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 99999999999999999999 Jan 2030 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2359",
        "Sat, 01 Jan 0001 00:00:00 +2359",
    ],
)
def test_a_retry_after_that_no_date_holds_is_no_date_or_a_long_wait(value):
    found = retry_after_s(value, now_s=0)
    assert found is None or found >= 0
    error = failure(Script(refuse(503, Retry_After=value)))
    assert error.kind == "http_503"


def test_a_body_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(http_answer, "MAX_BODY_BYTES", 2**20)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    async def run() -> None:
        async with served(endless) as url, client_for(url) as client:
            await client.get_text("/metrics", timeout_s=30)

    with pytest.raises(RequestError, match="GET /metrics is larger than 1 MiB") as caught:
        asyncio.run(run())
    assert caught.value.kind == "bad_answer"


def test_empty_chunks_without_end_are_no_answer():
    empty = packet({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(content("a"))
        while True:
            await response.write(empty)
            await asyncio.sleep(0.01)

    error = failure(endless, timeouts=RequestTimeouts(between_chunks_s=0.15, total_s=20))
    assert error.kind == "chunk_timeout"
    assert "the next chunk with a token" in error.fault


def test_a_server_that_lingers_after_done_does_not_lose_the_answer(monkeypatch):
    monkeypatch.setattr(http_answer, "DRAIN_S", 0.3)
    timeouts = RequestTimeouts(between_chunks_s=0.1, total_s=0.25)
    result, record = good(packets_of(*GOOD, then="hang"), timeouts=timeouts)
    assert (result.done, record.text) == (True, "Hello")


WRONG = stream_of([[5], [2]]).replace(b'"completion_tokens":2', b'"completion_tokens":9')
ODD_KEY = 'sk-"odd"/key-é<&>'


@pytest.mark.parametrize(
    "answer",
    [
        refuse(400, f"no {KEY}"),
        packets_of(content("a", KEY), usage(1), DONE),
        packets_of(content("a"), packet({"error": {"message": KEY}})),
        packets_of(b"data: " + KEY.encode() + b"\n\n"),
    ],
)
def test_a_repeated_key_is_in_no_error(answer):
    assert KEY not in str(failure(answer, api_key=KEY))


def test_a_short_key_is_in_no_message_of_a_whole_answer():
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="no JSON but abc123")

    async def run() -> None:
        async with served(answer) as url, client_for(url, api_key="abc123") as client:
            await client.get_json("/v1/models")

    with pytest.raises(RequestError, match=r"no JSON but \[hidden\]"):
        asyncio.run(run())


def test_a_repeated_key_is_in_no_answer():
    _, record = good(
        packets_of(content(f"my key is {KEY}"), content("", "stop"), usage(5), DONE), api_key=KEY
    )
    assert record.text == "my key is [hidden]"


@pytest.mark.parametrize(
    "body",
    [
        KEY,
        '"sk-\\"odd\\"/key-é<&>"',
        '"sk-\\"odd\\"\\/key-\\u00e9<&>"',
        '"sk-\\"odd\\"\\/key-é<&>"',
        "sk-&quot;odd&quot;/key-é&lt;&amp;&gt;",
        "sk-%22odd%22%2Fkey-%C3%A9%3C%26%3E",
    ],
)
def test_a_repeated_key_is_in_no_body_however_it_is_written(body):
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"# {body} {{}}")

    async def run(key: str) -> str:
        async with served(answer) as url, client_for(url, headers={"X-Key": key}) as client:
            return await client.get_text("/metrics")

    assert asyncio.run(run(KEY if body == KEY else ODD_KEY)).strip('# {}"') == "[hidden]"


def test_a_key_that_is_split_over_chunks_is_hidden_in_the_answer():
    server = MadeUpVllm(
        stream=stream_of([[5], [6], [7]]).replace(b" 5", b"sk-very-").replace(b" 6", b"secret-key")
    )
    generation = asyncio.run(_generate(server, api_key=KEY))
    assert generation.text == "[hidden] 7"


async def _generate(server: MadeUpVllm, **settings: str):
    from test_vllm import REQUEST

    async with running(server):
        backend = VllmBackend(BackendSettings(endpoints=(Endpoint(server.url),), **settings), quiet_s=0.0)
        try:
            await backend.open([Arm("")])
            return await backend.generate(REQUEST)
        finally:
            await backend.aclose()


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (MadeUpVllm(stream=b"data: [DONE]\n\n"), "no_finish_reason"),
        (
            MadeUpVllm(
                stream=stream_of([[5], [2]]).replace(b'"completion_tokens":2', b'"completion_tokens":9')
            ),
            "9 output",
        ),
        (MadeUpVllm(stream=b"data: {]\n\n"), "bad_event"),
    ],
)
def test_a_first_answer_that_is_wrong_is_no_missing_server(server, words):
    with pytest.raises(UnavailableError) as caught:
        asyncio.run(_generate(server))
    assert words in str(caught.value)
    assert "no server answers" not in str(caught.value)
    assert "vllm serve" not in str(caught.value)


@pytest.mark.parametrize(
    "kind", ["tls_failed", "http_302", "http_503", "chunk_timeout", "not_a_stream", "wrong_usage"]
)
def test_a_server_that_is_there_is_not_said_to_be_missing(kind):
    error = open_error(RequestError(kind, "what happened", "the mend"), "http://s:1", "start it so")
    assert isinstance(error, UnavailableError)
    assert str(error) == f"a first request to http://s:1 failed: {kind} (what happened): the mend"
    missing = open_error(RequestError("connection_refused", "what happened"), "http://s:1", "start it so")
    assert "no server answers" in str(missing)
    assert not isinstance(missing, UsageError)


def test_what_a_header_only_names_is_left_in_answers():
    """A gateway that is told the model's name by a header: the model is called so."""
    handler = packets_of(content("I am Qwen3-8B"), content("", "stop"), usage(5), DONE)
    _, record = good(handler, headers={"X-Model": "Qwen3-8B", "X-Api-Key": KEY})
    assert record.text == "I am Qwen3-8B"
