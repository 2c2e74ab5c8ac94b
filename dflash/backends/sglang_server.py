"""What one SGLang server says of itself before anything is measured.

Sources: `/v1/models`, `/server_info` (older: `/get_server_info`; optional), and short answers that are not
measured. None of them is asked again: reading the server's settings takes time from whatever it is doing.
`speculative_num_draft_tokens` is B, the anchor counted: it is converted here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dflash.backends.base import NOT_STARTED, BackendSettings, GenerationRequest, Message, StartedAs
from dflash.backends.chat_stream import ChatStreamRecord
from dflash.backends.http import HttpClient
from dflash.backends.openai_server import (
    MAX_UNMEASURED_TOKENS,
    ServedModel,
    check_engine,
    choose_model,
    first_answer,
    open_error,
    other_engine,
    place_to_start,
    read_models,
)
from dflash.backends.server_args import DTYPE_NAMES
from dflash.backends.sglang_stream import (
    GENERATE_PATH,
    TOKENIZE_PATH,
    NativeStreamReader,
    native_body,
    render_prompt,
)
from dflash.errors import RequestError, UsageError
from dflash.results.records import Arm

INFO_PATHS = ("/server_info", "/get_server_info")
# Long enough to fill a page of the prefix cache, so that a second answer shows whether cached tokens are told.
PROBE_TEXT = "Repeat these lines:" + "\none two three four five six seven eight" * 12
PROBE_TOKENS = 8
MAX_PROBES = 8  # of the same prompt: each data-parallel rank has a cache of its own
START_TIMEOUT_S = 30.0
NOT_OFFERED = ("http_404", "http_405", "http_501")
GONE = ("connection_refused", "connection_failed", "connect_timeout", "disconnected", "http_503")
# A stream of the chat route refuses `return_meta_info` and `return_token_ids`; the same is had beside the choices.
CHAT_EXTRA: Mapping[str, Any] = {
    "return_spec_tokens_details": True,
    "return_cached_tokens_details": True,
    "return_input_ids_in_sglext": True,
    "return_output_ids_in_sglext": True,
}
# Settings that move a number, drafts aside.
STAMPED = (
    "device",
    "attention_backend",
    "sampling_backend",
    "kv_cache_dtype",
    "quantization",
    "tp_size",
    "pp_size",
    "dp_size",
    "page_size",
    "max_running_requests",
    "chunked_prefill_size",
    "schedule_policy",
    "stream_interval",
    "disable_overlap_schedule",
    "disable_cuda_graph",
    "enable_deterministic_inference",
    "sampling_defaults",
)


@dataclass(frozen=True, slots=True)
class SglangServer:
    """What is known of a server; None: it does not say."""

    url: str
    model: ServedModel
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the server itself; empty: it does not tell
    ranks: tuple[Mapping[str, Any], ...] = ()  # the same by data-parallel rank, with each one's state
    started_as: StartedAs = NOT_STARTED
    drafts: bool | None = None
    left_out: frozenset[str] = frozenset()  # fields of a request that it refuses
    knows_reasoning: bool | None = None  # whether the rendered prompt changes with the reasoning setting
    renders_prompts: bool = False  # route `generate`: its chat template can be had
    has_token_ids: bool = False
    has_request_counts: bool = False  # says what each request drafted and accepted
    has_cached_tokens: bool = False  # says how many prompt tokens were cached, where some were

    @property
    def version(self) -> str | None:
        return _text(self.settings.get("version"))

    @property
    def release(self) -> tuple[int, ...] | None:
        return release_of(self.version)

    @property
    def algorithm(self) -> str | None:
        """How it drafts, in the engine's word in lower case."""
        if "speculative_algorithm" not in self.settings:
            return self.started_as.method
        return (_text(self.settings.get("speculative_algorithm")) or "").lower() or None

    @property
    def block_size(self) -> int | None:
        """B. SGLang counts the tokens of one verify forward, the anchor among them."""
        names = ("speculative_num_draft_tokens", "speculative_dflash_block_size")
        found = (self.settings.get(name) for name in names) if self.algorithm else ()
        return next((value for value in found if isinstance(value, int) and value > 1), None)

    @property
    def target(self) -> str:
        return _text(self.settings.get("model_path")) or self.model.target

    @property
    def dtype(self) -> str | None:
        """`auto` is the checkpoint's own, where its start does not tell which that is."""
        told = (_text(self.settings.get("dtype")) or "").removeprefix("torch.")
        told = DTYPE_NAMES.get(told, told)
        return (self.started_as.dtype or told or None) if told in ("", "auto") else told

    @property
    def has_prefix_cache(self) -> bool | None:
        told = self.settings.get("disable_radix_cache")
        return None if not isinstance(told, bool) else not told

    @property
    def has_metrics(self) -> bool | None:
        told = self.settings.get("enable_metrics")
        return told if isinstance(told, bool) else None

    @property
    def is_incremental(self) -> bool:
        """Whether an event of `generate` holds only what is new; older versions call it `stream_output`."""
        return any(
            self.settings.get(name) is True for name in ("incremental_streaming_output", "stream_output")
        )

    @property
    def stream_interval(self) -> int:
        """The steps whose tokens are put into one chunk; 1 where it does not say."""
        told = self.settings.get("stream_interval")
        return told if isinstance(told, int) and told > 1 else 1

    @property
    def num_ranks(self) -> int | None:
        told = self.settings.get("dp_size")
        return told if isinstance(told, int) else len(self.ranks) or None


async def inspect_server(client: HttpClient, settings: BackendSettings) -> SglangServer:
    """Ask a server who it is.

    Raises:
        UnavailableError: it does not answer, or serves no model.
        UsageError: it is another kind of server, serves another model, wants a key, or its ranks contradict each other.
    """
    url = client.settings.base_url.url
    try:
        models = await read_models(client)
        check_engine(models, "sglang", url)
        info = await _read_info(client)
    except RequestError as error:
        raise open_error(error, url, how_to_start(url)) from None
    if "vllm_config" in info:
        raise other_engine(url, "sglang", "vllm", "/server_info")
    asked = None if settings.model == info.get("model_path") else settings.model
    server = SglangServer(
        url, choose_model(models, asked, url), _own_settings(info), _states(info.get("internal_states"))
    )
    _check_ranks(server)
    return await _probe(client, server, settings)


def how_to_start(url: str) -> str:
    """The mend where no server answers at `url`."""
    host, port = place_to_start(url)
    return (
        f"start one{host} by `python -m sglang.launch_server --model-path MODEL --port {port}`, with a draft by adding "
        "--speculative-algorithm DFLASH --speculative-draft-model-path DRAFT --speculative-num-draft-tokens B"
    )


def release_of(version: str | None) -> tuple[int, ...] | None:
    """(0, 5, 23) of "0.5.23.post1+g1a2b"; None where it is not told (0.0.0 is an untagged build)."""
    found = re.match(r"\d+(\.\d+)+", version or "")
    release = tuple(map(int, found.group().split("."))) if found else ()
    return release if any(release) else None


async def _read_info(client: HttpClient) -> Mapping[str, Any]:
    """The server's settings; empty where it does not offer them (a gateway)."""
    for path in INFO_PATHS:
        try:
            document = await client.get_json(path, timeout_s=START_TIMEOUT_S, retry=False)
        except RequestError as error:
            if error.kind not in (*NOT_OFFERED, "bad_answer") and not error.kind.startswith("http_5"):
                raise
            continue
        if isinstance(document, Mapping):
            return document
    return {}


def _own_settings(info: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = info.get("server_args")
    whole = {**nested, **info} if isinstance(nested, Mapping) else info
    return {name: value for name, value in whole.items() if name not in ("internal_states", "server_args")}


def _states(told: object) -> tuple[Mapping[str, Any], ...]:
    states = told if isinstance(told, list) else [told]
    return tuple(state for state in states if isinstance(state, Mapping))


def _check_ranks(server: SglangServer) -> None:
    """Ranks that draft otherwise than their server says would be blended in every number."""
    for name in ("speculative_algorithm", "speculative_num_draft_tokens"):
        told = {str(rank[name]) for rank in server.ranks if name in rank}
        told |= {str(server.settings[name])} if name in server.settings else set()
        if len(told) > 1:
            raise UsageError(
                f"the data-parallel ranks of {server.url} differ in {name}: {', '.join(sorted(told))}",
                "restart the server",
            )


async def _probe(client: HttpClient, server: SglangServer, settings: BackendSettings) -> SglangServer:
    """What is only seen in answers. None of them is measured."""
    text, route = Message("user", PROBE_TEXT), settings.route
    request = GenerationRequest(
        "probe", Arm(""), (text,), PROBE_TOKENS, settings.sampling, reasoning=settings.reasoning
    )
    ask = _ask_natively if route == "generate" else _ask_openai
    try:
        answer, server = await ask(client, server, request, route)
        cached = [answer.num_cached_tokens]
        if route == "chat" and answer.prompt_ids is not None:
            other, _ = await ask(client, server, _with_other_reasoning(request), route)
            server = replace(server, knows_reasoning=other.prompt_ids != answer.prompt_ids)
            cached.append(other.num_cached_tokens)
        # The same prompt again, until it comes to a rank that has it in its cache.
        for _ in range(min(server.num_ranks or 1, MAX_PROBES)):
            if any(count is not None for count in cached) or server.has_prefix_cache is False:
                break
            again, _ = await ask(client, server, replace(request, max_new_tokens=1), route)
            cached.append(again.num_cached_tokens)
    except RequestError as error:
        raise _probe_error(error, server.url, route) from None
    told = "speculative_algorithm" in server.settings
    return replace(
        server,
        drafts=True if answer.speculation else server.algorithm is not None if told else None,
        has_token_ids=answer.output_ids is not None,
        has_request_counts=answer.speculation is not None,
        has_cached_tokens=any(count is not None for count in cached),
    )


def _with_other_reasoning(request: GenerationRequest) -> GenerationRequest:
    return replace(request, reasoning="on" if request.reasoning == "off" else "off", max_new_tokens=1)


async def _ask_openai(
    client: HttpClient, server: SglangServer, request: GenerationRequest, route: str
) -> tuple[ChatStreamRecord, SglangServer]:
    answer, left_out = await first_answer(client, request, server.model.model_id, route, CHAT_EXTRA)
    return answer, replace(server, left_out=left_out)


async def _ask_natively(
    client: HttpClient, server: SglangServer, request: GenerationRequest, route: str
) -> tuple[ChatStreamRecord, SglangServer]:
    """The answer; the server with what is known of its chat template."""
    ids: tuple[int, ...] | None = None
    try:
        ids = await render_prompt(client, server.model.model_id, request)
        other = await render_prompt(client, server.model.model_id, _with_other_reasoning(request))
        server = replace(server, renders_prompts=True, knows_reasoning=other != ids)
    except RequestError as error:
        if error.kind not in (*NOT_OFFERED, "http_400", "http_422", "bad_answer"):
            raise
        ids, server = None, replace(server, renders_prompts=False, knows_reasoning=None)
    reader = NativeStreamReader(
        is_incremental=server.is_incremental, prompt_ids=ids, max_new_tokens=MAX_UNMEASURED_TOKENS
    )
    await client.stream(GENERATE_PATH, native_body(request, ids), reader.feed)
    return reader.record(), server


def _probe_error(error: RequestError, url: str, route: str) -> Exception:
    if error.kind in ("http_400", "http_404", "http_422"):
        mend = {
            "chat": "a model without a chat template is asked by the route 'completions'",
            "generate": f"is it an SGLang server? {TOKENIZE_PATH} and {GENERATE_PATH} were asked",
        }.get(route, "use the route 'chat'")
        return UsageError(f"{url} refuses a request on the route {route!r} ({error.fault})", mend)
    return open_error(error, url, how_to_start(url))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
