"""What must be known before the numbers: how a run ended, and its notes, wherever they are printed."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_run import made_up_run

from dflash.results.document import json_document
from dflash.results.markdown import render_report
from dflash.results.run_notes import how_it_ended, notes_of
from dflash.results.store import Run
from dflash.results.summary import summarise_run
from dflash.results.tables import print_summary

SIMULATED = "Every time and token of this run is simulated: it says nothing about a real model."
FEWER = (
    "asked for 128 prompts, the set has 8, and so on in words that are too many for one line of a terminal"
)
REPEAT = "repeat: 8 prompts make 12 requests"
OWN = "history=own: later turns follow this arm's own answers"


def printed(run: Run) -> str:
    stream = io.StringIO()
    print_summary(run, summarise_run(run), stream)
    return stream.getvalue()


def noted_run() -> Run:
    """Two data sets; a note in all cells, one in the cells of a set, one in an arm."""
    runs = [made_up_run(dataset=name, block_sizes=(2,), step_ms=(300,)) for name in ("gsm8k", "mt-bench")]
    cells = [replace(cell, notes=(REPEAT,)) for run in runs for cell in run.info.cells]
    cells[2:] = [replace(cell, notes=(*cell.notes, "of the set")) for cell in cells[2:]]
    cells[3] = replace(cells[3], notes=(*cells[3].notes, OWN, FEWER))
    info = replace(runs[0].info, cells=tuple(cells), notes=(FEWER, SIMULATED))
    return replace(runs[0], info=info, records=sum((run.records for run in runs), ()))


def test_every_note_stands_once_with_the_cells_that_it_is_of():
    run = noted_run()
    assert [note.words for note in notes_of(run.info, summarise_run(run))] == [
        SIMULATED,
        FEWER,
        REPEAT,
        "mt-bench · simulated · concurrency 1: of the set",
        f"mt-bench · simulated · concurrency 1, dflash B=2: {OWN}",
    ]


def test_in_a_run_of_one_group_an_arm_is_named_alone():
    run = made_up_run(block_sizes=(2, 3))
    cells = tuple(replace(cell, notes=() if cell.arm.is_baseline else (OWN,)) for cell in run.info.cells)
    run = replace(run, info=replace(run.info, cells=cells))
    (note,) = notes_of(run.info, summarise_run(run))
    assert note.words == f"dflash B=2, dflash B=3: {OWN}"


def test_notes_are_in_the_terminal_once_wrapped_and_before_the_findings():
    text = printed(noted_run())
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    for note in (SIMULATED, FEWER, REPEAT, OWN, "of the set"):
        assert words.count(note) == 1
        assert words.index(note) < words.index("warning dflash B=2: Drafting is slower")
    assert words.count("note ") == 5
    assert words.index(SIMULATED) < words.index("Plain decoding is fastest")


def test_a_run_without_notes_prints_none():
    assert "note" not in printed(made_up_run())


def test_the_simulated_engine_is_named_above_the_verdict_of_the_report_and_other_notes_below():
    run = noted_run()
    report = render_report(run, summarise_run(run))
    verdict = report.index("**Over 2 data sets")
    assert report.index(SIMULATED) < verdict < report.index(FEWER) < report.index("## ")
    assert report.count(FEWER) == report.count(SIMULATED) == 1


def test_the_document_carries_the_notes_of_the_run_and_of_every_cell():
    run = noted_run()
    document = json_document(run, summarise_run(run), 0)
    assert document["notes"] == [FEWER, SIMULATED]
    assert [cell["notes"] for cell in document["cells"]] == [list(cell.notes) for cell in run.info.cells]
    assert json_document(made_up_run(), summarise_run(made_up_run()), 0)["notes"] == []


# --- how it ended


def cut_run(status: str, reason: str | None, num_run: int = 5, **config: object) -> Run:
    """8 prompts, of which the baseline ran one more than the arm."""
    run = made_up_run(Path("reports/cut"), block_sizes=(2,))
    kept = tuple(
        record
        for record in run.records
        if int(record.prompt_id.rpartition("/")[2]) < num_run + (record.cell_id == "quickstart-baseline")
    )
    cells = tuple(replace(cell, status=status, reason=reason) for cell in run.info.cells)
    info = replace(run.info, cells=cells, config={**run.info.config, **config})
    return replace(run, info=info, records=kept)


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        ("interrupted", "interrupted by SIGINT", "Interrupted by SIGINT after 5 of 8 prompts"),
        ("failed", "OSError: gone", "Failed after 5 of 8 prompts (OSError: gone)"),
        ("running", None, "Not ended after 5 of 8 prompts (its process was killed, or is still at work)"),
    ],
)
def test_a_cut_run_says_so_first(status, reason, words):
    run = cut_run(status, reason)
    sentence = f"{words}: the figures cover what was measured."
    report = render_report(run, summarise_run(run))
    assert report.startswith(f"# cut\n\n**{sentence}**\n")
    assert " ".join(printed(run).split()).startswith(sentence)


def test_a_complete_run_says_nothing_of_its_end():
    run = made_up_run()
    assert how_it_ended(run.info, summarise_run(run)) is None


def test_repeats_are_counted_where_prompts_are_run_more_than_once():
    run = cut_run("interrupted", None, repeats=3)
    again = tuple(replace(record, repeat=1) for record in run.records[:3])
    run = replace(run, records=(*run.records, *again))
    assert "after 5 of 24 prompts, repeats counted:" in how_it_ended(run.info, summarise_run(run))
    run = cut_run("interrupted", None, repeat=True, num_prompts=20)
    assert "after 5 of 20 prompts, repeats counted:" in how_it_ended(run.info, summarise_run(run))


def test_the_groups_of_a_run_are_counted_together():
    run = noted_run()
    cells = tuple(
        replace(cell, status="interrupted" if cell.workload.dataset == "mt-bench" else cell.status)
        for cell in run.info.cells
    )
    run = replace(run, info=replace(run.info, cells=cells), records=run.records[:20])
    assert how_it_ended(run.info, summarise_run(run)).startswith("Interrupted after 8 of 16 prompts")


def test_an_arm_whose_server_was_never_started_is_named():
    run = made_up_run(block_sizes=(2,))
    baseline = tuple(cell for cell in run.info.cells if cell.arm.is_baseline)
    config = {"serve": True, "arms": ["baseline", "dflash"]}
    run = replace(run, info=replace(run.info, cells=baseline, config=config))
    words = how_it_ended(run.info, summarise_run(run))
    assert words == "Not complete, as nothing was run of dflash: the figures cover what was measured."
    plain = replace(run.info, config={**config, "serve": False})
    assert how_it_ended(plain, summarise_run(run)) is None
