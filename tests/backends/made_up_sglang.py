"""A stand-in for one SGLang server that answers with recorded samples; every part can be changed or taken away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer

SAMPLES = "samples/sglang-0.5.23"
DONE = b"data: [DONE]\n\n"
TOKENS_ROUTES = ("/v1/chat/completions", "/v1/completions", "/generate")
REFUSED_IN_CHAT_STREAMS = ("return_meta_info", "return_token_ids")


def event(document: object) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def read_json(folder: Path, name: str) -> Any:
    """A recorded answer: some were kept with their status around them."""
    document = orjson.loads((folder / SAMPLES / name).read_bytes())
    return document["body"] if set(document) >= {"status", "body"} else document


def read_text(folder: Path, name: str) -> str:
    """A recorded answer of text, without the line of its status."""
    return (folder / SAMPLES / name).read_text().removeprefix("HTTP 200\n")


def chat_stream(
    chunks: Sequence[str],
    *,
    num_tokens: int,
    beside: Mapping[str, Any] | None = None,
    usage_so_far: Sequence[int] | None = None,
    finish: str = "stop",
) -> bytes:
    """A chat stream in the recorded form: role, text, the finish reason alone, what stands beside, usage."""
    plain = {"logprobs": None, "finish_reason": None, "matched_stop": None}
    documents: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, **plain}]}
    ]
    for place, text in enumerate(chunks):
        chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": text}, **plain}]}
        if usage_so_far is not None:
            chunk["usage"] = {"prompt_tokens": 3, "completion_tokens": usage_so_far[place]}
        documents.append(chunk)
    documents.append({"choices": [{"index": 0, "delta": {}, **plain, "finish_reason": finish}]})
    if beside is not None:
        documents.append({"choices": [], "usage": None, "sglext": dict(beside)})
    documents.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": num_tokens}})
    return b"".join(map(event, documents)) + DONE


@dataclass
class MadeUpSglang:
    """What the server answers; None: it does not offer that (404)."""

    info: dict[str, Any] | None
    models: Any
    streams: dict[str, bytes]  # by route
    metrics: str | Callable[[], str] | None = None
    info_path: str = "/server_info"
    flushes: list[tuple[int, str]] | None = None  # status and text, the last one repeated
    flush_methods: tuple[str, ...] = ("GET", "POST")
    tokenize: Callable[[Mapping[str, Any]], Any] | None = None
    refused: tuple[str, ...] = REFUSED_IN_CHAT_STREAMS
    failing: int | None = None  # status of the routes for tokens
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # path and body of what was posted
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path))
        if request.path in (*TOKENS_ROUTES, "/v1/tokenize"):
            return self._post(request.path, orjson.loads(await request.read()))
        if request.path == "/metrics" and self.metrics is not None:
            return web.Response(text=self.metrics() if callable(self.metrics) else self.metrics)
        if request.path == "/flush_cache" and self.flushes:
            if request.method not in self.flush_methods:
                return web.json_response({"detail": "Method Not Allowed"}, status=405)
            status, text = self.flushes.pop(0) if len(self.flushes) > 1 else self.flushes[0]
            return web.Response(status=status, text=text)
        if request.path == "/v1/models" and self.models is not None:
            return web.json_response(self.models)
        if request.path == self.info_path and self.info is not None:
            return web.json_response(self.info)
        return web.json_response({"detail": "Not Found"}, status=404)

    def _post(self, path: str, body: dict[str, Any]) -> web.Response:
        self.bodies.append((path, body))
        if path == "/v1/tokenize":
            ids = None if self.tokenize is None else self.tokenize(body)
            if ids is None:
                return web.json_response({"error": {"message": "prompt: Field required"}}, status=400)
            return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": 2048})
        if self.failing is not None:
            return web.json_response({"error": {"message": "no"}}, status=self.failing)
        if path == "/v1/chat/completions":
            for name in self.refused:
                if name in body:
                    text = f"{name} is not supported with streaming on {path}. Please set stream=false."
                    return web.json_response({"message": text, "code": 400}, status=400)
        return web.Response(body=self.streams[path], content_type="text/event-stream")


def recorded(folder: Path, arm: str, **changes: Any) -> MadeUpSglang:
    """The recorded server: `base` or `dflash` (B = 8)."""
    streams = {
        path: (folder / SAMPLES / f"{arm}-{name}_stream.txt").read_bytes().rstrip() + b"\n\n"
        for path, name in (("/v1/chat/completions", "chat"), ("/generate", "generate"))
    }
    made_up: dict[str, Any] = {
        "info": read_json(folder, f"{arm}-server_info.json"),
        "models": read_json(folder, f"{arm}-v1_models.json"),
        "streams": streams,
        "metrics": read_text(folder, f"{arm}-metrics.txt"),
        "flushes": [(200, read_text(folder, f"{arm}-flush_post.txt"))],
    }
    return MadeUpSglang(**(made_up | changes))


@asynccontextmanager
async def running(*servers: MadeUpSglang) -> AsyncIterator[None]:
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
