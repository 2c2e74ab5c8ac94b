"""Which arm an SGLang server is, whether several may stand side by side, and how they are described. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dflash.backends.arm_names import DRAFTING, method_notes
from dflash.backends.arrival_stamps import arrivals_stamped_by
from dflash.backends.base import BackendDescription, BackendSettings
from dflash.backends.sglang_server import STAMPED, SglangServer
from dflash.backends.simulated_mark import simulated_notes
from dflash.errors import UsageError
from dflash.results.records import BASELINE, Arm

DFLASH = "dflash"
MIN_DFLASH_RELEASE = (0, 5, 11)
# A word in an arm's name -> the engine's algorithms that it may mean. NEXTN is the engine's other word for EAGLE.
METHODS: dict[str, tuple[str, ...]] = {
    "dflash": ("dflash",),
    "dspark": ("dspark",),
    "eagle3": ("eagle3",),
    "eagle": ("eagle", "eagle3", "nextn", "frozen_kv_mtp"),
    "mtp": ("eagle", "nextn", "frozen_kv_mtp"),
    "ngram": ("ngram",),
    "standalone": ("standalone",),
}


def complete_arm(arm: Arm, server: SglangServer, block_size: int | None) -> Arm:
    """The arm as the server makes it: its name where it has none, B, and the draft.

    Args:
        block_size: what B should be, where the arm does not say.

    Raises:
        UsageError: the server contradicts the arm's name or B, or is too old for it.
    """
    name = arm.name or _name_of(server)
    too_old = server.release is not None and server.release < MIN_DFLASH_RELEASE
    if too_old and (DFLASH in name or server.algorithm == DFLASH):
        raise UsageError(
            f"SGLang {server.version} at {server.url} has no DFlash",
            f"use SGLang {'.'.join(map(str, MIN_DFLASH_RELEASE))} or newer",
        )
    _check_name(name, server)
    if name == BASELINE:
        return replace(arm, name=name, block_size=None)
    asked = arm.block_size or block_size
    if None not in (asked, server.block_size) and asked != server.block_size:
        raise UsageError(
            f"--block-size {asked} contradicts the server at {server.url}, where B is {server.block_size} "
            f"(speculative_num_draft_tokens, the anchor among them)",
            "leave it out, or restart the server",
        )
    return replace(
        arm,
        name=name,
        block_size=server.block_size or asked,
        draft=_text(server, "speculative_draft_model_path") or arm.draft,
        draft_revision=_text(server, "speculative_draft_model_revision") or arm.draft_revision,
    )


def check_alike(servers: Sequence[SglangServer], settings: BackendSettings) -> None:
    """Refuse servers whose numbers could not be put side by side, and settings that change nothing.

    Raises:
        UsageError: two differ in model, version, dtype, or in how they take prompts; or one contradicts the dtype or
            the reasoning setting that was asked.
    """
    first = servers[0]
    for server in servers:
        if settings.dtype is not None and server.dtype not in (None, "auto", settings.dtype):
            raise UsageError(
                f"--dtype {settings.dtype} contradicts the server at {server.url}, which computes in {server.dtype}",
                "leave it out, or restart the server",
            )
        if settings.reasoning != "off" and server.knows_reasoning is False:
            raise UsageError(
                f"the chat template of the model at {server.url} knows no --reasoning {settings.reasoning}",
                "leave it out, or give --reasoning off",
            )
        for what, mine, its in (
            ("the model", first.target, server.target),
            ("SGLang", first.version, server.version),
            ("the dtype", first.dtype, server.dtype),
            ("the model's revision", _text(first, "revision"), _text(server, "revision")),
        ):
            if mine != its and None not in (mine, its):
                raise UsageError(
                    f"{first.url} serves {what} {mine}, {server.url} serves {what} {its}",
                    "start all servers alike but for their drafts",
                )
        if settings.route == "generate" and first.renders_prompts != server.renders_prompts:
            raise UsageError(
                f"only one of {first.url} and {server.url} applies its chat template for the route 'generate'",
                "use the route 'chat'",
            )


def describe(
    servers: Sequence[tuple[Arm, SglangServer]], settings: BackendSettings, *, has_metrics_url: bool = False
) -> BackendDescription:
    """What was opened. The environment holds what all servers share; what is of one server is a note."""
    first = servers[0][1]
    dtype = next((server.dtype for _, server in servers if server.dtype), settings.dtype)
    notes = [_prompt_note([server for _, server in servers], settings)]
    if dtype == "auto":
        notes.append("dtype auto: the checkpoint's own")
    shared: dict[str, Any] = {}
    for name in STAMPED:
        told = {arm.label: server.settings.get(name) for arm, server in servers}
        if len(set(map(str, told.values()))) == 1:
            shared[name] = first.settings.get(name)
        else:
            notes.append(
                f"the servers differ in {name}: " + ", ".join(f"{arm} {value}" for arm, value in told.items())
            )
    lengths = {server.model.max_model_len for _, server in servers}
    for arm, server in servers:
        notes += [f"{arm.label}: {note}" for note in _notes_of(arm, server, settings, has_metrics_url)]
    return BackendDescription(
        target=first.target,
        target_revision=_text(first, "revision"),
        dtype=dtype,
        arms=tuple(arm for arm, _ in servers),
        environment={
            "engine": "sglang",
            "engine_version": next((server.version for _, server in servers if server.version), None),
            "model": first.target,
            "max_model_len": lengths.pop() if len(lengths) == 1 else None,
            "route": settings.route,
            "arrivals_stamped_by": arrivals_stamped_by(),
            **{name: value for name, value in shared.items() if value is not None},
        },
        notes=tuple(notes),
    )


def _name_of(server: SglangServer) -> str:
    if server.algorithm is not None:
        return server.algorithm
    if server.drafts is not None:
        return DRAFTING if server.drafts else BASELINE
    raise UsageError(
        f"the server at {server.url} does not say whether it drafts",
        "say which arm it is, by --arm NAME=URL",
    )


def _check_name(name: str, server: SglangServer) -> None:
    """Refuse a label that what is seen contradicts."""
    seen = (
        f"{server.algorithm!r}" if server.algorithm else "an arm that drafts" if server.drafts else BASELINE
    )
    method = next((method for method in METHODS if method in name), None)
    contradicts = server.drafts is not None and server.drafts == (name == BASELINE)
    if method and server.algorithm and name != server.algorithm:
        contradicts = contradicts or server.algorithm not in METHODS[method]
    if contradicts:
        raise UsageError(
            f"the server at {server.url} is not the arm {name!r}",
            f"it is {seen} (speculative_algorithm); call it that, or give another address",
        )


def _prompt_note(servers: Sequence[SglangServer], settings: BackendSettings) -> str:
    if settings.route == "completions" or (
        settings.route == "generate" and not all(server.renders_prompts for server in servers)
    ):
        return "prompts are sent as plain text, without a chat template"
    known = {server.knows_reasoning for server in servers}
    told = f"reasoning {settings.reasoning}: "
    if known == {True}:
        return told + "sent as chat_template_kwargs, and the rendered prompt changes with it"
    if known == {False}:
        return told + "the model's chat template is told nothing about reasoning"
    return told + "sent as chat_template_kwargs, not verified"


def _notes_of(arm: Arm, server: SglangServer, settings: BackendSettings, has_metrics_url: bool) -> list[str]:
    notes = simulated_notes(server.version)
    if not server.settings:
        notes.append("the server tells no settings (/server_info)")
    if server.drafts is None:
        notes.append("it cannot be seen whether the server drafts: the name is as given")
    if not arm.is_baseline:
        notes += _draft_notes(arm, server, settings)
    if server.num_ranks is not None and server.num_ranks > 1:
        notes.append(
            f"{server.num_ranks} data-parallel ranks: every request tells its own counts, whichever rank answered"
        )
    if not server.has_token_ids:
        notes.append("no token ids: outputs are compared as text")
    if server.has_prefix_cache is not False and not server.has_cached_tokens:
        notes.append("cached prompt tokens are not told (--enable-cache-report tells them)")
    if server.settings.get("stream_interval") not in (None, 1):
        notes.append(f"a chunk holds the tokens of {server.settings['stream_interval']} steps")
    kept_back = sorted(server.left_out - {"return_token_ids"})  # refused by design on this route
    if kept_back:
        notes.append(f"the server refuses {', '.join(kept_back)}: left out")
    if server.has_metrics is False and not has_metrics_url:
        notes.append("no counters of the server (--enable-metrics keeps them)")
    return notes


def _draft_notes(arm: Arm, server: SglangServer, settings: BackendSettings) -> list[str]:
    notes = []
    if server.block_size is not None:
        notes.append(
            f"speculative_num_draft_tokens {server.block_size} was read: B = {server.block_size}, "
            f"{server.block_size - 1} draft tokens"
        )
    else:
        notes.append("B is not told by the server" + (" and taken as given" if arm.block_size else ""))
    notes += method_notes(arm, server.algorithm)
    if not server.has_request_counts:
        mend = "" if settings.route == "generate" else " (the route 'generate' tells it in every version)"
        notes.append(f"acceptance is not told per request{mend}")
    top_k = server.settings.get("speculative_eagle_topk")
    if isinstance(top_k, int) and top_k > 1:
        notes.append(f"drafts are trees (top-k {top_k}): B counts the tokens of a tree")
    if server.settings.get("speculative_adaptive") is True:
        notes.append("speculation is adaptive: B changes while the server runs")
    thresholds = [
        server.settings.get(f"speculative_accept_threshold_{name}", 1.0) for name in ("single", "acc")
    ]
    if any(isinstance(value, int | float) and value < 1 for value in thresholds):
        notes.append("acceptance is relaxed: sampled output need not be distributed as the target's")
    return notes


def _text(server: SglangServer, name: str) -> str | None:
    value = server.settings.get(name)
    return value if isinstance(value, str) and value else None
