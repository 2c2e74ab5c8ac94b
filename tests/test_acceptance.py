"""Acceptance on plain integers: every small case against a word-for-word retelling of the rule."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from dflash.acceptance import (
    accepted_prefix_length,
    choose_by_uniform,
    cut_output,
    deliver,
    histogram,
    target_distribution,
    uniform_table,
)

TOKENS = (0, 1, 2)


@pytest.mark.parametrize("num_drafts", [0, 1, 2, 3])
def test_every_small_block_is_accepted_as_told(num_drafts: int) -> None:
    for proposals in product(TOKENS, repeat=num_drafts):
        for choices in product(TOKENS, repeat=num_drafts + 1):
            length = 0
            while length < num_drafts and proposals[: length + 1] == choices[: length + 1]:
                length += 1
            assert accepted_prefix_length(proposals, choices) == length
            for stops in ((), (2,), (0, 2)):
                for num_left in range(1, num_drafts + 3):
                    check_delivery(proposals, choices, stops, num_left, length)


def check_delivery(
    proposals: tuple[int, ...], choices: tuple[int, ...], stops: tuple[int, ...], num_left: int, accepted: int
) -> None:
    """Token by token: accepted drafts, then the target's own token, until a stop or the limit."""
    delivered: list[int] = []
    reason = None
    for token in (*proposals[:accepted], choices[accepted]):
        delivered.append(token)
        if token in stops:
            reason = "stop"
        elif len(delivered) == num_left:
            reason = "length"
        if reason:
            break
    found = deliver(proposals, choices, stops, num_left)
    assert (found.token_ids, found.num_accepted, found.finish_reason) == (tuple(delivered), accepted, reason)


def test_every_small_output_is_cut_as_told() -> None:
    for length in range(1, 5):
        for ids in product(TOKENS, repeat=length):
            for num_left in range(1, 6):
                kept, reason = cut_output(ids, {1}, num_left)
                place = ids.index(1) if 1 in ids else None
                if place is not None and place < num_left:
                    assert (kept, reason) == (ids[: place + 1], "stop")
                elif length >= num_left:
                    assert (kept, reason) == (ids[:num_left], "length")
                else:
                    assert (kept, reason) == (ids, None)


def test_a_histogram_counts_each_length() -> None:
    for block_size in (1, 2, 5):
        for lengths in product(range(1, block_size + 1), repeat=3):
            counts = Counter(lengths)
            assert histogram(lengths, block_size) == tuple(counts[k] for k in range(1, block_size + 1))
    assert histogram([], 3) == (0, 0, 0)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, (0, 1, 2, 3)),
        ({"top_k": 1}, (1,)),
        ({"top_k": 2}, (1, 2)),
        ({"top_k": 3}, (0, 1, 2, 3)),  # the third largest is there twice: both stay
        ({"top_p": 0.4}, (1,)),
        ({"top_p": 0.6}, (1, 2)),
        ({"top_p": 0.8}, (0, 1, 2)),  # of equal ones the first in the vocabulary
        ({"top_p": 1.0}, (0, 1, 2, 3)),
        ({"top_k": 2, "top_p": 0.6}, (1,)),  # top-k first: then 2/3 and 1/3
        ({"top_k": 9}, (0, 1, 2, 3)),
    ],
)
def test_filters_keep_what_they_should(options: dict[str, float], kept: tuple[int, ...]) -> None:
    weights = np.array([1.0, 4.0, 2.0, 1.0])
    distribution = target_distribution(np.log(weights), 1.0, **options)  # type: ignore[arg-type]
    wanted = np.where(np.isin(np.arange(4), kept), weights, 0.0)
    np.testing.assert_allclose(distribution, wanted / wanted.sum(), atol=1e-15)


def test_temperature_sharpens_and_zero_takes_the_first_largest() -> None:
    logits = np.log(np.array([1.0, 2.0, 2.0]))
    np.testing.assert_allclose(target_distribution(logits, 0.5), np.array([1, 4, 4]) / 9)
    assert target_distribution(logits, 0.0).tolist() == [0.0, 1.0, 0.0]


def test_midpoints_of_a_grid_give_the_distribution_exactly() -> None:
    distribution = np.array([0, 3, 0, 4, 1, 0]) / 8
    chosen = Counter(choose_by_uniform(distribution, (k + 0.5) / 8) for k in range(8))
    assert chosen == {1: 3, 3: 4, 4: 1}
    assert choose_by_uniform(distribution, 0.0) == 1
    assert choose_by_uniform(distribution, float(np.nextafter(1.0, 0.0))) == 4


def test_a_longer_table_begins_with_the_shorter() -> None:
    table = uniform_table(3, 50)
    assert table.dtype == np.float64
    assert ((table >= 0) & (table < 1)).all()
    assert uniform_table(3, 20).tolist() == table[:20].tolist()
    assert uniform_table(4, 20).tolist() != table[:20].tolist()
