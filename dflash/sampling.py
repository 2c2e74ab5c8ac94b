"""How the target picks tokens, in torch. The NumPy reference of each rule is in `acceptance.py`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dflash.acceptance import uniform_table
from dflash.errors import UsageError


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """Temperature 0 is greedy; otherwise temperature, then top-k, then top-p.

    Raises:
        UsageError: out of range, or top-p or top-k at temperature 0.
    """

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature {self.temperature} is not a number from 0 up", "choose 0 or more")
        if self.temperature == 0 and (self.top_p is not None or self.top_k is not None):
            raise UsageError(
                "top-p and top-k have no effect at temperature 0", "leave them out, or set a temperature"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(
                f"top-p {self.top_p} is not above 0 and at most 1", "choose a value such as 0.95"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top-k {self.top_k} keeps no token", "choose 1 or more")


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
