from __future__ import annotations

import pytest
from gated_runs import compare, made_up


def split(arm: str = "dflash", **changes):
    report = compare(made_up(), made_up("new", **changes), "tpot_s:+5%")
    return next(item for item in report.splits if item.pair.cell.arm.name == arm)


def test_a_worse_draft_shows_in_the_acceptance_length():
    found = split(acceptance=2.4)
    assert found.acceptance_length is not None
    assert found.acceptance_length.relative == pytest.approx(-0.2, abs=0.02)
    assert found.decode_step_s is not None
    assert found.decode_step_s.relative == pytest.approx(0, abs=1e-9)
    assert "the draft got worse" in found.sentence
    assert "the engine" not in found.sentence


def test_a_slower_engine_shows_in_the_step_time():
    found = split(step_ms=36.0)
    assert found.decode_step_s is not None
    assert found.decode_step_s.relative == pytest.approx(0.2)
    assert "the engine got slower" in found.sentence
    assert "the draft" not in found.sentence


def test_the_factors_make_up_the_speed():
    found = split(acceptance=2.6, step_ms=33.0)
    assert found.acceptance_length is not None
    assert found.decode_step_s is not None
    product = (1 + found.acceptance_length.relative) / (1 + found.decode_step_s.relative)
    assert 1 + found.decode_tok_s.relative == pytest.approx(product, rel=1e-9)


def test_a_faster_baseline_is_said():
    assert "plain decoding got faster" in split(plain_ms=15.0).sentence


def test_the_baseline_has_no_acceptance_length():
    found = split("baseline", plain_ms=22.0)
    assert found.acceptance_length is None
    assert found.sentence == "decode speed -9.09 %"


def test_nothing_changed_is_said_in_two_words():
    assert split().sentence == "decode speed unchanged"
