"""What a run's first sentence may claim: nothing without an interval, and no rank where one arm drafts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up_run import made_up_run

from dflash.results.store import Run
from dflash.results.summary import summarise_run
from dflash.results.verdicts import average_line, clear_words, headline, overall

VERDICTS = ("fastest", "faster", "slower", "gained")


def verdict(**changes: object) -> str:
    (group,) = summarise_run(made_up_run(**changes)).groups
    return headline(group)


def several(names: tuple[str, ...], **changes: object) -> Run:
    """One run over several data sets."""
    runs = [made_up_run(dataset=name, seed=seed, **changes) for seed, name in enumerate(names)]
    info = replace(runs[0].info, cells=sum((run.info.cells for run in runs), ()))
    return replace(runs[0], info=info, records=sum((run.records for run in runs), ()))


@pytest.mark.parametrize("block_sizes", [(3,), (2, 3)])
@pytest.mark.parametrize("num_prompts", [1, 4])
@pytest.mark.parametrize("step_ms", [40, 400])
def test_without_an_interval_there_is_no_verdict_either_way(block_sizes, num_prompts, step_ms):
    run = made_up_run(block_sizes=block_sizes, num_prompts=num_prompts, step_ms=(step_ms,) * len(block_sizes))
    (group,) = summarise_run(run).groups
    words = headline(group)
    best = max(cell.number("speedup") for cell in group.cells[1:])
    assert f"{best:.2f} times as fast as plain decoding over {num_prompts} prompt" in words
    assert words.endswith(
        "too few prompts for an interval (5 or more give one), so nothing can be concluded."
    )
    assert not [word for word in VERDICTS if word in words]
    assert group.fastest_cell_id is None
    findings = [finding for cell in group.cells for finding in cell.findings]
    assert {"few_prompts"} == {finding.code for finding in findings} & {
        "few_prompts",
        "slower_than_baseline",
        "slower_end_to_end",
        "speedup_not_clear",
    }


def test_one_drafting_arm_is_compared_with_plain_decoding_and_ranked_with_nothing():
    words = verdict(block_sizes=(2,), step_ms=(60,))
    assert words.startswith("dflash B=2 decodes 2.")
    assert "times as fast as plain decoding [" in words
    assert "fastest" not in words


def test_of_several_arms_the_fastest_is_named():
    words = verdict(step_ms=(60, 110))
    assert words.startswith("dflash B=2 is fastest: it decodes")
    assert words.endswith("over 8 prompts.")


def test_plain_decoding_wins_where_every_interval_is_below_one():
    assert verdict(block_sizes=(2,), step_ms=(300,)).startswith(
        "Plain decoding is fastest: dflash B=2 decodes 0."
    )
    words = verdict(step_ms=(300, 400))
    assert words.startswith("Plain decoding is fastest: no arm beats it; the best, dflash B=2, decodes 0.")
    assert words.endswith("Here drafting makes this model slower.")


@pytest.mark.parametrize(("step_ms", "above"), [(170, True), (200, False)])
def test_an_interval_that_includes_one_tells_nothing_apart(step_ms, above):
    (group,) = summarise_run(made_up_run(block_sizes=(8,), step_ms=(step_ms,))).groups
    interval = group.cells[1].interval("speedup")
    assert interval.low < 1 <= interval.high
    assert (interval.value > 1) == above
    words = headline(group)
    assert words.endswith("the interval includes 1, so the two cannot be told apart.")
    assert not [word for word in VERDICTS if word in words]
    assert group.fastest_cell_id is None


def test_requests_and_prompts_are_told_apart():
    run = made_up_run(num_prompts=4, block_sizes=(2,))
    second = tuple(replace(record, turn=1) for record in run.records)
    (group,) = summarise_run(replace(run, records=(*run.records, *second))).groups
    assert "over 8 paired requests of 4 prompts" in headline(group)


def test_arms_without_a_baseline_are_ranked_only_where_their_intervals_are_apart():
    def of(step_ms: tuple[int, int]) -> str:
        run = made_up_run(step_ms=step_ms)
        cells = tuple(cell for cell in run.info.cells if not cell.arm.is_baseline)
        (group,) = summarise_run(replace(run, info=replace(run.info, cells=cells))).groups
        return headline(group)

    assert "dflash B=2 decodes fastest, at " in of((50, 200))
    assert "decodes fastest" not in of((126, 135))


# --- over several data sets


def test_the_overall_verdict_counts_data_sets_by_their_intervals():
    run = several(("gsm8k", "math500", "mt-bench"), block_sizes=(2,), step_ms=(60,))
    summary = summarise_run(run)
    (words,) = overall(summary)
    (average,) = summary.averages
    assert f"Over 3 data sets dflash B=2 decodes {average.speedup:.2f} times as fast" in words
    assert words.endswith("clearly faster on all.")
    speedups = sorted((cell.number("speedup"), cell.cell.workload.dataset) for cell in summary.cells[1::2])
    for value, dataset in (speedups[0], speedups[-1]):
        assert f"{value:.2f}x ({dataset})" in words


def test_without_any_interval_nothing_is_concluded_over_data_sets_either():
    summary = summarise_run(several(("gsm8k", "mt-bench"), num_prompts=3, step_ms=(60, 70)))
    (words,) = overall(summary)
    assert "the highest of 2 arms" in words
    assert words.endswith("so nothing can be concluded.")
    assert clear_words(summary.averages[0]) == "without an interval on all"


def test_data_sets_without_a_speedup_are_named():
    run = several(("gsm8k", "mt-bench"), block_sizes=(2,))
    records = tuple(
        replace(record, finish_reason="error") if record.cell_id == "mt-bench-b2" else record
        for record in run.records
    )
    summary = summarise_run(replace(run, records=records))
    (words,) = overall(summary)
    assert "no average speedup of dflash B=2: none is known on mt-bench" in words
    assert "speedup n/a" in average_line(summary.averages[0])


def test_one_data_set_has_no_overall_verdict():
    assert overall(summarise_run(made_up_run())) == []
