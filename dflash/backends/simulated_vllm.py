"""vLLM's protocol, as version 0.32.0 was recorded: `/v1` routes, Prometheus text, errors.

`num_speculative_tokens` here is B-1. Per-request and Prometheus counters are untrimmed: they count accepted tokens
that a stop or the limit then cut.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from dflash.backends.simulated_mark import MARK
from dflash.backends.simulated_requests import (
    ApiError,
    Call,
    Prompt,
    read_messages,
    read_number,
    read_text,
    sampling_key,
    usage_wanted,
)
from dflash.backends.simulated_vllm_answer import VllmFormat, VllmOptions
from dflash.backends.simulated_vllm_metrics import CACHE_BLOCK_TOKENS, vllm_metrics_text

if TYPE_CHECKING:
    from dflash.backends.simulated_http import SimulatedServer

VERSION = "0.32.0"
COMPLETION_TOKENS = 16  # of /v1/completions, where no limit is asked for
_KINDS = {
    400: "BadRequestError",
    404: "NotFoundError",
    429: "Too Many Requests",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class VllmDialect:
    """Routes and errors of one server."""

    cache_block_tokens = CACHE_BLOCK_TOKENS
    verifies_every_step = False

    def __init__(self, server: SimulatedServer) -> None:
        self.server, self.settings = server, server.scenario.server
        self.version = self.settings.version or VERSION
        build = hashlib.sha256(server.scenario.digest.encode()).hexdigest()[:8]
        self.fingerprint = f"vllm-{self.version}-{build}"

    def routes(self) -> list[web.RouteDef]:
        routes = [
            self.server.generation_route("/v1/chat/completions", self._parse_chat),
            self.server.generation_route("/v1/completions", self._parse_completion),
            web.get("/v1/models", self._models),
            web.get("/version", self._version),
            web.get("/health", self._health),
            web.get("/load", self._load),
            web.post("/tokenize", self._tokenize),
        ]
        if self.settings.metrics:
            routes.append(web.get("/metrics", self._metrics))
        if self.settings.dev_mode:
            routes.append(web.post("/reset_prefix_cache", self._reset_prefix_cache))
        return routes

    def error_document(self, error: ApiError, path: str) -> Mapping[str, Any]:
        kind = error.kind or _KINDS.get(error.status, "BadRequestError")
        return {
            "error": {"message": error.message, "type": kind, "param": error.parameter, "code": error.status}
        }

    def _parse_chat(self, body: Mapping[str, Any], request: web.Request) -> Call:
        return self._parse(body, request, read_messages(body), is_chat=True)

    def _parse_completion(self, body: Mapping[str, Any], request: web.Request) -> Call:
        return self._parse(body, request, read_text(body.get("prompt")), is_chat=False)

    def _parse(self, body: Mapping[str, Any], request: web.Request, prompt: Prompt, *, is_chat: bool) -> Call:
        self._check_model(body)
        temperature = read_number(body, "temperature", 1.0)
        if temperature < 0:
            raise ApiError(
                f"temperature must be non-negative, got {float(temperature)}.", parameter="temperature"
            )
        if read_number(body, "n", 1) != 1:
            raise ApiError("n must be 1 (nothing else is simulated).", parameter="n")
        include_usage, continuous_usage = usage_wanted(body)
        options = VllmOptions(is_chat, include_usage, continuous_usage, bool(body.get("return_token_ids")))
        return Call(
            key=(*prompt.key, sampling_key(temperature, body.get("seed"))),
            prompt=prompt.ids,
            prompt_text=prompt.text,
            max_new_tokens=self._limit(body, len(prompt.ids), is_chat),
            ignore_stop=bool(body.get("ignore_eos")),
            is_stream=bool(body.get("stream")),
            request_id=request.headers.get("X-Request-Id", ""),
            make_format=lambda job: VllmFormat(self, job, options),
        )

    def _limit(self, body: Mapping[str, Any], num_prompt_tokens: int, is_chat: bool) -> int:
        room = self.settings.max_model_len - num_prompt_tokens
        if room < 1:
            raise ApiError(
                f"This model's maximum context length is {self.settings.max_model_len} tokens. However, your "
                f"prompt contains {num_prompt_tokens} input tokens, which exceeds this limit even without any "
                "output tokens. Please reduce the length of the input prompt.",
                parameter="input_tokens",
            )
        limit = read_number(body, "max_tokens", room if is_chat else COMPLETION_TOKENS)
        limit = int(read_number(body, "max_completion_tokens", limit) if is_chat else limit)
        if limit < 1:
            raise ApiError(f"max_tokens must be at least 1, got {limit}.", parameter="max_tokens")
        if limit > room:
            raise ApiError(
                f"This model's maximum context length is {self.settings.max_model_len} tokens. However, you "
                f"requested {limit} output tokens and your prompt contains {num_prompt_tokens} input tokens.",
                parameter="max_tokens",
            )
        return limit

    def _check_model(self, body: Mapping[str, Any]) -> None:
        model = body.get("model")
        if model is not None and model != self.settings.model:
            raise ApiError(f"The model `{model}` does not exist.", status=404, parameter="model")

    async def _models(self, request: web.Request) -> web.Response:
        created = int(time.time())
        permission = {
            "id": f"modelperm-{created:016x}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": self.settings.model,
            "parent": None,
            "max_model_len": self.settings.max_model_len,
            "permission": [permission],
        }
        return self.server.json_response({"object": "list", "data": [model]})

    async def _version(self, request: web.Request) -> web.Response:
        return self.server.json_response({"version": self.version + MARK})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(headers={"Server": "uvicorn"})

    async def _load(self, request: web.Request) -> web.Response:
        busy = sum(len(rank.running) + len(rank.waiting) for rank in self.server.engine.ranks)
        return self.server.json_response({"server_load": busy})

    async def _tokenize(self, request: web.Request) -> web.Response:
        try:
            body = orjson.loads(await request.read())
            self._check_model(body)
            prompt = read_messages(body) if "messages" in body else read_text(body.get("prompt"))
        except (ApiError, orjson.JSONDecodeError) as error:
            refusal = error if isinstance(error, ApiError) else ApiError(f"the body is no JSON: {error}")
            return self.server.json_response(self.error_document(refusal, request.path), refusal.status)
        document = {
            "count": len(prompt.ids),
            "max_model_len": self.settings.max_model_len,
            "tokens": prompt.ids,
            "token_strs": None,
        }
        return self.server.json_response(document)

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        return self.server.json_response({"success": self.server.engine.flush_cache()})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=vllm_metrics_text(self.server.engine, self.settings, self.server.started_at).encode(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "Server": "uvicorn"},
        )
