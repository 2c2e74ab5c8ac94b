"""vLLM's protocol, as version 0.32.0 was recorded: `/v1` routes, Prometheus text, errors.

`num_speculative_tokens` here is B-1. Per-request and Prometheus counters are untrimmed: they count accepted tokens
that a stop or the limit then cut.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from dflash.backends.simulated_engine import Job
from dflash.backends.simulated_metrics import VLLM_FAMILIES, render_metrics
from dflash.backends.simulated_requests import (
    DONE,
    ApiError,
    Call,
    Format,
    Prompt,
    read_messages,
    read_number,
    read_text,
    sampling_key,
    usage_wanted,
)

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
_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What a request asks of its answer's form."""

    is_chat: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool


class VllmDialect:
    """Routes and errors of one server."""

    cache_block_tokens = 16

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
        return self.server.json_response({"version": self.version})

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
            body=self.metrics_text().encode(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "Server": "uvicorn"},
        )

    def metrics_text(self) -> str:
        """All counters now, a series per engine."""
        engine = self.server.engine
        model = {"model_name": self.settings.model}
        engines = [{"engine": str(number), **model} for number in range(len(engine.ranks))]
        scopes: dict[str, Sequence[Mapping[str, str]]] = {"engine": engines, "model": [model]}
        families = VLLM_FAMILIES
        width = (engine.block_size or 1) - 1
        if width:
            scopes["speculation"] = engines
            families = families.replace("POSITIONS", " ".join(map(str, range(width))))
        info = ",".join(
            f'{name}="{value}"'
            for name, value in (
                ("block_size", self.cache_block_tokens),
                ("enable_prefix_caching", self.settings.prefix_cache),
                ("engine", 0),
            )
        )
        text = render_metrics(families, "vllm:", scopes, self._values(width), self.server.started_at)
        return (
            f"{text}# HELP vllm:cache_config_info How the cache is set up.\n"
            f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{info}}} 1.0\n"
        )

    def _values(self, width: int) -> dict[tuple[str, str], list[float]]:
        ranks = self.server.engine.ranks
        counters = [rank.counters for rank in ranks]
        finished = [sum(total[0] for total in item.totals_by_stream.values()) for item in counters]
        ended = {
            "request_prompt_tokens": 1,
            "request_generation_tokens": 2,
            "request_max_num_generation_tokens": 2,
        }
        values: dict[tuple[str, str], list[float]] = {
            ("spec_decode_num_drafts_total", ""): [item.num_verify_steps for item in counters],
            ("spec_decode_num_draft_tokens_total", ""): [item.num_draft_tokens for item in counters],
            ("spec_decode_num_accepted_tokens_total", ""): [item.num_accepted_tokens for item in counters],
            ("num_requests_running", ""): [len(rank.running) for rank in ranks],
            ("num_requests_waiting", ""): [len(rank.waiting) for rank in ranks],
            ("num_requests_waiting_by_reason", "capacity"): [len(rank.waiting) for rank in ranks],
            ("engine_sleep_state", "awake"): [1] * len(ranks),
            ("prompt_tokens_total", ""): [item.num_prompt_tokens for item in counters],
            ("prompt_tokens_by_source_total", "local_compute"): [
                item.num_prompt_tokens - item.num_cached_tokens for item in counters
            ],
            ("prompt_tokens_by_source_total", "local_cache_hit"): [
                item.num_cached_tokens for item in counters
            ],
            ("prompt_tokens_cached_total", ""): [item.num_cached_tokens for item in counters],
            ("prompt_tokens_cached_by_source_total", "device"): [item.num_cached_tokens for item in counters],
            ("generation_tokens_total", ""): [item.num_output_tokens for item in counters],
        }
        if self.settings.prefix_cache:
            values["prefix_cache_queries_total", ""] = [item.num_prompt_tokens for item in counters]
            values["prefix_cache_hits_total", ""] = [item.num_cached_tokens for item in counters]
        for position in range(width):
            accepted = [float(item.num_accepted_at(position)) for item in counters]
            values["spec_decode_num_accepted_tokens_per_pos_total", str(position)] = accepted
        for reason in ("stop", "length", "abort"):
            values["request_success_total", reason] = [item.finished.get(reason, 0) for item in counters]
        for name, place in ended.items():
            values[f"{name}_count", ""] = [float(number) for number in finished]
            sums = [sum(total[place] for total in item.totals_by_stream.values()) for item in counters]
            values[f"{name}_sum", ""] = [float(number) for number in sums]
        times = {
            "time_to_first_token_seconds": [item.queue_s + item.prefill_s for item in counters],
            "e2e_request_latency_seconds": [
                item.queue_s + item.prefill_s + item.decode_s for item in counters
            ],
            "request_queue_time_seconds": [item.queue_s for item in counters],
            "request_inference_time_seconds": [item.prefill_s + item.decode_s for item in counters],
            "request_prefill_time_seconds": [item.prefill_s for item in counters],
            "request_decode_time_seconds": [item.decode_s for item in counters],
            "request_time_per_output_token_seconds": [item.tpot_s for item in counters],
        }
        for name, sums_s in times.items():
            values[f"{name}_count", ""] = [item.num_timed for item in counters]
            values[f"{name}_sum", ""] = sums_s
        return values


class VllmFormat(Format):
    """One answer. Every streamed object leaves out what was not set, as the engine does."""

    def __init__(self, dialect: VllmDialect, job: Job, options: VllmOptions) -> None:
        self._dialect, self._job, self._options = dialect, job, options
        self._created = int(time.time())
        kind = "chatcmpl" if options.is_chat else "cmpl"
        self._id = (
            f"{kind}-{hashlib.sha256(f'{job.log.number} {job.log.arrival_ns}'.encode()).hexdigest()[:16]}"
        )
        model = orjson.dumps(dialect.settings.model)
        of_stream = b"chat.completion.chunk" if options.is_chat else b"text_completion"
        self._head = b'{"id":"%b","object":"%b","created":%d,"model":%b,"choices":[' % (
            self._id.encode(),
            of_stream,
            self._created,
            model,
        )
        self._last_chunk = len(job.answer.script.steps)
        self._num_sent = 0

    def events(self, index: int) -> list[bytes]:
        job, is_last = self._job, index == self._last_chunk
        text, ids = orjson.dumps(job.answer.chunk_texts[index]), b"null"
        if self._options.return_token_ids:
            ids = orjson.dumps(job.answer.chunk_ids[index])
        finish, stop = b"null", b""
        if is_last and not job.fails_with("missing_finish"):
            finish, stop = b'"%b"' % job.answer.script.finish_reason.encode(), b',"stop_reason":null'
        events = []
        if self._options.is_chat:
            if index == 0:
                events.append(self._role_event())
            choice = (
                b'{"index":0,"delta":{"content":%b},"logprobs":null,"finish_reason":%b%b,"token_ids":%b}'
                % (text, finish, stop, ids)
            )
        else:
            prompt = b"null"
            if index == 0 and self._options.return_token_ids:
                prompt = orjson.dumps(job.prompt)
            choice = (
                b'{"index":0,"text":%b,"logprobs":null,"finish_reason":%b,"stop_reason":null,'
                b'"prompt_token_ids":%b,"token_ids":%b}' % (text, finish, prompt, ids)
            )
        self._num_sent += len(job.answer.chunk_ids[index])
        tail = b""
        if is_last and not self._options.include_usage:
            tail = b',"system_fingerprint":%b' % orjson.dumps(self._dialect.fingerprint)
        events.append(b"data: %b%b]%b%b}\n\n" % (self._head, choice, self._usage_so_far(), tail))
        return events

    def ending(self) -> list[bytes]:
        if not self._options.include_usage or self._job.fails_with("missing_usage"):
            return [DONE]
        document: dict[str, Any] = {
            "usage": self._usage(is_stream=True),
            "system_fingerprint": self._dialect.fingerprint,
        }
        metrics = self._metrics(is_stream=True)
        if metrics is not None:
            document["metrics"] = metrics
        return [b"data: %b],%b\n\n" % (self._head, orjson.dumps(document)[1:]), DONE]

    def error_event(self, message: str) -> bytes:
        error = ApiError(message, status=500)
        return b"data: %b\n\n" % orjson.dumps(self._dialect.error_document(error, ""))

    def document(self) -> dict[str, Any]:
        job, is_chat, dialect = self._job, self._options.is_chat, self._dialect
        with_ids = self._options.return_token_ids
        prompt = list(job.prompt) if with_ids else None
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None,
            "finish_reason": None if job.fails_with("missing_finish") else job.answer.script.finish_reason,
            "stop_reason": None,
            "token_ids": list(job.answer.script.output_ids) if with_ids else None,
            "routed_experts": None,
        }
        document: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion" if is_chat else "text_completion",
            "created": self._created,
            "model": dialect.settings.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": dialect.fingerprint,
            "usage": None if job.fails_with("missing_usage") else self._usage(is_stream=False),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": self._metrics(is_stream=False),
        }
        if is_chat:
            names = ("refusal", "annotations", "audio", "function_call", "reasoning")
            message = {"role": "assistant", "content": job.answer.text, **dict.fromkeys(names)}
            choice["message"] = message
            return {**document, "prompt_logprobs": None, "prompt_token_ids": prompt, "prompt_text": None}
        return {
            **document,
            "choices": [
                {**choice, "text": job.answer.text, "prompt_logprobs": None, "prompt_token_ids": prompt}
            ],
        }

    def _role_event(self) -> bytes:
        prompt = orjson.dumps(self._job.prompt) if self._options.return_token_ids else b"null"
        choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        usage = self._usage_so_far()
        tail = b',"prompt_token_ids":%b,"prompt_text":null' % prompt
        return b"data: %b%b]%b%b}\n\n" % (self._head, choice, usage, tail)

    def _usage_so_far(self) -> bytes:
        if not self._options.continuous_usage or self._job.fails_with("missing_usage"):
            return b""
        prompt, sent = len(self._job.prompt), self._num_sent
        details = b',"completion_tokens_details":null' if self._options.is_chat else b""
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % (
            prompt,
            prompt + sent,
            sent,
            details,
        )

    def _usage(self, *, is_stream: bool) -> dict[str, Any]:
        job = self._job
        prompt, sent = len(job.prompt), job.log.num_output_tokens
        if job.fault is not None and job.fault.action == "wrong_usage":
            sent += job.fault.delta
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + sent,
            "completion_tokens": sent,
        }
        details = self._prompt_details(is_stream) if self._dialect.settings.cached_tokens_in_usage else None
        if is_stream:
            return usage if details is None else {**usage, "prompt_tokens_details": details}
        return {**usage, "prompt_tokens_details": details, "completion_tokens_details": None}

    def _prompt_details(self, is_stream: bool) -> dict[str, Any]:
        log, size = self._job.log, self._dialect.cache_block_tokens
        stored = log.num_prompt_tokens // size * size if self._dialect.settings.prefix_cache else 0
        details: dict[str, Any] = {"cached_tokens": log.num_cached_tokens}
        if self._options.is_chat:
            details["created_cache_tokens"] = max(stored - log.num_cached_tokens, 0)
        if is_stream:
            return details
        return {"created_cache_tokens": None, **details, "multimodal_tokens": None}

    def _metrics(self, *, is_stream: bool) -> dict[str, Any] | None:
        """Times and speculation; a stream leaves out what is not there, a document has it as null."""
        settings, log = self._dialect.settings, self._job.log
        names = ("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms")
        metrics: dict[str, Any] = dict.fromkeys((*names, "tokens_per_second"))
        started_ns = log.started_ns or log.arrival_ns
        if settings.per_request_metrics:
            first_ns, last_ns = log.chunk_sent_ns[0], log.chunk_sent_ns[-1]
            decode_ms, decode_tokens = (last_ns - first_ns) / _NS_PER_MS, log.num_output_tokens - 1
            times_ms = (
                (first_ns - started_ns) / _NS_PER_MS,
                decode_ms,
                (started_ns - log.arrival_ns) / _NS_PER_MS,
                decode_ms / decode_tokens if decode_tokens else None,
            )
            metrics.update(zip(names, times_ms, strict=True))
            metrics["tokens_per_second"] = log.num_output_tokens / max(last_ns - started_ns, 1) * 1e9
        speculation = self._speculation()
        if speculation is None and not settings.per_request_metrics:
            return None
        metrics["speculative_decoding"] = speculation
        if not is_stream:
            return metrics
        if speculation is not None:
            metrics["speculative_decoding"] = {
                name: value for name, value in speculation.items() if value is not None
            }
        return {name: value for name, value in metrics.items() if value is not None}

    def _speculation(self) -> dict[str, Any] | None:
        level, log = self._dialect.settings.per_request_spec_decode_metrics, self._job.log
        width = self._job.answer.script.num_step_draft_tokens
        if level == "none" or not width:
            return None
        steps, accepted = log.num_verify_steps, log.num_accepted_tokens
        is_detailed = level == "detailed" and steps > 0
        return {
            "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
            "draft_acceptance_rate": accepted / log.num_draft_tokens if log.num_draft_tokens else 0.0,
            "acceptance_histogram": [log.step_num_accepted.count(number) for number in range(width + 1)],
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": log.num_draft_tokens,
            "num_spec_tokens": width,
            "per_step_accepted": list(log.step_num_accepted) if is_detailed else None,
            "per_step_drafted": [width] * steps if is_detailed else None,
        }
