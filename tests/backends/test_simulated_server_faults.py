"""Every scripted fault of the simulated servers happens where it should, and nowhere else."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from simulated_client import (
    BOTH,
    CHAT,
    PLAIN,
    WORDS_41,
    chat,
    outcome_of,
    post,
    samples,
    serve,
    total,
    until,
    with_server,
)

from dflash.backends.scenario import Fault
from dflash.backends.simulated_http import SimulatedServer


@BOTH
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault("status", request=1), "status 500"),
        (Fault("status", request=1, status=503, retry_after_s=2), "status 503"),
        (Fault("cut", request=1), "cut"),
        (Fault("cut", request=1, after_tokens=7), "cut"),
        (Fault("garbage", request=1, after_tokens=1), "garbage"),
        (Fault("oversized", request=1, after_tokens=1, size_bytes=2_000_000), "good, 2 MB"),
        (Fault("error_event", request=1, after_tokens=1), "error event"),
        (Fault("missing_finish", request=1), "no finish reason"),
        (Fault("missing_usage", request=1), "no usage"),
        (Fault("wrong_usage", request=1, delta=5), "usage says 37"),
        (Fault("slow_headers", request=1, seconds=0.05), "good"),
        (Fault("hang", request=1, after_tokens=3, seconds=0.05), "good"),
        (Fault("wrong_usage", prompt="only this", delta=-1), "usage says 31"),
        (Fault("restart", request=1, seconds=0.05, after_tokens=3), "cut"),
    ],
)
def test_a_fault_hits_the_request_it_names_and_no_other(protocol: str, fault: Fault, expected: str) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        outcomes = []
        for text in ("first", "only this one", "third"):
            outcomes.append(await outcome_of(client, protocol, text=text))
            await until(lambda: server.is_listening)
        assert outcomes == ["good", expected, "good"]
        assert [log.fault for log in server.log()] == [None, fault.action, None]

    serve(protocol, with_server(PLAIN, fault), work, arm="dflash")


@BOTH
@pytest.mark.parametrize("after_tokens", [0, 1])
def test_a_hang_lasts_until_the_client_leaves(protocol: str, after_tokens: int) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        request = asyncio.create_task(outcome_of(client, protocol))
        await until(lambda: bool(server.log()) and server.log()[0].started_ns is not None)
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not request.done()
        assert server.log()[0].num_output_tokens == after_tokens
        request.cancel()
        await until(lambda: server.log()[0].outcome == "client_left")
        assert server.engine.is_idle

    serve(protocol, with_server(PLAIN, Fault("hang", after_tokens=after_tokens)), work)


@BOTH
def test_a_refused_request_is_told_when_to_come_back_and_then_served(protocol: str) -> None:
    fault = Fault("status", request=0, times=2, status=429, retry_after_s=0.5, message="busy")

    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        for _ in range(2):
            async with client.post(CHAT[protocol], json=chat()) as response:
                assert (response.status, response.headers["Retry-After"]) == (429, "0.5")
                assert "busy" in await response.text()
        assert await outcome_of(client, protocol) == "good"
        assert [log.outcome for log in server.log()] == ["status 429", "status 429", "done"]

    serve(protocol, with_server(PLAIN, fault), work)


@BOTH
@pytest.mark.parametrize("request_number", [0, 1])
def test_a_closed_port_opens_again(protocol: str, request_number: int) -> None:
    fault = Fault("refuse", request=request_number, seconds=0.3)

    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        for _ in range(request_number):
            assert await outcome_of(client, protocol) == "good"
        await until(lambda: not server.is_listening)
        await asyncio.sleep(0.05)  # until the client knows that its idle connection is closed
        assert await outcome_of(client, protocol) == "refused"
        await until(lambda: server.is_listening)
        assert await outcome_of(client, protocol) == "good"
        assert len(server.log()) == request_number + 1

    serve(protocol, with_server(PLAIN, fault), work)


@BOTH
def test_counters_are_reset_and_moved_by_others(protocol: str) -> None:
    faults = (Fault("foreign_traffic", request=1, num_tokens=1000), Fault("counter_reset", request=2))

    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> list[float]:
        readings = []
        for _ in range(3):
            assert await outcome_of(client, protocol) == "good"
            readings.append(total(await samples(client), f"{protocol}:generation_tokens_total"))
        return readings

    assert serve(protocol, with_server(PLAIN, *faults), work, arm="dflash") == [32, 1064, 32]


@BOTH
def test_a_restart_cuts_everybody_and_loses_counters_and_cache(protocol: str) -> None:
    faults = (Fault("hang", request=1), Fault("restart", request=2, seconds=0.1, after_tokens=1))

    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        assert await outcome_of(client, protocol, text=WORDS_41) == "good"
        waiting = asyncio.create_task(outcome_of(client, protocol))
        await until(lambda: len(server.log()) == 2)
        assert await outcome_of(client, protocol) == "cut"
        assert await waiting == "cut"
        assert not server.is_listening
        await until(lambda: server.is_listening)
        assert [counters.num_output_tokens for counters in server.counters] == [0]
        assert await outcome_of(client, protocol, text=WORDS_41) == "good"
        assert server.log()[-1].num_cached_tokens == 0
        assert [log.outcome for log in server.log()] == ["done", "restart", "restart", "done"]

    serve(protocol, with_server(PLAIN, *faults), work)


@BOTH
def test_another_token_is_put_where_the_fault_says(protocol: str) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        texts = [
            (await post(client, CHAT[protocol], chat()))["choices"][0]["message"]["content"].split()
            for _ in range(2)
        ]
        assert [place for place in range(32) if texts[0][place] != texts[1][place]] == [6]

    serve(protocol, with_server(PLAIN, Fault("differ", request=1, position=6)), work, arm="dflash")


@BOTH
@pytest.mark.parametrize(
    ("fault", "status"),
    [(Fault("garbage"), 200), (Fault("oversized", size_bytes=1000), 200), (Fault("error_event"), 500)],
)
def test_faults_of_events_hit_documents_too(protocol: str, fault: Fault, status: int) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        async with client.post(CHAT[protocol], json=chat()) as response:
            assert response.status == status
            text = await response.text()
        if fault.action == "garbage":
            with pytest.raises(json.JSONDecodeError):
                json.loads(text)
        else:
            assert len(text) > 1000 or "a simulated fault" in text

    serve(protocol, with_server(PLAIN, fault), work)


def test_a_fault_may_name_a_request_by_its_id_or_the_arm() -> None:
    async def ask(client: aiohttp.ClientSession, request_id: str) -> str:
        async with client.post(CHAT["vllm"], json=chat(), headers={"X-Request-Id": request_id}) as response:
            return str(response.status)

    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> list[str]:
        return [await ask(client, name) for name in ("a/1", "a/2", "b/1")]

    by_id = with_server(PLAIN, Fault("status", request_id="a/", status=503))
    assert serve("vllm", by_id, work) == ["503", "503", "200"]
    by_arm = with_server(PLAIN, Fault("status", arm="dflash", status=503))
    assert serve("vllm", by_arm, work) == ["200"] * 3
    assert serve("vllm", by_arm, work, arm="dflash") == ["503"] * 3


def test_it_forgets_everything_when_reset() -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        for _ in range(2):
            assert [await outcome_of(client, "vllm") for _ in range(2)] == ["good", "status 500"]
            async with client.post("/simulated/reset") as response:
                assert response.status == 200
            assert server.log() == []
            assert server.counters[0].num_output_tokens == 0

    serve("vllm", with_server(PLAIN, Fault("status", request=1)), work)
