from __future__ import annotations

from dataclasses import replace

import pytest
from edge_runs import EDGE_RUNS
from made_up_run import made_up_run

from dflash.results import acceptance_metrics, metrics, paired_metrics
from dflash.results.breakdowns import PROMPT_LENGTH_BUCKETS, prompt_length_bucket
from dflash.results.document import json_document
from dflash.results.markdown import render_report
from dflash.results.paired_metrics import pair_units
from dflash.results.store import Run
from dflash.results.summary import CellSummary, summarise_run

LENGTHS = (100, 127, 128, 600, 3000, 9000, 40_000, None)


def with_lengths(run: Run, lengths=LENGTHS) -> Run:
    """The prompt lengths by the number of the prompt."""
    return replace(
        run,
        records=tuple(
            replace(record, num_prompt_tokens=lengths[int(record.prompt_id.rpartition("/")[2])])
            for record in run.records
        ),
    )


def with_turns(run: Run) -> Run:
    """A second turn whose steps take twice as long."""
    second = tuple(
        replace(
            record,
            turn=1,
            last_ns=2 * record.last_ns - record.first_ns,
            prompt_digest=f"{record.prompt_digest}-1",
            num_prompt_tokens=200,
        )
        for record in run.records
    )
    return replace(run, records=(*run.records, *second))


def arm_of(run: Run) -> CellSummary:
    return next(cell for cell in summarise_run(run).cells if cell.cell.cell_id == "quickstart-b2")


def section(run: Run, heading: str) -> str:
    report = render_report(run, summarise_run(run))
    return report.split(f"## {heading}\n")[1].split("\n## ")[0].strip()


@pytest.mark.parametrize(
    ("num_tokens", "bucket"),
    [
        (0, "below 128"),
        (127, "below 128"),
        (128, "128-511"),
        (511, "128-511"),
        (512, "512-2047"),
        (2048, "2048-8191"),
        (8191, "2048-8191"),
        (8192, "8192-32767"),
        (32767, "8192-32767"),
        (32768, "32768 and more"),
        (10**7, "32768 and more"),
    ],
)
def test_buckets_are_half_open(num_tokens, bucket):
    assert prompt_length_bucket(num_tokens) == bucket
    assert bucket in PROMPT_LENGTH_BUCKETS
    assert len(PROMPT_LENGTH_BUCKETS) == 6


def test_a_bucket_holds_the_metrics_of_its_requests_alone():
    run = with_lengths(made_up_run())
    arm = arm_of(run)
    parts = {part.name: part for part in arm.breakdowns.prompt_lengths}
    assert list(parts) == list(PROMPT_LENGTH_BUCKETS)
    assert [part.num_completed for part in parts.values()] == [2, 1, 1, 1, 1, 1]
    assert arm.breakdowns.num_unknown_lengths == 1
    short = [record for record in arm.records if (record.num_prompt_tokens or 128) < 128]
    baseline = [
        record
        for record in run.records
        if record.cell_id == "quickstart-baseline" and (record.num_prompt_tokens or 128) < 128
    ]
    part = parts["below 128"]
    assert part.number("decode_tok_s") == metrics.decode_tok_s(short)
    assert part.number("acceptance_length") == acceptance_metrics.acceptance_length(short)
    assert part.number("ttft_s") == metrics.ttft_s(short)
    assert part.number("speedup") == paired_metrics.speedup(pair_units(baseline, short))


def test_one_bucket_is_nothing_to_tell_apart():
    run = made_up_run()
    assert arm_of(run).breakdowns.prompt_lengths == ()
    assert section(run, "By prompt length") == "The prompts are all in one bucket: below 128 tokens."
    unknown = with_lengths(run, (None,) * 8)
    assert arm_of(unknown).breakdowns.num_unknown_lengths == 8
    assert section(unknown, "By prompt length") == "No prompt length is known."


def test_a_length_that_one_arm_alone_knows_places_both():
    run = with_lengths(made_up_run(), (100, 200) * 4)
    silent = tuple(
        replace(record, num_prompt_tokens=None) if record.cell_id == "quickstart-baseline" else record
        for record in run.records
    )
    parts = arm_of(replace(run, records=silent)).breakdowns.prompt_lengths
    assert [part.number("num_pairs") for part in parts] == [4, 4]


def test_requests_of_unknown_length_are_said_in_the_report():
    body = section(with_lengths(made_up_run()), "By prompt length")
    assert "**dflash B=2**: completed requests in no bucket, as their prompt length is not known: 1." in body
    rows = [line.split("|")[1].strip() for line in body.splitlines() if "dflash B=2 |" in line]
    assert rows == list(PROMPT_LENGTH_BUCKETS)


def test_turns_are_told_apart():
    arm = arm_of(with_turns(made_up_run()))
    assert [part.name for part in arm.breakdowns.turns] == ["0", "1"]
    first, second = (part.number("decode_tok_s") for part in arm.breakdowns.turns)
    assert first == pytest.approx(2 * second)
    assert [part.name for part in arm.breakdowns.prompt_lengths] == ["below 128", "128-511"]
    assert arm_of(made_up_run()).breakdowns.turns == ()


def test_rows_stand_turn_by_turn_and_arm_by_arm():
    rows = [
        [cell.strip() for cell in line.split("|")[1:3]]
        for line in section(with_turns(made_up_run()), "By turn").splitlines()[2:]
    ]
    assert rows == [["0", "dflash B=2"], ["0", "dflash B=3"], ["1", "dflash B=2"], ["1", "dflash B=3"]]


def test_a_refusal_in_one_turn_leaves_no_paired_number_in_any_part():
    run = with_turns(made_up_run())
    records = tuple(
        replace(record, prompt_digest="another history")
        if record.cell_id == "quickstart-b2" and record.unit == ("quickstart/3", 1, 0)
        else record
        for record in run.records
    )
    arm = arm_of(replace(run, records=records))
    parts = arm.breakdowns
    assert all(part.number("speedup") is None for part in (*parts.categories, *parts.turns))
    assert all(part.number("acceptance_length") for part in parts.turns)


def test_a_baseline_alone_is_broken_down_too():
    run = EDGE_RUNS["baseline only"]
    assert "| chat | baseline |" in section(run, "By category")


def test_the_document_holds_every_part():
    run = with_turns(with_lengths(made_up_run()))
    document = json_document(run, summarise_run(run), 0)["cells"][1]
    assert [part["prompt_length"] for part in document["prompt_lengths"]] == list(PROMPT_LENGTH_BUCKETS)
    assert [part["turn"] for part in document["turns"]] == [0, 1]
    assert document["num_unknown_prompt_lengths"] == 1
    shown = {"num_completed", "decode_tok_s", "acceptance_length", "speedup", "ttft_s"}
    assert all(shown <= part.keys() for part in (*document["prompt_lengths"], *document["turns"]))
