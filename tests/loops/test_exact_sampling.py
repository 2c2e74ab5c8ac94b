"""Above temperature 0 the output distribution is exactly the target's: enumerated through the real loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from loops.scripted_target import (
    NUM_TOKENS,
    Propose,
    ProposingDraft,
    ScriptedTarget,
    eighths_after,
    propose_at_random,
    propose_right,
    propose_wrong,
)
from loops.tiny_models import tiny_draft

from dflash import acceptance, sampling
from dflash.acceptance import SamplingRule
from dflash.decoding import dflash_generate, plain_generate
from dflash.errors import UsageError
from dflash.sampling import TokenPicker

PROMPT = (1, 2)
Filter = Callable[[list[Fraction]], list[Fraction]]
PROPOSALS: dict[str, Propose | None] = {
    "plain": None,
    "right": propose_right,
    "wrong": propose_wrong,
    "random": propose_at_random,
}


def expected_counts(num_tokens: int, grid: int, stop: int | None, keep: Filter) -> Counter[tuple[int, ...]]:
    """Outputs by the number of grid points that give each: their probability times grid ** num_tokens."""
    counts: Counter[tuple[int, ...]] = Counter()
    for output in product(range(NUM_TOKENS), repeat=num_tokens):
        count = 1
        for place, token in enumerate(output):
            probabilities = keep([Fraction(n, 8) for n in eighths_after(PROMPT + output[:place])])
            points = probabilities[token] * grid
            assert points.denominator == 1
            count *= int(points)
        if stop is not None and stop in output:
            output = output[: output.index(stop) + 1]
        if count:
            counts[output] += count
    return counts


def loop_counts(
    monkeypatch: pytest.MonkeyPatch,
    propose: Propose | None,
    num_tokens: int,
    grid: int,
    *,
    stop: int | None = None,
    block_size: int = 4,
    temperature: float = 1.0,
    top_p: float | None = None,
    top_k: int | None = None,
) -> Counter[tuple[int, ...]]:
    """Outputs of one run of the loop for every combination of the grid's midpoints as uniform numbers."""
    target = ScriptedTarget(temperature)
    stops = () if stop is None else (stop,)
    counts: Counter[tuple[int, ...]] = Counter()
    for places in product(range(grid), repeat=num_tokens):
        table = np.array([(place + 0.5) / grid for place in places])
        # What lies behind the limit is cut, so any number will do there.
        monkeypatch.setattr(
            sampling,
            "uniform_table",
            lambda seed, length, table=table: np.concatenate((table, np.full(length, 0.5)))[:length],
        )
        if propose is None:
            ids = plain_generate(target, PROMPT, num_tokens, stops, temperature, top_p=top_p, top_k=top_k)
        else:
            draft = ProposingDraft(target, propose)
            ids = dflash_generate(
                draft,  # type: ignore[arg-type]
                target,
                PROMPT,
                num_tokens,
                stops,
                temperature,
                block_size=block_size,
                top_p=top_p,
                top_k=top_k,
            )
        counts[tuple(ids[0, len(PROMPT) :].tolist())] += 1
    return counts


def keep_top_k(k: int) -> Filter:
    def keep(probabilities: list[Fraction]) -> list[Fraction]:
        threshold = sorted(probabilities)[-k]
        return normalised([p if p >= threshold else Fraction(0) for p in probabilities])

    return keep


def keep_top_p(top_p: Fraction) -> Filter:
    def keep(probabilities: list[Fraction]) -> list[Fraction]:
        kept, gathered = [Fraction(0)] * len(probabilities), Fraction(0)
        for token in sorted(range(len(probabilities)), key=lambda token: -probabilities[token]):
            if gathered < top_p:
                kept[token] = probabilities[token]
            gathered += probabilities[token]
        return normalised(kept)

    return keep


def normalised(weights: list[Fraction]) -> list[Fraction]:
    return [weight / sum(weights) for weight in weights]


def keep_all(probabilities: list[Fraction]) -> list[Fraction]:
    return probabilities


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("stop", [None, 2])
def test_three_tokens_have_exactly_the_targets_distribution(
    monkeypatch: pytest.MonkeyPatch, proposal: str, stop: int | None
) -> None:
    counts = loop_counts(monkeypatch, PROPOSALS[proposal], 3, 8, stop=stop)
    assert counts == expected_counts(3, 8, stop, keep_all)
    assert sum(counts.values()) == 8**3


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_with_a_block_of_two_and_another_temperature(monkeypatch: pytest.MonkeyPatch, proposal: str) -> None:
    counts = loop_counts(monkeypatch, PROPOSALS[proposal], 3, 8, block_size=2, temperature=0.5)
    assert counts == expected_counts(3, 8, None, keep_all)


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_top_k_is_exact(monkeypatch: pytest.MonkeyPatch, proposal: str) -> None:
    counts = loop_counts(monkeypatch, PROPOSALS[proposal], 2, 24, top_k=2)
    assert counts == expected_counts(2, 24, None, keep_top_k(2))


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_top_p_is_exact(monkeypatch: pytest.MonkeyPatch, proposal: str) -> None:
    counts = loop_counts(monkeypatch, PROPOSALS[proposal], 2, 24, top_p=0.7)
    assert counts == expected_counts(2, 24, None, keep_top_p(Fraction(7, 10)))


@pytest.mark.parametrize("proposal", [name for name in PROPOSALS if name != "plain"])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.8}, {"top_k": 5}, {"top_p": 0.9, "top_k": 3}])
def test_the_scripted_arms_agree_seed_by_seed(proposal: str, options: dict[str, float]) -> None:
    target, propose = ScriptedTarget(), PROPOSALS[proposal]
    assert propose is not None
    for seed in range(8):
        plain = plain_generate(target, PROMPT, 20, None, 1.0, seed=seed, **options)  # type: ignore[arg-type]
        draft = ProposingDraft(target, propose)
        ids = dflash_generate(draft, target, PROMPT, 20, None, 1.0, block_size=5, seed=seed, **options)  # type: ignore[arg-type]
        assert ids.tolist() == plain.tolist()


@pytest.mark.parametrize("block_size", [2, 5, 16])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 8}])
def test_one_seed_gives_the_same_tokens_in_both_arms(
    case: SimpleNamespace, block_size: int, options: dict[str, float]
) -> None:
    outputs = []
    for seed in range(3):
        plain = plain_generate(case.model, case.prompt, 24, None, 0.7, seed=seed, **options)  # type: ignore[arg-type]
        ids = dflash_generate(
            tiny_draft(), case.model, case.prompt, 24, None, 0.7, block_size=block_size, seed=seed, **options
        )
        assert ids.tolist() == plain.tolist()
        outputs.append(tuple(ids[0].tolist()))
    assert len(set(outputs)) == 3


def random_logits(seed: int) -> np.ndarray:
    """`[24, 11]` float32: smooth rows, and rows with many ties."""
    generator = np.random.Generator(np.random.PCG64(seed))
    logits = generator.normal(0, 2, (24, 11)).astype(np.float32)
    logits[12:] = np.round(logits[12:])
    return logits


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [None, 1, 4, 11, 50])
@pytest.mark.parametrize("top_p", [None, 0.05, 0.37, 0.831, 1.0])
def test_the_torch_form_is_the_reference(temperature: float, top_k: int | None, top_p: float | None) -> None:
    logits = random_logits(3)
    rule = SamplingRule(temperature, top_p, top_k)
    distribution = sampling.target_distribution(torch.from_numpy(logits), rule).numpy()
    reference = np.stack([acceptance.target_distribution(row, temperature, top_p, top_k) for row in logits])
    assert ((distribution > 0) == (reference > 0)).all()
    np.testing.assert_allclose(distribution, reference, atol=1e-14)
    picker = TokenPicker(rule, 5, 40, torch.device("cpu"))
    uniforms = acceptance.uniform_table(5, 40)
    for position in (0, 13):
        chosen = [
            acceptance.choose_by_uniform(row, uniform)
            for row, uniform in zip(reference, uniforms[position:], strict=False)
        ]
        assert picker.pick(torch.from_numpy(logits), position).tolist() == chosen


def test_greedy_takes_the_first_of_equal_logits() -> None:
    logits = random_logits(1)
    picker = TokenPicker(SamplingRule(), 0, 40, torch.device("cpu"))
    reference = [int(acceptance.target_distribution(row, 0.0).argmax()) for row in logits]
    assert picker.pick(torch.from_numpy(logits), 3).tolist() == reference


@pytest.mark.parametrize("uniform", [0.0, 0.4567, float(np.nextafter(1.0, 0.0))])
def test_a_number_at_the_edge_picks_a_token_that_is_kept(
    monkeypatch: pytest.MonkeyPatch, uniform: float
) -> None:
    monkeypatch.setattr(sampling, "uniform_table", lambda seed, length: np.full(length, uniform))
    logits = random_logits(2)
    picker = TokenPicker(SamplingRule(1.0, 0.831), 0, 24, torch.device("cpu"))
    for row, token in zip(logits, picker.pick(torch.from_numpy(logits), 0).tolist(), strict=True):
        distribution = acceptance.target_distribution(row, 1.0, 0.831)
        assert distribution[token] > 0
        assert token == acceptance.choose_by_uniform(distribution, uniform)


@pytest.mark.parametrize(
    "given",
    [
        (-0.1,),
        (float("nan"),),
        (float("inf"),),
        (0.0, 0.9),
        (0.0, None, 5),
        (1.0, 0.0),
        (1.0, 1.1),
        (1.0, None, 0),
    ],
)
def test_contradictory_rules_are_refused(given: tuple[float, ...]) -> None:
    with pytest.raises(UsageError):
        SamplingRule(*given)  # type: ignore[arg-type]
