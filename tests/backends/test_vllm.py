"""The vLLM backend against servers that answer with recorded samples and with made-up ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest
from made_up_vllm import MadeUpVllm, metrics_text, running, speculation, stream_of

from dflash.backends import create_backend, sglang_server, vllm_server
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
from dflash.backends.chat_stream import ChatStreamReader, ChatStreamRecord
from dflash.backends.vllm import VllmBackend, count_decode_steps
from dflash.backends.vllm_server import release_of
from dflash.errors import RequestError, UnavailableError, UsageError
from dflash.results import metrics as formulas
from dflash.results.records import BASELINE, Arm, RequestRecord

SAMPLES = "samples/vllm-0.32.0"
UNKNOWN = Arm("")
REQUEST = GenerationRequest("r", Arm(BASELINE), (Message("user", "Hi"),), max_new_tokens=2048)
DRAFTS = metrics_text(per_position=[0, 0, 0])  # of a server that drafts with B = 4 and has done nothing
T = TypeVar("T")


def drafting(**changes: Any) -> MadeUpVllm:
    """A server that drafts with B = 4."""
    made_up: dict[str, Any] = {"metrics": DRAFTS, "stream": stream_of([[5], [2]], counts=speculation([0], 3))}
    return MadeUpVllm(**(made_up | changes))


def use(
    servers: list[MadeUpVllm],
    action: Callable[[VllmBackend, BackendDescription], Awaitable[T]],
    *,
    arms: list[Arm] | None = None,
    metrics_urls: list[str] | None = None,
    started_as: StartedAs = NOT_STARTED,
    **settings: Any,
) -> T:
    """Open a backend on these servers, act, close."""

    async def main() -> T:
        async with running(*servers):
            urls = metrics_urls or [""] * len(servers)
            endpoints = [
                Endpoint(
                    server.url,
                    metrics_url=url.format(*(s.url for s in servers)) or None,
                    started_as=started_as,
                )
                for server, url in zip(servers, urls, strict=True)
            ]
            backend = VllmBackend(
                BackendSettings(endpoints=tuple(endpoints), **settings), quiet_s=0.0, max_wait_s=0.3
            )
            try:
                return await action(backend, await backend.open(arms or [UNKNOWN] * len(servers)))
            finally:
                await backend.aclose()
                await backend.aclose()

    return asyncio.run(main())


def describe(servers: list[MadeUpVllm], **settings: Any) -> BackendDescription:
    """What was opened; the addresses of the arms, which are others in every test, were looked at and are left out."""

    async def action(_: VllmBackend, description: BackendDescription) -> BackendDescription:
        addresses = {server.url.replace("127.0.0.1", "localhost") for server in servers}
        assert {arm.server for arm in description.arms} == addresses
        return replace(description, arms=tuple(replace(arm, server=None) for arm in description.arms))

    return use(servers, action, **settings)


def generate(
    server: MadeUpVllm, request: GenerationRequest = REQUEST, *, then: bytes | None = None, **settings: Any
) -> Generation:
    """One answer; `then` is what the server answers after the backend was opened."""

    async def action(backend: VllmBackend, description: BackendDescription) -> Generation:
        server.stream = server.stream if then is None else then
        return await backend.generate(replace(request, arm=description.arms[0]))

    return use([server], action, **settings)


def as_record(generation: Generation) -> RequestRecord:
    """The generation as the runner stores it, as far as acceptance goes."""
    return RequestRecord(
        "c",
        "p",
        finish_reason=generation.finish_reason,
        num_output_tokens=generation.num_output_tokens,
        num_first_chunk_tokens=generation.num_first_chunk_tokens,
        num_decode_steps=generation.num_decode_steps,
        num_verify_steps=generation.num_verify_steps,
        num_draft_tokens=generation.num_draft_tokens,
        num_accepted_tokens=generation.num_accepted_tokens,
        acceptance_histogram_untrimmed=generation.acceptance_histogram_untrimmed,
    )


# --- which server is it


def test_server_without_counters_of_drafts_is_the_baseline() -> None:
    description = describe([MadeUpVllm()])
    assert description.arms == (Arm(BASELINE),)
    assert description.target == "org/model"
    assert description.environment["engine_version"] == "0.32.0"
    assert description.environment["max_model_len"] == 2048


def test_server_with_counters_of_drafts_is_dflash_with_b_one_more_than_its_drafts() -> None:
    description = describe([drafting()])
    assert description.arms == (Arm("dflash", block_size=4),)
    assert any("num_speculative_tokens 3" in note and "B = 4" in note for note in description.notes)


def test_b_is_read_from_the_counters_where_answers_do_not_tell_it() -> None:
    assert describe([drafting(stream=stream_of([[5], [2]]))]).arms[0].block_size == 4


@pytest.mark.parametrize(
    ("sample", "name", "block_size"),
    [("base", BASELINE, None), ("dflash", "dflash", 8), ("ngram", "ngram", 6)],
)
def test_recorded_servers_are_known_for_what_they_are(
    shared_folder: Path, sample: str, name: str, block_size: int | None
) -> None:
    recorded = recorded_server(shared_folder, sample)
    asked = Arm("ngram") if name == "ngram" else UNKNOWN
    description = describe([recorded], arms=[asked])
    assert (description.arms[0].name, description.arms[0].block_size) == (name, block_size)
    assert description.target == "models/SmolLM2-135M-Instruct"


@pytest.mark.parametrize("name", ["dflash", "ngram", "eagle3"])
def test_label_of_a_drafting_arm_is_refused_for_a_server_that_does_not_draft(name: str) -> None:
    with pytest.raises(UsageError, match=rf"not the arm '{name}': it is the baseline"):
        describe([MadeUpVllm()], arms=[Arm(name)])


def test_label_baseline_is_refused_for_a_server_that_drafts() -> None:
    with pytest.raises(UsageError, match="not the arm 'baseline': it is an arm that drafts"):
        describe([drafting()], arms=[Arm(BASELINE)])


def server_info(method: str = "dflash", num_speculative_tokens: int = 3, **more: Any) -> dict[str, Any]:
    speculative = {"method": method, "num_speculative_tokens": num_speculative_tokens, "model": "org/draft"}
    return {
        "vllm_config": {
            "speculative_config": speculative | more,
            "model_config": {"dtype": "torch.float32", "revision": None},
            "cache_config": {"enable_prefix_caching": False},
        },
        "vllm_env": {"VLLM_SECRET": "sk-hidden"},
    }


def test_settings_that_a_server_tells_are_read() -> None:
    description = describe([drafting(server_info=server_info())])
    assert description.arms == (Arm("dflash", block_size=4, draft="org/draft"),)
    assert description.dtype == "float32"
    assert "sk-hidden" not in repr(description)


def test_server_that_tells_its_method_gives_the_name() -> None:
    assert describe([drafting(server_info=server_info("ngram"))]).arms[0].name == "ngram"


def test_label_that_contradicts_the_told_method_is_refused() -> None:
    with pytest.raises(UsageError, match="not the arm 'dflash': it is 'ngram'"):
        describe([drafting(server_info=server_info("ngram"))], arms=[Arm("dflash")])


def test_label_that_names_no_method_is_taken() -> None:
    server = drafting(server_info=server_info("ngram"))
    description = describe([server], arms=[Arm("mine")])
    assert description.arms[0].name == "mine"
    assert "mine B=4: the server drafts by ngram, and is called mine by the user" in description.notes


def test_what_counters_mean_is_told_of_a_method_that_skips_drafts() -> None:
    """The recorded ngram answer: 1.60 by the engine's counters where a step delivered 1.05."""
    told = "vLLM counts those alone"
    assert any(told in note for note in describe([drafting()], arms=[Arm("ngram")]).notes)
    assert any(told in note for note in describe([drafting(server_info=server_info("suffix"))]).notes)
    assert not any(told in note for note in describe([drafting()], arms=[Arm("eagle3")]).notes)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "it is called dflash by the user, or for want of a name (--arm"),
        ("eagle3", "it is called eagle3 by the user (--arm"),
    ],
)
def test_whose_word_the_name_is_where_the_method_is_unknown(name: str, said: str) -> None:
    """Any server that drafts looks the same, whatever it drafts with: an eagle3 one was once called dflash."""
    (note,) = [note for note in describe([drafting()], arms=[Arm(name)]).notes if "how it drafts" in note]
    assert f"its method is unknown, and {said}" in note


def test_synthetic_acceptance_is_told() -> None:
    """D1 43: an acceptance that nobody measured."""
    server = drafting(server_info=server_info(rejection_sample_method="synthetic"))
    assert any("synthetic" in note for note in describe([server]).notes)


def test_what_a_server_was_started_as_holds_where_it_does_not_say() -> None:
    started_as = StartedAs("float16", "dflash")
    description = describe([drafting()], started_as=started_as)
    assert description.dtype == "float16"
    assert not any("dtype" in note or "how it drafts" in note for note in description.notes)
    assert describe([drafting(server_info=server_info())], started_as=started_as).dtype == "float32"


def test_text_form_of_the_settings_is_left_alone() -> None:
    description = describe([drafting(server_info={"vllm_config": "model='org/model', …"})])
    assert description.arms[0].name == "dflash"
    assert description.dtype is None


@pytest.mark.parametrize("reasoning", ["off", "on", "low"])
def test_serving_fault_17_reasoning_setting_is_verified_by_the_rendered_prompt(reasoning: str) -> None:
    server = MadeUpVllm(has_thinking=True)
    assert (
        f"reasoning {reasoning}: sent as chat_template_kwargs, and the rendered prompt changes with it"
        in (describe([server], reasoning=reasoning).notes)
    )
    assert len(server.bodies) == 2


def test_serving_fault_17_reasoning_that_the_template_does_not_know_is_refused() -> None:
    with pytest.raises(UsageError, match="knows no --reasoning on"):
        describe([MadeUpVllm()], reasoning="on")
    assert any("is told nothing about reasoning" in note for note in describe([MadeUpVllm()]).notes)


def test_reasoning_is_not_verified_where_the_prompt_is_not_told(shared_folder: Path) -> None:
    notes = describe([recorded_server(shared_folder, "base")], reasoning="on").notes
    assert "reasoning on: sent as chat_template_kwargs, not verified" in notes


def test_dtype_that_contradicts_the_server_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--dtype bfloat16 contradicts .* float32"):
        describe([drafting(server_info=server_info())], dtype="bfloat16")


@pytest.mark.parametrize("arms", [[Arm("dflash", block_size=8)], None])
def test_block_size_that_contradicts_the_server_is_refused_naming_both(arms: list[Arm] | None) -> None:
    with pytest.raises(
        UsageError, match=r"--block-size 8 contradicts .* B is 4 \(num_speculative_tokens 3\)"
    ):
        describe([drafting()], arms=arms, block_size=8)


def test_block_size_that_the_server_does_not_tell_is_taken_with_a_note() -> None:
    text = metrics_text(per_position=[])
    description = describe([drafting(metrics=text, stream=stream_of([[5], [2]]))], block_size=8)
    assert description.arms[0].block_size == 8
    assert any("B is not told by the server and taken as given" in note for note in description.notes)


def test_serving_fault_14_missing_counters_are_not_taken_for_a_baseline() -> None:
    with pytest.raises(UsageError, match=r"cannot be seen whether .* drafts.*by --arm NAME=URL"):
        describe([MadeUpVllm(metrics=None)])
    with pytest.raises(UsageError, match="no counter of vLLM"):
        describe([MadeUpVllm(metrics="# TYPE http_requests_total counter\nhttp_requests_total 3.0\n")])


def test_answers_tell_that_a_server_without_counters_drafts() -> None:
    description = describe([drafting(metrics=None)])
    assert description.arms == (Arm("dflash", block_size=4),)
    assert any("its counters cannot be read" in note for note in description.notes)


def test_name_is_believed_where_nothing_can_be_seen_and_that_is_told() -> None:
    description = describe([MadeUpVllm(metrics=None)], arms=[Arm(BASELINE)])
    assert description.arms == (Arm(BASELINE),)
    assert any("cannot be seen whether the server drafts" in note for note in description.notes)


def test_serving_fault_14_counters_may_be_elsewhere() -> None:
    frontend, worker = drafting(metrics=None, stream=stream_of([[5], [2]])), drafting()

    async def main() -> BackendDescription:
        async with running(frontend, worker):
            endpoint = Endpoint(frontend.url + "/v1", metrics_url=worker.url + "/metrics")
            backend = VllmBackend(BackendSettings(endpoints=(endpoint,), api_key="sk-secret"))
            try:
                return await backend.open([UNKNOWN])
            finally:
                await backend.aclose()

    description = asyncio.run(main())
    assert description.arms[0].block_size == 4
    assert {path for _, path, _ in worker.asked} == {"/metrics"}
    assert all(key == "Bearer sk-secret" for _, _, key in frontend.asked)


def test_counters_of_another_server_are_refused() -> None:
    async def main() -> None:
        drafts, base = drafting(), MadeUpVllm()
        async with running(drafts, base):
            endpoint = Endpoint(drafts.url, metrics_url=base.url)
            await VllmBackend(BackendSettings(endpoints=(endpoint,))).open([UNKNOWN])

    with pytest.raises(UsageError, match="are of another server"):
        asyncio.run(main())


@pytest.mark.parametrize("version", ["0.20.0", "0.19.5", "0.9.2rc1"])
def test_vllm_too_old_for_dflash_is_refused_by_version(version: str) -> None:
    with pytest.raises(UsageError, match=rf"vLLM {version} .* cannot draft with DFlash.*0\.20\.1 or newer"):
        describe([drafting(version=version)])


@pytest.mark.parametrize("version", ["0.20.1", "0.20.1.post2", "0.21.0rc1.dev3+g1a2b3c", "1.0.0", "dev"])
def test_vllm_that_is_new_enough_or_untold_is_taken(version: str) -> None:
    assert describe([drafting(version=version)]).arms[0].name == "dflash"


def test_old_vllm_is_good_enough_for_a_baseline() -> None:
    assert describe([MadeUpVllm(version="0.19.0")]).arms[0].name == BASELINE


def test_untagged_build_has_no_release() -> None:
    assert release_of("0.1.dev1+gabc") is None
    assert release_of(None) is None
    assert release_of("0.20.1rc2") == (0, 20, 1)


def test_server_without_a_version_is_noted() -> None:
    notes = describe([MadeUpVllm(version=None)]).notes
    assert any("does not say its version" in note for note in notes)


def test_two_servers_are_two_arms() -> None:
    description = describe([MadeUpVllm(), drafting()])
    assert [arm.label for arm in description.arms] == ["baseline", "dflash B=4"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            {"models": {"data": [{"id": "m", "root": "org/other"}]}},
            "the model org/model, .* the model org/other",
        ),
        ({"version": "0.31.0"}, r"vLLM 0\.32\.0, .* vLLM 0\.31\.0"),
    ],
)
def test_servers_that_differ_in_more_than_the_draft_are_refused_naming_both(
    change: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        describe([MadeUpVllm(), drafting(**change)])


def test_two_servers_of_one_arm_are_refused() -> None:
    with pytest.raises(UsageError, match="are both the arm 'baseline'"):
        describe([MadeUpVllm(), MadeUpVllm()])


def test_model_that_is_not_served_is_refused() -> None:
    with pytest.raises(UsageError, match=r"does not serve the model 'other'.*'m'"):
        describe([MadeUpVllm()], model="other")
    assert describe([MadeUpVllm()], model="org/model").target == "org/model"


def test_no_server_is_unavailable_with_the_way_to_start_one() -> None:
    async def main() -> None:
        server = MadeUpVllm()
        async with running(server):
            pass
        await VllmBackend(BackendSettings(endpoints=(Endpoint(server.url),))).open([UNKNOWN])

    with pytest.raises(
        UnavailableError, match=r"no server answers at [^ ]*:(\d+) .*vllm serve MODEL --port \1`"
    ) as caught:
        asyncio.run(main())
    assert "\n" not in str(caught.value)


def test_the_way_to_start_a_server_names_the_place_that_was_asked() -> None:
    assert "start one by `vllm serve MODEL --port 8000`" in vllm_server.how_to_start("http://localhost:8000")
    assert "start one on gpu-1 by `vllm serve MODEL --port 80`" in vllm_server.how_to_start("http://gpu-1")
    assert "--port 30001`" in sglang_server.how_to_start("http://127.0.0.1:30001")


def test_server_that_is_not_healthy_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="is not healthy"):
        describe([MadeUpVllm(health=503)])


def test_something_else_at_the_address_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="is no OpenAI-style server"):
        describe([MadeUpVllm(models=None)])


def test_a_server_of_sglang_is_not_asked_as_vllm(shared_folder: Path) -> None:
    """Its answers can be read, but its counters are others: the run would be poor, and nobody would know why."""
    folder = shared_folder / "samples/sglang-0.5.23"
    models = orjson.loads((folder / "dflash-v1_models.json").read_bytes())["body"]
    with pytest.raises(UsageError, match="is SGLang's by its /v1/models, and was asked as vLLM") as caught:
        describe([MadeUpVllm(models=models)], arms=[Arm("dflash")])
    assert "give --backend sglang" in str(caught.value)
    info = orjson.loads((folder / "dflash-server_info.json").read_bytes())["body"]
    with pytest.raises(UsageError, match="is SGLang's by its /server_info"):
        describe([MadeUpVllm(server_info=info)], arms=[Arm("dflash")])
    models["data"][0]["owned_by"] = "my-gateway"
    assert describe([MadeUpVllm(models=models)]).arms == (Arm(BASELINE),), "a gateway says neither"


def test_route_of_another_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="vLLM has no route 'generate'"):
        create_backend("vllm", BackendSettings(route="generate"))


# --- what a request says and what its answer comes to


def test_request_is_sent_as_it_was_asked() -> None:
    server = MadeUpVllm()
    request = replace(REQUEST, sampling=Sampling(0.7, 0.9, 20), seed=11, reasoning="on")
    generate(server, request)
    body = server.bodies[-1]
    assert body["model"] == "m"
    assert [body[name] for name in ("temperature", "top_p", "top_k", "seed", "max_tokens")] == [
        0.7,
        0.9,
        20,
        11,
        2048,
    ]
    assert body["chat_template_kwargs"]["enable_thinking"] is True


def test_completions_route_is_used_where_it_was_asked() -> None:
    server = MadeUpVllm()
    generate(server, route="completions")
    assert server.bodies[-1]["prompt"] == "Hi"
    assert len(server.bodies) == 2  # one of them to see who answers
    assert ("POST", "/v1/completions", None) in server.asked


def test_known_answer_of_the_definitions(shared_folder: Path) -> None:
    """8 tokens, B = 4, 2 steps: delivered 3.5 a step where the engine counts 4.0."""
    probe = orjson.loads((shared_folder / SAMPLES / "draftmodel.probe.json").read_bytes())[0]
    ids, counts = probe["ids"], probe["metrics"]["speculative_decoding"]
    stream = stream_of([ids[:1], ids[1:5], ids[5:]], counts=counts)
    generation = generate(drafting(stream=stream))
    record = as_record(generation)
    assert generation.output_ids == tuple(ids)
    assert (record.num_output_tokens, record.num_decode_steps, record.num_accepted_tokens) == (8, 2, 6)
    assert formulas.acceptance_length([record]) == 3.5
    assert formulas.acceptance_length_untrimmed([record]) == 4.0
    assert generation.chunk_num_tokens == (1, 4, 3)
    assert generation.step_num_accepted is None  # the recorded server tells a summary only
    assert generation.acceptance_histogram_untrimmed == (0, 0, 0, 2)


def test_vllm_counts_the_stop_token(shared_folder: Path) -> None:
    """The recorded answer ends with the stop token's id, 2, and the usage counts it."""
    probe = orjson.loads((shared_folder / SAMPLES / "base.probe.json").read_bytes())[0]
    assert probe["ids"][-1] == 2
    assert probe["usage"]["completion_tokens"] == len(probe["ids"]) == 8


def test_plain_decoding_takes_a_target_forward_per_token() -> None:
    generation = generate(MadeUpVllm(), then=stream_of([[5], [6], [7, 2]]))
    assert generation.num_output_tokens == 4
    assert generation.num_decode_steps == 3
    assert generation.num_verify_steps is None
    assert formulas.acceptance_length([as_record(generation)]) == 1.0


def test_steps_of_a_server_that_may_draft_are_not_guessed() -> None:
    server = MadeUpVllm(metrics=None)
    generation = generate(server, arms=[Arm(BASELINE)])
    assert generation.num_decode_steps is None


def test_serving_fault_2_chunks_are_not_tokens(shared_folder: Path) -> None:
    """The recorded ngram answer: 64 tokens in 61 chunks, each as large as the running usage says."""
    generation = generate(recorded_server(shared_folder, "ngram"), arms=[Arm("ngram")])
    assert generation.num_output_tokens == 64
    assert len(generation.chunk_gaps_ns) == 60
    assert (len(generation.chunk_num_tokens), sum(generation.chunk_num_tokens)) == (61, 64)
    assert generation.num_decode_steps is None  # nothing of its drafts was told to check the chunks by
    assert generation.output_ids is None
    assert generation.text is not None


def test_recorded_dflash_stream_gives_its_counts(shared_folder: Path) -> None:
    generation = generate(recorded_server(shared_folder, "dflash"))
    assert generation.num_output_tokens == 64
    assert generation.num_decode_steps == generation.num_verify_steps == 63
    assert generation.num_draft_tokens == 441
    assert generation.num_accepted_tokens == 0
    assert generation.finish_reason == "length"
    assert formulas.acceptance_length([as_record(generation)]) == 1.0


def test_answer_holds_what_the_server_tells() -> None:
    stream = stream_of([[5], [6, 7, 2]], counts=speculation([2], 3), num_cached_tokens=1)
    generation = generate(drafting(), then=stream)
    assert generation.prompt_ids == (1, 9)
    assert generation.num_prompt_tokens == 2
    assert generation.num_cached_tokens == 1
    assert generation.text == " 5 6 7 2"
    assert generation.num_first_chunk_tokens == 1
    assert generation.num_retries == 0
    first_ns, last_ns = generation.first_ns, generation.last_ns
    assert first_ns is not None
    assert last_ns is not None
    assert generation.sent_ns < first_ns <= last_ns
    assert sum(generation.chunk_gaps_ns) == last_ns - first_ns


def test_reasoning_is_no_part_of_the_text() -> None:
    thought = {"choices": [{"index": 0, "delta": {"reasoning": "hm"}, "token_ids": [8]}]}
    stream = (
        b"data: "
        + orjson.dumps(thought)
        + b"\n\n"
        + stream_of([[5], [2]]).replace(b'"completion_tokens":2', b'"completion_tokens":3')
    )
    generation = generate(MadeUpVllm(), then=stream)
    assert generation.text == " 5 2"
    assert generation.output_ids == (8, 5, 2)


def test_missing_acceptance_is_not_measured_never_one() -> None:
    generation = generate(drafting(), then=stream_of([[5], [6, 2]]))
    assert generation.num_decode_steps is None
    assert generation.num_accepted_tokens is None
    assert formulas.acceptance_length([as_record(generation)]) is None


def test_refusal_is_one_line_of_the_server() -> None:
    async def action(backend: VllmBackend, _: BackendDescription) -> Generation:
        server.models = None
        server.stream = b'data: {"error": {"message": "the engine\\ndied", "code": 500}}\n\n'
        return await backend.generate(REQUEST)

    server = MadeUpVllm()
    with pytest.raises(RequestError, match="the engine died") as caught:
        use([server], action)
    assert caught.value.kind == "server_error"


def test_arm_that_is_not_open_is_refused() -> None:
    async def action(backend: VllmBackend, _: BackendDescription) -> Generation:
        return await backend.generate(replace(REQUEST, arm=Arm("dflash", block_size=8)))

    with pytest.raises(UsageError, match="no open server is the arm 'dflash B=8'"):
        use([drafting()], action)


def test_many_requests_are_under_way_at_once() -> None:
    async def action(backend: VllmBackend, _: BackendDescription) -> list[Generation]:
        return await asyncio.gather(*(backend.generate(REQUEST) for _ in range(32)))

    generations = use([MadeUpVllm()], action, max_concurrency=32)
    assert {generation.output_ids for generation in generations} == {(5, 2)}


# --- decode steps


def record_of(
    chunks: list[list[int]], steps: list[int] | None, num_speculative_tokens: int = 3
) -> ChatStreamRecord:
    counts = None if steps is None else speculation(steps, num_speculative_tokens, detailed=False)
    reader = ChatStreamReader()
    for event in stream_of(chunks, counts=counts).split(b"\n\n"):
        data = event.removeprefix(b"data: ")
        if data and data != b"[DONE]":
            reader.feed(1, orjson.loads(data))
    return reader.record()


def chunks_of(*sizes: int) -> list[list[int]]:
    ids = iter(range(3, 1000))
    return [[next(ids) for _ in range(size)] for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "steps", "expected"),
    [
        pytest.param((1, 4, 1, 2), [3, 0, 1], 3, id="whole"),
        pytest.param((1, 4, 1, 1), [3, 0, 3], 3, id="last_step_cut"),
        pytest.param((5, 1, 2), [3, 0, 1], 3, id="chunks_merged"),
        pytest.param((1, 4, 1, 1), [3], 3, id="steps_without_a_draft_seen_in_the_chunks"),
        pytest.param((1, 4, 2), [3], None, id="steps_without_a_draft_merged"),
    ],
)
def test_method_that_drafts_on_every_step_has_its_verify_steps(
    sizes: tuple[int, ...], steps: list[int], expected: int | None
) -> None:
    record = record_of(chunks_of(*sizes), steps)
    assert count_decode_steps(record, drafts=True, skips_drafts=False) == expected


@pytest.mark.parametrize(
    ("sizes", "steps", "expected"),
    [
        pytest.param((1, 1, 4, 1, 2, 1), [3, 1], 5, id="whole"),
        pytest.param((1, 1, 1), [], 2, id="never_drafted"),
        pytest.param((1, 1, 1), [0], 2, id="nothing_accepted"),
        pytest.param((1, 1, 2), [3], 2, id="last_step_cut"),
        pytest.param((1, 1, 1), [3], 2, id="last_step_cut_to_one"),
        pytest.param((1,), [], 0, id="one_token"),
        pytest.param((1, 2, 1), [], None, id="merged_without_a_draft"),
        pytest.param((1, 5, 1), [3], None, id="merged_with_a_draft"),
        pytest.param((2, 1, 4), [3], None, id="merged_into_the_first"),
        pytest.param((1, 3, 1), [3], None, id="cut_in_the_middle"),
        pytest.param((1, 1), [0, 0], None, id="fewer_chunks_than_steps"),
    ],
)
def test_method_that_skips_drafts_has_its_chunks_where_they_agree_with_its_drafts(
    sizes: tuple[int, ...], steps: list[int], expected: int | None
) -> None:
    record = record_of(chunks_of(*sizes), steps)
    assert count_decode_steps(record, drafts=True, skips_drafts=True) == expected


def test_steps_are_unknown_where_the_server_tells_nothing_of_drafts() -> None:
    record = record_of(chunks_of(1, 4), None)
    assert count_decode_steps(record, drafts=True, skips_drafts=False) is None
    assert count_decode_steps(record, drafts=None, skips_drafts=False) is None
    assert count_decode_steps(record, drafts=False, skips_drafts=False) is None, "its chunks contradict that"
    plain = record_of(chunks_of(1, 1, 2, 1), None)
    assert count_decode_steps(plain, drafts=False, skips_drafts=False) == 4


# --- windows


def window(server: MadeUpVllm, change: Callable[[], None], **settings: Any) -> ServerWindow:
    """A window in which `change` happens."""

    async def action(backend: VllmBackend, description: BackendDescription) -> ServerWindow:
        await backend.begin_window(description.arms[0])
        change()
        return await backend.end_window(description.arms[0])

    return use([server], action, **settings)


def set_metrics(server: MadeUpVllm, text: str | None) -> Callable[[], None]:
    def change() -> None:
        server.metrics = text

    return change


BEFORE = metrics_text(per_position=[5, 3, 1], drafts=10, drafted=30, generated=100, prompt=50, requests=4)
AFTER = metrics_text(per_position=[9, 5, 2], drafts=16, drafted=48, generated=120, prompt=70, requests=6)


def test_window_holds_what_was_added_in_it() -> None:
    server = drafting(metrics=BEFORE)
    found = window(server, set_metrics(server, AFTER))
    assert found == ServerWindow(
        "settled",
        num_drafts=6,
        num_draft_tokens=18,
        num_accepted_tokens=7,
        num_accepted_tokens_per_position=(4, 2, 1),
        num_generation_tokens=20,
        num_prompt_tokens=20,
        num_requests=2,
    )


def test_baseline_window_has_tokens_and_no_drafts() -> None:
    server = MadeUpVllm(metrics=metrics_text(generated=10))
    found = window(server, set_metrics(server, metrics_text(generated=30)))
    assert (found.counters, found.num_generation_tokens, found.num_drafts) == ("settled", 20, None)


def test_counters_that_fell_are_a_reset_with_its_reason() -> None:
    server = drafting(metrics=AFTER)
    found = window(server, set_metrics(server, BEFORE))
    assert found.counters == "reset"
    assert found.counters_reason is not None
    assert "restarted" in found.counters_reason
    assert found.num_drafts is None


@pytest.mark.parametrize(
    ("after", "state"), [(None, "missing"), ("vllm:generation_tokens_total{ 3", "unreadable")]
)
def test_counters_that_go_away_are_told_and_raise_nothing(after: str | None, state: str) -> None:
    server = drafting(metrics=BEFORE)
    found = window(server, set_metrics(server, after))
    assert found.counters == state
    assert found.counters_reason
    assert found.num_generation_tokens is None


def test_counters_that_were_never_there_are_missing() -> None:
    server = drafting(metrics=None)
    found = window(server, set_metrics(server, AFTER))
    assert found.counters == "missing"
    assert found.num_drafts is None


def test_counters_that_appear_in_the_window_are_missing() -> None:
    server = MadeUpVllm(metrics=metrics_text(generated=1))
    found = window(server, set_metrics(server, AFTER))
    assert found.counters == "missing"
    assert found.counters_reason is not None
    assert "vllm:spec_decode_num_drafts" in found.counters_reason
    assert (found.num_drafts, found.num_generation_tokens) == (None, 119)


def test_window_that_was_not_begun_is_told() -> None:
    async def action(backend: VllmBackend, description: BackendDescription) -> ServerWindow:
        return await backend.end_window(description.arms[0])

    found = use([MadeUpVllm()], action)
    assert (found.counters, found.counters_reason) == ("missing", "the window was never begun")


def test_counters_that_never_stand_still_are_unsettled() -> None:
    counts = iter(range(100, 10_000))

    async def main() -> ServerWindow:
        server = drafting(metrics=BEFORE)
        async with running(server):
            backend = VllmBackend(
                BackendSettings(endpoints=(Endpoint(server.url),)), quiet_s=0.3, max_wait_s=0.6
            )
            (arm,) = (await backend.open([UNKNOWN])).arms
            await backend.begin_window(arm)
            server.metrics = lambda: metrics_text(
                per_position=[5, 3, 1],
                drafts=10,
                drafted=30,
                generated=next(counts),
                prompt=50,
                requests=4,
            )
            found = await backend.end_window(arm)
            await backend.aclose()
            return found

    found = asyncio.run(main())
    assert found.counters == "unsettled"
    assert found.num_generation_tokens is not None


@pytest.mark.parametrize(
    ("resets", "state"),
    [
        pytest.param([{"success": True}], "reset", id="reset"),
        pytest.param([None], "reset", id="older_servers_answer_with_nothing"),
        pytest.param([{"success": False}, {"success": True}], "reset", id="blocks_still_held_at_first"),
        pytest.param([{"success": False}], "unknown", id="blocks_never_let_go"),
        pytest.param(None, "unknown", id="not_offered"),
    ],
)
def test_serving_fault_23_cells_are_kept_apart_from_each_others_prefix_cache(
    resets: list[Any] | None, state: str
) -> None:
    server = MadeUpVllm(resets=resets)
    assert window(server, lambda: None).prefix_cache == state


def test_server_without_a_prefix_cache_is_not_asked_to_empty_it() -> None:
    server = MadeUpVllm(metrics=metrics_text(caching=False), resets=[{"success": True}])
    assert window(server, lambda: None).prefix_cache == "off"
    assert "/reset_prefix_cache" not in {path for _, path, _ in server.asked}


def test_window_of_a_server_that_is_gone_is_unavailable() -> None:
    async def main() -> None:
        server = MadeUpVllm()
        async with running(server):
            backend = VllmBackend(BackendSettings(endpoints=(Endpoint(server.url),)), quiet_s=0.0)
            (arm,) = (await backend.open([UNKNOWN])).arms
        try:
            await backend.begin_window(arm)
        finally:
            await backend.aclose()

    with pytest.raises(UnavailableError, match="is gone"):
        asyncio.run(main())


# --- recorded answers


def recorded_server(shared_folder: Path, sample: str) -> MadeUpVllm:
    """A server that answers as the real one did."""
    folder = shared_folder / SAMPLES

    def read(name: str) -> str:
        return (folder / f"{sample}.{name}").read_text()

    body = read("stream.txt").partition("TIME ")[0].encode()
    return MadeUpVllm(
        stream=body,
        metrics=read("metrics.before.txt"),
        models=orjson.loads(read("models.json")),
        version=orjson.loads(read("version.json"))["version"],
    )


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ("base", (None, None, None)),
        ("dflash", (70, 490, 0)),
        ("ngram", None),
    ],
)
def test_recorded_counters_are_differenced(
    shared_folder: Path, sample: str, expected: tuple[int | None, ...] | None
) -> None:
    server = recorded_server(shared_folder, sample)
    after = (shared_folder / SAMPLES / f"{sample}.metrics.after.txt").read_text()
    found = window(server, set_metrics(server, after), arms=[Arm("ngram")] if sample == "ngram" else None)
    assert found.counters == "settled"
    assert found.num_generation_tokens == 72  # 8 + 64: the two answers recorded in between
    if expected is not None:
        assert (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens) == expected
    else:
        assert found.num_drafts is not None
        per_position = found.num_accepted_tokens_per_position or ()
        assert sum(chain(per_position)) == found.num_accepted_tokens


# --- a server that drafts and does not say so


SEVERAL = stream_of([[5], [6, 7, 8], [9, 10, 11], [2]])
OLD_DRAFTS = metrics_text() + (
    "# TYPE vllm:spec_decode_num_emitted_tokens counter\n"
    'vllm:spec_decode_num_emitted_tokens_total{engine="0",model_name="m"} 5\n'
)


def test_counters_of_drafts_under_any_name_are_those_of_a_server_that_drafts() -> None:
    assert describe([MadeUpVllm(metrics=OLD_DRAFTS)]).arms[0].name == "dflash"
    with pytest.raises(UsageError, match="is not the arm 'baseline'"):
        describe([MadeUpVllm(metrics=OLD_DRAFTS)], arms=[Arm(BASELINE)])


def test_chunks_of_several_tokens_contradict_that_there_are_no_drafts() -> None:
    with pytest.raises(
        UsageError, match=r"drafts: it has no counters of drafts, but most chunks.*--arm NAME=URL"
    ):
        describe([MadeUpVllm(stream=SEVERAL)])
    named = describe([MadeUpVllm(stream=SEVERAL)], arms=[Arm(BASELINE)])
    assert any(
        "it cannot be seen whether the server drafts (it has no counters" in note for note in named.notes
    )
    assert generate(MadeUpVllm(), then=SEVERAL).num_decode_steps is None
    assert generate(MadeUpVllm(), then=stream_of([[5], [6], [7, 8], [9], [2]])).num_decode_steps == 5


def test_a_server_that_sends_several_steps_together_and_says_so_is_believed() -> None:
    config = {"speculative_config": None, "scheduler_config": {"stream_interval": 3}}
    server = MadeUpVllm(stream=SEVERAL, server_info={"vllm_config": config})
    assert describe([server]).arms == (Arm(BASELINE),)
    assert generate(server, then=SEVERAL).num_decode_steps == 7


def test_fields_of_sampling_that_a_server_refuses_are_found_before_the_run() -> None:
    server = MadeUpVllm()
    generate(server, sampling=Sampling(0.7))
    assert all(body["temperature"] == 0.7 for body in server.bodies[:-1])
    assert all("min_p" in body for body in server.bodies[:-1])


def test_an_answer_longer_than_was_asked_for_is_a_failure() -> None:
    with pytest.raises(RequestError, match="8 output tokens came, at most 2 were asked for") as caught:
        generate(
            MadeUpVllm(), replace(REQUEST, max_new_tokens=2), then=stream_of([[5], [6, 7, 8, 9, 1, 3, 2]])
        )
    assert caught.value.kind == "wrong_usage"
