"""How the target picks tokens, in torch. The NumPy reference of each rule is in `acceptance.py`."""

from __future__ import annotations

import torch

from dflash.acceptance import SamplingRule, uniform_table


class TokenPicker:
    """Picks output tokens of one request, each by the uniform number of its own position."""

    def __init__(self, rule: SamplingRule, seed: int, max_positions: int, device: torch.device) -> None:
        self._rule = rule
        self._uniforms: torch.Tensor | None = None
        if rule.temperature > 0:
            self._uniforms = torch.from_numpy(uniform_table(seed, max_positions)).to(device)

    def pick(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        """Token ids `[n]` from logits `[n, vocabulary]`; row i is output position `position` + i."""
        if self._uniforms is None:
            return logits.argmax(dim=-1)
        distribution = target_distribution(logits, self._rule)
        running = distribution.cumsum(dim=-1)  # [n, vocabulary]
        uniforms = self._uniforms[position : position + logits.shape[0], None]
        chosen = torch.searchsorted(running, uniforms * running[:, -1:], right=True)[:, 0]
        # Rounding may put a number at the very end of the running sum.
        last = logits.shape[-1] - 1 - (distribution.flip(-1) > 0).int().argmax(dim=-1)
        return torch.minimum(chosen, last)


def target_distribution(logits: torch.Tensor, rule: SamplingRule) -> torch.Tensor:
    """Probabilities `[n, vocabulary]` (float64) from logits `[n, vocabulary]`; see the reference in `acceptance.py`."""
    scaled = logits.double() / rule.temperature
    if rule.top_k is not None and rule.top_k < scaled.shape[-1]:
        threshold = scaled.topk(rule.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < threshold, float("-inf"))
    weights = scaled.softmax(dim=-1)
    if rule.top_p is not None and rule.top_p < 1:
        ordered, order = weights.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        ordered = ordered.masked_fill(before >= rule.top_p, 0.0)
        weights = torch.zeros_like(weights).scatter(-1, order, ordered)
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights
