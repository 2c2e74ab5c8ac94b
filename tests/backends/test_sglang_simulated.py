"""The SGLang backend against the simulated server: what it records is exactly what the server did."""

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
from dflash.backends.sglang import SglangBackend
from dflash.backends.simulated_counters import RequestLog
from dflash.backends.simulated_http import simulated_server
from dflash.errors import RequestError
from dflash.results.records import Arm

NUM_REQUESTS = 12
SCENARIO = Scenario(output_tokens=(1, 60))


def prompt(place: int) -> str:
    return f"Tell me about the number {place} in a few words."


async def play(
    scenario: Scenario, arm: str, prompts: Sequence[str], route: str = "chat"
) -> tuple[BackendDescription, list[Generation | BaseException], ServerWindow, list[RequestLog]]:
    """All prompts at once in one window; the server's log of them in the order of arrival."""
    block_size = None if arm == "baseline" else 5
    async with simulated_server(
        "sglang", scenario, arm=arm, block_size=block_size, time_scale=0.02
    ) as server:
        settings = BackendSettings(
            endpoints=(Endpoint(server.url),), max_concurrency=NUM_REQUESTS, route=route
        )
        backend = SglangBackend(settings, quiet_s=0.05, max_wait_s=2.0)
        try:
            description = await backend.open([Arm("")])
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


@pytest.mark.parametrize("dp_ranks", [1, 3])
@pytest.mark.parametrize("route", ["chat", "completions", "generate"])
@pytest.mark.parametrize("arm", ["baseline", "dflash"])
def test_every_count_is_the_servers_own(arm: str, route: str, dp_ranks: int) -> None:
    scenario = replace(SCENARIO, server=ServerSettings(dp_ranks=dp_ranks, cached_tokens_in_usage=True))
    prompts = [prompt(place) for place in range(NUM_REQUESTS)]
    description, answers, window, log = asyncio.run(play(scenario, arm, prompts, route))
    assert description.arms[0].label == ("baseline" if arm == "baseline" else "dflash B=5")
    assert description.environment["dp_size"] == dp_ranks
    generations = [answer for answer in answers if isinstance(answer, Generation)]
    assert len(generations) == len(log) == NUM_REQUESTS

    def counts(generation: Generation) -> tuple[object, ...]:
        return (
            generation.num_prompt_tokens,
            generation.num_output_tokens,
            generation.num_decode_steps,
            generation.num_verify_steps or 0,
            generation.num_draft_tokens or 0,
            generation.num_accepted_tokens or 0,
            generation.num_cached_tokens,
            generation.finish_reason,
            generation.chunk_num_tokens,
            len(generation.output_ids or ()),
        )

    expected = [
        (
            entry.num_prompt_tokens,
            entry.num_output_tokens,
            entry.num_decode_steps,
            entry.num_verify_steps,
            entry.num_draft_tokens,
            entry.num_accepted_tokens,
            entry.num_cached_tokens,
            entry.finish_reason,
            tuple(entry.chunk_num_tokens),
            entry.num_output_tokens,
        )
        for entry in log
    ]
    assert sorted(map(counts, generations), key=repr) == sorted(expected, key=repr)
    assert (window.counters, window.prefix_cache) == ("settled", "reset")
    assert window.num_generation_tokens == sum(entry.num_output_tokens for entry in log)
    assert window.num_requests == NUM_REQUESTS
    if arm == "baseline":
        assert window.num_drafts is None
    else:
        assert window.num_drafts == sum(entry.num_verify_steps for entry in log)


def test_an_ngram_arm_verifies_in_every_step() -> None:
    """Where the look-up finds nothing too: SGLang has no step without a verify call, as vLLM has."""
    prompts = [prompt(place) for place in range(NUM_REQUESTS)]
    description, answers, window, log = asyncio.run(play(SCENARIO, "ngram", prompts))
    assert description.arms[0].name == "ngram"
    generations = [answer for answer in answers if isinstance(answer, Generation)]
    assert len(generations) == NUM_REQUESTS
    for generation in generations:
        steps, accepted = generation.num_verify_steps, generation.num_accepted_tokens
        assert steps == generation.num_decode_steps == len(generation.chunk_num_tokens) - 1
        assert accepted is not None
        assert 0 <= 1 + steps + accepted - (generation.num_output_tokens or 0) <= 4, "identity 2, B = 5"
    assert window.num_drafts == sum(entry.num_decode_steps for entry in log)


def test_serving_fault_23_flushed_cache_is_seen_in_the_next_answers() -> None:
    """The window begins with an empty cache; the same prompt twice in it is served from the cache once."""

    async def main() -> list[int | None]:
        async with simulated_server("sglang", SCENARIO, arm="baseline", time_scale=0.0) as server:
            backend = SglangBackend(BackendSettings(endpoints=(Endpoint(server.url),)), quiet_s=0.0)
            (arm,) = (await backend.open([Arm("")])).arms
            request = GenerationRequest("r", arm, (Message("user", "word " * 64),), max_new_tokens=4)
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


def test_flush_is_refused_while_a_request_runs_and_succeeds_once_it_ended() -> None:
    async def main() -> tuple[ServerWindow, ServerWindow]:
        scenario = replace(SCENARIO, output_tokens=(40, 40))
        async with simulated_server("sglang", scenario, arm="baseline", time_scale=1.0) as server:
            backend = SglangBackend(
                BackendSettings(endpoints=(Endpoint(server.url),)),
                quiet_s=0.0,
                max_wait_s=0.1,
                flush_wait_s=0.0,
            )
            (arm,) = (await backend.open([Arm("")])).arms
            request = GenerationRequest("r", arm, (Message("user", "Hi"),), max_new_tokens=40)
            running = asyncio.create_task(backend.generate(request))
            await asyncio.sleep(0.1)
            await backend.begin_window(arm)
            busy = await backend.end_window(arm)
            await running
            await backend.begin_window(arm)
            idle = await backend.end_window(arm)
            await backend.aclose()
            return busy, idle

    busy, idle = asyncio.run(main())
    assert busy.prefix_cache == "unknown"
    assert idle.prefix_cache == "reset"


def test_foreign_traffic_shows_in_the_counters() -> None:
    fault = Fault("foreign_traffic", prompt=prompt(3), num_tokens=100)
    prompts = [prompt(place) for place in range(4)]
    _, answers, window, _ = asyncio.run(play(replace(SCENARIO, faults=(fault,)), "dflash", prompts))
    own = sum(answer.num_output_tokens or 0 for answer in answers if isinstance(answer, Generation))
    assert window.num_generation_tokens == own + 100


@pytest.mark.parametrize("route", ["chat", "generate"])
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
def test_request_that_fails_leaves_the_others_alone(fault: Fault, kind: str, route: str) -> None:
    faults = (replace(fault, prompt=prompt(1)),)
    scenario = replace(SCENARIO, output_tokens=(20, 60), faults=faults)
    prompts = [prompt(place) for place in (0, 1, 2)]
    _, answers, window, _ = asyncio.run(play(scenario, "dflash", prompts, route))
    failed = answers[1]
    assert isinstance(failed, RequestError)
    assert failed.kind == kind
    assert "\n" not in str(failed)
    assert all(isinstance(answer, Generation) for answer in (answers[0], answers[2]))
    assert window.counters == "settled"
