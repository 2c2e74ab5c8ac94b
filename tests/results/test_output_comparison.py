from __future__ import annotations

from dataclasses import replace

from made_up_run import plain_record

from dflash.results import paired_metrics
from dflash.results.output_comparison import compare_outputs, differing_keys, read_outputs
from dflash.results.paired_metrics import pair_units
from dflash.results.records import DifferenceRecord, OutputRecord


def arms(*pairs):
    """(baseline ids, text, arm ids, text) of each prompt -> records of both arms, and their outputs."""
    baseline, arm, outputs = [], [], []
    for prompt, (ids, text, arm_ids, arm_text) in enumerate(pairs):
        for members, cell_id, found, words in ((baseline, "b", ids, text), (arm, "a", arm_ids, arm_text)):
            digest = f"ids {found}" if found is not None else None if words is None else f"text {words}"
            members.append(plain_record(cell_id, prompt, 5, output_digest=digest))
            outputs.append(OutputRecord(cell_id, f"quickstart/{prompt}", output_ids=found, text=words))
    return baseline, arm, outputs


def compared(*pairs, saved=True, known=()):
    baseline, arm, outputs = arms(*pairs)
    read = read_outputs(outputs if saved else [], {"a", "b"}, differing_keys(baseline, arm))
    return compare_outputs(baseline, arm, read, known)


def agreement(comparison):
    return paired_metrics.agreement(pair_units(comparison.baseline, comparison.arm))


def test_ids_on_both_sides_are_compared_as_ids():
    found = compared(((1, 2), "x", (1, 2), "x"), ((1, 2, 3), "same", (1, 4, 3), "same"))
    assert found.basis == {"ids": 2}
    assert agreement(found) == 0.5
    (difference,) = found.differences
    assert (difference.prompt_id, difference.position) == ("quickstart/1", 1)
    assert (difference.baseline_token_id, difference.arm_token_id, difference.logit_gap) == (2, 4, None)


def test_an_output_that_only_goes_on_differs_where_the_other_ends():
    (difference,) = compared(((1, 2), "x", (1, 2, 3), "xy")).differences
    assert (difference.position, difference.baseline_token_id, difference.arm_token_id) == (2, None, 3)


def test_a_difference_that_was_recorded_is_kept_as_it_is():
    known = DifferenceRecord("a", "quickstart/0", position=1, logit_gap=0.5)
    assert compared(((1, 2), "x", (1, 3), "y"), known=[known]).differences == (known,)


def test_texts_are_compared_where_no_side_has_ids():
    found = compared((None, "equal", None, "equal"), (None, "the cat sat", None, "the car sat"))
    assert found.basis == {"text": 2}
    assert agreement(found) == 0.5
    assert found.differences == ()
    (difference,) = found.text_differences
    assert (difference.position, difference.baseline_text, difference.arm_text) == (6, "t sat", "r sat")


def test_a_digest_of_ids_is_never_compared_with_one_of_text():
    found = compared(((1, 2), "equal", None, "equal"), ((1, 2), "one", None, "two"))
    assert found.basis == {"text": 2}
    assert agreement(found) == 0.5
    assert [item.prompt_id for item in found.text_differences] == ["quickstart/1"]


def test_ids_beside_an_unknown_text_are_not_compared_at_all():
    found = compared(((1, 2), None, None, "equal"))
    assert agreement(found) is None


def test_without_saved_outputs_nobody_knows_what_was_digested():
    found = compared(((1, 2), "x", (1, 2), "x"), saved=False)
    assert found.basis == {"unknown": 1}
    assert agreement(found) == 1.0


def test_only_outputs_that_differ_are_kept_in_full():
    baseline, arm, outputs = arms(((1, 2), "x", (1, 2), "x"), ((1, 2), "x", (1, 3), "y"))
    read = read_outputs(outputs, {"a", "b"}, differing_keys(baseline, arm))
    assert {key[:2] for key in read.differing} == {("b", "quickstart/1"), ("a", "quickstart/1")}
    assert len(read.has_ids) == 4


def test_requests_that_did_not_complete_are_not_compared():
    baseline, arm, _ = arms(((1, 2), "x", (1, 3), "y"))
    assert differing_keys(baseline, [replace(arm[0], finish_reason="error")]) == set()
