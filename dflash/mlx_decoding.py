"""The two loops in MLX, with the clocks and counts of the torch ones (`decoding.py`).

MLX computes when a value is asked for. A stamp is therefore taken when the new ids are on the host, and `sent` when
the device has nothing left to do.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from dflash.acceptance import SamplingRule, cut_output, deliver
from dflash.decoded import Clock, Decoded, OnTokens, Progress, checked_limit, checked_prompt
from dflash.draft_config import check_block_size, check_target
from dflash.mlx_cache import TargetCache
from dflash.mlx_draft import DFlashDraftModel
from dflash.mlx_sampling import TokenPicker
from dflash.mlx_target import MLXTarget

PREFILL_STEP = 2048  # prompt tokens a forward, as mlx-lm has it


@dataclass(frozen=True, slots=True)
class Step:
    """What one forward of the target delivered; the first is the prefill's."""

    token_ids: tuple[int, ...]
    num_accepted: (
        int | None
    )  # draft tokens that the target confirmed, cut ones included; None: it had no draft
    finish_reason: str | None  # "stop", "length", or None: go on


Steps = Generator[Step, None, Decoded]


def decode_steps(
    target: Any,
    draft: DFlashDraftModel | None,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    stop_token_ids: Collection[int] | None,
    temperature: float = 0.0,
    *,
    top_p: float | None = None,
    top_k: int | None = None,
    block_size: int | None = None,
    seed: int = 0,
    force_block_size: bool = False,
    progress: Progress | None = None,
) -> Steps:
    """Decode one request step by step; what is iterated over may be left at any step.

    With a draft the output is the target's own, whatever the draft proposes: see `dflash.decoding.dflash_generate`,
    whose arguments and rules these are. Without one, one token a forward: the baseline.

    Args:
        target: a causal language model of mlx-lm, or an `MLXTarget`.
        draft: made for this target; None: plain decoding.
        progress: follows the request; default a new one with the system's clock.

    Returns:
        a generator of steps that returns a `Decoded`.

    Raises:
        DraftError: the draft does not fit the target, or the block is larger than trained.
        UsageError: contradictory sampling, or a limit below 1.
        RequestError: empty prompt, or token ids that the target does not know.
    """
    seen = target if isinstance(target, MLXTarget) else MLXTarget(target)
    ids = checked_prompt(prompt_ids, seen.vocab_size)
    rule, limit = SamplingRule(temperature, top_p, top_k), checked_limit(max_new_tokens)
    progress = progress or Progress(time.perf_counter_ns)
    request = _Request(seen, ids, limit, frozenset(stop_token_ids or ()), progress)
    if draft is None:
        return _token_steps(request, TokenPicker(rule, seed, limit + 1))
    block_size = draft.block_size if block_size is None else block_size
    check_block_size(draft.config, block_size, force=force_block_size)
    check_target(
        draft.config, hidden_size=seen.hidden_size, vocab_size=seen.vocab_size, num_layers=len(seen.layers)
    )
    return _block_steps(request, draft, block_size, TokenPicker(rule, seed, limit + block_size))


def decode(
    target: Any,
    draft: DFlashDraftModel | None,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    stop_token_ids: Collection[int] | None,
    temperature: float = 0.0,
    *,
    on_tokens: OnTokens | None = None,
    clock: Clock = time.perf_counter_ns,
    **options: Any,
) -> Decoded:
    """Decode one request to its end; arguments and errors are those of `decode_steps`."""
    steps = decode_steps(
        target,
        draft,
        prompt_ids,
        max_new_tokens,
        stop_token_ids,
        temperature,
        progress=Progress(clock, on_tokens),
        **options,
    )
    while True:
        try:
            next(steps)
        except StopIteration as end:
            decoded: Decoded = end.value
            return decoded


@dataclass(frozen=True, slots=True)
class _Request:
    target: MLXTarget
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stops: frozenset[int]
    progress: Progress

    @property
    def num_left(self) -> int:
        return self.max_new_tokens - len(self.progress.output_ids)

    def first_step(self, token: mx.array) -> Step:
        token_ids, finish_reason = cut_output(token.tolist(), self.stops, self.max_new_tokens)
        self.progress.add_first(token_ids)
        return Step(token_ids, None, finish_reason)


def _token_steps(request: _Request, picker: TokenPicker) -> Steps:
    """Each forward is under way before its predecessor's token is looked at, as in mlx-lm."""
    target, progress = request.target, request.progress
    mx.synchronize()
    progress.start()
    cache = target.new_cache()
    token = picker.pick(prefill(target, request.prompt_ids, cache)[0], 0)
    mx.async_eval(token)
    for position in range(1, request.max_new_tokens + 1):
        coming = None
        if position < request.max_new_tokens:
            coming = picker.pick(target.forward(token, cache).logits, position)
            mx.async_eval(coming)
        if position == 1:
            step = request.first_step(token)
        else:
            token_ids, finish_reason = cut_output(token.tolist(), request.stops, request.num_left)
            progress.add_step(token_ids)
            step = Step(token_ids, None, finish_reason)
        yield step
        if step.finish_reason is not None or coming is None:
            break
        token = coming
    return progress.decoded(request.prompt_ids, step.finish_reason, None)


def _block_steps(request: _Request, draft: DFlashDraftModel, block_size: int, picker: TokenPicker) -> Steps:
    target, progress, layer_ids = request.target, request.progress, draft.target_layer_ids
    masks = mx.full((block_size - 1,), draft.config.mask_token_id, dtype=mx.int32)
    mx.synchronize()
    progress.start()
    cache = target.new_cache()
    # The last block may reach B-1 positions past the limit; what lies there is cut.
    draft_cache = draft.new_cache(len(request.prompt_ids) + request.max_new_tokens + block_size)
    logits, features = prefill(target, request.prompt_ids, cache, layer_ids)
    anchor = picker.pick(logits, 0)  # [1]
    step = request.first_step(anchor)
    parts = _StepParts()
    while step.finish_reason is None:
        yield step
        parts.start()
        block = target.embedding(mx.concatenate((anchor, masks)))[None]  # [1, B, hidden]
        hidden = draft(block, features, draft_cache)
        logits = target.head(hidden[0, 1:])  # [B-1, vocabulary]; slot 0 is the anchor
        proposals = mx.argmax(logits, axis=-1).astype(mx.int32)
        parts.end_draft(proposals)
        given = mx.concatenate((anchor, proposals))
        verified = target.forward(given, cache, layer_ids=layer_ids, can_roll_back=True)
        choices = picker.pick(verified.logits, len(progress.output_ids))  # [B]
        ids = mx.concatenate((proposals, choices)).tolist()
        parts.end_verify()
        delivery = deliver(ids[: block_size - 1], ids[block_size - 1 :], request.stops, request.num_left)
        progress.add_step(delivery.token_ids, delivery.num_accepted)
        num_kept = delivery.num_accepted + 1  # the anchor and the accepted tokens went through the target
        cache.rollback(block_size, num_kept)
        assert verified.features is not None
        features = verified.features[:, :num_kept]
        anchor = choices[delivery.num_accepted : num_kept]
        step = Step(delivery.token_ids, delivery.num_accepted, delivery.finish_reason)
    yield step
    return progress.decoded(request.prompt_ids, step.finish_reason, block_size, parts.totals_ns())


class _StepParts:
    """Sums draft and verify times over steps, on a CPU only: to look at the proposals would make a GPU wait."""

    def __init__(self) -> None:
        self._is_known = mx.default_device().type == mx.cpu
        self._draft_ns = self._verify_ns = self._mark_ns = 0

    def start(self) -> None:
        self._mark_ns = time.perf_counter_ns()

    def end_draft(self, proposals: mx.array) -> None:
        if self._is_known:
            mx.eval(proposals)
            self._draft_ns += self._lap_ns()

    def end_verify(self) -> None:
        self._verify_ns += self._lap_ns()

    def _lap_ns(self) -> int:
        before_ns, self._mark_ns = self._mark_ns, time.perf_counter_ns()
        return self._mark_ns - before_ns

    def totals_ns(self) -> tuple[int | None, int | None]:
        return (self._draft_ns, self._verify_ns) if self._is_known else (None, None)


def prefill(
    target: MLXTarget, prompt_ids: Sequence[int], cache: TargetCache, layer_ids: Sequence[int] = ()
) -> tuple[mx.array, Any]:
    """Logits `[1, vocabulary]` of the token after a prompt, and the features of the prompt `[1, n, …]`.

    The last token goes alone: of the others no logits are computed, for nothing asks for them.
    """
    num_prompt = len(prompt_ids)
    prompt = mx.array(prompt_ids, dtype=mx.int32)
    features = []
    for start in range(0, num_prompt - 1, PREFILL_STEP):
        end = min(start + PREFILL_STEP, num_prompt - 1)
        part = target.forward(prompt[start:end], cache, layer_ids=layer_ids)
        mx.eval(cache.arrays(), part.features)
        features.append(part.features)
    last = target.forward(prompt[-1:], cache, layer_ids=layer_ids)
    features.append(last.features)
    return last.logits, mx.concatenate(features, axis=1) if layer_ids else None
