"""DFlash in MLX, and the public names that users know: load a target, load a draft, generate as a stream.

from dflash.model_mlx import load, load_draft, stream_generate

model, tokenizer = load("Qwen/Qwen3.5-4B")
draft = load_draft("z-lab/Qwen3.5-4B-DFlash")
for response in stream_generate(model, draft, tokenizer, prompt, max_tokens=2048):
    print(response.text, end="", flush=True)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import mlx.core as mx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'dflash[mlx]'", name=error.name) from error

from dflash.decoded import Progress
from dflash.draft_checkpoint import find_checkpoint
from dflash.errors import ModelError, first_line
from dflash.mlx_checkpoint import TARGET_PATTERNS, load_draft_model, load_target, stop_ids_of
from dflash.mlx_decoding import decode, decode_steps
from dflash.mlx_draft import DFlashDraftModel
from dflash.text_stream import TextStream

__all__ = [
    "DFlashDraftModel",
    "GenerationResponse",
    "decode",
    "load",
    "load_draft",
    "stream_generate",
]


@dataclass(frozen=True, slots=True)
class GenerationResponse:
    """What one forward of the target delivered, and the request so far."""

    text: str  # what the tokens so far add to the text; half a character is held back
    tokens: tuple[int, ...]
    accepted: (
        int | None
    )  # draft tokens that the target confirmed, cut ones included; None: the step had no draft
    prompt_tokens: int
    prompt_tps: float  # prompt tokens a second, up to the first token
    generation_tokens: int  # the prefill's token included
    generation_tps: float | None  # tokens after the first a second after the first; None: there is none yet
    peak_memory: float  # GB of the device since the request began, weights included
    finish_reason: str | None  # "stop", "length", or None: more follows


def load(path: str | Path, *, dtype: mx.Dtype | None = None, revision: str | None = None) -> tuple[Any, Any]:
    """A target and its tokenizer, as mlx-lm gives them, from a folder or a hub id.

    Raises:
        ModelError: there is no such model, or it cannot be run rightly.
    """
    from mlx_lm.utils import load_tokenizer

    folder = find_checkpoint(path, revision, what="target", patterns=TARGET_PATTERNS)
    model, config = load_target(folder, dtype=dtype)
    try:
        return model, load_tokenizer(folder, eos_token_ids=stop_ids_of(config))
    except Exception as error:  # damaged files raise from several trees
        raise ModelError(
            f"the tokenizer in {folder} cannot be loaded ({first_line(error)})", "fetch the target again"
        ) from error


def load_draft(
    path: str | Path,
    *,
    dtype: mx.Dtype | None = None,
    bits: int | None = None,
    revision: str | None = None,
) -> DFlashDraftModel:
    """A draft from a folder or a hub id; `bits` (4 or 8) quantises it.

    Raises:
        ModelError: there is no such folder or id.
        DraftError: config or weights are not those of an implemented draft, or it cannot be quantised so.
    """
    return load_draft_model(find_checkpoint(path, revision), dtype=dtype, bits=bits)


def stream_generate(
    model: Any,
    draft: DFlashDraftModel | None,
    tokenizer: Any,
    prompt: str | Sequence[int],
    *,
    max_tokens: int = 256,
    temperature: float = 0.0,
    top_p: float | None = None,
    top_k: int | None = None,
    block_size: int | None = None,
    seed: int = 0,
    force_block_size: bool = False,
) -> Iterator[GenerationResponse]:
    """Generate step by step; the tokens are the target's own, whatever the draft proposes.

    Args:
        model, tokenizer: from `load`; every stop id of the tokenizer ends the output.
        draft: made for this model; None: plain decoding.
        prompt: text, or token ids; the begin token is added where the text does not begin with it.
        block_size: B = 1 known token and B-1 draft tokens; default what the draft was trained for.

    Raises:
        DraftError: the draft does not fit the target, or the block is larger than trained.
        UsageError: contradictory sampling, or a limit below 1.
        RequestError: empty prompt, or token ids that the target does not know.
    """
    ids = _prompt_ids(tokenizer, prompt)
    progress = Progress(time.perf_counter_ns)
    steps = decode_steps(
        model,
        draft,
        ids,
        max_tokens,
        _stop_ids(tokenizer),
        temperature,
        top_p=top_p,
        top_k=top_k,
        block_size=block_size,
        seed=seed,
        force_block_size=force_block_size,
        progress=progress,
    )
    pieces: list[str] = []
    text = TextStream(lambda token_ids: _text(tokenizer, token_ids), pieces.append)
    mx.reset_peak_memory()
    for step in steps:
        text.add(step.token_ids)
        if step.finish_reason is not None:
            text.end()
        decode_ns = progress.last_ns - progress.first_ns
        yield GenerationResponse(
            text="".join(pieces),
            tokens=step.token_ids,
            accepted=step.num_accepted,
            prompt_tokens=len(ids),
            prompt_tps=len(ids) * 1e9 / max(1, progress.first_ns - progress.sent_ns),
            generation_tokens=len(progress.output_ids),
            generation_tps=(len(progress.output_ids) - 1) * 1e9 / decode_ns if decode_ns else None,
            peak_memory=mx.get_peak_memory() / 1e9,
            finish_reason=step.finish_reason,
        )
        pieces.clear()


def _prompt_ids(tokenizer: Any, prompt: str | Sequence[int]) -> list[int]:
    if not isinstance(prompt, str):
        return [int(token_id) for token_id in prompt]
    begin = tokenizer.bos_token
    ids = tokenizer.encode(prompt, add_special_tokens=begin is None or not prompt.startswith(begin))
    return [int(token_id) for token_id in ids]


def _stop_ids(tokenizer: Any) -> frozenset[int]:
    known = getattr(tokenizer, "eos_token_ids", None)  # of mlx-lm's wrapper
    return frozenset(known if known is not None else {tokenizer.eos_token_id} - {None})


def _text(tokenizer: Any, token_ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(token_ids), skip_special_tokens=True)
    return text
