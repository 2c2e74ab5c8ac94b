"""The simulated servers give the same tokens as the engine in process, and their counts are exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from simulated_client import (
    BOTH,
    CHAT,
    NINE,
    PLAIN,
    WORDS_41,
    chat,
    get,
    native,
    post,
    samples,
    serve,
    stream,
    total,
    until,
    with_server,
)

from dflash.backends.base import BackendSettings, GenerationRequest, Message
from dflash.backends.scenario import Fault
from dflash.backends.simulated import SimulatedBackend
from dflash.backends.simulated_counters import RequestLog
from dflash.backends.simulated_engine import SimulatedEngine
from dflash.backends.simulated_http import SimulatedServer, simulated_server_thread
from dflash.config import BenchmarkConfig
from dflash.results.records import Arm
from dflash.results.run_notes import notes_of
from dflash.results.summary import summarise_run
from dflash.runner import run_benchmark


def test_vllm_refuses_with_the_engines_own_errors() -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        asked = [
            (chat(temperature=-1), 400, "temperature must be non-negative, got -1.0."),
            (chat(model="another"), 404, "The model `another` does not exist."),
            (chat(WORDS_41), 400, "maximum context length is 40 tokens"),
            (chat(limit=39), 400, "you requested 39 output tokens and your prompt contains 5"),
            (chat(n=2), 400, "n must be 1"),
            ({"messages": []}, 400, "at least one message"),
        ]
        for body, status, message in asked:
            async with client.post(CHAT["vllm"], json=body) as response:
                assert response.status == status
                error = (await response.json())["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert message in error["message"]
                assert error["code"] == status
        assert server.log() == []

    serve("vllm", with_server(NINE, max_model_len=40), work)


def test_every_arm_protocol_and_the_engine_in_process_give_the_same_tokens() -> None:
    async def ids_of_vllm(server: SimulatedServer, client: aiohttp.ClientSession) -> Any:
        answer = await post(client, CHAT["vllm"], chat(limit=50, return_token_ids=True))
        choice = answer["choices"][0]
        return choice["token_ids"], choice["message"]["content"], answer["prompt_token_ids"]

    async def ids_of_sglang(server: SimulatedServer, client: aiohttp.ClientSession) -> Any:
        choice = (await post(client, CHAT["sglang"], chat(limit=50, return_token_ids=True)))["choices"][0]
        return choice["response_token_ids"], choice["message"]["content"], choice["prompt_token_ids"]

    arm = Arm("dflash", 5)
    request = GenerationRequest("q", arm, (Message("user", "what is two and two"),), 50)
    expected = asyncio.run(SimulatedBackend(BackendSettings(), PLAIN).generate(request))
    for name in ("baseline", "dflash", "ngram", "eagle3"):
        for protocol, work in (("vllm", ids_of_vllm), ("sglang", ids_of_sglang)):
            ids, text, prompt = serve(protocol, PLAIN, work, arm=name)
            assert (tuple(ids), text, tuple(prompt)) == (
                expected.output_ids,
                expected.text,
                expected.prompt_ids,
            )


@BOTH
def test_text_and_ids_of_a_plain_prompt_mean_the_same(protocol: str) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        body = {"prompt": "one two three", "max_tokens": 30, "temperature": 0, "return_token_ids": True}
        first = (await post(client, "/v1/completions", body))["choices"][0]
        again = (await post(client, "/v1/completions", {**body, "prompt": first["prompt_token_ids"]}))[
            "choices"
        ]
        assert again[0]["token_ids"] == first["token_ids"]
        events = await stream(client, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
        choices = [event["choices"][0] for event in events[:-1]]
        assert [token for choice in choices for token in choice["token_ids"]] == first["token_ids"]
        assert "".join(choice["text"] for choice in choices) == first["text"]
        assert choices[0]["prompt_token_ids"] == first["prompt_token_ids"]
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
        assert events[-1]["usage"]["completion_tokens"] == 30

    serve(protocol, PLAIN, work, arm="dflash")


@BOTH
def test_without_temperature_or_with_another_seed_the_answer_differs(protocol: str) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        async def text(**changes: Any) -> str:
            answer = await post(client, CHAT[protocol], chat(**changes))
            return str(answer["choices"][0]["message"]["content"])

        assert await text() == await text(seed=3)
        assert await text(temperature=1.0, seed=3) == await text(temperature=1.0, seed=3)
        assert await text(temperature=1.0, seed=3) != await text(temperature=1.0, seed=4)
        assert await text(temperature=None) != await text(temperature=None)

    serve(protocol, PLAIN, work)


@pytest.mark.parametrize("arm", ["baseline", "dflash", "ngram"])
@pytest.mark.parametrize("unicode_text", [False, True])
def test_a_vllm_stream_delivers_the_steps_as_they_are(arm: str, unicode_text: bool) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        whole = (await post(client, CHAT["vllm"], chat(limit=50, return_token_ids=True)))["choices"][0]
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = chat(limit=50, return_token_ids=True, stream_options=options)
        role, *chunks, usage = await stream(client, CHAT["vllm"], body)
        log = server.log()[1]
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert [len(chunk["choices"][0]["token_ids"]) for chunk in chunks] == log.chunk_num_tokens
        assert log.chunk_num_tokens[0] == 1
        ids = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
        assert ids == whole["token_ids"]
        text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
        assert text == whole["message"]["content"]
        assert text.isascii() != unicode_text
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [
            sum(log.chunk_num_tokens[: place + 1]) for place in range(len(chunks))
        ]
        assert usage["usage"]["completion_tokens"] == log.num_output_tokens == len(ids)
        assert log.num_decode_steps == len(chunks) - 1
        assert log.num_verify_steps <= log.num_decode_steps
        assert (arm == "ngram") == (0 < log.num_verify_steps < log.num_decode_steps)
        assert sorted(log.chunk_sent_ns) == list(log.chunk_sent_ns)
        assert log.arrival_ns < (log.started_ns or 0) < log.chunk_sent_ns[0]

    serve("vllm", with_server(PLAIN, unicode_text=unicode_text), work, arm=arm)


def test_usage_comes_only_when_asked_for() -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        events = await stream(client, CHAT["vllm"], chat())
        assert not any("usage" in event for event in events)
        assert "system_fingerprint" in events[-1]
        assert events[-1]["choices"][0]["finish_reason"] == "length"

    serve("vllm", PLAIN, work)


def test_a_native_stream_repeats_what_came_before() -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        whole = await post(client, "/generate", native(limit=50))
        events = await stream(client, "/generate", native(limit=50))
        lengths = [len(event["output_ids"]) for event in events]
        numbers = server.log()[1].chunk_num_tokens
        assert lengths == [sum(numbers[: place + 1]) for place in range(len(numbers))]
        assert [event["meta_info"]["completion_tokens"] for event in events] == lengths
        assert all(whole["text"].startswith(event["text"]) for event in events)
        assert (events[-1]["text"], events[-1]["output_ids"]) == (whole["text"], whole["output_ids"])

    serve("sglang", PLAIN, work, arm="dflash")


def test_a_chat_stream_of_sglang_gives_ids_beside_the_choices_only() -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        for name in ("return_token_ids", "return_meta_info", "return_prompt_token_ids"):
            async with client.post(CHAT["sglang"], json=chat(stream=True, **{name: True})) as response:
                assert response.status == 400
                assert f"{name} is not supported with streaming" in (await response.json())["message"]
        whole = (await post(client, CHAT["sglang"], chat(return_token_ids=True)))["choices"][0]
        beside = {"return_output_ids_in_sglext": True, "return_input_ids_in_sglext": True}
        options = {"stream_options": {"include_usage": True}, "return_spec_tokens_details": True}
        *chunks, extension, usage = await stream(client, CHAT["sglang"], chat(**options, **beside))
        assert extension["sglext"]["output_ids"] == [whole["response_token_ids"]]
        assert extension["sglext"]["input_ids"] == whole["prompt_token_ids"]
        log = server.log()[1]
        assert extension["sglext"]["spec_tokens_details"]["spec_verify_ct"] == log.num_verify_steps
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert text == whole["message"]["content"]
        assert usage["usage"]["completion_tokens"] == 32

    serve("sglang", PLAIN, work, arm="dflash")


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.5.9", {"spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"}),
        ("0.5.11", {"spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"}),
        (
            "0.5.23",
            {"spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"},
        ),
    ],
)
def test_older_versions_of_sglang_have_their_own_names(version: str, names: set[str]) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        meta = (await post(client, "/generate", native()))["meta_info"]
        always = {"spec_accept_rate", "spec_accept_length", "spec_verify_ct"}
        assert {key for key in meta if key.startswith("spec_")} == names | always
        assert (await get(client, "/server_info"))["version"] == f"{version}+simulated"

    serve("sglang", with_server(PLAIN, version=version), work, arm="dflash")


@BOTH
@pytest.mark.parametrize("arm", ["baseline", "dflash", "ngram"])
@pytest.mark.parametrize("dp_ranks", [1, 3])
def test_metrics_are_what_the_log_says(protocol: str, arm: str, dp_ranks: int) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        bodies = [chat(f"question number {n % 5} of many", 20 + n) for n in range(24)]
        answers = [
            stream(client, CHAT[protocol], body) if n % 2 else post(client, CHAT[protocol], body)
            for n, body in enumerate(bodies)
        ]
        await asyncio.gather(*answers)
        logs, series = server.log(), await samples(client)
        assert [log.number for log in logs] == list(range(24))
        assert all(log.outcome == "done" for log in logs)
        assert (await get(client, "/simulated/log"))["requests"] == [log.document() for log in logs]

        def of(name: str) -> int:
            return sum(getattr(log, name) for log in logs)

        prefix = f"{protocol}:"
        assert total(series, f"{prefix}prompt_tokens_total") == of("num_prompt_tokens")
        assert total(series, f"{prefix}generation_tokens_total") == of("num_output_tokens")
        if protocol == "sglang":
            assert total(series, "sglang:num_requests_total") == 24
            if arm != "baseline":
                assert total(series, "sglang:spec_verify_calls_total") == of("num_verify_steps")
        elif arm != "baseline":
            drafted = of("num_draft_tokens")
            assert total(series, "vllm:spec_decode_num_drafts_total") == of("num_verify_steps")
            assert total(series, "vllm:spec_decode_num_draft_tokens_total") == drafted
            assert drafted == of("num_verify_steps") * 7
            accepted = [number for log in logs for number in log.step_num_accepted]
            assert total(series, "vllm:spec_decode_num_accepted_tokens_total") == sum(accepted)
            by_position = [
                sum(
                    value
                    for (name, labels), value in series.items()
                    if name == "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                    and ("position", str(position)) in labels
                )
                for position in range(7)
            ]
            assert by_position == [sum(number > position for number in accepted) for position in range(7)]
        for log in logs:
            # identity 2 of the definitions, for a server's untrimmed counts
            plain_steps = log.num_decode_steps - log.num_verify_steps
            advance = 1 + log.num_verify_steps + log.num_accepted_tokens + plain_steps
            assert 0 <= advance - log.num_output_tokens <= 7
            assert sum(log.chunk_num_tokens) == log.num_output_tokens

    serve(protocol, with_server(PLAIN, dp_ranks=dp_ranks), work, arm=arm)


@BOTH
def test_256_streams_at_once_get_what_each_would_get_alone(protocol: str) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        async def text(number: int) -> str:
            events = await stream(client, CHAT[protocol], chat(f"question {number}", 12))
            return "".join(event["choices"][0]["delta"].get("content", "") for event in events)

        together = await asyncio.gather(*(text(number) for number in range(256)))
        assert len(set(together)) == 256
        assert [await text(number) for number in (0, 100, 255)] == [together[n] for n in (0, 100, 255)]
        assert {log.outcome for log in server.log()} == {"done"}
        assert server.counters[0].num_output_tokens == 259 * 12
        assert server.engine.is_idle

    serve(protocol, PLAIN, work, arm="dflash")


def test_vllm_tells_the_speculation_of_each_request() -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> Any:
        whole = (await post(client, CHAT["vllm"], chat()))["metrics"]
        log = server.log()[0]
        events = await stream(client, CHAT["vllm"], chat(stream_options={"include_usage": True}))
        return whole, log, events[-1].get("metrics")

    levels = {}
    for level in ("none", "summary", "detailed"):
        scenario = with_server(PLAIN, per_request_spec_decode_metrics=level)
        levels[level] = serve("vllm", scenario, work, arm="dflash")
    assert levels["none"][0] is None
    assert levels["none"][2] is None
    whole, log, streamed = levels["detailed"]
    counts = whole["speculative_decoding"]
    assert whole["time_to_first_token_ms"] is None
    assert streamed == {"speculative_decoding": counts}
    assert counts["per_step_accepted"] == log.step_num_accepted
    assert counts["num_spec_steps"] == log.num_verify_steps == sum(counts["acceptance_histogram"])
    assert counts["num_accepted_draft_tokens"] == log.num_accepted_tokens
    assert counts["mean_acceptance_length"] == 1 + log.num_accepted_tokens / log.num_verify_steps
    assert levels["summary"][0]["speculative_decoding"]["per_step_accepted"] is None
    assert "per_step_accepted" not in levels["summary"][2]["speculative_decoding"]


def test_dp_ranks_take_turns_and_tell_their_own_acceptance() -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        answers = [await post(client, "/generate", native(f"{n} {WORDS_41}")) for n in range(2)]
        assert [answer["meta_info"]["dp_rank"] for answer in answers] == [0, 1]
        states = (await get(client, "/server_info"))["internal_states"]
        logs = server.log()
        assert [state["avg_spec_accept_length"] for state in states] == [
            1 + logs[0].num_accepted_tokens / logs[0].num_verify_steps,
            1 + logs[1].num_accepted_tokens / logs[1].num_verify_steps,
            None,
        ]
        async with client.post("/flush_cache") as response:
            assert response.status == 200
        states = (await get(client, "/server_info"))["internal_states"]
        assert [state["avg_spec_accept_length"] for state in states] == [None] * 3

    serve("sglang", with_server(PLAIN, dp_ranks=3), work, arm="dflash")


@BOTH
def test_a_prompt_seen_before_is_cached_until_the_cache_is_reset(protocol: str) -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> list[int]:
        async def cached() -> int:
            usage = (await post(client, CHAT[protocol], chat(WORDS_41)))["usage"]
            number: int = usage["prompt_tokens_details"]["cached_tokens"]
            assert number == server.log()[-1].num_cached_tokens
            return number

        path = "/reset_prefix_cache" if protocol == "vllm" else "/flush_cache"
        before = [await cached(), await cached()]
        async with client.post(path) as response:
            assert response.status == 200
            if protocol == "vllm":
                assert await response.json() == {"success": True}
        return [*before, await cached()]

    scenario = with_server(PLAIN, cached_tokens_in_usage=True)
    # vLLM counts whole blocks of 16 tokens, SGLang tokens; neither the last one, which is computed again
    assert serve(protocol, scenario, work) == [0, 32 if protocol == "vllm" else 40, 0]
    assert serve(protocol, with_server(scenario, prefix_cache=False), work) == [0, 0, 0]


@BOTH
def test_requests_wait_their_turn_and_the_cache_is_not_reset_meanwhile(protocol: str) -> None:
    scenario = with_server(PLAIN, Fault("hang", request=0, after_tokens=1), max_running_requests=1)

    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        hanging = asyncio.create_task(stream(client, CHAT[protocol], chat("hang")))
        await until(lambda: len(server.log()) == 1 and server.log()[0].num_output_tokens == 1)
        others = []
        for number in range(1, 4):
            others.append(asyncio.create_task(post(client, CHAT[protocol], chat(f"wait {number}"))))
            await until(lambda number=number: len(server.log()) == number + 1)
        series = await samples(client)
        names = {"vllm": ("num_requests_running", "num_requests_waiting")}
        running, waiting = names.get(protocol, ("num_running_reqs", "num_queue_reqs"))
        assert total(series, f"{protocol}:{running}") == 1
        assert total(series, f"{protocol}:{waiting}") == 3
        path = "/reset_prefix_cache" if protocol == "vllm" else "/flush_cache"
        async with client.post(path) as response:
            if protocol == "vllm":
                assert await response.json() == {"success": False}
            else:
                assert (response.status, await response.text()) == (400, "Flush cache failed.\n")
        hanging.cancel()
        await asyncio.gather(*others)
        logs = server.log()
        assert [log.outcome for log in logs] == ["client_left", "done", "done", "done"]
        started = [log.started_ns or 0 for log in logs]
        assert started == sorted(started)

    serve(protocol, scenario, work)


def test_times_are_the_scripts_absolute_and_grow_with_the_batch() -> None:
    class StillClock:
        def __init__(self) -> None:
            self.due: list[float] = []

        def time(self) -> float:
            return 100.0

        def call_at(self, due: float, callback: Callable[..., None], job: Any) -> Any:
            self.due.append(due)
            return asyncio.get_running_loop().call_soon(lambda: None)

    async def run() -> list[float]:
        scenario = with_server(NINE, slowdown_per_request=0.5)
        engine = SimulatedEngine(scenario, arm="dflash", block_size=4, cache_block_tokens=1, time_scale=2.0)
        clock = engine._loop = StillClock()  # type: ignore[assignment]
        answer = engine.answer(("user", "off", None), 32, False)
        jobs = [
            engine.make_job(
                answer,
                (1, number),
                RequestLog(number=number, request_id="", route="", is_stream=True, arrival_ns=0),
                None,
            )
            for number in range(2)
        ]
        engine.submit(jobs[0])
        engine._tick(jobs[0])
        engine.submit(jobs[1])
        engine._tick(jobs[0])
        return clock.due

    # 30 ms prefill and steps of 4 + 21 + 3 * 0.4 ms, all twice as long; the second request shares its first
    # token's prefill, and while two run everything takes half as long again
    assert asyncio.run(run()) == pytest.approx(
        [100.06, 100.06 + 0.0524, 100 + 0.03 * 1.5, 100.06 + 0.0524 + 0.0524 * 1.5]
    )


def test_routes_may_be_missing() -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        for method, path in (("get", "/metrics"), ("post", "/reset_prefix_cache"), ("get", "/nothing")):
            async with client.request(method, path) as response:
                assert response.status == 404
                assert (await response.json())["error"]["message"] == "Not Found"

    serve("vllm", with_server(PLAIN, metrics=False, dev_mode=False), work)


def test_prompt_tokens_are_counted_without_an_answer() -> None:
    async def work(server: SimulatedServer, client: aiohttp.ClientSession) -> None:
        asked = await post(client, "/tokenize", {"prompt": "one two three"})
        assert (asked["count"], len(asked["tokens"])) == (3, 3)
        assert set(asked) == {"count", "max_model_len", "tokens", "token_strs"}
        assert server.log() == []

    serve("vllm", PLAIN, work)


@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
def test_what_a_simulated_server_gave_says_so_before_any_number(protocol: str, tmp_path: Path) -> None:
    with simulated_server_thread(protocol) as server:
        run = run_benchmark(
            BenchmarkConfig(
                backend=protocol,
                base_url=server.url,
                datasets=("quickstart",),
                num_prompts=2,
                max_new_tokens=4,
                output_dir=tmp_path,
            )
        )
    first, *_ = notes_of(run.info, summarise_run(run))
    assert first.comes_first
    assert first.words.endswith("made up by a scenario, and say nothing of the engine")
