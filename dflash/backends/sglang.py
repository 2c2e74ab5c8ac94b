"""SGLang over its OpenAI routes and its own `/generate`: every arm is a server.

What counts as what:
- The output's token count is the engine's; SGLang counts the stop token, and its token ids hold it.
- A server that drafts verifies in every step: its target forwards are `spec_verify_ct`. A server without drafts
  has one forward per token after the prefill's.
- Acceptance is each request's own correct, proposed and verify counts. `spec_accept_length` is not used: it counts
  the prefill's token. Averages of `/server_info` and gauges of `/metrics` are not used: they are the server's
  lifetime's.
- Counters around the window: verify calls, generation tokens, requests. There is none of accepted tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash.backends.base import (
    BackendDescription,
    BackendSettings,
    Capabilities,
    Endpoint,
    Generation,
    GenerationRequest,
    ServerWindow,
)
from dflash.backends.chat_stream import ChatStreamRecord, SpeculationCounts
from dflash.backends.counters_window import CountersWindow
from dflash.backends.http import HttpClient
from dflash.backends.http_answer import StreamResult
from dflash.backends.http_settings import server_address
from dflash.backends.openai_server import (
    ROUTES,
    completion_body,
    make_generation,
    open_client,
    stream_completion,
)
from dflash.backends.prometheus import MAX_WAIT_S, QUIET_S
from dflash.backends.sglang_arms import check_alike, complete_arm, describe
from dflash.backends.sglang_server import (
    CHAT_EXTRA,
    GONE,
    NOT_OFFERED,
    SglangServer,
    how_to_start,
    inspect_server,
)
from dflash.backends.sglang_stream import GENERATE_PATH, NativeStreamReader, native_body, render_prompt
from dflash.errors import RequestError, UnavailableError, UsageError
from dflash.results.records import Arm, PrefixCacheState

DEFAULT_URL = "http://127.0.0.1:30000"
SGLANG_ROUTES = (*ROUTES, "generate")
FLUSH_PATH = "/flush_cache"
FLUSH_WAIT_S = 30.0  # for requests that are still under way: before that a flush is refused
FLUSH_EVERY_S = 0.25
NO_COUNTERS = "the server keeps no counters: start it with --enable-metrics"
NO_SPECULATION = SpeculationCounts(0, 0, 0, ())  # of an answer whose one token is the prefill's


@dataclass(slots=True)
class _Live:
    """A server in use."""

    client: HttpClient
    counters: CountersWindow | None  # None: it keeps none
    server: SglangServer
    arm: Arm
    prefix_cache: PrefixCacheState = "unknown"


class SglangBackend:
    """One or more SGLang servers.

    Args:
        settings: `endpoints` (default: port 30000 of this machine), `model`, `block_size`, `route` (`chat`,
            `completions`, `generate`), `reasoning`, and what HTTP needs. `completions` is plain text, `generate` the
            server's chat template where its `/v1/tokenize` applies it, else plain text.
        quiet_s: how long a server's counters must stand still to be believed.
        max_wait_s: how long that is waited for.
        flush_wait_s: how long a flush of the cache is asked for while requests are still under way.

    Raises:
        UsageError: a route that SGLang has not.
    """

    name = "sglang"
    capabilities = Capabilities(in_process=False, max_concurrency=None, has_servers=True)

    def __init__(
        self,
        settings: BackendSettings,
        *,
        quiet_s: float = QUIET_S,
        max_wait_s: float = MAX_WAIT_S,
        flush_wait_s: float = FLUSH_WAIT_S,
    ) -> None:
        if settings.route not in SGLANG_ROUTES:
            raise UsageError(
                f"SGLang has no route {settings.route!r}", f"choose one of {', '.join(SGLANG_ROUTES)}"
            )
        self._settings = settings
        self._quiet_s, self._max_wait_s, self._flush_wait_s = quiet_s, max_wait_s, flush_wait_s
        self._live: list[_Live] = []

    async def open(self, arms: Sequence[Arm]) -> BackendDescription:
        """Connect to the server of every arm, in the endpoints' order, and check that each is what its arm says.

        Raises:
            UnavailableError: one does not answer.
            UsageError: one contradicts its label, the block size, the model, or another one.
        """
        endpoints = self._settings.endpoints or (Endpoint(DEFAULT_URL),)
        if len(arms) != len(endpoints):
            raise UsageError(
                f"{len(arms)} arms for {len(endpoints)} servers", "give every server the arm that it is"
            )
        try:
            for arm, endpoint in zip(arms, endpoints, strict=True):
                await self._open_one(arm, endpoint)
            check_alike([live.server for live in self._live], self._settings)
            _check_labels(self._live)
        except BaseException:
            await self.aclose()
            raise
        has_metrics_url = any(endpoint.metrics_url is not None for endpoint in endpoints)
        described = [(live.arm, live.server) for live in self._live]
        return describe(described, self._settings, has_metrics_url=has_metrics_url)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Run one request on the server of its arm.

        On the route `generate` the prompt is rendered by the server before the request is sent, outside of its time.

        Raises:
            RequestError: see `HttpClient.stream`, `ChatStreamReader.record` and `NativeStreamReader.record`.
            UsageError: a reasoning setting that cannot be sent.
        """
        live = self._find(request.arm)
        if self._settings.route == "generate":
            record, result = await _stream_natively(live, request)
        else:
            route, server = self._settings.route, live.server
            body = completion_body(
                request, server.model.model_id, route, left_out=server.left_out, extra=CHAT_EXTRA
            )
            record, result = await stream_completion(live.client, route, body, request.max_new_tokens)
        record = _complete_record(record, live.server)
        steps = count_decode_steps(
            record, drafts=live.server.drafts, stream_interval=live.server.stream_interval
        )
        return make_generation(record, result, num_decode_steps=steps)

    async def begin_window(self, arm: Arm) -> None:
        """Empty the prefix cache where there is one, and read the server's counters.

        Raises:
            UnavailableError: the server is gone.
        """
        live = self._find(arm)
        try:
            # Not /health, which makes the server generate a token that its counters would show.
            await live.client.fetch("GET", "/v1/models", retry=False)
        except RequestError as error:
            _raise_if_gone(error, live.server.url)
        live.prefix_cache = await self._flush_cache(live)
        if live.counters is not None:
            await live.counters.begin()

    async def end_window(self, arm: Arm) -> ServerWindow:
        """What the server counted since `begin_window`; its verify calls are the steps that had a draft."""
        live = self._find(arm)
        if live.counters is None:
            return ServerWindow("missing", NO_COUNTERS, live.prefix_cache)
        window = await live.counters.end(live.prefix_cache)
        if window.counters == "missing" and live.server.has_metrics is None:
            reason = f"{window.counters_reason or 'there are none'} (--enable-metrics keeps them)"
            return replace(window, counters_reason=reason)
        return window

    async def logit_gap(self, request: GenerationRequest, prefix_ids: Sequence[int]) -> float | None:
        """None: a server does not tell."""
        return None

    async def aclose(self) -> None:
        """Close all connections; safe to call twice."""
        live, self._live = self._live, []
        for one in live:
            if one.counters is not None:
                await one.counters.aclose()
            await one.client.aclose()

    async def _open_one(self, arm: Arm, endpoint: Endpoint) -> None:
        settings = self._settings
        client = open_client(settings, endpoint.url)
        try:
            server = await inspect_server(client, settings)
            server = replace(server, started_as=endpoint.started_as)
            arm = complete_arm(arm, server, settings.block_size)
            arm = replace(arm, server=server_address(client.settings.base_url))
            counters = None
            if endpoint.metrics_url is not None or server.has_metrics is not False:
                counters = CountersWindow(
                    client,
                    settings,
                    endpoint.metrics_url,
                    quiet_s=self._quiet_s,
                    max_wait_s=self._max_wait_s,
                )
        except BaseException:
            await client.aclose()
            raise
        self._live.append(_Live(client, counters, server, arm))

    def _find(self, arm: Arm) -> _Live:
        """The server of an arm. Its draft and its revision are not looked at: the server is what it is."""
        for live in self._live:
            if (live.arm.name, live.arm.block_size) == (arm.name, arm.block_size):
                return live
        raise UsageError(f"no open server is the arm {arm.label!r}", "open the backend with it")

    async def _flush_cache(self, live: _Live) -> PrefixCacheState:
        """Empty the cache; `reset` only where the server says that it did, whatever its status."""
        if live.server.has_prefix_cache is False:
            return "off"
        deadline, method = time.monotonic() + self._flush_wait_s, "POST"
        while True:
            try:
                answer = await live.client.fetch(method, FLUSH_PATH, retry=False)
            except RequestError as error:
                if error.kind in NOT_OFFERED and method == "POST":
                    method = "GET"  # older versions
                    continue
                if error.kind != "http_400":
                    _raise_if_gone(error, live.server.url)
                    return "unknown"
            else:
                text = answer.text().strip().lower()
                if not ("failed" in text or "not flushed" in text):
                    return "reset" if text.startswith("cache flushed") else "unknown"
            if time.monotonic() >= deadline:
                return "unknown"
            await asyncio.sleep(FLUSH_EVERY_S)


def count_decode_steps(
    record: ChatStreamRecord, *, drafts: bool | None, stream_interval: int = 1
) -> int | None:
    """Target forwards after the prefill that delivered a token; None where they were not counted.

    Args:
        drafts: whether the server drafts; None: not known.
        stream_interval: the steps whose tokens the server puts into one chunk, as far as it says.
    """
    if drafts is False:
        if record.holds_several and stream_interval == 1:
            return None  # what came is not what plain decoding looks like
        # Without drafts a target forward delivers one token and no more: the tokens after the prefill's are its count.
        return max(record.num_output_tokens - 1, 0)
    return None if record.speculation is None else record.speculation.num_verify_steps


async def _stream_natively(live: _Live, request: GenerationRequest) -> tuple[ChatStreamRecord, StreamResult]:
    server, ids = live.server, None
    if server.renders_prompts:
        ids = await render_prompt(live.client, server.model.model_id, request)
    reader = NativeStreamReader(
        is_incremental=server.is_incremental, prompt_ids=ids, max_new_tokens=request.max_new_tokens
    )
    result = await live.client.stream(GENERATE_PATH, native_body(request, ids), reader.feed)
    with live.client.hiding_secrets():
        record = reader.record()
    return replace(record, text=live.client.secrets.hide_in_text(record.text)), result


def _complete_record(record: ChatStreamRecord, server: SglangServer) -> ChatStreamRecord:
    """With the zeros that SGLang leaves out: of an answer of one token, and of a prompt that was not cached."""
    if record.speculation is None and server.has_request_counts and record.num_output_tokens <= 1:
        record = replace(record, speculation=NO_SPECULATION)
    if record.num_cached_tokens is None and server.has_cached_tokens:
        record = replace(record, num_cached_tokens=0)
    return record


def _check_labels(servers: Sequence[_Live]) -> None:
    for place, live in enumerate(servers):
        for other in servers[:place]:
            if live.arm.label == other.arm.label:
                raise UsageError(
                    f"{other.server.url} and {live.server.url} are both the arm {live.arm.label!r}",
                    "leave one out, or name them by --arm NAME=URL",
                )


def _raise_if_gone(error: RequestError, url: str) -> None:
    if error.kind in GONE:
        raise UnavailableError(f"the server at {url} is gone ({error.fault})", how_to_start(url)) from None
