"""What is sent to the OpenAI routes, and how what they answer is read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from dflash.backends.base import BackendSettings, Endpoint, GenerationRequest, Message, Sampling
from dflash.backends.openai_server import (
    ServedModel,
    choose_model,
    completion_body,
    first_answer,
    open_client,
    open_error,
    read_models,
    reasoning_fields,
    sampling_fields,
)
from dflash.errors import EXIT_UNAVAILABLE, EXIT_USAGE, RequestError, UnavailableError, UsageError
from dflash.results.records import Arm

REQUEST = GenerationRequest("r", Arm("baseline"), (Message("user", "Hi"),), max_new_tokens=16, seed=7)
GREEDY_FIELDS = {
    "temperature": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


def test_greedy_request_is_sent_in_full() -> None:
    """Serving fault 26: without a temperature the server's own defaults would apply."""
    assert completion_body(REQUEST, "m", "chat") == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
        "max_tokens": 16,
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
        **GREEDY_FIELDS,
    }


def test_top_k_is_sent_only_when_asked() -> None:
    """Serving fault 43, U1: a top-k of 1 that nobody asked for makes every temperature greedy."""
    assert "top_k" not in sampling_fields(Sampling(1.0), 3)
    assert sampling_fields(Sampling(1.0, top_k=5), 3)["top_k"] == 5


def test_sampling_sends_top_p_and_the_prompt_seed() -> None:
    assert sampling_fields(Sampling(0.7), 3) == GREEDY_FIELDS | {
        "temperature": 0.7,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 3,
    }
    assert sampling_fields(Sampling(0.7, top_p=0.9), 3)["top_p"] == 0.9


@pytest.mark.parametrize(("reasoning", "on"), [("off", False), ("on", True)])
def test_reasoning_is_always_sent(reasoning: str, on: bool) -> None:
    """Serving fault 17: two clients that think differently measure different acceptance."""
    assert reasoning_fields(reasoning) == {"chat_template_kwargs": {"enable_thinking": on, "thinking": on}}


def test_reasoning_level_goes_to_the_server_and_to_the_template() -> None:
    fields = reasoning_fields("low")
    assert fields["reasoning_effort"] == "low"
    assert fields["chat_template_kwargs"]["reasoning_effort"] == "low"
    assert fields["chat_template_kwargs"]["enable_thinking"] is True


def test_level_that_the_servers_would_refuse_goes_to_the_template_only() -> None:
    fields = reasoning_fields("ultra")
    assert "reasoning_effort" not in fields
    assert fields["chat_template_kwargs"]["reasoning_effort"] == "ultra"


def test_completions_route_sends_the_text_alone() -> None:
    body = completion_body(REQUEST, "m", "completions")
    assert body["prompt"] == "Hi"
    assert {"messages", "chat_template_kwargs"} & set(body) == set()
    two_turns = replace(REQUEST, messages=REQUEST.messages * 3)
    with pytest.raises(RequestError, match="takes one message, not 3"):
        completion_body(two_turns, "m", "completions")
    with pytest.raises(UsageError, match="needs a chat template"):
        completion_body(replace(REQUEST, reasoning="on"), "m", "completions")


def test_fields_of_one_engine_are_sent_beside_the_shared_ones() -> None:
    body = completion_body(REQUEST, "m", "chat", extra={"return_meta_info": True})
    assert body["return_meta_info"] is True


def test_fields_that_a_server_refuses_are_left_out() -> None:
    left_out = ("continuous_usage_stats", "return_token_ids", "max_tokens")
    body = completion_body(REQUEST, "m", "chat", left_out=left_out)
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_completion_tokens"] == 16
    assert {"return_token_ids", "max_tokens"} & set(body) == set()


def test_reasoning_is_refused_where_it_cannot_be_sent() -> None:
    left_out = ("chat_template_kwargs",)
    assert "chat_template_kwargs" not in completion_body(REQUEST, "m", "chat", left_out=left_out)
    with pytest.raises(UsageError, match="takes no --reasoning on"):
        completion_body(replace(REQUEST, reasoning="on"), "m", "chat", left_out=left_out)


MODELS = (
    ServedModel("adapter", "org/adapter", is_adapter=True),
    ServedModel("m", "org/model", 2048),
    ServedModel("m-too", "org/model", 2048),
)


def test_model_is_found_by_its_served_name_or_its_own() -> None:
    assert choose_model(MODELS, "m-too", "http://s").model_id == "m-too"
    assert choose_model(MODELS, "org/model", "http://s").model_id == "m"


def test_without_a_name_the_first_whole_model_is_taken() -> None:
    assert choose_model(MODELS, None, "http://s").model_id == "m"


def test_model_that_is_not_served_is_refused_with_what_is() -> None:
    with pytest.raises(UsageError, match=r"'other'.*'adapter', 'm', 'm-too'"):
        choose_model(MODELS, "other", "http://s")
    with pytest.raises(UnavailableError, match="serves no model"):
        choose_model((), None, "http://s")


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        ("http_401", EXIT_USAGE),
        ("http_404", EXIT_USAGE),
        ("connection_refused", EXIT_UNAVAILABLE),
        ("connect_timeout", EXIT_UNAVAILABLE),
        ("http_503", EXIT_UNAVAILABLE),
    ],
)
def test_first_contact_that_fails_is_told_by_its_exit_code(kind: str, exit_code: int) -> None:
    error = open_error(RequestError(kind, "what happened"), "http://s:1", "start it so")
    assert error.exit_code == exit_code
    assert "http://s:1" in str(error)
    assert "what happened" in str(error)


def answer(*, ids: bool) -> bytes:
    documents: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": "Hi"}, "token_ids": [5] if ids else None}]},
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {},
                    "finish_reason": "stop",
                    "token_ids": [2] if ids else None,
                }
            ]
        },
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    ]
    return b"".join(b"data: " + orjson.dumps(document) + b"\n\n" for document in documents)


def ask_old_server(refused: dict[str, str], status: int = 400) -> tuple[Any, frozenset[str], list[Any]]:
    """The first answer of a server that refuses some fields, each in its own words."""
    bodies: list[Any] = []

    async def handle(request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        bodies.append(body)
        flat = {**body, **body.get("stream_options", {})}
        for name, message in refused.items():
            if name in flat:
                return web.json_response({"detail": message}, status=status)
        return web.Response(body=answer(ids="return_token_ids" in body), content_type="text/event-stream")

    async def main() -> tuple[Any, frozenset[str], list[Any]]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", handle)
        async with (
            TestServer(app) as server,
            open_client(BackendSettings(), str(server.make_url("/"))) as client,
        ):
            record, left_out = await first_answer(client, REQUEST, "m", "chat")
            return record, left_out, bodies

    return asyncio.run(main())


def test_field_that_an_older_server_refuses_is_dropped_once_and_told() -> None:
    record, left_out, bodies = ask_old_server(
        {
            "return_token_ids": "return_token_ids: Extra inputs are not permitted",
            "continuous_usage_stats": "unknown field stream_options.continuous_usage_stats",
        }
    )
    assert left_out == {"return_token_ids", "continuous_usage_stats"}
    assert len(bodies) == 3
    assert record.output_ids is None
    assert record.num_output_tokens == 2


def test_tokenizer_that_takes_no_template_arguments_is_asked_without_them() -> None:
    _, left_out, _ = ask_old_server(
        {"chat_template_kwargs": "chat_template is not supported for Mistral tokenizers."}
    )
    assert left_out == {"chat_template_kwargs"}


def test_server_that_wants_max_completion_tokens_gets_it() -> None:
    _, left_out, bodies = ask_old_server({"max_tokens": "use max_completion_tokens instead"}, 422)
    assert left_out == {"max_tokens"}
    assert bodies[-1]["max_completion_tokens"] == 16


def test_refusal_of_what_cannot_be_done_without_is_an_error() -> None:
    with pytest.raises(RequestError, match="no messages for you") as caught:
        ask_old_server({"messages": "no messages for you"})
    assert caught.value.kind == "http_400"


def test_models_are_read_with_their_own_names() -> None:
    async def main() -> tuple[ServedModel, ...]:
        async def handle(_: web.Request) -> web.Response:
            entries = [
                {"id": "m", "root": "org/model", "parent": None, "max_model_len": 2048},
                {"id": "a", "root": "org/adapter", "parent": "m", "max_model_len": None},
            ]
            return web.json_response({"object": "list", "data": entries})

        app = web.Application()
        app.router.add_get("/v1/models", handle)
        async with (
            TestServer(app) as server,
            open_client(BackendSettings(), str(server.make_url("/v1/"))) as client,
        ):
            return await read_models(client)

    assert asyncio.run(main()) == (
        ServedModel("m", "org/model", 2048),
        ServedModel("a", "org/adapter", is_adapter=True),
    )


def test_settings_reach_the_client_and_the_key_is_in_no_repr() -> None:
    settings = BackendSettings(
        endpoints=(Endpoint("http://s"),), api_key="sk-secret", headers=(("X-Team", "secret-team"),)
    )
    client = open_client(settings, "http://s/v1")
    assert client.settings.base_url.url == "http://s"
    assert client.settings.api_key == "sk-secret"
    assert "secret" not in repr(client) + repr(client.settings) + repr(settings)
