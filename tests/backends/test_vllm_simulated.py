"""The vLLM backend against the simulated server: what it records is exactly what the server did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dflash.backends.base import (
    BackendDescription,
    BackendSettings,
    Endpoint,
    Generation,
    GenerationRequest,
    Message,
    ServerWindow,
)
from dflash.backends.scenario import Fault, Scenario, ServerSettings
from dflash.backends.simulated_counters import RequestLog
from dflash.backends.simulated_http import simulated_server
from dflash.backends.vllm import VllmBackend
from dflash.errors import RequestError
from dflash.results.records import Arm

NUM_REQUESTS = 12
SETTINGS = ServerSettings(per_request_spec_decode_metrics="detailed", cached_tokens_in_usage=True)
SCENARIO = Scenario(server=SETTINGS, output_tokens=(1, 60))


def prompt(place: int) -> str:
    return f"Tell me about the number {place} in a few words."


async def play(
    scenario: Scenario, arm: str, prompts: Sequence[str], route: str = "chat"
) -> tuple[BackendDescription, list[Generation | BaseException], ServerWindow, list[RequestLog]]:
    """All prompts at once in one window; the server's log of them in the order of the prompts."""
    block_size = None if arm == "baseline" else 5
    async with simulated_server("vllm", scenario, arm=arm, block_size=block_size, time_scale=0.02) as server:
        settings = BackendSettings(
            endpoints=(Endpoint(server.url),), max_concurrency=NUM_REQUESTS, route=route
        )
        backend = VllmBackend(settings, quiet_s=0.05, max_wait_s=2.0)
        try:
            description = await backend.open([Arm("" if arm in ("baseline", "dflash") else arm)])
            num_probes = len(server.log())
            await backend.begin_window(description.arms[0])
            requests = [
                GenerationRequest("r", description.arms[0], (Message("user", text),), max_new_tokens=40)
                for text in prompts
            ]
            answers = await asyncio.gather(*map(backend.generate, requests), return_exceptions=True)
            window = await backend.end_window(description.arms[0])
            return description, answers, window, server.log()[num_probes:]
        finally:
            await backend.aclose()


@pytest.mark.parametrize("route", ["chat", "completions"])
@pytest.mark.parametrize("arm", ["baseline", "dflash", "eagle3", "ngram"])
def test_every_count_is_the_servers_own(arm: str, route: str) -> None:
    prompts = [prompt(place) for place in range(NUM_REQUESTS)]
    description, answers, window, log = asyncio.run(play(SCENARIO, arm, prompts, route))
    assert description.arms[0].name == arm
    assert description.arms[0].block_size == (None if arm == "baseline" else 5)
    generations = [answer for answer in answers if isinstance(answer, Generation)]
    assert len(generations) == len(log) == NUM_REQUESTS

    def counts(generation: Generation) -> tuple[object, ...]:
        return (
            generation.num_prompt_tokens,
            generation.num_output_tokens,
            generation.num_decode_steps,
            generation.num_draft_tokens or 0,
            generation.num_accepted_tokens or 0,
            generation.finish_reason,
            generation.chunk_num_tokens,
        )

    assert sorted(map(counts, generations), key=repr) == sorted(
        (
            (
                entry.num_prompt_tokens,
                entry.num_output_tokens,
                entry.num_decode_steps,
                entry.num_draft_tokens,
                entry.num_accepted_tokens,
                entry.finish_reason,
                tuple(entry.chunk_num_tokens),
            )
            for entry in log
        ),
        key=repr,
    )
    assert window.counters == "settled"
    assert window.prefix_cache == "reset"
    assert window.num_generation_tokens == sum(entry.num_output_tokens for entry in log)
    assert window.num_requests == NUM_REQUESTS
    if arm != "baseline":
        assert window.num_drafts == sum(entry.num_verify_steps for entry in log)
        assert window.num_draft_tokens == sum(entry.num_draft_tokens for entry in log)
        assert window.num_accepted_tokens == sum(entry.num_accepted_tokens for entry in log)
        assert sum(window.num_accepted_tokens_per_position or ()) == window.num_accepted_tokens


def test_serving_fault_23_cached_prompt_tokens_are_told() -> None:
    """The window begins with an empty cache; the same prompt twice in it is served from the cache once."""
    text = "word " * 64

    async def main() -> list[int | None]:
        async with simulated_server("vllm", SCENARIO, arm="baseline", time_scale=0.0) as server:
            backend = VllmBackend(BackendSettings(endpoints=(Endpoint(server.url),)), quiet_s=0.0)
            (arm,) = (await backend.open([Arm("")])).arms
            request = GenerationRequest("r", arm, (Message("user", text),), max_new_tokens=4)
            cached: list[int | None] = []
            for _ in range(2):
                await backend.begin_window(arm)
                answers = [await backend.generate(request), await backend.generate(request)]
                cached += [answer.num_cached_tokens for answer in answers]
            await backend.aclose()
            return cached

    first, second, third, fourth = asyncio.run(main())
    assert first == third == 0
    assert second == fourth
    assert second is not None
    assert second > 0


def test_foreign_traffic_shows_in_the_counters() -> None:
    """Serving fault 11: the counters hold more than our own requests."""
    fault = Fault("foreign_traffic", prompt=prompt(3), num_tokens=100)
    scenario = replace(SCENARIO, faults=(fault,))
    prompts = [prompt(place) for place in range(4)]
    _, answers, window, _ = asyncio.run(play(scenario, "dflash", prompts))
    own = sum(answer.num_output_tokens or 0 for answer in answers if isinstance(answer, Generation))
    assert window.counters == "settled"
    assert window.num_generation_tokens == own + 100


def test_counter_reset_is_recognised() -> None:
    fault = Fault("counter_reset", prompt=prompt(3))
    scenario = replace(SCENARIO, faults=(fault,))
    _, _, window, _ = asyncio.run(play(scenario, "dflash", [prompt(3)]))
    assert window.counters == "reset"
    assert window.num_drafts is None


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault("status", status=500), "http_500"),
        (Fault("error_event", after_tokens=2), "server_error"),
        (Fault("missing_usage"), "no_usage"),
        (Fault("missing_finish"), "no_finish_reason"),
        (Fault("wrong_usage", delta=1), "wrong_usage"),
        (Fault("garbage", after_tokens=2), "bad_event"),
        (Fault("cut", after_tokens=2), "stream_cut"),
    ],
    ids=lambda value: value.action if isinstance(value, Fault) else "",
)
def test_request_that_fails_leaves_the_others_alone(fault: Fault, kind: str) -> None:
    scenario = replace(SCENARIO, output_tokens=(20, 60), faults=(replace(fault, prompt=prompt(1)),))
    prompts = [prompt(place) for place in (0, 1, 2)]
    _, answers, window, _ = asyncio.run(play(scenario, "dflash", prompts))
    failed = answers[1]
    assert isinstance(failed, RequestError)
    assert failed.kind == kind
    assert "\n" not in str(failed)
    assert all(isinstance(answer, Generation) for answer in (answers[0], answers[2]))
    assert window.counters == "settled"
