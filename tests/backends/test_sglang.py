"""The SGLang backend against servers that answer with recorded samples and with made-up ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest
from made_up_sglang import (
    DONE,
    REFUSED_IN_CHAT_STREAMS,
    MadeUpSglang,
    chat_stream,
    event,
    read_json,
    recorded,
    running,
)

from dflash.backends import create_backend
from dflash.backends.base import (
    NOT_STARTED,
    BackendDescription,
    BackendSettings,
    Endpoint,
    Generation,
    GenerationRequest,
    Message,
    Sampling,
    ServerWindow,
    StartedAs,
)
from dflash.backends.sglang import NO_COUNTERS, SglangBackend
from dflash.backends.sglang_server import release_of
from dflash.errors import RequestError, UnavailableError, UsageError
from dflash.results import metrics as formulas
from dflash.results.records import BASELINE, Arm, RequestRecord

UNKNOWN = Arm("")
REQUEST = GenerationRequest("r", Arm(BASELINE), (Message("user", "Hi"),), max_new_tokens=2048)
CONVERSATION = (Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "And now?"))
FAILED_FLUSH = (400, "Flush cache failed.\n")
FLUSHED = (200, "Cache flushed.\nPlease check backend logs for more details.\n")
T = TypeVar("T")
Act = Callable[[SglangBackend, BackendDescription], Awaitable[T]]


def use(
    servers: list[MadeUpSglang],
    action: Act[T],
    *,
    arms: list[Arm] | None = None,
    metrics_url: str | None = None,
    started_as: StartedAs = NOT_STARTED,
    flush_wait_s: float = 0.6,
    **settings: Any,
) -> T:
    """Open a backend on these servers, act, close."""

    async def main() -> T:
        async with running(*servers):
            endpoints = tuple(
                Endpoint(server.url, metrics_url=metrics_url, started_as=started_as) for server in servers
            )
            backend = SglangBackend(
                BackendSettings(endpoints=endpoints, **settings),
                quiet_s=0.0,
                max_wait_s=0.3,
                flush_wait_s=flush_wait_s,
            )
            try:
                return await action(backend, await backend.open(arms or [UNKNOWN] * len(servers)))
            finally:
                await backend.aclose()
                await backend.aclose()

    return asyncio.run(main())


def describe(*servers: MadeUpSglang, **settings: Any) -> BackendDescription:
    async def action(_: SglangBackend, description: BackendDescription) -> BackendDescription:
        return description

    return use(list(servers), action, **settings)


def generate(
    server: MadeUpSglang,
    request: GenerationRequest = REQUEST,
    *,
    then: Mapping[str, bytes] | None = None,
    **settings: Any,
) -> Generation:
    """One answer; `then` is what the server answers after the backend was opened."""

    async def action(backend: SglangBackend, description: BackendDescription) -> Generation:
        server.streams = {**server.streams, **(then or {})}
        return await backend.generate(replace(request, arm=description.arms[0]))

    return use([server], action, **settings)


def window(
    server: MadeUpSglang, before_end: Callable[[], None] = lambda: None, **settings: Any
) -> ServerWindow:
    """One stretch of load without requests."""

    async def action(backend: SglangBackend, description: BackendDescription) -> ServerWindow:
        await backend.begin_window(description.arms[0])
        before_end()
        return await backend.end_window(description.arms[0])

    return use([server], action, **settings)


def as_record(generation: Generation) -> RequestRecord:
    """The generation as the runner stores it, as far as acceptance goes."""
    names = (
        "finish_reason",
        "num_output_tokens",
        "num_first_chunk_tokens",
        "num_decode_steps",
        "num_verify_steps",
        "num_draft_tokens",
        "num_accepted_tokens",
        "acceptance_histogram_untrimmed",
    )
    return RequestRecord("c", "p", **{name: getattr(generation, name) for name in names})


def native_answer(folder: Path, name: str) -> bytes:
    """A recorded whole answer of `/generate` as the one event of a stream."""
    return event(read_json(folder, name)) + DONE


def spoken(beside: Mapping[str, Any] | None, num_tokens: int = 5, **options: Any) -> dict[str, bytes]:
    stream = chat_stream(["a", "b"], num_tokens=num_tokens, beside=beside, **options)
    return {"/v1/chat/completions": stream}


# --- which arm a server is


@pytest.mark.parametrize(
    ("told", "dtype"), [("auto", "bfloat16"), (None, "bfloat16"), ("half", "float16"), ("float32", "float32")]
)
def test_the_dtype_that_a_server_was_started_with_holds_where_it_does_not_say(
    shared_folder: Path, told: str | None, dtype: str
) -> None:
    server = recorded(shared_folder, "dflash")
    server.info["dtype"] = told
    assert describe(server, started_as=StartedAs("bfloat16", "dflash")).dtype == dtype


def test_recorded_server_that_drafts_is_recognised(shared_folder: Path) -> None:
    description = describe(recorded(shared_folder, "dflash"))
    (arm,) = description.arms
    assert (arm.name, arm.block_size, arm.draft_revision) == ("dflash", 8, "main")
    assert arm.draft == "models/tiny-qwen3-dflash"
    assert (description.target, description.dtype) == ("models/tiny-qwen3", "float32")
    assert description.environment["engine_version"] == "0.5.23"
    assert description.environment["attention_backend"] == "torch_native"
    assert description.environment["dp_size"] == 1
    assert any(
        "speculative_num_draft_tokens 8 was read: B = 8, 7 draft tokens" in note for note in description.notes
    )


def test_recorded_server_without_drafts_is_the_baseline(shared_folder: Path) -> None:
    (arm,) = describe(recorded(shared_folder, "base")).arms
    assert (arm.name, arm.block_size, arm.draft) == (BASELINE, None, None)


def test_older_path_of_the_settings_is_asked_where_the_newer_is_missing(shared_folder: Path) -> None:
    server = recorded(shared_folder, "dflash", info_path="/get_server_info")
    assert describe(server).arms[0].label == "dflash B=8"


@pytest.mark.parametrize(("arm", "label"), [("base", "dflash"), ("dflash", "baseline"), ("dflash", "eagle3")])
def test_label_that_contradicts_the_server_is_refused(shared_folder: Path, arm: str, label: str) -> None:
    with pytest.raises(UsageError, match=f"is not the arm '{label}'.*speculative_algorithm"):
        describe(recorded(shared_folder, arm), arms=[Arm(label)])


@pytest.mark.parametrize(
    ("algorithm", "label", "name"),
    [
        ("EAGLE3", "", "eagle3"),
        ("NGRAM", "", "ngram"),
        ("EAGLE", "mtp", "mtp"),
        ("DFLASH", "dflash-v2", "dflash-v2"),
    ],
)
def test_other_algorithms_are_arms_too(shared_folder: Path, algorithm: str, label: str, name: str) -> None:
    server = recorded(shared_folder, "dflash")
    assert server.info is not None
    server.info["speculative_algorithm"] = algorithm
    server.info["internal_states"] = []
    assert describe(server, arms=[Arm(label)]).arms[0].name == name


def test_server_without_dflash_is_refused_by_version(shared_folder: Path) -> None:
    server = recorded(shared_folder, "dflash")
    assert server.info is not None
    server.info["version"] = "0.5.10.post2"
    with pytest.raises(UsageError, match=r"SGLang 0.5.10.post2 .* has no DFlash: use SGLang 0.5.11"):
        describe(server)
    older = recorded(shared_folder, "base")
    assert older.info is not None
    older.info["version"] = "0.5.10"
    with pytest.raises(UsageError, match="has no DFlash"):
        describe(older, arms=[Arm("dflash")])


def test_block_size_is_read_and_compared(shared_folder: Path) -> None:
    """SGLang's number is B itself: the anchor is counted."""
    with pytest.raises(UsageError, match=r"--block-size 7 contradicts .* B is 8"):
        describe(recorded(shared_folder, "dflash"), block_size=7)
    assert describe(recorded(shared_folder, "dflash"), block_size=8).arms[0].block_size == 8


def test_server_that_tells_nothing_needs_a_name(shared_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"does not say whether it drafts.*--arm NAME=URL"):
        describe(recorded(shared_folder, "base", info=None))
    description = describe(recorded(shared_folder, "base", info=None), arms=[Arm("dflash")], block_size=8)
    assert description.arms[0].block_size == 8
    assert any("B is not told by the server and taken as given" in note for note in description.notes)


def test_server_that_drafts_and_does_not_say_how_is_called_so(shared_folder: Path) -> None:
    description = describe(recorded(shared_folder, "dflash", info=None), route="generate")
    assert description.arms[0].name == "dflash"
    assert any("its method is unknown, and it is called dflash by" in note for note in description.notes)


def test_servers_that_differ_in_more_than_the_draft_are_refused(shared_folder: Path) -> None:
    other = recorded(shared_folder, "dflash")
    assert other.info is not None
    other.info["dtype"] = "bfloat16"
    with pytest.raises(UsageError, match=r"serves the dtype float32, .* serves the dtype bfloat16"):
        describe(recorded(shared_folder, "base"), other)
    other.info |= {"dtype": "float32", "attention_backend": "triton"}
    notes = describe(recorded(shared_folder, "base"), other).notes
    assert "the servers differ in attention_backend: baseline torch_native, dflash B=8 triton" in notes


def test_two_servers_of_one_arm_are_refused(shared_folder: Path) -> None:
    with pytest.raises(UsageError, match="are both the arm 'baseline'"):
        describe(recorded(shared_folder, "base"), recorded(shared_folder, "base"))


def test_serving_fault_11_ranks_are_read_one_by_one(shared_folder: Path) -> None:
    """The first rank's lifetime average is no result; ranks that draft otherwise than the server are refused."""
    server = recorded(shared_folder, "dflash")
    assert server.info is not None
    state = server.info["internal_states"][0]
    server.info["dp_size"] = 2
    server.info["internal_states"] = [{**state, "avg_spec_accept_length": None}, state]
    description = describe(server)
    assert description.environment["dp_size"] == 2
    assert any("2 data-parallel ranks" in note for note in description.notes)
    assert "avg_spec_accept_length" not in repr(description)
    server.info["internal_states"][1] = {**state, "speculative_num_draft_tokens": 4}
    with pytest.raises(UsageError, match=r"ranks of .* differ in speculative_num_draft_tokens: 4, 8"):
        describe(server)


def test_model_that_is_not_served_is_refused(shared_folder: Path) -> None:
    with pytest.raises(UsageError, match="does not serve the model 'other'"):
        describe(recorded(shared_folder, "base"), model="other")
    server = recorded(shared_folder, "base")
    server.models["data"][0] |= {"id": "nickname", "root": "nickname"}
    assert describe(server, model="models/tiny-qwen3").target == "models/tiny-qwen3"
    assert server.bodies[-1][1]["model"] == "nickname"


def test_a_server_of_vllm_is_not_asked_as_sglang(shared_folder: Path) -> None:
    server = recorded(shared_folder, "dflash")
    sample = shared_folder / "samples/vllm-0.32.0/dflash.models.json"
    server.models, own = orjson.loads(sample.read_bytes()), server.models
    with pytest.raises(UsageError, match="is vLLM's by its /v1/models, and was asked as SGLang") as caught:
        describe(server, arms=[Arm("dflash")])
    assert "give --backend vllm" in str(caught.value)
    server.models, server.info = own, {"vllm_config": {"speculative_config": None}}
    with pytest.raises(UsageError, match="is vLLM's by its /server_info"):
        describe(server, arms=[Arm("dflash")])


def test_no_server_is_unavailable_with_the_way_to_start_one(shared_folder: Path) -> None:
    async def main() -> None:
        server = recorded(shared_folder, "base")
        async with running(server):
            pass
        await SglangBackend(BackendSettings(endpoints=(Endpoint(server.url),))).open([UNKNOWN])

    with pytest.raises(
        UnavailableError,
        match=r"no server answers at http://127[^ ]*:(\d+) .*sglang.launch_server .*--port \1`",
    ) as caught:
        asyncio.run(main())
    assert "\n" not in str(caught.value)


def test_server_that_refuses_chats_is_a_usage_error(shared_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"refuses a request on the route 'chat'.*the route 'completions'"):
        describe(recorded(shared_folder, "base", failing=400))


def test_route_of_no_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="SGLang has no route 'responses'"):
        create_backend("sglang", BackendSettings(route="responses"))


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.5.23", (0, 5, 23)), ("0.5.11.post1+gab12", (0, 5, 11)), ("0.0.0.dev1+g12", None), (None, None)],
)
def test_release(version: str | None, release: tuple[int, ...] | None) -> None:
    assert release_of(version) == release


# --- what a request says and what its answer comes to


def test_chat_request_says_everything(shared_folder: Path) -> None:
    server = recorded(shared_folder, "dflash")
    generate(server, replace(REQUEST, sampling=Sampling(0.7, 0.9, 20), seed=11, reasoning="on"))
    body = server.bodies[-1][1]
    assert [body[name] for name in ("temperature", "top_p", "top_k", "seed", "max_tokens")] == [
        0.7,
        0.9,
        20,
        11,
        2048,
    ]
    assert body["chat_template_kwargs"]["enable_thinking"] is True
    assert body["stream_options"]["include_usage"] is True
    assert body["return_spec_tokens_details"] is True
    assert not {"return_token_ids", "return_meta_info"} & set(body)  # a stream is refused with them


def test_serving_faults_26_and_43_greedy_is_said_and_top_k_is_not_made_up(shared_folder: Path) -> None:
    server = recorded(shared_folder, "base")
    generate(server)
    assert server.bodies[-1][1]["temperature"] == 0
    assert "top_k" not in server.bodies[-1][1]


def test_serving_fault_17_reasoning_is_verified_by_the_rendered_prompt(shared_folder: Path) -> None:
    knows = recorded(shared_folder, "base", streams=spoken({"input_ids": [1, 2]}))
    with pytest.raises(UsageError, match="knows no --reasoning on"):
        describe(knows, reasoning="on")
    assert any("told nothing about reasoning" in note for note in describe(knows).notes)
    asked = [body["chat_template_kwargs"]["enable_thinking"] for _, body in knows.bodies]
    assert asked[:4] == [
        True,
        True,
        False,
        False,
    ]  # `on` was asked for; each is sent again without what is refused
    assert asked[-6:-2] == [False, False, True, True]


@pytest.mark.parametrize("arm", ["base", "dflash"])
def test_recorded_chat_stream(shared_folder: Path, arm: str) -> None:
    """Recorded without the fields beside the choices: nothing is known of its drafts, and nothing is guessed."""
    generation = generate(recorded(shared_folder, arm))
    assert (generation.num_prompt_tokens, generation.num_output_tokens, generation.finish_reason) == (
        15,
        8,
        "length",
    )
    assert len(generation.chunk_gaps_ns) == 6
    assert generation.num_decode_steps == (7 if arm == "base" else None)
    assert generation.num_verify_steps is None
    assert generation.output_ids is None
    assert generation.num_cached_tokens is None


def test_chat_stream_with_everything_beside_the_choices(shared_folder: Path) -> None:
    counts = read_json(shared_folder, "dflash-repeat-chat-specdetails.json")["sglext"]["spec_tokens_details"]
    beside = {
        "spec_tokens_details": counts,
        "output_ids": [[202] * 20],
        "input_ids": [1, 2, 3],
        "cached_tokens_details": {"device": 12, "host": 0},
    }
    streams = {
        "/v1/chat/completions": chat_stream(
            ["\n", "\n" * 8, "\n" * 8, "\n" * 3], num_tokens=20, beside=beside, usage_so_far=[1, 9, 17, 20]
        )
    }
    generation = generate(recorded(shared_folder, "dflash", streams=streams))
    assert generation.output_ids == (202,) * 20
    assert generation.prompt_ids == (1, 2, 3)
    assert generation.num_cached_tokens == 12
    assert generation.chunk_num_tokens == (1, 8, 8, 3)
    assert (generation.num_decode_steps, generation.num_draft_tokens, generation.num_accepted_tokens) == (
        3,
        21,
        21,
    )
    record = as_record(generation)
    assert formulas.acceptance_length([record]) == pytest.approx(19 / 3)
    assert formulas.acceptance_length_untrimmed([record]) == 8.0


def test_zero_that_is_left_out_is_known_once_the_server_was_seen_to_tell(shared_folder: Path) -> None:
    """SGLang tells of cached tokens and of drafts only where there were some."""
    cached = {"cached_tokens_details": {"device": 12, "host": 0}}
    counts = {"spec_verify_ct": 2, "spec_num_correct_drafts": 0, "spec_num_proposed_drafts": 14}
    told = spoken({**cached, "spec_tokens_details": counts}, num_tokens=3)
    one_token = spoken(None, num_tokens=1)
    generation = generate(recorded(shared_folder, "dflash", streams=told), then=one_token)
    assert generation.num_cached_tokens == 0
    assert (generation.num_decode_steps, generation.num_verify_steps, generation.num_draft_tokens) == (
        0,
        0,
        0,
    )
    silent = generate(recorded(shared_folder, "dflash", streams=spoken(None)), then=one_token)
    assert silent.num_cached_tokens is None
    assert silent.num_verify_steps is None
    more = generate(recorded(shared_folder, "dflash", streams=told), then=spoken(None, num_tokens=5))
    assert more.num_decode_steps is None


def test_answers_are_asked_again_until_every_rank_could_have_told(shared_folder: Path) -> None:
    server = recorded(shared_folder, "base")
    assert server.info is not None
    server.info["dp_size"] = 3
    describe(server)
    prompts = [body["messages"] for _, body in server.bodies if "return_token_ids" not in body]
    assert len(prompts) == 1 + 3


# --- the native route


def test_recorded_native_stream_is_read_as_differences(shared_folder: Path) -> None:
    generation = generate(recorded(shared_folder, "dflash"), route="generate")
    assert generation.output_ids == (620, 912, 706, 483, 753, 690, 216, 37)
    assert generation.text == "pro tra },facekenizerdf\x18B"
    assert generation.chunk_num_tokens == (1,) * 8
    assert generation.num_first_chunk_tokens == 1
    assert generation.num_cached_tokens == 40
    assert (generation.num_decode_steps, generation.num_draft_tokens, generation.num_accepted_tokens) == (
        7,
        49,
        0,
    )
    assert formulas.acceptance_length([as_record(generation)]) == 1.0  # base-like drafts


def test_native_stream_of_the_baseline(shared_folder: Path) -> None:
    generation = generate(recorded(shared_folder, "base"), route="generate")
    assert generation.num_decode_steps == 7
    assert generation.num_verify_steps is None
    assert formulas.acceptance_length([as_record(generation)]) == 1.0


@pytest.mark.parametrize(
    ("name", "steps", "delivered", "untrimmed"),
    [
        ("dflash-repeat-40.json", 5, 7.8, 8.0),
        ("dflash-repeat-33.json", 4, 8.0, 8.0),
        ("dflash-repeat-2.json", 1, 1.0, 8.0),
        ("dflash-generate.json", 31, 1.0, 1.0),
        ("dflash-repeat-1.json", 0, None, None),
    ],
)
def test_known_answers_of_the_definitions(
    shared_folder: Path, name: str, steps: int, delivered: float | None, untrimmed: float | None
) -> None:
    """The engine's own `spec_accept_length` would be 8.0, 8.25, 2.0, 1.03 and absent."""
    then = {"/generate": native_answer(shared_folder, name)}
    record = as_record(generate(recorded(shared_folder, "dflash"), then=then, route="generate"))
    assert (record.num_decode_steps, record.num_verify_steps) == (steps, steps)
    assert formulas.acceptance_length([record]) == delivered
    assert formulas.acceptance_length_untrimmed([record]) == untrimmed


@pytest.mark.parametrize(
    ("correct", "proposed", "histogram"),
    [
        ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
        ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
        ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
    ],
)
def test_field_names_of_every_version(
    shared_folder: Path, correct: str, proposed: str, histogram: str
) -> None:
    answer = read_json(shared_folder, "dflash-repeat-40.json")
    meta = {name: value for name, value in answer["meta_info"].items() if not name.startswith("spec_num")}
    del meta["spec_correct_drafts_histogram"]
    meta |= {correct: 35, proposed: 35, histogram: [0] * 7 + [5]}
    then = {"/generate": event({**answer, "meta_info": meta}) + DONE}
    generation = generate(recorded(shared_folder, "dflash"), then=then, route="generate")
    assert (generation.num_verify_steps, generation.num_draft_tokens, generation.num_accepted_tokens) == (
        5,
        35,
        35,
    )
    assert generation.acceptance_histogram_untrimmed == (0, 0, 0, 0, 0, 0, 0, 5)


def rendered(body: Mapping[str, Any]) -> list[int]:
    return [1, len(body["messages"]), int(body["chat_template_kwargs"]["enable_thinking"])]


def test_native_prompt_is_rendered_by_the_servers_own_template(shared_folder: Path) -> None:
    server = recorded(shared_folder, "dflash", tokenize=rendered)
    request = replace(
        REQUEST, messages=CONVERSATION, sampling=Sampling(0.7, 0.9, 20), seed=11, reasoning="on"
    )
    generation = generate(server, request, route="generate", reasoning="on")
    (rendering, _), (path, body) = server.bodies[-2:]
    assert (rendering, path) == ("/v1/tokenize", "/generate")
    assert body["input_ids"] == [1, 3, 1]
    assert generation.prompt_ids == (1, 3, 1)
    sampling = body["sampling_params"]
    assert [
        sampling[name] for name in ("temperature", "top_p", "top_k", "sampling_seed", "max_new_tokens")
    ] == [
        0.7,
        0.9,
        20,
        11,
        2048,
    ]
    assert "text" not in body


def test_native_prompt_is_plain_text_where_the_server_lends_no_template(shared_folder: Path) -> None:
    server = recorded(shared_folder, "dflash")
    generation = generate(server, route="generate")
    assert server.bodies[-1][1]["text"] == "Hi"
    assert server.bodies[-1][1]["sampling_params"]["temperature"] == 0
    assert generation.prompt_ids is None
    with pytest.raises(RequestError, match=r"takes one message, not 3.*use the route 'chat'") as caught:
        generate(server, replace(REQUEST, messages=CONVERSATION), route="generate")
    assert caught.value.kind == "not_single_turn"
    with pytest.raises(UsageError, match="--reasoning on needs a chat template"):
        describe(server, route="generate", reasoning="on")
    assert any("plain text" in note for note in describe(server, route="generate").notes)


def test_servers_that_take_native_prompts_differently_are_refused(shared_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"only one of .* applies its chat template"):
        describe(
            recorded(shared_folder, "base", tokenize=rendered),
            recorded(shared_folder, "dflash"),
            route="generate",
        )


# --- windows: cache and counters


def test_serving_fault_24_flush_is_waited_for_while_requests_run(shared_folder: Path) -> None:
    server = recorded(shared_folder, "base", flushes=[FAILED_FLUSH, (200, "Cache not flushed."), FLUSHED])
    assert window(server).prefix_cache == "reset"
    assert server.asked.count(("POST", "/flush_cache")) == 3


@pytest.mark.parametrize(
    ("flushes", "state"),
    [([FAILED_FLUSH], "unknown"), (None, "unknown"), ([(403, "no")], "unknown"), ([(200, "")], "unknown")],
)
def test_flush_without_success_is_no_reset(
    shared_folder: Path, flushes: list[tuple[int, str]] | None, state: str
) -> None:
    assert window(recorded(shared_folder, "base", flushes=flushes), flush_wait_s=0.0).prefix_cache == state


def test_older_flush_is_a_get(shared_folder: Path) -> None:
    server = recorded(shared_folder, "base", flush_methods=("GET",))
    assert window(server).prefix_cache == "reset"
    assert ("GET", "/flush_cache") in server.asked


def test_server_without_prefix_cache_is_not_flushed(shared_folder: Path) -> None:
    server = recorded(shared_folder, "base")
    assert server.info is not None
    server.info["disable_radix_cache"] = True
    assert window(server).prefix_cache == "off"
    assert not any(path == "/flush_cache" for _, path in server.asked)


def counters(tokens: int, requests: int, calls: int | None) -> str:
    text = f"""\
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{{is_streaming="true"}} {tokens}.0
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{{is_streaming="true"}} {requests}.0
"""
    if calls is None:
        return text
    return text + f"# TYPE sglang:spec_verify_calls_total counter\nsglang:spec_verify_calls_total {calls}.0\n"


def test_counters_of_a_window(shared_folder: Path) -> None:
    server = recorded(shared_folder, "dflash", metrics=counters(100, 5, 20))

    def load() -> None:
        server.metrics = counters(180, 7, 30)

    found = window(server, load)
    assert (found.counters, found.counters_reason) == ("settled", None)
    assert (found.num_generation_tokens, found.num_requests, found.num_drafts) == (80, 2, 10)
    assert found.num_accepted_tokens is None
    assert found.num_draft_tokens is None


def test_recorded_counters_can_be_read(shared_folder: Path) -> None:
    found = window(recorded(shared_folder, "dflash"))
    assert found.counters == "settled"
    assert (found.num_generation_tokens, found.num_drafts) == (0, 0)
    assert window(recorded(shared_folder, "base")).num_drafts is None


def test_counters_that_began_anew_are_not_believed(shared_folder: Path) -> None:
    server = recorded(shared_folder, "dflash", metrics=counters(100, 5, 20))

    def restart() -> None:
        server.metrics = counters(8, 1, 2)

    assert window(server, restart).counters == "reset"


def test_counters_that_are_not_kept_say_how_to_keep_them(shared_folder: Path) -> None:
    server = recorded(shared_folder, "dflash", metrics=None)
    assert server.info is not None
    server.info["enable_metrics"] = False
    found = window(server)
    assert (found.counters, found.counters_reason) == ("missing", NO_COUNTERS)
    assert not any(path == "/metrics" for _, path in server.asked)
    assert any("--enable-metrics" in note for note in describe(server).notes)
    unknown = window(recorded(shared_folder, "dflash", metrics=None, info=None), arms=[Arm("dflash")])
    assert unknown.counters == "missing"
    assert "--enable-metrics" in (unknown.counters_reason or "")


def test_serving_fault_14_counters_elsewhere(shared_folder: Path) -> None:
    """A server behind a gateway that keeps none: they are read where they are said to be."""
    worker = recorded(shared_folder, "dflash", metrics=counters(100, 5, 20))

    async def main() -> ServerWindow:
        server = recorded(shared_folder, "dflash", metrics=None)
        assert server.info is not None
        server.info["enable_metrics"] = False
        async with running(server, worker):
            endpoint = Endpoint(server.url, metrics_url=worker.url)
            backend = SglangBackend(BackendSettings(endpoints=(endpoint,)), quiet_s=0.0, max_wait_s=0.3)
            (arm,) = (await backend.open([UNKNOWN])).arms
            await backend.begin_window(arm)
            worker.metrics = counters(110, 6, 22)
            found = await backend.end_window(arm)
            await backend.aclose()
            return found

    assert asyncio.run(main()).num_generation_tokens == 10


def test_serving_fault_36_settings_are_not_read_within_a_window(shared_folder: Path) -> None:
    server = recorded(shared_folder, "dflash")

    async def action(backend: SglangBackend, description: BackendDescription) -> list[tuple[str, str]]:
        (arm,) = description.arms
        await backend.begin_window(arm)
        del server.asked[:]
        await backend.generate(replace(REQUEST, arm=arm))
        asked = list(server.asked)
        await backend.end_window(arm)
        return asked + [entry for entry in server.asked if entry[1] != "/metrics"][len(asked) :]

    assert use([server], action) == [("POST", "/v1/chat/completions")]


def test_server_that_is_gone_ends_the_run(shared_folder: Path) -> None:
    server = recorded(shared_folder, "base")

    async def main() -> None:
        async with running(server):
            backend = SglangBackend(BackendSettings(endpoints=(Endpoint(server.url),)), quiet_s=0.0)
            (arm,) = (await backend.open([UNKNOWN])).arms
        try:
            await backend.begin_window(arm)
        finally:
            await backend.aclose()

    with pytest.raises(UnavailableError, match="is gone"):
        asyncio.run(main())


@pytest.mark.parametrize(("interval", "steps"), [(1, None), (3, 6)])
def test_chunks_of_several_tokens_are_no_steps_unless_the_server_says_so(
    shared_folder: Path, interval: int, steps: int | None
) -> None:
    server = recorded(shared_folder, "base")
    server.info = {**(server.info or {}), "stream_interval": interval}
    stream = chat_stream(["a", "b c d", "e f g"], num_tokens=7, usage_so_far=[1, 4, 7])
    assert generate(server, then={"/v1/chat/completions": stream}).num_decode_steps == steps


def test_a_field_of_sampling_that_is_refused_is_left_out(shared_folder: Path) -> None:
    server = recorded(shared_folder, "base", refused=(*REFUSED_IN_CHAT_STREAMS, "top_p"))
    with pytest.raises(UsageError, match="top_p"):  # without it the answer would be sampled otherwise
        describe(server, sampling=Sampling(0.7))
    server = recorded(shared_folder, "base", refused=(*REFUSED_IN_CHAT_STREAMS, "min_p"))
    request = replace(REQUEST, sampling=Sampling(0.7))
    assert generate(server, request, sampling=Sampling(0.7)).num_output_tokens == 8
    assert "min_p" not in server.bodies[-1][1]
