"""A target of four tokens whose next-token distribution is a known function of everything before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from loops.tiny_models import tiny_config
from torch import nn

from dflash.draft_config import DraftConfig
from dflash.rollback_cache import DraftCache
from dflash.target import Target

NUM_TOKENS = 4
EIGHTHS = ((4, 2, 1, 1), (1, 3, 3, 1), (0, 2, 4, 2), (1, 1, 0, 6), (2, 2, 2, 2))  # one row a context


def eighths_after(ids: tuple[int, ...]) -> tuple[int, ...]:
    """The next token's probabilities in eighths; they depend on every token and on its place."""
    return EIGHTHS[sum((place + 1) * token for place, token in enumerate(ids)) % len(EIGHTHS)]


class IdCache:
    """Holds ids instead of keys and values, and forgets them in the same way."""

    def __init__(self) -> None:
        self.ids: tuple[int, ...] = ()

    def rollback_to(self, length: int) -> None:
        assert length <= len(self.ids)
        self.ids = self.ids[:length]


class ScriptedTarget(Target):
    """Has the interface of `Target` and no model."""

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = temperature
        self.layers = nn.ModuleList(nn.Identity() for _ in range(4))
        self.embedding = nn.Embedding(NUM_TOKENS, NUM_TOKENS)
        self.head = nn.Linear(NUM_TOKENS, NUM_TOKENS, bias=False)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.eye(NUM_TOKENS))
            self.head.weight.copy_(torch.eye(NUM_TOKENS))
        self.device, self.dtype = torch.device("cpu"), torch.float32

    @property
    def hidden_size(self) -> int:
        return NUM_TOKENS

    def new_cache(self, capacity: int) -> Any:
        self.cache = IdCache()
        return self.cache

    def forward(
        self, input_ids: torch.Tensor, cache: Any, *, num_logits: int = 0, has_tap: bool = False
    ) -> torch.Tensor:
        rows = []
        for token in input_ids[0].tolist():
            cache.ids = (*cache.ids, token)
            rows.append(eighths_after(cache.ids))
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        # softmax(logits / temperature) are the eighths themselves
        logits = torch.tensor(rows, dtype=torch.float64).log() * self.temperature
        return logits[-num_logits:]


Propose = Callable[[tuple[int, ...]], int]


def propose_right(ids: tuple[int, ...]) -> int:
    eighths = eighths_after(ids)
    return eighths.index(max(eighths))


def propose_wrong(ids: tuple[int, ...]) -> int:
    eighths = eighths_after(ids)
    return eighths.index(min(eighths))


def propose_at_random(ids: tuple[int, ...]) -> int:
    return (sum((place * 7 + 3) * (token + 2) ** 2 for place, token in enumerate(ids)) // 3) % NUM_TOKENS


class ProposingDraft:
    """Proposes token after token by a rule that sees all the text so far."""

    def __init__(self, target: ScriptedTarget, propose: Propose) -> None:
        self.config: DraftConfig = tiny_config(
            hidden_size=NUM_TOKENS,
            vocab_size=NUM_TOKENS,
            dflash_config={"mask_token_id": 3, "target_layer_ids": [0, 2]},
        )
        self.block_size = self.config.block_size
        self.target_layer_ids = self.config.target_layer_ids
        self._target, self._propose = target, propose

    def new_cache(self, capacity: int) -> DraftCache:
        return DraftCache(0, capacity)

    def __call__(self, block: torch.Tensor, features: torch.Tensor, cache: DraftCache) -> torch.Tensor:
        cache.commit(features.shape[1])
        assert cache.length == len(self._target.cache.ids)
        ids = (*self._target.cache.ids, int(block[0, 0].argmax()))
        hidden = torch.zeros_like(block)
        for slot in range(1, block.shape[1]):
            token = self._propose(ids)
            hidden[0, slot, token] = 1.0
            ids = (*ids, token)
        return hidden
