"""What cells tell each other about the spread between runs."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from dflash.gate.expressions import parse_gate
from dflash.gate.families import Member, judge_family
from dflash.gate.moderation import digamma, inverse_trigamma, moderated, trigamma
from dflash.gate.records import Change, RunSpread, Spread

EULER = 0.5772156649015329


def spread(variance: float, degrees: float = 4.0) -> RunSpread:
    return RunSpread(variance, degrees, 3, 3)


def drawn(generator: random.Random, sigma: float) -> RunSpread:
    """s² of two runs of three repeats."""
    runs = [[generator.gauss(0, sigma) for _ in range(3)] for _ in range(2)]
    return spread(statistics.mean(map(statistics.variance, runs)))


def test_digamma_and_trigamma_are_those_of_the_tables():
    assert digamma(1) == pytest.approx(-EULER, abs=1e-9)
    assert digamma(0.5) == pytest.approx(-EULER - 2 * math.log(2), abs=1e-9)
    assert trigamma(1) == pytest.approx(math.pi**2 / 6, abs=1e-8)
    assert trigamma(2) == pytest.approx(math.pi**2 / 6 - 1, abs=1e-8)
    for x in (0.3, 2.0, 41.0):
        assert inverse_trigamma(trigamma(x)) == pytest.approx(x, rel=1e-6)


def test_like_spreads_become_one_with_all_their_degrees_of_freedom():
    found = moderated([spread(1.0), spread(1.2), spread(0.8)])
    assert [item.variance for item in found] == pytest.approx([1.0] * 3)
    assert [item.degrees_of_freedom for item in found] == [12.0] * 3


def test_unlike_spreads_keep_most_of_their_own():
    quiet, loud = moderated([*(spread(1.0) for _ in range(7)), spread(1e6)])[6:]
    assert quiet.variance < 100
    assert loud.variance > 1e5
    assert quiet.degrees_of_freedom < 10


def test_a_spread_alone_and_one_of_nothing_stay():
    assert moderated([spread(2.0)]) == [spread(2.0)]
    assert moderated([spread(0.0), spread(2.0)]) == [spread(0.0), spread(2.0)]
    assert moderated([]) == []


def test_moderation_comes_closer_to_the_truth():
    generator = random.Random(0)
    errors = {"own": [], "moderated": []}
    for _ in range(100):
        own = [drawn(generator, 0.01) for _ in range(6)]
        for name, items in (("own", own), ("moderated", moderated(own))):
            errors[name] += [abs(math.log(item.variance / 0.01**2)) for item in items]
    assert statistics.mean(errors["moderated"]) < 0.5 * statistics.mean(errors["own"])


def test_two_gates_of_one_quantity_are_one_comparison():
    def member(text: str, log_ratio: float, cell: str) -> Member:
        change = Change(1.0, 1.0, log_ratio, "prompts", Spread(64, 0.01**2), 64, 3, 3)
        return Member(parse_gate(text), change, cell)

    one, other = member("acceptance_length:-1%", 0.001, "a"), member("acceptance_length:-1%", 0.002, "b")
    alone = judge_family([one, other])
    beside = judge_family([one, member("acceptance_length:-9%", 0.001, "a"), other])
    assert [item.confidence for item in alone] == [beside[0].confidence, beside[2].confidence]


def test_cells_of_one_quantity_are_moderated_together_and_no_others():
    def member(quantity: str, cell: str, variance: float, basis="prompts and repeats") -> Member:
        change = Change(1.0, 1.0, 0.0, basis, Spread(64, 1e-6, spread(variance)), 64, 3, 3)
        return Member(parse_gate(quantity), change, cell)

    judged = judge_family(
        [
            member("tpot_s:+5%", "a", 1e-4),
            member("tpot_s:+2%", "a", 1e-4),  # the same cell: it is counted once
            member("tpot_s:+5%", "b", 2e-4),
            member("ttft_s:+5%", "a", 5e-4),
            member("tpot_s:+5%", "c", 9e-4, basis="calibration"),
        ]
    )
    runs = [item.change.spread.runs for item in judged]
    assert [item.variance for item in runs if item] == pytest.approx([1.5e-4, 1.5e-4, 1.5e-4, 5e-4, 9e-4])
    assert [item.degrees_of_freedom for item in runs if item] == [8.0, 8.0, 8.0, 4.0, 4.0]
