"""Above temperature 0 the output distribution is exactly the target's: the torch tests' enumeration, on MLX."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import torch
from loops.scripted_target import (
    NUM_TOKENS,
    Propose,
    eighths_after,
    propose_at_random,
    propose_right,
    propose_wrong,
)
from loops.test_exact_sampling import (
    PROMPT,
    expected_counts,
    keep_all,
    keep_top_k,
    keep_top_p,
    random_logits,
)
from loops.tiny_models import tiny_config
from mlx_loops.tiny_mlx import tiny_draft

from dflash import acceptance, mlx_sampling, sampling
from dflash.acceptance import SamplingRule
from dflash.mlx_decoding import decode
from dflash.mlx_draft import DraftCache
from dflash.mlx_sampling import TokenPicker
from dflash.mlx_target import Forward, MLXTarget

PROPOSALS: dict[str, Propose | None] = {
    "plain": None,
    "right": propose_right,
    "wrong": propose_wrong,
    "random": propose_at_random,
}


class IdCache:
    """Holds ids instead of keys and values, and forgets them in the same way."""

    def __init__(self) -> None:
        self.ids: tuple[int, ...] = ()

    def arrays(self) -> list[Any]:
        return []

    def rollback(self, num_given: int, num_kept: int) -> None:
        self.ids = self.ids[: len(self.ids) - num_given + num_kept]


class ScriptedTarget(MLXTarget):
    """A target of four tokens whose next-token distribution is a known function of everything before."""

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = temperature
        self.layers = [None] * 4
        self.embedding = nn.Embedding(NUM_TOKENS, NUM_TOKENS)
        self.embedding.weight = mx.eye(NUM_TOKENS)
        self.head = self.embedding.as_linear

    @property
    def hidden_size(self) -> int:
        return NUM_TOKENS

    def new_cache(self) -> Any:
        self.cache = IdCache()
        return self.cache

    def forward(self, token_ids: mx.array, cache: Any, **options: Any) -> Forward:
        rows = []
        for token in token_ids.tolist():
            cache.ids = (*cache.ids, token)
            rows.append(eighths_after(cache.ids))
        # softmax(logits / temperature) are the eighths themselves
        logits = mx.log(mx.array(rows, dtype=mx.float64)) * self.temperature
        return Forward(logits, mx.zeros((1, len(rows), 2 * NUM_TOKENS)))


class ProposingDraft:
    """Proposes token after token by a rule that sees all the text so far."""

    def __init__(self, target: ScriptedTarget, propose: Propose) -> None:
        self.config = tiny_config(
            hidden_size=NUM_TOKENS,
            vocab_size=NUM_TOKENS,
            dflash_config={"mask_token_id": 3, "target_layer_ids": [0, 2]},
        )
        self.block_size = self.config.block_size
        self.target_layer_ids = self.config.target_layer_ids
        self._target, self._propose = target, propose

    def new_cache(self, capacity: int) -> DraftCache:
        return DraftCache(0, capacity)

    def __call__(self, block: mx.array, features: mx.array, cache: DraftCache) -> mx.array:
        cache.commit(features.shape[1])
        assert cache.length == len(self._target.cache.ids)
        ids = (*self._target.cache.ids, int(mx.argmax(block[0, 0])))
        rows = [[0.0] * NUM_TOKENS]
        for _ in range(1, block.shape[1]):
            token = self._propose(ids)
            rows.append([float(token == other) for other in range(NUM_TOKENS)])
            ids = (*ids, token)
        return mx.array([rows])


def loop_counts(
    monkeypatch: pytest.MonkeyPatch,
    propose: Propose | None,
    num_tokens: int,
    grid: int,
    *,
    stop: int | None = None,
    block_size: int = 4,
    temperature: float = 1.0,
    **rule: Any,
) -> Counter[tuple[int, ...]]:
    """Outputs of one run of the loop for every combination of the grid's midpoints as uniform numbers."""
    target = ScriptedTarget(temperature)
    counts: Counter[tuple[int, ...]] = Counter()
    for places in product(range(grid), repeat=num_tokens):
        table = np.array([(place + 0.5) / grid for place in places])
        # What lies behind the limit is cut, so any number will do there.
        monkeypatch.setattr(
            mlx_sampling,
            "uniform_table",
            lambda seed, length, table=table: np.concatenate((table, np.full(length, 0.5)))[:length],
        )
        draft: Any = None if propose is None else ProposingDraft(target, propose)
        stops = () if stop is None else (stop,)
        decoded = decode(target, draft, PROMPT, num_tokens, stops, temperature, block_size=block_size, **rule)
        counts[decoded.output_ids] += 1
    return counts


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_three_tokens_have_exactly_the_targets_distribution(
    monkeypatch: pytest.MonkeyPatch, proposal: str
) -> None:
    counts = loop_counts(monkeypatch, PROPOSALS[proposal], 3, 8, stop=2)
    assert counts == expected_counts(3, 8, 2, keep_all)
    assert sum(counts.values()) == 8**3


@pytest.mark.parametrize("proposal", ["plain", "random"])
def test_the_filters_are_exact(monkeypatch: pytest.MonkeyPatch, proposal: str) -> None:
    propose = PROPOSALS[proposal]
    assert loop_counts(monkeypatch, propose, 2, 24, top_k=2) == expected_counts(2, 24, None, keep_top_k(2))
    counts = loop_counts(monkeypatch, propose, 2, 24, top_p=0.7, temperature=0.5, block_size=2)
    assert counts == expected_counts(2, 24, None, keep_top_p(Fraction(7, 10)))


@pytest.mark.parametrize(
    ("block_size", "rule"), [(2, {}), (5, {"top_p": 0.9, "top_k": 8}), (16, {"top_p": 0.95})]
)
def test_one_seed_gives_the_same_tokens_in_both_arms(
    case: SimpleNamespace, block_size: int, rule: dict[str, Any]
) -> None:
    outputs = []
    for seed in range(2):
        plain = decode(case.model, None, case.prompt, 10, None, 0.7, seed=seed, **rule)
        decoded = decode(
            case.model, tiny_draft(), case.prompt, 10, None, 0.7, seed=seed, block_size=block_size, **rule
        )
        assert decoded.output_ids == plain.output_ids
        outputs.append(decoded.output_ids)
    assert len(set(outputs)) == 2


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [None, 1, 4, 11, 50])
@pytest.mark.parametrize("top_p", [None, 0.05, 0.37, 0.831, 1.0])
def test_the_mlx_form_is_the_reference(temperature: float, top_k: int | None, top_p: float | None) -> None:
    logits = random_logits(3)
    rule = SamplingRule(temperature, top_p, top_k)
    reference = np.stack([acceptance.target_distribution(row, temperature, top_p, top_k) for row in logits])
    exact = mx.array(logits.tolist(), dtype=mx.float64)
    distribution = np.array(mlx_sampling.target_distribution(exact, rule))
    assert ((distribution > 0) == (reference > 0)).all()
    np.testing.assert_allclose(distribution, reference, atol=1e-14)
    picker = TokenPicker(rule, 5, 40)
    in_torch = sampling.TokenPicker(rule, 5, 40, torch.device("cpu"))
    uniforms = acceptance.uniform_table(5, 40)
    for position in (0, 13):
        chosen = [
            acceptance.choose_by_uniform(row, uniform)
            for row, uniform in zip(reference, uniforms[position:], strict=False)
        ]
        assert picker.pick(mx.array(logits), position).tolist() == chosen
        assert in_torch.pick(torch.from_numpy(logits), position).tolist() == chosen


@pytest.mark.parametrize("rule", [SamplingRule(0.7), SamplingRule(1.3, 0.37), SamplingRule(1.0, 0.831, 4)])
def test_the_form_of_a_gpu_is_the_reference_but_for_rounding(rule: SamplingRule) -> None:
    """float32, where a GPU has nothing longer: the same distribution, and the same tokens away from its edges."""
    logits = random_logits(3)[:12]  # rows without ties
    reference = np.stack(
        [acceptance.target_distribution(row, rule.temperature, rule.top_p, rule.top_k) for row in logits]
    )
    distribution = mlx_sampling.target_distribution(mx.array(logits), rule)
    np.testing.assert_allclose(np.array(distribution), reference, atol=1e-6)
    for uniform in (0.0, 0.123, 0.5, 0.9):
        chosen = mlx_sampling.choose_by_uniform(distribution, mx.full((12, 1), uniform)).tolist()
        assert chosen == [acceptance.choose_by_uniform(row, uniform) for row in reference]


def test_greedy_takes_the_first_of_equal_logits() -> None:
    logits = random_logits(1)
    reference = [int(acceptance.target_distribution(row, 0.0).argmax()) for row in logits]
    assert TokenPicker(SamplingRule(), 0, 40).pick(mx.array(logits), 3).tolist() == reference


@pytest.mark.parametrize("uniform", [0.0, 0.4567, float(np.nextafter(1.0, 0.0))])
def test_a_number_at_the_edge_picks_a_token_that_is_kept(
    monkeypatch: pytest.MonkeyPatch, uniform: float
) -> None:
    monkeypatch.setattr(mlx_sampling, "uniform_table", lambda seed, length: np.full(length, uniform))
    logits = random_logits(2)
    picker = TokenPicker(SamplingRule(1.0, 0.831), 0, 24)
    for row, token in zip(logits, picker.pick(mx.array(logits), 0).tolist(), strict=True):
        distribution = acceptance.target_distribution(row, 1.0, 0.831)
        assert distribution[token] > 0
        assert token == acceptance.choose_by_uniform(distribution, uniform)
