"""How the target picks tokens, in MLX. The NumPy reference of each rule is in `acceptance.py`."""

from __future__ import annotations

import math

import mlx.core as mx

from dflash.acceptance import SamplingRule, uniform_table


class TokenPicker:
    """Picks output tokens of one request, each by the uniform number of its own position.

    Probabilities are float64 on a CPU, as in torch. GPUs have no float64 in MLX: there they are float32, and a token
    may differ where the number lies within rounding of a boundary.
    """

    def __init__(self, rule: SamplingRule, seed: int, max_positions: int) -> None:
        self._rule = rule
        self._uniforms: mx.array | None = None
        if rule.temperature > 0:
            precision = mx.float64 if mx.default_device() == mx.Device(mx.cpu) else mx.float32
            self._uniforms = mx.array(uniform_table(seed, max_positions).tolist(), dtype=precision)

    def pick(self, logits: mx.array, position: int) -> mx.array:
        """Token ids `[n]` (int32) from logits `[n, vocabulary]`; row i is output position `position` + i."""
        if self._uniforms is None:
            return mx.argmax(logits, axis=-1).astype(mx.int32)
        distribution = target_distribution(logits.astype(self._uniforms.dtype), self._rule)
        uniforms = self._uniforms[position : position + logits.shape[0], None]
        return choose_by_uniform(distribution, uniforms)


def choose_by_uniform(distribution: mx.array, uniforms: mx.array) -> mx.array:
    """Token ids `[n]` from `[n, vocabulary]` and `[n, 1]`: where the running sum first exceeds the number."""
    running = mx.cumsum(distribution, axis=-1)
    chosen = (running <= uniforms * running[:, -1:]).sum(axis=-1)
    # Rounding may put a number at the very end of the running sum.
    places = mx.arange(distribution.shape[-1])
    last = mx.where(distribution > 0, places, 0).max(axis=-1)
    return mx.minimum(chosen, last).astype(mx.int32)


def target_distribution(logits: mx.array, rule: SamplingRule) -> mx.array:
    """Probabilities `[n, vocabulary]` from logits `[n, vocabulary]`, in their dtype; see `acceptance.py`."""
    scaled = logits / rule.temperature
    if rule.top_k is not None and rule.top_k < scaled.shape[-1]:
        threshold = mx.topk(scaled, rule.top_k, axis=-1).min(axis=-1, keepdims=True)
        scaled = mx.where(scaled < threshold, -mx.inf, scaled)
    weights = _softmax(scaled)
    if rule.top_p is not None and rule.top_p < 1:
        order = mx.argsort(-weights, axis=-1)  # stable
        ordered = mx.take_along_axis(weights, order, axis=-1)
        before = mx.cumsum(ordered, axis=-1) - ordered
        ordered = mx.where(before >= rule.top_p, 0.0, ordered)
        weights = mx.put_along_axis(mx.zeros_like(weights), order, ordered, axis=-1)
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights


def _softmax(scaled: mx.array) -> mx.array:
    """Softmax over the last dimension; MLX's own has the precision of float32 in float64 too, and its power has not."""
    if scaled.dtype != mx.float64:
        softmax: mx.array = mx.softmax(scaled, axis=-1, precise=True)
        return softmax
    shifted = scaled - scaled.max(axis=-1, keepdims=True)
    weights = mx.power(mx.array(math.e, dtype=mx.float64), shifted)
    normalised: mx.array = weights / weights.sum(axis=-1, keepdims=True)
    return normalised
