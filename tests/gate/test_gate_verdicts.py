"""Every verdict, and what it needs."""

from __future__ import annotations

import pytest
from gated_runs import compare, made_up, only

NOISE = {"noise": 0.02, "run_noise": 0.003}


def times(seed: int, **changes: float):
    return made_up(f"run-{seed}", seed=seed, **{**NOISE, **changes})


def test_a_slower_step_is_worse():
    comparison = only(compare(times(1), times(2, step_ms=33.0), "tpot_s:+5%"))
    assert comparison.verdict == "worse"
    assert comparison.relative == pytest.approx(0.1, abs=0.02)
    assert comparison.low is not None
    assert comparison.low > 0
    assert comparison.basis == "prompts and repeats"


def test_a_faster_step_is_better():
    comparison = only(compare(times(1), times(2, step_ms=27.0), "tpot_s:+5%"))
    assert comparison.verdict == "better"
    assert comparison.high is not None
    assert comparison.high < 0


def test_an_unchanged_step_is_the_same():
    assert only(compare(times(1), times(2), "tpot_s:+5%")).verdict == "same"


def test_a_real_change_below_the_minimum_effect_is_the_same():
    comparison = only(compare(times(1), times(2, step_ms=31.8), "tpot_s:+10%"))
    assert comparison.verdict == "same"
    assert comparison.low is not None
    assert comparison.low > 0


def test_a_wide_interval_is_inconclusive_and_says_what_would_do():
    comparison = only(compare(times(1, run_noise=0.025), times(2, run_noise=0.025), "tpot_s:+5%"))
    assert comparison.verdict == "inconclusive"
    assert comparison.needed is not None
    assert comparison.needed.repeats is not None
    assert 3 < comparison.needed.repeats <= 20
    assert f"{comparison.needed.repeats} repeats of each run" in comparison.reason


def test_the_repeats_that_would_do_are_enough_when_they_are_there():
    noisy = {"noise": 0.02, "run_noise": 0.025}
    few = only(compare(made_up(seed=1, **noisy), made_up("new", seed=2, **noisy), "tpot_s:+5%"))
    assert few.needed is not None
    assert few.needed.repeats is not None
    enough = {**noisy, "num_repeats": few.needed.repeats}
    many = only(compare(made_up(seed=1, **enough), made_up("new", seed=2, **enough), "tpot_s:+5%"))
    assert many.verdict == "same"


def test_more_prompts_would_do_where_only_prompts_vary():
    varied = {"num_repeats": 1, "step_noise": 0.3}
    comparison = only(
        compare(made_up("a", seed=1, **varied), made_up("b", seed=2, **varied), "acceptance_length:-1%")
    )
    assert comparison.verdict == "inconclusive"
    assert comparison.needed is not None
    assert comparison.needed.repeats is None
    assert comparison.needed.prompts is not None
    assert comparison.needed.prompts > 16


def test_what_cannot_be_compared_is_incomparable():
    comparison = only(
        compare(made_up(), made_up("new", workload={"temperature": 0.5}), "acceptance_length:-2%")
    )
    assert comparison.verdict == "incomparable"
    assert comparison.reason.startswith("temperature differs: 0.0 in the base, 0.5 in the new run")


# --- counted exactly


def test_a_count_that_repeats_alike_is_compared_exactly():
    comparison = only(compare(made_up(), made_up("new", acceptance=2.9), "acceptance_length:-2%"))
    assert comparison.verdict == "worse"
    assert comparison.basis == "exact"
    assert comparison.relative == comparison.low == comparison.high


def test_an_exact_change_below_the_minimum_effect_is_the_same():
    comparison = only(compare(made_up(), made_up("new", acceptance=2.97), "acceptance_length:-2%"))
    assert comparison.verdict == "same"
    assert -0.02 < (comparison.relative or 0) < 0


def test_a_count_that_varies_between_repeats_has_an_interval():
    comparison = only(
        compare(
            made_up(seed=1, step_noise=0.03), made_up("new", seed=2, step_noise=0.03), "acceptance_length:-5%"
        )
    )
    assert comparison.verdict == "same"
    assert comparison.basis == "prompts"
    assert comparison.low is not None
    assert comparison.low < 0


def test_times_are_never_compared_exactly():
    comparison = only(compare(made_up(), made_up("new", step_ms=32.0), "tpot_s:+5%"))
    assert comparison.basis == "prompts and repeats"


# --- one repeat


@pytest.mark.parametrize(
    ("step_ms", "verdict"), [(30.0, "same"), (31.8, "inconclusive"), (36.0, "worse"), (24.0, "better")]
)
def test_one_repeat_needs_the_whole_interval_beyond_the_minimum_effect(step_ms, verdict):
    one = {"num_repeats": 1, "noise": 0.02}
    comparison = only(
        compare(made_up(seed=1, **one), made_up("new", seed=2, step_ms=step_ms, **one), "tpot_s:+5%")
    )
    assert comparison.verdict == verdict
    assert "the interval covers prompts and not the spread between runs" in comparison.reason
    assert comparison.basis == "prompts"


def test_one_value_of_each_run_has_no_spread():
    one = {"num_repeats": 1}
    comparison = only(compare(made_up(**one), made_up("new", step_ms=60.0, **one), "tpot_s_p99:+5%"))
    assert comparison.verdict == "inconclusive"
    assert "3 repeats" in comparison.reason


def test_nothing_is_concluded_from_fewer_than_five_prompts():
    few = {"num_prompts": 4, "noise": 0.001}
    comparison = only(
        compare(made_up(seed=1, **few), made_up("new", seed=2, step_ms=60.0, **few), "tpot_s:+5%")
    )
    assert comparison.verdict == "inconclusive"
    assert "over 4 prompts: nothing is concluded from fewer than 5" in comparison.reason
    assert comparison.needed is not None
    assert comparison.needed.prompts == 5


def test_a_percentile_is_judged_by_its_repeats():
    comparison = only(compare(times(1), times(2, step_ms=36.0), "tpot_s_p90:+5%"))
    assert comparison.verdict == "worse"
    assert comparison.basis == "repeats"


# --- limits


@pytest.mark.parametrize(
    ("gate", "changes", "verdict"),
    [
        ("agreement:<0.9", {}, "same"),
        ("agreement:<0.9", {"num_differing": 2}, "worse"),
        ("error_rate:>0", {}, "same"),
        ("error_rate:>0", {"num_failed": 1}, "worse"),
        ("acceptance_length:<2", {}, "same"),
        ("acceptance_length:<4", {}, "worse"),
        ("outputs_unchanged:<1", {}, "same"),
        ("outputs_unchanged:<1", {"num_differing": 1}, "worse"),
        ("tpot_s:>0.001", {}, "worse"),
        ("tpot_s:>1", {}, "same"),
    ],
)
def test_a_limit_is_held_against_the_new_value(gate, changes, verdict):
    assert only(compare(made_up(), made_up("new", **changes), gate)).verdict == verdict


def test_a_limit_inside_the_interval_of_a_time_is_inconclusive():
    new = times(2, run_noise=0.02)
    value = only(compare(times(1), new, "tpot_s:>1")).new
    assert value is not None
    comparison = only(compare(times(1), new, f"tpot_s:>{value * 0.999:.6f}"))
    assert comparison.verdict == "inconclusive"
    assert "includes that limit" in comparison.reason


# --- several


def test_several_comparisons_are_corrected_together():
    one = compare(times(1), times(2, step_ms=33.0), "tpot_s:+5%", only_dflash := "decode_step_s:+5%")
    alone = compare(times(1), times(2, step_ms=33.0), only_dflash)
    assert (one.num_tested, alone.num_tested) == (4, 2)
    wide, narrow = (
        next(
            item
            for item in report.comparisons
            if item.gate.text == only_dflash and item.pair.cell.arm.name == arm
        )
        for report, arm in ((one, "baseline"), (alone, "baseline"))
    )
    assert wide.high is not None
    assert narrow.high is not None
    assert wide.p_value == pytest.approx(narrow.p_value)
    assert wide.high - (wide.low or 0) >= narrow.high - (narrow.low or 0)


def test_what_does_not_apply_is_left_out():
    report = compare(made_up(), made_up("new"), "speedup:-5%", "acceptance_length:-2%", "agreement:<0.99")
    assert {item.pair.cell.arm.name for item in report.comparisons} == {"dflash"}


def test_sampled_outputs_are_not_held_to_agree():
    sampled = {"workload": {"temperature": 1.0}}
    report = compare(made_up(**sampled), made_up("new", num_differing=3, **sampled), "agreement:<0.99")
    assert report.comparisons == ()
    assert report.exit_code == 5


def test_turns_that_failed_in_one_repeat_are_left_out_of_both_runs():
    report = compare(made_up(), made_up("new", num_failed=4), "acceptance_length:-2%")
    comparison = only(report)
    assert (comparison.num_prompts, comparison.num_left_out) == (12, 4)
    assert comparison.relative == 0
    assert any("left out of dflash B=8 on gsm8k: 4 turns" in note for note in report.notes)


def test_a_reason_for_a_speed_says_which_factor_it_was():
    comparison = only(compare(made_up(), made_up("new", acceptance=2.5), "tpot_s:+5%"))
    assert comparison.verdict == "worse"
    assert "the draft got worse" in comparison.reason
    assert "step time 0 %" in comparison.reason


@pytest.mark.parametrize(
    ("gates", "new", "strict", "code"),
    [
        (["tpot_s:+5%"], {}, False, 0),
        (["tpot_s:+5%"], {"step_ms": 40.0}, False, 1),
        (["tpot_s:+5%"], {"step_ms": 20.0}, False, 0),
        (["tpot_s:+5%"], {"run_noise": 0.2}, False, 0),
        (["tpot_s:+5%"], {"run_noise": 0.2}, True, 1),
        (["tpot_s:+5%"], {"workload": {"seed": 9}}, False, 5),
        (["speedup:-5%", "tpot_s:+5%"], {"step_ms": 40.0, "environment": {"machine": {}}}, False, 5),
    ],
)
def test_exit_codes(gates, new, strict, code):
    report = compare(made_up(), made_up("new", seed=5, **new), *gates, strict=strict)
    assert report.exit_code == code


@pytest.mark.parametrize(
    ("new", "gate", "reason"),
    [
        ({"num_failed": 16}, "acceptance_length:-2%", "no prompt completed in every repeat of both runs"),
        (
            {"num_failed": 16, "num_repeats": 1},
            "acceptance_length:-2%",
            "acceptance_length was not measured in the new run (it is 3.",
        ),
    ],
)
def test_what_was_not_measured_is_said(new, gate, reason):
    comparison = only(compare(made_up(), made_up("new", **new), gate))
    assert comparison.verdict == "incomparable"
    assert comparison.reason.startswith(reason)


def test_a_share_of_nothing_has_no_relative_change():
    report = compare(made_up(num_differing=16), made_up("new", num_differing=8), "agreement:-5%")
    assert only(report).reason.startswith("agreement is 0 in the base")


def test_every_field_that_differs_is_named():
    comparison = only(compare(made_up(), made_up("new", workload={"seed": 3, "top_k": 9}), "tpot_s:+5%"))
    assert comparison.reason.startswith(
        "top_k differs: n/a in the base, 9 in the new run; also: seed (--allow top_k "
    )


def test_a_cell_that_the_new_run_lacks_is_incomparable():
    base, new = made_up(), made_up("new")
    new = type(new)(
        new.folder, type(new.info)(**{**_fields(new.info), "cells": new.info.cells[:1]}), new.records
    )
    report = compare(base, new, "tpot_s:+5%")
    assert only(report).reason == "the new run lacks this cell"
    assert report.exit_code == 5


def _fields(info):
    return {name: getattr(info, name) for name in info.__slots__}
