"""Which arm a vLLM server is, whether several may stand side by side, and how they are described. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dflash.backends.arm_names import DRAFTING, method_notes
from dflash.backends.arrival_stamps import arrivals_stamped_by
from dflash.backends.base import BackendDescription, BackendSettings, StartedAs
from dflash.backends.simulated_mark import simulated_notes
from dflash.backends.vllm_server import VllmServer
from dflash.errors import UsageError
from dflash.results.records import BASELINE, Arm

MIN_DFLASH_RELEASE = (0, 20, 1)
SEVERAL_TOKENS = "it has no counters of drafts, but most chunks of its first answer hold several tokens"
METHODS = ("dflash", "eagle", "mtp", "ngram", "suffix", "medusa", "draft_model")
SKIPPING_METHODS = ("ngram", "suffix")  # they propose nothing where they find nothing


def add_start(server: VllmServer, started_as: StartedAs) -> VllmServer:
    """The server with what only its start tells."""
    method = server.method or (started_as.method if server.drafts else None)
    return replace(server, dtype=server.dtype or started_as.dtype, method=method)


def complete_arm(arm: Arm, server: VllmServer, block_size: int | None) -> Arm:
    """The arm as the server makes it: its name where it has none, B, and the draft.

    Args:
        block_size: what B should be, where the arm does not say.

    Raises:
        UsageError: the server contradicts the arm's name or B, or is too old for it.
    """
    name = arm.name or _name_of(server)
    _check_name(name, server)
    if name == BASELINE:
        return replace(arm, name=name, block_size=None)
    too_old = server.release is not None and server.release < MIN_DFLASH_RELEASE
    if too_old and DRAFTING in (name, server.method):
        raise UsageError(
            f"vLLM {server.version} at {server.url} cannot draft with DFlash as published",
            f"use vLLM {'.'.join(map(str, MIN_DFLASH_RELEASE))} or newer, or give what drafts there its name by --arm",
        )
    asked = arm.block_size or block_size
    if None not in (asked, server.block_size) and asked != server.block_size:
        raise UsageError(
            f"--block-size {asked} contradicts the server at {server.url}, where B is {server.block_size} "
            f"(num_speculative_tokens {server.num_speculative_tokens})",
            "leave it out, or restart the server",
        )
    return replace(
        arm,
        name=name,
        block_size=server.block_size or asked,
        draft=server.draft or arm.draft,
        draft_revision=server.draft_revision or arm.draft_revision,
    )


def skips_drafts(arm: Arm, server: VllmServer) -> bool:
    """Whether the arm has steps without a draft, which vLLM counts nowhere."""
    return (server.method or arm.name).startswith(SKIPPING_METHODS)


def check_alike(servers: Sequence[VllmServer], dtype: str | None) -> None:
    """Refuse servers whose numbers could not be put side by side.

    Args:
        dtype: what it should be, where that was asked.

    Raises:
        UsageError: two differ in model, version, or dtype, or one in the dtype that was asked.
    """
    for server in servers:
        if dtype is not None and server.dtype not in (None, dtype):
            raise UsageError(
                f"--dtype {dtype} contradicts the server at {server.url}, which computes in {server.dtype}",
                "leave it out, or restart the server",
            )
    for other in servers[1:]:
        first = servers[0]
        for what, mine, its in (
            ("the model", first.model.target, other.model.target),
            ("vLLM", first.version, other.version),
            ("the dtype", first.dtype, other.dtype),
            ("the model's revision", first.target_revision, other.target_revision),
        ):
            if mine != its and None not in (mine, its):
                raise UsageError(
                    f"{first.url} serves {what} {mine}, {other.url} serves {what} {its}",
                    "start all servers alike but for their drafts",
                )


def check_reasoning(server: VllmServer, reasoning: str) -> None:
    """Refuse a reasoning setting that changes nothing.

    Raises:
        UsageError: the server renders the same prompt without it.
    """
    if reasoning != "off" and server.knows_reasoning is False:
        raise UsageError(
            f"the chat template of the model at {server.url} knows no --reasoning {reasoning}",
            "leave it out, or give --reasoning off",
        )


def describe(servers: Sequence[tuple[Arm, VllmServer]], settings: BackendSettings) -> BackendDescription:
    """What was opened. The environment holds what all servers share; what is of one server is a note."""
    first = servers[0][1]
    lengths = {server.model.max_model_len for _, server in servers}
    dtype = next((server.dtype for _, server in servers if server.dtype), settings.dtype)
    notes = [_reasoning_note([server for _, server in servers], settings)]
    if all(server.dtype is None for _, server in servers):
        notes.append("the servers do not say their dtype" + (f"; {dtype} was named" if dtype else ""))
    for arm, server in servers:
        notes += [f"{arm.label}: {note}" for note in _notes_of(arm, server)]
    return BackendDescription(
        target=first.model.target,
        target_revision=first.target_revision,
        dtype=dtype,
        arms=tuple(arm for arm, _ in servers),
        environment={
            "engine": "vllm",
            "engine_version": next((server.version for _, server in servers if server.version), None),
            "model": first.model.target,
            "max_model_len": lengths.pop() if len(lengths) == 1 else None,
            "route": settings.route,
            "arrivals_stamped_by": arrivals_stamped_by(),
        },
        notes=tuple(notes),
    )


def _reasoning_note(servers: Sequence[VllmServer], settings: BackendSettings) -> str:
    if settings.route != "chat":
        return "prompts are sent as plain text, without a chat template"
    known = {server.knows_reasoning for server in servers}
    told = f"reasoning {settings.reasoning}: "
    if known == {True}:
        return told + "sent as chat_template_kwargs, and the rendered prompt changes with it"
    if known == {False}:
        return told + "the model's chat template is told nothing about reasoning"
    return told + "sent as chat_template_kwargs, not verified"


def _name_of(server: VllmServer) -> str:
    if server.drafts is None:
        fault = server.counters_fault
        why = SEVERAL_TOKENS if fault is None else f"its counters do not tell ({fault})"
        raise UsageError(
            f"it cannot be seen whether the server at {server.url} drafts: {why}",
            "say which arm it is, by --arm NAME=URL",
        )
    return (server.method or DRAFTING) if server.drafts else BASELINE


def _check_name(name: str, server: VllmServer) -> None:
    """Refuse a label that what is seen contradicts."""
    mend = f"it is {_seen(server)}; call it that, or give another address"
    if server.drafts is not None and server.drafts == (name == BASELINE):
        raise UsageError(f"the server at {server.url} is not the arm {name!r}", mend)
    known = [method for method in METHODS if method in name]
    if server.method and known and not any(method in server.method for method in known):
        raise UsageError(f"the server at {server.url} is not the arm {name!r}", mend)


def _seen(server: VllmServer) -> str:
    if not server.drafts:
        return f"the {BASELINE} (it has no counters of drafts)"
    return (
        f"{server.method!r}"
        if server.method
        else f"an arm that drafts (it has counters of drafts), not the {BASELINE}"
    )


def _notes_of(arm: Arm, server: VllmServer) -> list[str]:
    notes = simulated_notes(server.version)
    if server.version is None:
        notes.append("the server does not say its version")
    if server.drafts is None:
        why = f" ({SEVERAL_TOKENS})" if server.holds_several and not server.counters_fault else ""
        notes.append(f"it cannot be seen whether the server drafts{why}: the name is as given")
    if not arm.is_baseline:
        notes += _draft_notes(arm, server)
    if not server.has_token_ids:
        notes.append("no token ids: outputs are compared as text")
    if server.has_prefix_cache is not False and not server.has_cached_tokens:
        notes.append("cached prompt tokens are not told (--enable-prompt-tokens-details tells them)")
    if server.left_out:
        notes.append(f"the server refuses {', '.join(sorted(server.left_out))}: left out")
    if server.counters_fault:
        notes.append(f"its counters cannot be read: {server.counters_fault}")
    return notes


def _draft_notes(arm: Arm, server: VllmServer) -> list[str]:
    notes = []
    if server.block_size is not None:
        notes.append(
            f"num_speculative_tokens {server.num_speculative_tokens} was read, so B = {server.block_size}"
        )
    else:
        notes.append("B is not told by the server" + (" and taken as given" if arm.block_size else ""))
    notes += method_notes(arm, server.method)
    if skips_drafts(arm, server):
        notes.append(
            "it drafts only at steps where it finds something, and vLLM counts those alone: the acceptance length as "
            "engines count it, and by counters, is over them, the delivered one over all steps"
        )
    if not server.has_request_counts:
        notes.append(
            "acceptance is not told per request (--per-request-spec-decode-metrics detailed tells it)"
        )
    if server.is_synthetic:
        notes.append("acceptance is synthetic: the server accepts drafts by a made-up rate")
    return notes
