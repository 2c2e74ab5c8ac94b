"""The two loops, with their clocks and counts: plain decoding, and drafting a block and verifying it.

Both run on the same cache, ask the same picker for every token, and stamp the same moments: `sent` with the prompt ids
on the host and the device idle, `first` and every step with the new ids on the host. One transfer to the host a step.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dflash.acceptance import SamplingRule, cut_output, deliver
from dflash.decoded import Clock, Decoded, OnTokens, Progress, checked_limit, checked_prompt
from dflash.draft_config import check_block_size, check_target
from dflash.errors import UsageError
from dflash.sampling import TokenPicker
from dflash.step_timer import StepTimer, synchronise
from dflash.target import FeatureTap, Target

if TYPE_CHECKING:
    from dflash.model import DFlashDraftModel


@torch.inference_mode()
def dflash_generate(
    draft: DFlashDraftModel,
    target: Any,
    input_ids: torch.Tensor | Sequence[int],
    max_new_tokens: int,
    stop_token_ids: Collection[int] | None,
    temperature: float = 0.0,
    *,
    top_p: float | None = None,
    top_k: int | None = None,
    block_size: int | None = None,
    seed: int = 0,
    force_block_size: bool = False,
    return_stats: bool = False,
    on_tokens: OnTokens | None = None,
    clock: Clock = time.perf_counter_ns,
) -> torch.Tensor | Decoded:
    """Decode with a draft: the output is the target's own, whatever the draft proposes.

    At temperature 0 a draft token is accepted where it is the target's largest logit. Above 0 the draft still proposes
    its argmax, accepted where it equals the target's sample at that place: every token that is emitted is such a
    sample, so the distribution is the target's exactly, and with one seed the tokens are those of `plain_generate`.

    Args:
        draft: made for this target.
        target: a causal language model of transformers, or a `Target`.
        input_ids: prompt `[1, n]` or `[n]`.
        max_new_tokens: at least 1.
        stop_token_ids: each ends the output and is part of it.
        block_size: B, from 2 to what the draft was trained for; default the latter.
        seed: of this request's uniform numbers (temperature above 0).
        on_tokens: called with each step's ids, after its stamp; what it does counts as time of the next step.

    Returns:
        ids `[1, n + output]` on the target's device, prompt included; with `return_stats` a `Decoded`.

    Raises:
        DraftError: the draft does not fit the target, or the block is larger than trained.
        UsageError: contradictory sampling, or a limit below 1.
        RequestError: empty prompt, or token ids that the target does not know.
    """
    seen = _as_target(target)
    block_size = draft.block_size if block_size is None else block_size
    check_block_size(draft.config, block_size, force=force_block_size)
    check_target(
        draft.config, hidden_size=seen.hidden_size, vocab_size=seen.vocab_size, num_layers=len(seen.layers)
    )
    prompt_ids = _prompt_ids(input_ids, seen.vocab_size)
    rule = SamplingRule(temperature, top_p, top_k)
    picker = TokenPicker(rule, seed, checked_limit(max_new_tokens) + block_size, seen.device)
    stops = frozenset(stop_token_ids or ())
    with FeatureTap(seen, draft.target_layer_ids) as tap:
        decoded = _decode_blocks(
            seen,
            draft,
            tap,
            prompt_ids,
            max_new_tokens,
            stops,
            block_size,
            picker,
            Progress(clock, on_tokens),
        )
    return decoded if return_stats else _all_ids(decoded, seen)


@torch.inference_mode()
def plain_generate(
    target: Any,
    input_ids: torch.Tensor | Sequence[int],
    max_new_tokens: int,
    stop_token_ids: Collection[int] | None,
    temperature: float = 0.0,
    *,
    top_p: float | None = None,
    top_k: int | None = None,
    seed: int = 0,
    return_stats: bool = False,
    on_tokens: OnTokens | None = None,
    clock: Clock = time.perf_counter_ns,
) -> torch.Tensor | Decoded:
    """Decode one token a forward, on the same cache and with the same picker: the baseline arm.

    Arguments, returns and errors are those of `dflash_generate`.
    """
    seen = _as_target(target)
    prompt_ids = _prompt_ids(input_ids, seen.vocab_size)
    rule = SamplingRule(temperature, top_p, top_k)
    picker = TokenPicker(rule, seed, checked_limit(max_new_tokens), seen.device)
    decoded = _decode_tokens(
        seen, prompt_ids, max_new_tokens, frozenset(stop_token_ids or ()), picker, Progress(clock, on_tokens)
    )
    return decoded if return_stats else _all_ids(decoded, seen)


def _decode_tokens(
    target: Target,
    prompt_ids: tuple[int, ...],
    max_new_tokens: int,
    stops: frozenset[int],
    picker: TokenPicker,
    progress: Progress,
) -> Decoded:
    synchronise(target.device)
    progress.start()
    cache = target.new_cache(len(prompt_ids) + max_new_tokens)
    token, finish_reason = _prefill(target, cache, prompt_ids, max_new_tokens, stops, picker, progress)
    while finish_reason is None:
        logits = target.forward(token[None], cache, num_logits=1)
        token = picker.pick(logits, len(progress.output_ids))  # [1]
        token_ids, finish_reason = cut_output(
            token.tolist(), stops, max_new_tokens - len(progress.output_ids)
        )
        progress.add_step(token_ids)
    return progress.decoded(prompt_ids, finish_reason, None)


def _decode_blocks(
    target: Target,
    draft: DFlashDraftModel,
    tap: FeatureTap,
    prompt_ids: tuple[int, ...],
    max_new_tokens: int,
    stops: frozenset[int],
    block_size: int,
    picker: TokenPicker,
    progress: Progress,
) -> Decoded:
    synchronise(target.device)
    progress.start()
    # The last block may reach B-1 positions past the limit; what lies there is cut.
    capacity = len(prompt_ids) + max_new_tokens + block_size
    cache, draft_cache = target.new_cache(capacity), draft.new_cache(capacity)
    masks = torch.full((block_size - 1,), draft.config.mask_token_id, device=target.device)  # [B-1]
    timer = StepTimer(target.device)
    anchor, finish_reason = _prefill(
        target, cache, prompt_ids, max_new_tokens, stops, picker, progress, has_tap=True
    )
    num_committed = len(prompt_ids)  # positions whose features are known and final
    num_new = num_committed
    while finish_reason is None:
        timer.start()
        embeddings = target.embed(torch.cat((anchor, masks)))[None]  # [1, B, hidden]
        hidden = draft(embeddings, tap.features(num_new), draft_cache)
        proposals = target.head(hidden[0, 1:]).argmax(dim=-1)  # [B-1]; slot 0 is the anchor
        timer.end_draft()
        logits = target.forward(torch.cat((anchor, proposals))[None], cache)  # [B, vocabulary]
        choices = picker.pick(logits, len(progress.output_ids))  # [B]
        timer.end_verify()
        ids = torch.cat((proposals, choices)).tolist()
        delivery = deliver(
            ids[: block_size - 1], ids[block_size - 1 :], stops, max_new_tokens - len(progress.output_ids)
        )
        finish_reason = delivery.finish_reason
        progress.add_step(delivery.token_ids, delivery.num_accepted)
        num_new = delivery.num_accepted + 1  # the anchor and the accepted tokens went through the target
        num_committed += num_new
        cache.rollback_to(num_committed)
        anchor = choices[delivery.num_accepted : delivery.num_accepted + 1]
    return progress.decoded(prompt_ids, finish_reason, block_size, timer.totals_ns())


def _prefill(
    target: Target,
    cache: Any,
    prompt_ids: tuple[int, ...],
    max_new_tokens: int,
    stops: frozenset[int],
    picker: TokenPicker,
    progress: Progress,
    *,
    has_tap: bool = False,
) -> tuple[torch.Tensor, str | None]:
    """The first output token `[1]` on the device, and why the output ends with it, if it does."""
    prompt = torch.tensor([prompt_ids], device=target.device)  # [1, n]
    token = picker.pick(target.forward(prompt, cache, num_logits=1, has_tap=has_tap), 0)
    token_ids, finish_reason = cut_output(token.tolist(), stops, max_new_tokens)
    progress.add_first(token_ids)
    return token, finish_reason


def _as_target(target: Any) -> Target:
    return target if isinstance(target, Target) else Target(target)


def _prompt_ids(input_ids: torch.Tensor | Sequence[int], vocab_size: int) -> tuple[int, ...]:
    if isinstance(input_ids, torch.Tensor):
        if input_ids.dim() == 2 and input_ids.shape[0] != 1:
            raise UsageError(
                f"input_ids has {input_ids.shape[0]} rows", "the loops decode one prompt at a time"
            )
        input_ids = input_ids.flatten().tolist()
    return checked_prompt(input_ids, vocab_size)


def _all_ids(decoded: Decoded, target: Target) -> torch.Tensor:
    return torch.tensor([decoded.prompt_ids + decoded.output_ids], device=target.device)
