"""A simulated server and a plain client of it, for tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dflash.backends.scenario import Fault, Scenario
from dflash.backends.simulated_http import SimulatedServer, simulated_server

PLAIN = Scenario(output_tokens=(40, 60), acceptance=(0.8, 0.5), jitter=0.0)
NINE = Scenario(output_tokens=(9, 9), acceptance=(1.0,), jitter=0.0, block_size=4)
WORDS_41 = " ".join(f"w{number}" for number in range(41))
CHAT = {
    "vllm": "/v1/chat/completions",
    "sglang": "/v1/chat/completions",
}
BOTH = pytest.mark.parametrize("protocol", ["vllm", "sglang"])
Work = Callable[[SimulatedServer, aiohttp.ClientSession], Awaitable[Any]]


def serve(protocol: str, scenario: Scenario, work: Work, *, arm: str = "baseline", **settings: Any) -> Any:
    """What `work` gives beside a server that is as fast as possible."""

    async def run() -> Any:
        settings.setdefault("time_scale", 0)
        async with (
            simulated_server(protocol, scenario, arm=arm, **settings) as server,
            aiohttp.ClientSession(
                server.url,
                timeout=aiohttp.ClientTimeout(total=60),
                connector=aiohttp.TCPConnector(limit=0),
            ) as client,
        ):
            return await work(server, client)

    return asyncio.run(run())


def with_server(scenario: Scenario, *faults: Fault, **settings: Any) -> Scenario:
    return replace(scenario, faults=faults, server=replace(scenario.server, **settings))


def chat(text: str = "what is two and two", limit: int = 32, **changes: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": limit,
        **changes,
    }


def native(text: str = WORDS_41, limit: int = 32, **changes: Any) -> dict[str, Any]:
    return {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": limit}, **changes}


async def post(client: aiohttp.ClientSession, path: str, body: Mapping[str, Any]) -> Any:
    async with client.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def get(client: aiohttp.ClientSession, path: str) -> Any:
    async with client.get(path) as response:
        assert response.status == 200
        return await response.json()


async def stream(client: aiohttp.ClientSession, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events, `[DONE]` checked and left out."""
    async with client.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        return events_of((await response.read()).decode())


def events_of(text: str) -> list[dict[str, Any]]:
    events = [part.removeprefix("data: ").strip() for part in text.split("\n\n") if part.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def samples(client: aiohttp.ClientSession) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every series of /metrics, but for the model's name."""
    async with client.get("/metrics") as response:
        text = await response.text()
    return {
        (
            sample.name,
            frozenset(item for item in sample.labels.items() if item[0] != "model_name"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(series: Mapping[tuple[str, frozenset[tuple[str, str]]], float], name: str) -> float:
    found = [value for (of, _), value in series.items() if of == name]
    assert found, name
    return sum(found)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait, at most ten seconds."""
    for _ in range(2000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that")


async def outcome_of(client: aiohttp.ClientSession, protocol: str, **changes: Any) -> str:
    """A word for how one streamed request ended, as a plain client sees it."""
    body = chat(stream=True, stream_options={"include_usage": True}, **changes)
    try:
        async with client.post(CHAT[protocol], json=body) as response:
            if response.status != 200:
                return f"status {response.status}"
            data = await response.read()
    except aiohttp.ClientConnectorError:
        return "refused"
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionResetError):
        return "cut"
    except asyncio.TimeoutError:
        return "timeout"
    lines = [line for line in data.decode().split("\n\n") if line.startswith("data: {")]
    try:
        events = [json.loads(line[6:]) for line in lines]
    except json.JSONDecodeError:
        return "garbage"
    if any("error" in event for event in events):
        return "error event"
    if not any(choice["finish_reason"] for event in events for choice in event["choices"]):
        return "no finish reason"
    usage = [event["usage"] for event in events if event.get("usage")]
    if not usage:
        return "no usage"
    if usage[-1]["completion_tokens"] != 32:
        return f"usage says {usage[-1]['completion_tokens']}"
    return "good" if len(data) < 100_000 else f"good, {len(data) // 1_000_000} MB"
