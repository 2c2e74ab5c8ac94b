"""Acceptance on plain integers: prefix length, cutting at stop and limit, counts; the sampling rule and its NumPy form.

The loops of all in-process engines count with these functions. The NumPy functions at the end are the reference that
array forms are tested against.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

EQUALITY_RULE = "equality"  # a draft token is accepted where it equals the target's own choice


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one verify step adds to the output."""

    token_ids: tuple[int, ...]  # delivered: cut at the stop token (kept) and at the limit
    num_accepted: int  # draft tokens that the target confirmed, cut ones included
    finish_reason: str | None  # "stop", "length", or None: go on


def accepted_prefix_length(proposals: Sequence[int], choices: Sequence[int]) -> int:
    """Number of leading draft tokens that equal the target's choice at the same place.

    `choices[i]` is what the target picks after the anchor and `proposals[:i]`; one longer than `proposals`.
    """
    length = 0
    for proposal, choice in zip(proposals, choices, strict=False):
        if proposal != choice:
            break
        length += 1
    return length


def deliver(
    proposals: Sequence[int], choices: Sequence[int], stop_token_ids: Collection[int], num_left: int
) -> Delivery:
    """Accept a block by equality: the matching prefix plus one token of the target's own, cut at stop and limit.

    Args:
        proposals: the B-1 draft tokens.
        choices: the target's B choices, as in `accepted_prefix_length`.
        num_left: output tokens still allowed, at least 1.
    """
    num_accepted = accepted_prefix_length(proposals, choices)
    # Where proposals match, they are the choices: the delivered tokens are the target's own throughout.
    token_ids, finish_reason = cut_output(choices[: num_accepted + 1], stop_token_ids, num_left)
    return Delivery(token_ids, num_accepted, finish_reason)


def cut_output(
    token_ids: Sequence[int], stop_token_ids: Collection[int], num_left: int
) -> tuple[tuple[int, ...], str | None]:
    """Tokens up to and including the first stop token and at most `num_left`, and why the output ends, if it does.

    A stop token at the limit counts as a stop. Only new tokens are looked at, by position, never by value.
    """
    kept = tuple(token_ids[:num_left])
    for index, token_id in enumerate(kept):
        if token_id in stop_token_ids:
            return kept[: index + 1], "stop"
    return kept, "length" if len(kept) == num_left else None


def histogram(lengths: Sequence[int], block_size: int) -> tuple[int, ...]:
    """How many steps have each length from 1 to B: entry k-1 counts length k."""
    counts = [0] * block_size
    for length in lengths:
        counts[length - 1] += 1
    return tuple(counts)


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


def target_distribution(
    logits: np.ndarray, temperature: float, top_p: float | None = None, top_k: int | None = None
) -> np.ndarray:
    """Probabilities `[vocabulary]` (float64) that the target samples from: temperature, then top-k, then top-p.

    Top-k keeps every token whose logit is at least the k-th largest. Top-p keeps, in falling order, each token before
    which less than p is gathered, the first always. Temperature 0 is all mass on the first largest logit.
    """
    import numpy as np

    logits = np.asarray(logits, dtype=np.float64)
    if temperature == 0:
        chosen = np.zeros_like(logits)
        chosen[int(np.argmax(logits))] = 1.0
        return chosen
    scaled = logits / temperature
    if top_k is not None and top_k < len(scaled):
        scaled = np.where(scaled >= np.sort(scaled)[-top_k], scaled, -np.inf)
    weights: np.ndarray = np.exp(scaled - scaled.max())
    weights /= weights.sum()
    if top_p is not None and top_p < 1:
        order = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        weights[order[before >= top_p]] = 0.0
        weights /= weights.sum()
    return weights


def choose_by_uniform(distribution: np.ndarray, uniform: float) -> int:
    """The token at which the running sum, in vocabulary order, first exceeds `uniform` in [0, 1): inverse transform."""
    import numpy as np

    running = np.cumsum(distribution)
    chosen = int(np.searchsorted(running, uniform * running[-1], side="right"))
    return min(chosen, int(np.flatnonzero(distribution)[-1]))


def uniform_table(seed: int, length: int) -> np.ndarray:
    """One uniform number in [0, 1) per output position `[length]` (float64); a longer table begins with the shorter.

    Both arms pick output token i with number i, so that at temperature > 0 a draft changes no token either.
    """
    import numpy as np

    return np.random.Generator(np.random.PCG64(seed)).random(length)
