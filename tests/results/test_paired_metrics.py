from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_run import drafted_record, plain_record

from dflash.results import acceptance_metrics, metrics, paired_metrics
from dflash.results.paired_metrics import pair_units
from dflash.results.records import RequestRecord


def test_speedup_is_a_ratio_of_pooled_times_not_a_mean_of_request_speeds():
    baseline = [plain_record("b", 0, 11, 100), plain_record("b", 1, 101, 100)]
    arm = [plain_record("a", 0, 11, 10), plain_record("a", 1, 101, 100)]
    pairing = pair_units(baseline, arm)
    assert paired_metrics.speedup(pairing) == pytest.approx(11.0 / 10.1)
    mean_of_requests = (10 + 1) / 2
    assert paired_metrics.speedup(pairing) != pytest.approx(mean_of_requests, rel=0.5)


def test_speedup_divides_each_arm_by_its_own_decode_tokens():
    baseline = [plain_record("b", 0, 101, 100)]
    arm = [plain_record("a", 0, 51, 50)]
    assert paired_metrics.speedup(pair_units(baseline, arm)) == pytest.approx(2.0)
    assert paired_metrics.output_length_ratio(pair_units(baseline, arm)) == pytest.approx(51 / 101)


def test_only_requests_completed_in_both_arms_are_paired_and_the_rest_are_counted():
    baseline = [plain_record("b", i, 11) for i in range(5)]
    arm = [
        plain_record("a", 0, 11, 50),
        plain_record("a", 1, 11, 1, finish_reason="error"),
        plain_record("a", 2, 11, 1, finish_reason="cancelled"),
        plain_record("a", 3, 1, 1),
        plain_record("a", 9, 11, 1),
    ]
    pairing = pair_units(baseline, arm)
    assert paired_metrics.speedup(pairing) == pytest.approx(2.0)
    assert [pair[0].prompt_id for pair in pairing.pairs] == ["quickstart/0"]
    assert dict(pairing.left_out) == {
        "failed in the arm": 1,
        "cancelled in the arm": 1,
        "no decode token in the arm": 1,
        "not run in the arm": 1,
        "not run in the baseline": 1,
    }


def test_turns_and_repeats_pair_with_their_like():
    baseline = [plain_record("b", 0, 11, 100, turn=t, repeat=r) for t in (0, 1) for r in (0, 1)]
    arm = [plain_record("a", 0, 11, 50 * (1 + t), turn=t, repeat=r) for r in (1, 0) for t in (1, 0)]
    pairing = pair_units(baseline, arm)
    assert len(pairing.pairs) == 4
    assert all(first.unit == second.unit for first, second in pairing.pairs)
    assert len(paired_metrics.pooled_speedup(pairing).sums) == 1  # one prompt


def test_unlike_prompts_are_refused():
    baseline = [plain_record("b", i, 11) for i in range(3)]
    arm = [plain_record("a", i, 11, prompt_digest="other" if i == 1 else f"prompt-{i}") for i in range(3)]
    pairing = pair_units(baseline, arm)
    assert pairing.unlike_prompts == (("quickstart/1", 0, 0),)
    assert pairing.pairs == ()
    assert paired_metrics.speedup(pairing) is None
    assert paired_metrics.agreement(pairing) is None


def test_end_to_end_speedup_contains_the_prefill():
    baseline = [plain_record("b", 0, 11, 100)]
    arm = [plain_record("a", 0, 11, 50)]
    assert paired_metrics.e2el_speedup(pair_units(baseline, arm)) == pytest.approx(1.04 / 0.54)


def test_throughput_speedup():
    baseline = [plain_record("b", i, 11, 100) for i in range(6)]
    arm = [plain_record("a", i, 11, 50) for i in range(6)]
    expected = metrics.output_tok_s(arm) / metrics.output_tok_s(baseline)
    assert paired_metrics.throughput_speedup(baseline, arm) == pytest.approx(expected)
    assert paired_metrics.pooled_throughput_speedup(baseline, arm).value() == pytest.approx(expected)
    assert paired_metrics.throughput_speedup(baseline, arm, 4.0, 1.0) == pytest.approx(4.0)
    assert paired_metrics.throughput_speedup([], arm) is None


def test_the_papers_form_divides_by_all_tokens_and_averages_requests():
    baseline = [plain_record("b", 0, 11, 100), plain_record("b", 1, 101, 100)]
    arm = [plain_record("a", 0, 11, 10), plain_record("a", 1, 101, 100)]
    expected = ((1.0 / 11) + (10.0 / 101)) / ((0.1 / 11) + (10.0 / 101))
    assert paired_metrics.speedup_mean_tpot(pair_units(baseline, arm)) == pytest.approx(expected)


def test_break_even_times_speedup_is_the_acceptance_length():
    accepted = (2, 0, 1, 2)
    arm = [drafted_record("a", 0, accepted, 3, 120)]
    baseline = [plain_record("b", 0, arm[0].num_output_tokens, 100)]
    pairing = pair_units(baseline, arm)
    assert paired_metrics.break_even_acceptance_length(pairing) == pytest.approx(1.2)
    length = paired_metrics.speedup(pairing) * paired_metrics.break_even_acceptance_length(pairing)
    assert length == pytest.approx(acceptance_metrics.acceptance_length(arm))


def test_agreement_is_a_share_of_prompts():
    baseline = [plain_record("b", i, 11, turn=turn) for i in range(4) for turn in (0, 1)]
    arm = [replace(record, cell_id="a") for record in baseline]
    assert paired_metrics.agreement(pair_units(baseline, arm)) == 1.0
    arm[3] = replace(arm[3], output_digest="other")  # the second turn of one prompt
    assert paired_metrics.agreement(pair_units(baseline, arm)) == 0.75


def test_agreement_without_digests_is_unknown():
    baseline = [plain_record("b", i, 11, output_digest=None) for i in range(4)]
    assert paired_metrics.agreement(pair_units(baseline, baseline)) is None
    assert paired_metrics.speedup_agreeing(pair_units(baseline, baseline)) is None


def test_a_one_token_output_can_disagree():
    baseline = [plain_record("b", 0, 1)]
    arm = [plain_record("a", 0, 1, output_digest="other")]
    pairing = pair_units(baseline, arm)
    assert paired_metrics.agreement(pairing) == 0.0
    assert paired_metrics.speedup(pairing) is None


def test_speedup_over_agreeing_prompts_alone():
    baseline = [plain_record("b", i, 11, 100) for i in range(3)]
    arm = [
        plain_record("a", 0, 11, 50),
        plain_record("a", 1, 11, 50),
        plain_record("a", 2, 11, 10, output_digest="x"),
    ]
    pairing = pair_units(baseline, arm)
    assert paired_metrics.speedup_agreeing(pairing) == pytest.approx(2.0)
    assert paired_metrics.speedup(pairing) > 2.0


PAIRED = [
    paired_metrics.speedup,
    paired_metrics.speedup_agreeing,
    paired_metrics.e2el_speedup,
    paired_metrics.speedup_mean_tpot,
    paired_metrics.break_even_acceptance_length,
    paired_metrics.output_length_ratio,
    paired_metrics.agreement,
]


@pytest.mark.parametrize("metric", PAIRED, ids=lambda metric: metric.__name__)
def test_what_was_not_measured_is_none(metric):
    unmeasured = [RequestRecord("c", "p", finish_reason="stop")]
    assert metric(pair_units([], [])) is None
    assert metric(pair_units(unmeasured, unmeasured)) is None


def test_prompts_of_unlike_lengths_are_refused_where_their_tokens_are_not_told():
    untold = {"prompt_digest": None}
    baseline = [plain_record("b", i, 11, num_prompt_tokens=10, **untold) for i in range(3)]
    arm = [plain_record("a", i, 11, num_prompt_tokens=300 if i == 1 else 10, **untold) for i in range(3)]
    pairing = pair_units(baseline, arm)
    assert pairing.is_refused
    assert pairing.unlike_prompts == (("quickstart/1", 0, 0),)
    arm = [replace(record, num_prompt_tokens=None) for record in arm]
    assert not pair_units(baseline, arm).is_refused
