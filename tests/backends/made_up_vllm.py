"""A stand-in for one vLLM server that answers with given bytes; every part can be changed or taken away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer

DRAFT_COUNTERS = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {drafted}.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
"""
POSITION = """\
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="{place}"}} {value}.0
"""
SHARED_COUNTERS = """\
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {generated}.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {prompt}.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {requests}.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{enable_prefix_caching="{caching}",engine="0"}} 1.0
"""


def metrics_text(
    *,
    per_position: Sequence[int] | None = None,
    drafts: int = 0,
    drafted: int = 0,
    generated: int = 0,
    prompt: int = 0,
    requests: int = 0,
    caching: bool = True,
) -> str:
    """`/metrics`; without `per_position` the server does not draft."""
    text = SHARED_COUNTERS.format(generated=generated, prompt=prompt, requests=requests, caching=caching)
    if per_position is None:
        return text
    counters = DRAFT_COUNTERS.format(drafts=drafts, drafted=drafted, accepted=sum(per_position))
    positions = (POSITION.format(place=place, value=value) for place, value in enumerate(per_position))
    return text + counters + "".join(positions)


def speculation(
    steps: Sequence[int], num_speculative_tokens: int, *, detailed: bool = True
) -> dict[str, Any]:
    """What vLLM says of one request whose verify steps accepted `steps` draft tokens."""
    counts: dict[str, Any] = {
        "acceptance_histogram": [steps.count(k) for k in range(num_speculative_tokens + 1)],
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": sum(steps),
        "num_draft_tokens": len(steps) * num_speculative_tokens,
        "num_spec_tokens": num_speculative_tokens,
    }
    if detailed:
        counts["per_step_accepted"] = list(steps)
        counts["per_step_drafted"] = [num_speculative_tokens] * len(steps)
    return counts


def stream_of(
    chunks: Sequence[Sequence[int]],
    *,
    counts: Mapping[str, Any] | None = None,
    num_cached_tokens: int | None = None,
    finish_reason: str = "stop",
) -> bytes:
    """A chat stream with these token ids; token `n` is the text `" n"`, and the last chunk ends the answer."""
    documents: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [1, 9]}
    ]
    for place, ids in enumerate(chunks):
        choice = {
            "index": 0,
            "delta": {"content": "".join(f" {token}" for token in ids)},
            "token_ids": list(ids),
        }
        choice["finish_reason"] = finish_reason if place == len(chunks) - 1 else None
        documents.append({"choices": [choice]})
    usage: dict[str, Any] = {"prompt_tokens": 2, "completion_tokens": sum(map(len, chunks))}
    if num_cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": num_cached_tokens}
    last: dict[str, Any] = {"choices": [], "usage": usage}
    if counts is not None:
        last["metrics"] = {"speculative_decoding": counts}
    lines = [b"data: " + orjson.dumps(document) + b"\n\n" for document in (*documents, last)]
    return b"".join(lines) + b"data: [DONE]\n\n"


@dataclass
class MadeUpVllm:
    """What the server answers; None: it does not offer that (404)."""

    stream: bytes = field(default_factory=lambda: stream_of([[5], [2]]))
    metrics: str | Callable[[], str] | None = field(default_factory=metrics_text)
    models: Any = field(
        default_factory=lambda: {"data": [{"id": "m", "root": "org/model", "max_model_len": 2048}]}
    )
    version: str | None = "0.32.0"
    server_info: Any = None
    health: int | None = 200
    resets: list[Any] | None = None  # answers of /reset_prefix_cache, the last one repeated
    has_thinking: bool = False  # its chat template takes `enable_thinking`
    bodies: list[dict[str, Any]] = field(default_factory=list)  # of the requests for tokens
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, authorization
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path, request.headers.get("Authorization")))
        if request.path in ("/v1/chat/completions", "/v1/completions"):
            self.bodies.append(orjson.loads(await request.read()))
            stream = self.stream
            if self.has_thinking and self.bodies[-1]["chat_template_kwargs"]["enable_thinking"]:
                stream = stream.replace(b'"prompt_token_ids":[1,9]', b'"prompt_token_ids":[1,9,8]')
            return web.Response(body=stream, content_type="text/event-stream")
        document: Any = None
        if request.path == "/metrics" and self.metrics is not None:
            text = self.metrics() if callable(self.metrics) else self.metrics
            return web.Response(text=text)
        if request.path == "/health" and self.health is not None:
            return web.Response(status=self.health)
        if request.path == "/reset_prefix_cache" and request.method == "POST" and self.resets:
            document = self.resets.pop(0) if len(self.resets) > 1 else self.resets[0]
            return web.Response(body=b"") if document is None else web.json_response(document)
        if request.path == "/v1/models":
            document = self.models
        if request.path == "/version":
            document = self.version and {"version": self.version}
        if request.path == "/server_info":
            document = self.server_info
        if document is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response(document)


@asynccontextmanager
async def running(*servers: MadeUpVllm) -> AsyncIterator[None]:
    """The servers on ports of their own; each one's `url` is set."""
    started = []
    try:
        for server in servers:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", server.handle)
            test_server = TestServer(app)
            await test_server.start_server()
            started.append(test_server)
            server.url = str(test_server.make_url("")).rstrip("/")
        yield
    finally:
        for test_server in started:
            await test_server.close()
