"""SGLang's protocol, as version 0.5.23 was recorded: native and OpenAI routes, server info, Prometheus text, errors.

`speculative_num_draft_tokens` here is B. The counters that the real server moves when a request has come to its
end (tokens, requests, verify calls) move then here too, and are absent until the first one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from aiohttp import web

from dflash.backends.simulated_engine import Rank
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
from dflash.backends.simulated_sglang_answer import (
    ChatFormat,
    CompletionFormat,
    NativeFormat,
    OpenAiOptions,
)
from dflash.backends.simulated_sglang_info import LOAD, MODEL_INFO, SERVER_INFO
from dflash.backends.simulated_sglang_metrics import sglang_metrics_text

if TYPE_CHECKING:
    from dflash.backends.simulated_http import SimulatedServer

VERSION = "0.5.23"
NATIVE_TOKENS = 128  # of /generate, where no limit is asked for
COMPLETION_TOKENS = 16
_ALGORITHMS = {"dflash": "DFLASH", "eagle3": "EAGLE3", "ngram": "NGRAM"}
_STREAM_ONLY_WHOLE = ("return_prompt_token_ids", "return_token_ids", "return_meta_info")
_KINDS = {400: "BadRequestError", 500: "InternalServerError", 503: "ServiceUnavailableError"}
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


# what `/server_info` says of the whole server only
_NOT_OF_A_RANK = (
    "custom_sigquit_handler",
    "launch_command",
    "status",
    "max_total_num_tokens",
    "max_req_input_len",
    "hicache_object_layout",
    "kv_events",
    "version",
    "frontend",
)


class SglangDialect:
    """Routes and errors of one server."""

    cache_block_tokens = 1
    verifies_every_step = True

    def __init__(self, server: SimulatedServer) -> None:
        self.server, self.settings = server, server.scenario.server
        self.version = self.settings.version or VERSION

    def routes(self) -> list[web.RouteDef]:
        routes = [
            self.server.generation_route("/generate", self._parse_native),
            self.server.generation_route("/v1/chat/completions", self._parse_chat),
            self.server.generation_route("/v1/completions", self._parse_completion),
            web.get("/v1/models", self._models),
            web.get("/v1/loads", self._loads),
            web.get("/health", self._health),
            web.get("/health_generate", self._health),
            web.get("/flush_cache", self._flush_cache),
            web.post("/flush_cache", self._flush_cache),
        ]
        for name, handler in (("model_info", self._model_info), ("server_info", self._server_info)):
            routes += [web.get(f"/{name}", handler), web.get(f"/get_{name}", handler)]
        if self.settings.metrics:
            routes.append(web.get("/metrics", self._metrics))
        return routes

    def error_document(self, error: ApiError, path: str) -> Mapping[str, Any]:
        if error.status == 404:
            return {"detail": error.message}
        if not path.startswith("/v1"):
            return {"error": {"message": error.message}}
        kind = error.kind or _KINDS.get(error.status, "BadRequestError")
        flat = {"message": error.message, "type": kind, "param": error.parameter, "code": error.status}
        return {"object": "error", **flat}

    def _parse_native(self, body: Mapping[str, Any], request: web.Request) -> Call:
        ids = body.get("input_ids")
        prompt = read_text(body.get("text"), "text") if ids is None else read_text(ids, "input_ids")
        options = body.get("sampling_params") or {}
        self._check(prompt, options)
        limit = int(read_number(options, "max_new_tokens", NATIVE_TOKENS))
        return Call(
            key=(*prompt.key, self._seed(options)),
            prompt=prompt.ids,
            prompt_text=prompt.text,
            max_new_tokens=self._within_room(prompt, limit),
            ignore_stop=bool(options.get("ignore_eos")),
            is_stream=bool(body.get("stream")),
            request_id=str(body.get("rid") or ""),
            make_format=lambda job: NativeFormat(self, job, str(body.get("rid") or "")),
        )

    def _parse_chat(self, body: Mapping[str, Any], request: web.Request) -> Call:
        prompt = read_messages(body)
        if body.get("stream"):
            for name in _STREAM_ONLY_WHOLE:
                if body.get(name):
                    route = " on /v1/chat/completions" if name == "return_token_ids" else ""
                    raise ApiError(
                        f"{name} is not supported with streaming{route}. "
                        f"Please set stream=false when using {name}=true."
                    )
        room = self.settings.max_model_len - len(prompt.ids)
        limit = read_number(body, "max_completion_tokens", read_number(body, "max_tokens", max(room, 1)))
        return self._openai_call(body, request, prompt, limit=int(limit), is_chat=True)

    def _parse_completion(self, body: Mapping[str, Any], request: web.Request) -> Call:
        limit = int(read_number(body, "max_tokens", COMPLETION_TOKENS))
        return self._openai_call(body, request, read_text(body.get("prompt")), limit=limit, is_chat=False)

    def _openai_call(
        self, body: Mapping[str, Any], request: web.Request, prompt: Prompt, *, limit: int, is_chat: bool
    ) -> Call:
        self._check(prompt, body)
        include_usage, continuous_usage = usage_wanted(body)
        options = OpenAiOptions(
            model=str(body.get("model", self.settings.model)),
            include_usage=include_usage,
            continuous_usage=continuous_usage,
            return_token_ids=bool(body.get("return_token_ids")),
            return_prompt_ids=bool(body.get("return_prompt_token_ids")),
            return_meta_info=bool(body.get("return_meta_info")),
            return_speculation=bool(body.get("return_spec_tokens_details")),
            return_cached=bool(body.get("return_cached_tokens_details")),
            return_prompt_ids_beside=bool(body.get("return_input_ids_in_sglext")),
            return_token_ids_beside=bool(body.get("return_output_ids_in_sglext")),
        )
        form = ChatFormat if is_chat else CompletionFormat
        request_id = str(body.get("rid") or "")
        return Call(
            key=(*prompt.key, self._seed(body)),
            prompt=prompt.ids,
            prompt_text=prompt.text,
            max_new_tokens=self._within_room(prompt, limit),
            ignore_stop=bool(body.get("ignore_eos")),
            is_stream=bool(body.get("stream")),
            request_id=request_id or request.headers.get("X-Request-Id", ""),
            make_format=lambda job: form(self, job, request_id, options),
        )

    def _check(self, prompt: Prompt, options: Mapping[str, Any]) -> None:
        temperature = read_number(options, "temperature", 1.0)
        if temperature < 0:
            raise ApiError(f"temperature must be a non-negative finite number, got {temperature}.")
        if read_number(options, "n", 1) != 1:
            raise ApiError("n must be 1 (nothing else is simulated).")
        if len(prompt.ids) >= self.settings.max_model_len:
            raise ApiError(
                f"The input ({len(prompt.ids)} tokens) is longer than the model's context length "
                f"({self.settings.max_model_len} tokens)."
            )

    def _seed(self, options: Mapping[str, Any]) -> object:
        seed = options.get("sampling_seed", options.get("seed"))
        return sampling_key(read_number(options, "temperature", 1.0), seed)

    def _within_room(self, prompt: Prompt, limit: int) -> int:
        if limit < 1:
            raise ApiError(f"max_new_tokens must be at least 1, got {limit}.")
        room = self.settings.max_model_len - len(prompt.ids)
        if limit > room:
            raise ApiError(
                f"Requested token count exceeds the model's maximum context length of "
                f"{self.settings.max_model_len} tokens. You requested a total of {len(prompt.ids) + limit} tokens."
            )
        return limit

    async def _models(self, request: web.Request) -> web.Response:
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": self.settings.model,
            "parent": None,
            "max_model_len": self.settings.max_model_len,
        }
        return self.server.json_response({"object": "list", "data": [model]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(headers={"Server": "uvicorn"})

    async def _model_info(self, request: web.Request) -> web.Response:
        model = self.settings.model
        names = {"model_path": model, "served_model_name": model, "tokenizer_path": model}
        return self.server.json_response({**MODEL_INFO, **names})

    async def _server_info(self, request: web.Request) -> web.Response:
        server, settings = self.server, self.settings
        known = {
            **SERVER_INFO,
            "model_path": settings.model,
            "tokenizer_path": settings.model,
            "served_model_name": settings.model,
            "host": server.host,
            "port": server.port,
            "context_length": settings.max_model_len,
            "max_running_requests": settings.max_running_requests,
            "disable_radix_cache": not settings.prefix_cache,
            "enable_cache_report": settings.cached_tokens_in_usage,
            "dp_size": settings.dp_ranks,
            "version": self.version + MARK,
            **self._speculative_arguments(),
        }
        arguments = {name: value for name, value in known.items() if name not in _NOT_OF_A_RANK}
        states = [{**arguments, **self._state(rank)} for rank in server.engine.ranks]
        return server.json_response({**known, "internal_states": states})

    def _speculative_arguments(self) -> dict[str, Any]:
        block_size = self.server.engine.block_size
        if block_size is None:
            return {}
        return {
            "speculative_algorithm": _ALGORITHMS.get(self.server.arm, self.server.arm.upper()),
            "speculative_draft_model_path": None if self.server.arm == "ngram" else self.settings.draft_model,
            "speculative_draft_model_revision": "main",
            "speculative_num_steps": block_size - 1 if self.server.arm == "eagle3" else 1,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": block_size,
            "speculative_draft_attention_backend": "torch_native",
        }

    def _state(self, rank: Rank) -> dict[str, Any]:
        """What a rank adds to the arguments. The acceptance is its own, since the last flush."""
        phases = dict.fromkeys(
            ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend"), 0.0
        )
        memory = {"weight": 0.015, "kvcache": 0.023, "startup_available": 16.0, "token_capacity": 4096}
        state: dict[str, Any] = {
            "startup_time": {
                name: value for name, value in SERVER_INFO["startup_time"].items() if name != "tokenizer_e2e"
            },
            "disable_chunked_prefix_cache": True,
            "pp_max_micro_batch_size": self.settings.max_running_requests,
            "disaggregation_decode_retraction_backup": "cpu_tensor",
            "world_size": 1,
            "effective_max_running_requests_per_dp": self.settings.max_running_requests,
            "last_gen_throughput": rank.counters.output_tok_s,
            "memory_usage": {**memory, "token_capacity_swa": None, "graph": phases},
            "decode_cuda_graph_bs": [],
            "decode_cuda_graph_memory_gb": 0.0,
        }
        if self.server.engine.block_size is not None:
            recent = rank.since_flush
            steps = recent.num_verify_steps
            state["avg_spec_accept_length"] = 1 + recent.num_accepted_tokens / steps if steps else None
        return state

    async def _loads(self, request: web.Request) -> web.Response:
        now = time.time()
        loads = [
            {
                **LOAD,
                "timestamp": now,
                "dp_rank": number,
                "num_running_reqs": len(rank.running),
                "num_waiting_reqs": len(rank.waiting),
                "max_running_requests": self.settings.max_running_requests,
                "gen_throughput": rank.counters.output_tok_s,
            }
            for number, rank in enumerate(self.server.engine.ranks)
        ]
        document = {
            "timestamp": datetime.fromtimestamp(now, timezone.utc).isoformat(),
            "version": self.version + MARK,
            "accelerator": None,
            "num_accelerators": 1,
            "loads": loads,
        }
        return self.server.json_response(document)

    async def _flush_cache(self, request: web.Request) -> web.Response:
        """With `?timeout=S` it waits that long for the running requests."""
        try:
            wait_until = time.monotonic() + float(request.query.get("timeout", "0"))
        except ValueError:
            wait_until = 0.0
        while not (is_flushed := self.server.engine.flush_cache()) and time.monotonic() < wait_until:
            await asyncio.sleep(0.01)
        text = _FLUSHED if is_flushed else "Flush cache failed.\n"
        return web.Response(text=text, status=200 if is_flushed else 400, headers={"Server": "uvicorn"})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=sglang_metrics_text(self.server.engine, self.settings).encode(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "Server": "uvicorn"},
        )
