"""vLLM over its OpenAI routes: every arm is a server.

What counts as what:
- The output's token count is the usage's; vLLM counts the stop token, and `token_ids` holds it.
- A method that drafts on every step (dflash, eagle, mtp, a draft model) has one target forward per verify step.
  A method that skips drafts (ngram, suffix) has one per chunk after the first, as long as the chunks agree with
  what the server says of its drafts: a server that is ahead of its client merges chunks.
- Acceptance is the server's own count of each request (`--per-request-spec-decode-metrics`), accepted tokens that a
  stop or the limit cut off included, and its counters around the window.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
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
from dflash.backends.http_settings import server_address
from dflash.backends.openai_server import (
    ROUTES,
    completion_body,
    make_generation,
    open_client,
    stream_completion,
)
from dflash.backends.prometheus import MAX_WAIT_S, QUIET_S
from dflash.backends.vllm_arms import (
    add_start,
    check_alike,
    check_reasoning,
    complete_arm,
    describe,
    skips_drafts,
)
from dflash.backends.vllm_server import (
    ANSWER_TIMEOUT_S,
    NOT_OFFERED,
    VllmServer,
    how_to_start,
    inspect_server,
)
from dflash.errors import RequestError, UnavailableError, UsageError
from dflash.results.records import Arm, PrefixCacheState

DEFAULT_URL = "http://127.0.0.1:8000"
GONE = ("connection_refused", "connection_failed", "connect_timeout", "disconnected", "http_503")
RESET_EVERY_S = 0.25


@dataclass(slots=True)
class _Live:
    """A server in use."""

    client: HttpClient
    counters: CountersWindow
    server: VllmServer
    arm: Arm
    prefix_cache: PrefixCacheState = "unknown"

    @property
    def skips_drafts(self) -> bool:
        return skips_drafts(self.arm, self.server)


class VllmBackend:
    """One or more vLLM servers.

    Args:
        settings: `endpoints` (default: port 8000 of this machine), `model`, `block_size`, `route`, and what HTTP needs.
        quiet_s: how long a server's counters must stand still to be believed.
        max_wait_s: how long that is waited for.

    Raises:
        UsageError: a route that vLLM has not.
    """

    name = "vllm"
    capabilities = Capabilities(in_process=False, max_concurrency=None, has_servers=True)

    def __init__(
        self, settings: BackendSettings, *, quiet_s: float = QUIET_S, max_wait_s: float = MAX_WAIT_S
    ) -> None:
        if settings.route not in ROUTES:
            raise UsageError(f"vLLM has no route {settings.route!r}", f"choose one of {', '.join(ROUTES)}")
        self._settings = settings
        self._quiet_s, self._max_wait_s = quiet_s, max_wait_s
        self._live: list[_Live] = []

    async def open(self, arms: Sequence[Arm]) -> BackendDescription:
        """Find out which servers these are, and that each is what its arm says.

        Raises:
            UnavailableError: one does not answer, or is not healthy.
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
            check_alike([live.server for live in self._live], self._settings.dtype)
            _check_labels(self._live)
        except BaseException:
            await self.aclose()
            raise
        return describe([(live.arm, live.server) for live in self._live], self._settings)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Run one request on the server of its arm.

        Raises:
            RequestError: see `HttpClient.stream` and `ChatStreamReader.record`.
            UsageError: a reasoning setting that cannot be sent.
        """
        live = self._find(request.arm)
        route, server = self._settings.route, live.server
        body = completion_body(request, server.model.model_id, route, left_out=server.left_out)
        record, result = await stream_completion(live.client, route, body, request.max_new_tokens)
        steps = count_decode_steps(
            record,
            drafts=server.drafts,
            skips_drafts=live.skips_drafts,
            stream_interval=server.stream_interval,
        )
        return make_generation(record, result, num_decode_steps=steps)

    async def begin_window(self, arm: Arm) -> None:
        """Empty the prefix cache where the server offers that, and read its counters.

        Raises:
            UnavailableError: the server is gone.
        """
        live = self._find(arm)
        try:
            await live.client.fetch("GET", "/health", timeout_s=ANSWER_TIMEOUT_S, retry=False)
        except RequestError as error:
            _raise_if_gone(error, live.server.url)
        live.prefix_cache = await self._reset_prefix_cache(live)
        await live.counters.begin()

    async def end_window(self, arm: Arm) -> ServerWindow:
        """What the server counted since `begin_window`."""
        live = self._find(arm)
        return await live.counters.end(live.prefix_cache)

    async def logit_gap(self, request: GenerationRequest, prefix_ids: Sequence[int]) -> float | None:
        """None: a server does not tell."""
        return None

    async def aclose(self) -> None:
        """Close all connections; safe to call twice."""
        live, self._live = self._live, []
        for one in live:
            await one.counters.aclose()
            await one.client.aclose()

    async def _open_one(self, arm: Arm, endpoint: Endpoint) -> None:
        settings = self._settings
        client = open_client(settings, endpoint.url)
        counters = CountersWindow(
            client, settings, endpoint.metrics_url, quiet_s=self._quiet_s, max_wait_s=self._max_wait_s
        )
        try:
            server = add_start(await inspect_server(client, counters, settings), endpoint.started_as)
            check_reasoning(server, settings.reasoning)
            arm = complete_arm(arm, server, settings.block_size)
            arm = replace(arm, server=server_address(client.settings.base_url))
        except BaseException:
            await counters.aclose()
            await client.aclose()
            raise
        self._live.append(_Live(client, counters, server, arm))

    def _find(self, arm: Arm) -> _Live:
        """The server of an arm. Its draft and its revision are not looked at: the server is what it is."""
        for live in self._live:
            if (live.arm.name, live.arm.block_size) == (arm.name, arm.block_size):
                return live
        raise UsageError(f"no open server is the arm {arm.label!r}", "open the backend with it")

    async def _reset_prefix_cache(self, live: _Live) -> PrefixCacheState:
        """Wait until the server has let go of the last requests' blocks: before that it refuses."""
        if live.server.has_prefix_cache is False:
            return "off"
        deadline = time.monotonic() + self._max_wait_s
        while True:
            try:
                answer = await live.client.fetch(
                    "POST", "/reset_prefix_cache", timeout_s=ANSWER_TIMEOUT_S, retry=False
                )
                document = answer.document() if answer.body.strip() else {}
            except RequestError as error:
                if error.kind not in NOT_OFFERED:
                    _raise_if_gone(error, live.server.url)
                return "unknown"
            if not (isinstance(document, dict) and document.get("success") is False):
                return "reset"
            if time.monotonic() >= deadline:
                return "unknown"
            await asyncio.sleep(RESET_EVERY_S)


def count_decode_steps(
    record: ChatStreamRecord, *, drafts: bool | None, skips_drafts: bool, stream_interval: int = 1
) -> int | None:
    """Target forwards after the prefill that delivered a token; None where they were not counted.

    Args:
        drafts: whether the server drafts; None: not known.
        skips_drafts: whether its method proposes nothing at some steps.
        stream_interval: the steps whose tokens the server puts into one chunk, as far as it says.
    """
    if drafts is False:
        if record.holds_several and stream_interval == 1:
            return None  # what came is not what plain decoding looks like
        # Without drafts a target forward delivers one token and no more: the tokens after the prefill's are its count.
        return max(record.num_output_tokens - 1, 0)
    counts = record.speculation
    if counts is None or counts.num_verify_steps is None or counts.num_accepted_tokens is None:
        return None
    num_accountable = 1 + counts.num_verify_steps + counts.num_accepted_tokens
    if not skips_drafts and record.num_output_tokens <= num_accountable:
        return counts.num_verify_steps
    # More tokens than the verify steps can have made: some step had no draft (the end of the context, a preemption).
    return _steps_by_chunks(record, counts)


def _steps_by_chunks(record: ChatStreamRecord, counts: SpeculationCounts) -> int | None:
    """The chunks after the first, where their sizes are those of the steps that the server tells of.

    A step that accepted k draft tokens delivers k+1; the last one may have been cut. Anything else means that two
    steps came as one chunk.
    """
    sizes, histogram = record.chunk_num_tokens, counts.acceptance_histogram_untrimmed
    if not sizes or sizes[0] != 1 or histogram is None:
        return None
    told = Counter({k: num_steps for k, num_steps in enumerate(histogram) if k and num_steps})
    seen = Counter(size - 1 for size in sizes[1:] if size > 1)
    missing, surplus = list((told - seen).elements()), list((seen - told).elements())
    last = sizes[-1] - 1
    is_cut = len(missing) == 1 and missing[0] > last and surplus == ([last] if last else [])
    agrees = is_cut and len(sizes) > 1 if missing or surplus else True
    num_steps = len(sizes) - 1
    return num_steps if agrees and num_steps >= (counts.num_verify_steps or 0) else None


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
