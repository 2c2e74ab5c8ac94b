"""What engines in this process have in common: which pair is meant, what of it is refused, and what is recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from dflash import quickstart
from dflash.acceptance import EQUALITY_RULE
from dflash.backends.base import BackendSettings, Generation, GenerationRequest
from dflash.backends.chat_template import (
    find_chat_template,
    load_tokenizer,
    reasoning_arguments,
    render_prompt,
)
from dflash.decoded import Decoded
from dflash.draft_checkpoint import find_checkpoint
from dflash.draft_config import DraftConfig, check_block_size, check_target
from dflash.errors import DraftError, ModelError, RequestError, UsageError
from dflash.results.records import Arm

SAMPLE_BYTES = 1 << 20


class Draft(Protocol):
    """A draft model of any engine."""

    @property
    def block_size(self) -> int: ...


def is_quickstart_target(settings: BackendSettings) -> bool:
    return settings.model in (None, quickstart.QUICKSTART)


def quickstart_target() -> Path:
    """The quickstart target's folder, built at the first use."""
    from dflash.quickstart.target import ensure_target

    return ensure_target()


def find_target(settings: BackendSettings) -> str:
    """The target's folder or hub id; the quickstart target is built at the first use.

    Raises:
        ModelError: what is written as a folder is none.
    """
    location = str(quickstart_target()) if is_quickstart_target(settings) else str(settings.model)
    if location.startswith(("/", ".", "~")) and not Path(location).expanduser().is_dir():
        raise ModelError(
            f"target {location!r} is no folder", "name a folder with config.json and safetensors"
        )
    return location


def find_draft(settings: BackendSettings) -> Path:
    """The draft's folder.

    Raises:
        UsageError: none was named, and the target is not the quickstart one.
        ModelError: it cannot be had.
    """
    if quickstart.is_quickstart_draft(settings.draft_model, settings.model):
        return quickstart.DRAFT_FOLDER
    if settings.draft_model is None:
        raise UsageError(
            f"no draft was named for {settings.model}", "add --draft-model, or run --arms baseline"
        )
    return find_checkpoint(settings.draft_model)


def load_checked_tokenizer(location: str, settings: BackendSettings) -> Any:
    """The tokenizer; what its chat template does not know is said before a large target is loaded."""
    tokenizer = load_tokenizer(location, trust_remote_code=settings.trust_remote_code)
    template = find_chat_template(tokenizer)
    if template is not None:
        reasoning_arguments(template, settings.reasoning)
    return tokenizer


def check_block_sizes(config: DraftConfig, arms: Sequence[Arm], settings: BackendSettings) -> None:
    """What is wrong with the blocks is said before a large target is loaded."""
    for arm in arms:
        if arm.block_size is not None:
            check_block_size(config, arm.block_size, force=settings.force_block_size)


def check_draft(
    config: DraftConfig,
    settings: BackendSettings,
    *,
    hidden_size: int,
    vocab_size: int,
    num_layers: int,
    stop_token_ids: Collection[int],
) -> None:
    """Check that a draft was made for the target that is open.

    Raises:
        DraftError: it was not.
    """
    check_target(
        config,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        num_layers=num_layers,
        target=settings.model or quickstart.TARGET_NAME,
    )
    if config.mask_token_id in stop_token_ids:
        raise DraftError(
            f"mask token id {config.mask_token_id} is a stop token of the target",
            "use the draft of this target",
        )


def complete_arms(
    arms: Sequence[Arm], settings: BackendSettings, draft_folder: Path | None, draft: Draft | None
) -> tuple[Arm, ...]:
    """The arms with what a draft adds to their identity; one with no block size uses the draft's own."""
    if draft_folder is None or draft is None:
        return tuple(arms)
    is_shipped = quickstart.is_quickstart_draft(settings.draft_model, settings.model)
    default = quickstart.DEFAULT_BLOCK_SIZE if is_shipped else draft.block_size
    revision = folder_revision(draft_folder)
    return tuple(
        arm
        if arm.is_baseline
        else replace(
            arm,
            block_size=arm.block_size or default,
            acceptance_rule=EQUALITY_RULE,
            draft=quickstart.DRAFT_NAME if is_shipped else settings.draft_model,
            draft_revision=revision,
        )
        for arm in arms
    )


def prompt_ids_of(tokenizer: Any, request: GenerationRequest, context: int | None) -> tuple[int, ...]:
    """Token ids of a request's conversation.

    Args:
        context: positions that the target was made for; None: not known.

    Raises:
        RequestError: the prompt is empty, or too long with what is asked for.
    """
    if not any(message.content.strip() for message in request.messages if message.role == "user"):
        raise RequestError("empty_prompt", "the prompt is empty", "give a prompt with text")
    ids = render_prompt(tokenizer, request.messages, request.reasoning)
    if not ids:
        raise RequestError("empty_prompt", "the prompt has no token", "give a prompt with text")
    if context is not None and len(ids) + request.max_new_tokens > context:
        raise RequestError(
            "prompt_too_long",
            f"a prompt of {len(ids)} tokens and {request.max_new_tokens} new ones exceed the context of {context}",
            "use a shorter prompt or fewer --max-new-tokens",
        )
    return ids


def folder_revision(folder: Path) -> str:
    """A digest that tells checkpoints apart without reading all of them: names, sizes, and both ends of each file."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*config.json")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        with path.open("rb") as stream:
            digest.update(stream.read(SAMPLE_BYTES))
            stream.seek(max(0, size - SAMPLE_BYTES))
            digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def make_generation(decoded: Decoded, text: str, peak_memory_bytes: int | None) -> Generation:
    """A request as the runner records it; the prefill's token is the first chunk."""
    drafted = decoded.block_size is not None
    return Generation(
        sent_ns=decoded.sent_ns,
        first_ns=decoded.first_ns,
        last_ns=decoded.last_ns,
        finish_reason=decoded.finish_reason,
        num_prompt_tokens=len(decoded.prompt_ids),
        num_output_tokens=len(decoded.output_ids),
        num_first_chunk_tokens=1,
        num_decode_steps=decoded.num_decode_steps,
        num_verify_steps=decoded.num_decode_steps if drafted else 0,
        num_draft_tokens=decoded.num_draft_tokens,
        num_accepted_tokens=decoded.num_accepted_tokens,
        acceptance_histogram=decoded.acceptance_histogram if drafted else None,
        acceptance_histogram_untrimmed=decoded.acceptance_histogram_untrimmed if drafted else None,
        draft_ns=decoded.draft_ns,
        verify_ns=decoded.verify_ns,
        peak_memory_bytes=peak_memory_bytes,
        prompt_ids=decoded.prompt_ids,
        output_ids=decoded.output_ids,
        text=text,
        chunk_gaps_ns=decoded.step_gaps_ns,
        chunk_num_tokens=(1, *decoded.step_num_tokens),
        step_num_accepted=decoded.step_num_accepted if drafted else None,
    )
