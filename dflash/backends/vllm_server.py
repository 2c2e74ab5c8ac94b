"""What one vLLM server says of itself before anything is measured.

Sources, each optional but the first: `/v1/models`, `/health`, `/version`, `/metrics`, `/server_info` (only with
VLLM_SERVER_DEV_MODE=1), and one short answer that is not measured. `num_speculative_tokens` is B - 1: it is
converted here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dflash.backends.base import BackendSettings, GenerationRequest, Message
from dflash.backends.chat_stream import ChatStreamRecord
from dflash.backends.counters_window import CountersWindow
from dflash.backends.http import HttpClient
from dflash.backends.openai_server import (
    ServedModel,
    check_engine,
    choose_model,
    first_answer,
    open_error,
    other_engine,
    place_to_start,
    read_models,
)
from dflash.backends.prometheus import MetricsSnapshot, spec_decode_counters
from dflash.errors import RequestError, UnavailableError, UsageError
from dflash.results.records import Arm

PROBE_TEXT = "Repeat this line: one two three one two three one two three"
PROBE_TOKENS = 8
ANSWER_TIMEOUT_S = 30.0  # for an answer that takes no tokens; /server_info looks at the machine first
NOT_OFFERED = ("http_404", "http_405", "http_501")


@dataclass(frozen=True, slots=True)
class VllmServer:
    """What is known of a server; None: it does not say."""

    url: str
    model: ServedModel
    version: str | None = None
    drafts: bool | None = None
    method: str | None = None
    num_speculative_tokens: int | None = None  # B - 1
    draft: str | None = None
    draft_revision: str | None = None
    target_revision: str | None = None
    dtype: str | None = None
    has_prefix_cache: bool | None = None
    is_synthetic: bool = False  # drafts are accepted by a made-up rate
    stream_interval: int = 1  # steps whose tokens it puts into one chunk, as far as it says
    holds_several: bool = False  # most chunks of its first answer hold several tokens
    left_out: frozenset[str] = frozenset()  # fields of a request that it refuses
    knows_reasoning: bool | None = None  # whether the rendered prompt changes with the reasoning setting
    counters_fault: str | None = None  # why its counters cannot be read
    has_token_ids: bool = False
    has_request_counts: bool = False  # says what each request drafted and accepted
    has_cached_tokens: bool = False

    @property
    def block_size(self) -> int | None:
        """B: vLLM counts the draft tokens only, the anchor is one more."""
        return None if self.num_speculative_tokens is None else self.num_speculative_tokens + 1

    @property
    def release(self) -> tuple[int, ...] | None:
        return release_of(self.version)


async def inspect_server(
    client: HttpClient, counters: CountersWindow, settings: BackendSettings
) -> VllmServer:
    """Ask a server who it is.

    Raises:
        UnavailableError: it does not answer, or is not healthy.
        UsageError: it is another kind of server, serves another model, or wants a key.
    """
    url = client.settings.base_url.url
    try:
        models = await read_models(client)
        check_engine(models, "vllm", url)
        await _check_health(client, url)
        version = await _get(client, "/version")
        info = await _get(client, "/server_info?config_format=json")
    except RequestError as error:
        raise open_error(error, url, how_to_start(url)) from None
    if "speculative_algorithm" in info:
        raise other_engine(url, "vllm", "sglang", "/server_info")
    config = _mapping(info.get("vllm_config"))
    model = choose_model(models, settings.model, url)
    snapshot, counters_fault = await _read_counters(counters)
    answer, left_out, knows_reasoning = await _probe(client, url, model, settings)
    speculation = _mapping(config.get("speculative_config"))
    return VllmServer(
        url=url,
        model=model,
        version=_text(version.get("version")),
        drafts=_find_drafts(snapshot, config, answer, url, counters.address),
        method=_text(speculation.get("method")),
        num_speculative_tokens=_find_num_speculative_tokens(snapshot, speculation, answer),
        draft=_text(speculation.get("model")),
        draft_revision=_text(speculation.get("revision")),
        target_revision=_text(_mapping(config.get("model_config")).get("revision")),
        dtype=(_text(_mapping(config.get("model_config")).get("dtype")) or "").removeprefix("torch.") or None,
        has_prefix_cache=_find_prefix_cache(snapshot, config),
        is_synthetic=speculation.get("rejection_sample_method") == "synthetic",
        stream_interval=_find_stream_interval(config),
        holds_several=answer.holds_several,
        left_out=left_out,
        knows_reasoning=knows_reasoning,
        counters_fault=counters_fault,
        has_token_ids=answer.output_ids is not None,
        has_request_counts=answer.speculation is not None,
        has_cached_tokens=answer.num_cached_tokens is not None,
    )


def how_to_start(url: str) -> str:
    """The mend where no server answers at `url`."""
    host, port = place_to_start(url)
    return (
        f"start one{host} by `vllm serve MODEL --port {port}`, with a draft by adding --speculative-config "
        '\'{"method": "dflash", "model": DRAFT, "num_speculative_tokens": B-1}\''
    )


def release_of(version: str | None) -> tuple[int, ...] | None:
    """(0, 20, 1) of "0.20.1rc2.dev3+g1a2b"; None where it is not told ("dev", or 0.1.dev of an untagged build)."""
    found = re.match(r"\d+(\.\d+)+", version or "")
    if found is None or re.match(r"0\.[01]\.dev", version or ""):
        return None
    return tuple(map(int, found.group().split(".")))


async def _check_health(client: HttpClient, url: str) -> None:
    try:
        await client.fetch("GET", "/health", timeout_s=ANSWER_TIMEOUT_S, retry=False)
    except RequestError as error:
        if error.kind in NOT_OFFERED:
            return  # a gateway that passes only /v1 on
        raise UnavailableError(
            f"the server at {url} is not healthy ({error.fault})", "look into its log, and restart it"
        ) from None


async def _get(client: HttpClient, path: str) -> Mapping[str, Any]:
    """A JSON object; an empty one where the server does not offer it."""
    try:
        return _mapping(await client.get_json(path, timeout_s=ANSWER_TIMEOUT_S, retry=False))
    except RequestError as error:
        if error.kind in (*NOT_OFFERED, "bad_answer") or error.kind.startswith("http_5"):
            return {}
        raise


async def _read_counters(counters: CountersWindow) -> tuple[MetricsSnapshot, str | None]:
    try:
        snapshot = await counters.read()
        spec_decode_counters(snapshot)
    except RequestError as error:
        return MetricsSnapshot(), error.fault
    has_any = any(name.startswith("vllm:") for name in snapshot.counters)
    return snapshot, None if has_any else "they hold no counter of vLLM"


async def _probe(
    client: HttpClient, url: str, model: ServedModel, settings: BackendSettings
) -> tuple[ChatStreamRecord, frozenset[str], bool | None]:
    """An answer, the fields that had to be left out for it, and whether the template knows the reasoning setting."""
    message, route, reasoning = Message("user", PROBE_TEXT), settings.route, settings.reasoning
    # Sampled as the run is: a field of sampling that the server refuses must be found now.
    request = GenerationRequest(
        "probe", Arm(""), (message,), PROBE_TOKENS, settings.sampling, reasoning=reasoning
    )
    try:
        answer, left_out = await first_answer(client, request, model.model_id, route)
        if route != "chat" or answer.prompt_ids is None or "chat_template_kwargs" in left_out:
            return answer, left_out, None
        other = replace(request, reasoning="on" if reasoning == "off" else "off", max_new_tokens=1)
        other_answer, _ = await first_answer(client, other, model.model_id, route)
    except RequestError as error:
        if error.kind in ("http_400", "http_404", "http_422") and route == "chat":
            raise UsageError(
                f"{url} refuses a chat request ({error.fault})",
                "a model without a chat template is asked by the route 'completions'",
            ) from None
        raise open_error(error, url, how_to_start(url)) from None
    return answer, left_out, other_answer.prompt_ids != answer.prompt_ids


def _find_drafts(
    snapshot: MetricsSnapshot, config: Mapping[str, Any], answer: ChatStreamRecord, url: str, metrics_url: str
) -> bool | None:
    """Whether the server drafts; None: not known.

    vLLM makes the counters of drafts when it starts, and only if it drafts. Their names were others in its first
    releases, and may be again. Where only their absence says that it does not, its chunks must not contradict that.
    """
    has_counters = any(name.startswith("vllm:") for name in snapshot.counters)
    has_drafts = any(name.startswith("vllm:spec_decode") for name in (*snapshot.counters, *snapshot.gauges))
    by_counters = has_drafts if has_counters else None
    by_itself = bool(config["speculative_config"]) if "speculative_config" in config else None
    if answer.speculation is not None:
        by_itself = True
    if None not in (by_itself, by_counters) and by_itself != by_counters:
        raise UsageError(
            f"the counters at {metrics_url} are of another server than {url}: one of them drafts",
            "give --metrics-url of this very server",
        )
    if by_itself is None and by_counters is False and answer.holds_several:
        return None
    return by_counters if by_itself is None else by_itself


def _find_num_speculative_tokens(
    snapshot: MetricsSnapshot, speculation: Mapping[str, Any], answer: ChatStreamRecord
) -> int | None:
    """B - 1: of the answer, of the settings, or of the counters, which have one series for each draft position."""
    if answer.speculation is not None and answer.speculation.num_speculative_tokens:
        return answer.speculation.num_speculative_tokens
    told = speculation.get("num_speculative_tokens")
    if isinstance(told, int) and told > 0:
        return told
    positions = spec_decode_counters(snapshot).num_accepted_tokens_per_position
    return len(positions) if positions else None


def _find_stream_interval(config: Mapping[str, Any]) -> int:
    told = _mapping(config.get("scheduler_config")).get("stream_interval")
    return told if isinstance(told, int) and told > 1 else 1


def _find_prefix_cache(snapshot: MetricsSnapshot, config: Mapping[str, Any]) -> bool | None:
    """Of the settings, or of the labels of the gauge that vLLM publishes them by."""
    told = _mapping(config.get("cache_config")).get("enable_prefix_caching")
    if isinstance(told, bool):
        return told
    labels = [dict(series) for series in snapshot.gauges.get("vllm:cache_config_info", {})]
    words = {entry.get("enable_prefix_caching") for entry in labels}
    if not words <= {"True", "False"} or not words:
        return None
    return "True" in words


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
