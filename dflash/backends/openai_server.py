"""What the OpenAI routes of vLLM and SGLang share: who is served, what a request says, what its answer comes to.

A request says everything that decides the output, temperature 0 included: an engine would else put the model's own
`generation_config` in its place. Only top-k is left to the server unless it was asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from dflash.backends.base import BackendSettings, Generation, GenerationRequest, Sampling
from dflash.backends.chat_stream import ChatStreamReader, ChatStreamRecord, SpeculationCounts
from dflash.backends.chat_template import REASONING_LEVELS, REASONING_SWITCHES
from dflash.backends.http import HttpClient
from dflash.backends.http_answer import StreamResult
from dflash.backends.http_settings import HttpSettings, is_this_machine, parse_base_url
from dflash.errors import DFlashError, RequestError, UnavailableError, UsageError

ROUTES = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
# What both engines take for the API field `reasoning_effort`; any other level goes to the template only.
EFFORT_LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")
SERVED_ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}  # by backend; `owned_by` in /v1/models is the same word
NO_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
NOT_THERE = ("connection_refused", "connection_failed", "connect_timeout", "disconnected")
MAX_UNMEASURED_TOKENS = 4096  # of a first answer, whose length does not matter as long as it ends
# Field -> how a server that does not know it names it. Without one of these a measurement is poorer, not wrong.
DISPENSABLE = {
    "return_token_ids": "return_token_ids",
    "continuous_usage_stats": "continuous_usage_stats",
    "chat_template_kwargs": "chat_template",
    "min_p": "min_p",
    **{name: name for name in NO_PENALTIES},
}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of `/v1/models`."""

    model_id: str  # what requests call it
    root: str | None = None  # the model's own id or folder
    max_model_len: int | None = None
    is_adapter: bool = False
    owner: str | None = None  # both engines name themselves here

    @property
    def target(self) -> str:
        return self.root or self.model_id


def open_client(settings: BackendSettings, url: str) -> HttpClient:
    """A client for the server at `url`; nothing is sent yet.

    Raises:
        UsageError: no server address, or a key or header that cannot be sent.
    """
    return HttpClient(
        HttpSettings(
            base_url=parse_base_url(url),
            max_connections=settings.max_concurrency,
            timeouts=settings.timeouts,
            api_key=settings.api_key,
            headers=dict(settings.headers),
            verify_tls=settings.verify_tls,
        )
    )


def place_to_start(url: str) -> tuple[str, int]:
    """Where a server must be started to be found at `url`: ` on HOST` where that is not this machine, and its port."""
    base = parse_base_url(url)
    return "" if is_this_machine(base.host) else f" on {base.host}", base.port


def open_error(error: RequestError, url: str, how_to_start: str) -> DFlashError:
    """What a failed first contact with a server means for the run.

    Args:
        how_to_start: the mend where no server answers, e.g. "start one by: vllm serve MODEL".
    """
    if error.kind in ("http_401", "http_403"):
        return UsageError(f"{url} wants another API key ({error.fault})", "give the key of this server")
    if error.kind in ("http_404", "http_405", "bad_answer"):
        return UsageError(f"{url} is no OpenAI-style server ({error.fault})", "check its address")
    if error.kind in NOT_THERE:
        return UnavailableError(f"no server answers at {url} ({error.fault})", how_to_start)
    # It is there: what went wrong is in its answer, or on the way.
    return UnavailableError(
        f"a first request to {url} failed: {error.kind} ({error.fault})",
        error.mend or "look into the server's log",
    )


async def read_models(client: HttpClient) -> tuple[ServedModel, ...]:
    """The models of a server, in its order.

    Raises:
        RequestError: see `HttpClient.fetch`; `bad_answer`: no list of models.
    """
    document = await client.get_json("/v1/models", retry=False)
    entries = document.get("data") if isinstance(document, Mapping) else None
    if not isinstance(entries, list) or not all(
        isinstance(entry, Mapping) and isinstance(entry.get("id"), str) for entry in entries
    ):
        raise RequestError("bad_answer", "/v1/models gives no list of models")
    return tuple(
        ServedModel(
            entry["id"],
            entry["root"] if isinstance(entry.get("root"), str) else None,
            entry["max_model_len"] if isinstance(entry.get("max_model_len"), int) else None,
            bool(entry.get("parent")),
            entry["owned_by"] if isinstance(entry.get("owned_by"), str) else None,
        )
        for entry in entries
    )


def check_engine(models: Collection[ServedModel], asked: str, url: str) -> None:
    """Refuse a server of the other engine: its answers are close enough to be read, and its counts mean other things.

    Args:
        asked: the engine's name as a backend. A gateway that names neither engine is believed.

    Raises:
        UsageError: names the backend that it is.
    """
    for model in models:
        if model.owner in SERVED_ENGINES and model.owner != asked:
            raise other_engine(url, asked, model.owner, "/v1/models")


def other_engine(url: str, asked: str, told: str, source: str) -> UsageError:
    """That a server is one of `told` by what `source` of it says."""
    return UsageError(
        f"the server at {url} is {SERVED_ENGINES[told]}'s by its {source}, and was asked as {SERVED_ENGINES[asked]}",
        f"give --backend {told}, or another address",
    )


def choose_model(models: Collection[ServedModel], asked: str | None, url: str) -> ServedModel:
    """The served model that is called `asked`, by its served name or its own; the first one where none is asked.

    Raises:
        UsageError: it is not served there.
        UnavailableError: nothing is.
    """
    if not models:
        raise UnavailableError(f"{url} serves no model", "wait until it has loaded one")
    if asked is None:
        return min(models, key=lambda model: model.is_adapter)
    for name in ("model_id", "root"):
        for model in models:
            if getattr(model, name) == asked:
                return model
    served = ", ".join(repr(model.model_id) for model in models)
    raise UsageError(f"{url} does not serve the model {asked!r}", f"it serves {served}; or leave --model out")


def completion_body(
    request: GenerationRequest,
    model_id: str,
    route: str,
    *,
    left_out: Collection[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The JSON body of a streamed request.

    Args:
        route: a key of `ROUTES`.
        left_out: fields that this server refuses (see `first_answer`).
        extra: fields of one engine only.

    Raises:
        UsageError: a reasoning setting on the route that has no template, or that the server refuses.
        RequestError: `not_single_turn`: a conversation on the route that has no template.
    """
    body: dict[str, Any] = {
        "model": model_id,
        **_prompt_fields(request, route),
        "max_tokens": request.max_new_tokens,
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
        **sampling_fields(request.sampling, request.seed),
        **(extra or {}),
    }
    if "chat_template_kwargs" in left_out and request.reasoning != "off":
        raise UsageError(
            f"the server takes no --reasoning {request.reasoning}: it refuses chat_template_kwargs",
            "leave it out",
        )
    if "max_tokens" in left_out and route == "chat":
        body["max_completion_tokens"] = request.max_new_tokens
    if "continuous_usage_stats" in left_out:
        body["stream_options"] = {"include_usage": True}
    return {name: value for name, value in body.items() if name not in left_out}


def sampling_fields(sampling: Sampling, seed: int) -> dict[str, Any]:
    """How the target picks a token, in the words of the OpenAI routes. Top-k only where it was asked for."""
    fields: dict[str, Any] = {"temperature": sampling.temperature, **NO_PENALTIES}
    if sampling.temperature > 0:
        fields |= {"top_p": 1.0 if sampling.top_p is None else sampling.top_p, "min_p": 0.0, "seed": seed}
    if sampling.top_k is not None:
        fields["top_k"] = sampling.top_k
    return fields


def reasoning_fields(reasoning: str) -> dict[str, Any]:
    """What a chat template is told, under every name that templates know it by; a template ignores the others.

    It is the server that has the template: what is sent here cannot be verified. A level goes with the switch on.
    """
    switch = dict.fromkeys(REASONING_SWITCHES, reasoning != "off")
    if reasoning in ("off", "on"):
        return {"chat_template_kwargs": switch}
    effort = {"reasoning_effort": reasoning} if reasoning in EFFORT_LEVELS else {}
    return {"chat_template_kwargs": {**switch, **dict.fromkeys(REASONING_LEVELS, reasoning)}, **effort}


async def stream_completion(
    client: HttpClient, route: str, body: Mapping[str, Any], max_new_tokens: int
) -> tuple[ChatStreamRecord, StreamResult]:
    """One answer, and what the transport knows of it.

    Args:
        max_new_tokens: an answer of more tokens is refused.

    Raises:
        RequestError: see `HttpClient.stream`, `ChatStreamReader.feed` and `.record`.
    """
    reader = ChatStreamReader(max_new_tokens)
    result = await client.stream(ROUTES[route], body, reader.feed)
    with client.hiding_secrets():
        record = reader.record()
    return replace(record, text=client.secrets.hide_in_text(record.text)), result


async def first_answer(
    client: HttpClient,
    request: GenerationRequest,
    model_id: str,
    route: str,
    extra: Mapping[str, Any] | None = None,
) -> tuple[ChatStreamRecord, frozenset[str]]:
    """An answer that is not measured, and the fields that this server refuses: they were left out for it.

    Raises:
        RequestError: as `stream_completion`: the server refuses more than the fields that can be done without.
    """
    left_out: frozenset[str] = frozenset()
    while True:
        body = completion_body(request, model_id, route, left_out=left_out, extra=extra)
        try:
            record, _ = await stream_completion(client, route, body, MAX_UNMEASURED_TOKENS)
        except RequestError as error:
            refused = _refused_field(error, left_out, extra or {})
            if refused is None:
                raise
            left_out |= {refused}
        else:
            return record, left_out


def make_generation(
    record: ChatStreamRecord, result: StreamResult, *, num_decode_steps: int | None
) -> Generation:
    """An answer as every backend gives it. The engine's counts of drafts are taken as they are.

    Args:
        num_decode_steps: target forwards after the prefill that delivered a token, which engines count differently.
    """
    arrivals, counts = record.chunk_arrivals_ns, record.speculation or SpeculationCounts()
    return Generation(
        sent_ns=result.sent_ns,
        first_ns=record.first_ns,
        last_ns=record.last_ns,
        finish_reason=record.finish_reason,
        num_prompt_tokens=record.num_prompt_tokens,
        num_output_tokens=record.num_output_tokens,
        num_first_chunk_tokens=record.num_first_chunk_tokens,
        num_cached_tokens=record.num_cached_tokens,
        num_retries=result.num_retries,
        num_decode_steps=num_decode_steps,
        num_verify_steps=counts.num_verify_steps,
        num_draft_tokens=counts.num_draft_tokens,
        num_accepted_tokens=counts.num_accepted_tokens,
        acceptance_histogram_untrimmed=counts.acceptance_histogram_untrimmed,
        prompt_ids=record.prompt_ids,
        output_ids=record.output_ids,
        text=record.text,
        chunk_gaps_ns=tuple(later - earlier for earlier, later in pairwise(arrivals)),
        chunk_num_tokens=record.chunk_num_tokens or (),
        step_num_accepted=counts.step_num_accepted,
    )


def _prompt_fields(request: GenerationRequest, route: str) -> dict[str, Any]:
    if route == "chat":
        messages = [{"role": message.role, "content": message.content} for message in request.messages]
        return {"messages": messages, **reasoning_fields(request.reasoning)}
    if request.reasoning != "off":
        raise UsageError(
            f"--reasoning {request.reasoning} needs a chat template, which the route {route!r} does not use",
            "use the route 'chat', or leave --reasoning out",
        )
    if len(request.messages) != 1:
        raise RequestError(
            "not_single_turn", f"the route {route!r} takes one message, not {len(request.messages)}"
        )
    return {"prompt": request.messages[0].content}


def _refused_field(error: RequestError, left_out: Collection[str], extra: Mapping[str, Any]) -> str | None:
    """The field that a refusal names, of those that can be done without."""
    if error.kind not in ("http_400", "http_422"):
        return None
    if "max_completion_tokens" in error.fault and "max_tokens" not in left_out:
        return "max_tokens"  # newer servers want the other name
    names = {**{name: name for name in extra}, **DISPENSABLE}
    return next(
        (field for field, name in names.items() if name in error.fault and field not in left_out), None
    )
