"""Naming an existing run goes on with it: nothing is measured twice, nothing unlike is mixed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_prompts import EXACT, made_up_prompts, run_simulated, use_made_up_prompts

import dflash.execution
from dflash.backends.scenario import Fault
from dflash.errors import UsageError
from dflash.results.store import Run, RunWriter, load_run


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    use_made_up_prompts(monkeypatch)


def test_other_reference_answers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is never scored anew by other answers without a word."""
    for answer, refused in (("18", False), ("18", False), ("999", True)):
        prompts = made_up_prompts(2)
        answered = replace(prompts, prompts=(replace(prompts.prompts[0], answer=answer), prompts.prompts[1]))
        monkeypatch.setattr(dflash.runner, "load_prompt_sets", lambda config, found=answered: (found,))
        if refused:
            with pytest.raises(UsageError, match="the reference answers of quickstart differ: "):
                run_simulated(tmp_path)
        else:
            assert run_simulated(tmp_path)[0].run.answers() == {"quickstart/0000": "18"}
    assert load_run(tmp_path / "run").answers() == {"quickstart/0000": "18"}


def test_more_prompts_of_a_scored_set_begin_new_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for num_prompts in (2, 3):
        prompts = made_up_prompts(num_prompts)
        answered = tuple(replace(prompt, answer=prompt.prompt_id[-1]) for prompt in prompts.prompts)
        found = replace(prompts, prompts=answered)
        monkeypatch.setattr(dflash.runner, "load_prompt_sets", lambda config, found=found: (found,))
        outcome, _ = run_simulated(tmp_path)
    assert cells_by_status(outcome.run) == {
        "retired": ["baseline", "dflash B=4"],
        "completed": ["baseline", "dflash B=4"],
    }
    assert all(
        "num_prompts differs" in (cell.reason or "num_prompts differs") for cell in outcome.run.info.cells
    )
    assert len(outcome.run.answers()) == 3


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first, _ = run_simulated(tmp_path)
    again, backend = run_simulated(tmp_path, num_warmup=None)
    assert backend.requests == [], "not even a warm-up"
    assert again.run.records == first.run.records
    assert [cell.status for cell in again.run.info.cells] == ["completed", "completed"]


@pytest.mark.parametrize("action", ["sigint", "crash"])
def test_a_partly_done_prompt_is_run_again_with_all_its_arms(tmp_path: Path, action: str) -> None:
    whole, _ = run_simulated(tmp_path / "whole")
    run_simulated(tmp_path, Fault(action, request=3))  # prompt 1: one arm done, the other not
    resumed, backend = run_simulated(tmp_path)
    assert [request.request_id.split(":")[0][-1] for request in backend.requests] == list("112233")
    assert resumed.error is None
    records = resumed.run.records
    assert [(record.prompt_id[-1], record.segment) for record in records] == [
        *[("0", 0)] * 2,
        *[("1", 1)] * 2,
        *[("2", 1)] * 2,
        *[("3", 1)] * 2,
    ]
    units = [(record.cell_id, record.unit) for record in records]
    assert len(set(units)) == len(units) == 8
    digests = [(record.cell_id, record.prompt_id, record.output_digest) for record in whole.run.records]
    assert [(record.cell_id, record.prompt_id, record.output_digest) for record in records] == digests
    assert len(list(resumed.run.outputs())) == len(list(resumed.run.chunks())) == 8
    assert [cell.status for cell in resumed.run.info.cells] == ["completed", "completed"]
    assert len(resumed.run.info.segments) == 2
    lines = (tmp_path / "run/records.jsonl").read_text().splitlines()
    assert len(lines) == 4 + 6, "superseded rows stay in the file"


def test_a_prompt_that_failed_is_tried_again(tmp_path: Path) -> None:
    failed, _ = run_simulated(tmp_path, Fault("error", request=4))
    assert failed.error is not None
    mended, backend = run_simulated(tmp_path)
    assert [request.request_id.split(":")[0][-1] for request in backend.requests] == list("22")
    assert mended.error is None
    assert all(record.completed for record in mended.run.records)
    assert len(mended.run.records) == 8


def test_an_interruption_of_the_second_attempt_supersedes_the_first(tmp_path: Path) -> None:
    run_simulated(tmp_path, Fault("sigint", request=3))
    outcome, _ = run_simulated(tmp_path, Fault("sigint", request=0))
    assert [(record.prompt_id[-1], record.finish_reason) for record in outcome.run.records] == [
        ("0", "stop"),
        ("0", "stop"),
        ("1", "cancelled"),
    ]


def test_a_turn_that_is_missing_runs_the_whole_conversation_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_made_up_prompts(monkeypatch, num_prompts=2, num_turns=2)
    run_simulated(tmp_path, Fault("sigint", request=6))  # prompt 1: turn 0 is done
    outcome, backend = run_simulated(tmp_path)
    assert [request.request_id.split(":")[1] for request in backend.requests] == ["0", "0", "1", "1"]
    assert len(outcome.run.records) == 8


def test_arms_data_sets_and_repeats_may_be_added(tmp_path: Path) -> None:
    run_simulated(tmp_path, arms=("baseline",))
    both, backend = run_simulated(tmp_path)
    assert len(backend.requests) == 8, "the arms of a prompt run back to back, so the baseline runs again"
    assert {record.segment for record in both.run.records} == {1}
    more, backend = run_simulated(tmp_path, datasets=("quickstart", "gsm8k"))
    assert len(backend.requests) == 8
    assert len(more.run.records) == 16
    repeated, backend = run_simulated(tmp_path, datasets=("quickstart", "gsm8k"), repeats=2)
    assert len(backend.requests) == 16
    assert len(repeated.run.records) == 32


def cells_by_status(run: Run) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for cell in run.info.cells:
        found.setdefault(cell.status, []).append(cell.arm.label)
    return found


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"temperature": 1.0}, "temperature differs: it was 0.0 and is now 1.0"),
        ({"max_new_tokens": 7}, "max_new_tokens differs: it was 128 and is now 7"),
        ({"reasoning": "on"}, "reasoning differs: it was 'off' and is now 'on'"),
        ({"seed": 1}, "seed differs: it was 0 and is now 1"),
        ({"temperature": 1.0, "seed": 1}, "temperature differs: it was 0.0 and is now 1.0; also seed"),
        ({"scenario": replace(EXACT, draft_step_ms=5.0)}, "target_revision differs"),
    ],
)
def test_another_identity_begins_new_cells_and_retires_the_earlier(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    first, _ = run_simulated(tmp_path)
    outcome, backend = run_simulated(tmp_path, **changed)
    assert outcome.error is None
    assert len(backend.requests) == 8, "nothing of the earlier cells counts as done"
    run = outcome.run
    assert cells_by_status(run) == {
        "retired": ["baseline", "dflash B=4"],
        "completed": ["baseline", "dflash B=4"],
    }
    for cell in run.info.cells:
        assert (cell.status == "retired") == (said in (cell.reason or ""))
    notes = [note for note in run.info.notes if said in note]
    assert len(notes) == 2
    assert all("a new cell begins, and the earlier one is kept, retired" in note for note in notes)
    assert run.records[:8] == first.run.records, "what was measured is all there"
    assert len(run.records) == 16


def test_a_retired_cell_takes_its_place_back_when_it_is_asked_for_again(tmp_path: Path) -> None:
    first, _ = run_simulated(tmp_path)
    run_simulated(tmp_path, temperature=1.0)
    again, backend = run_simulated(tmp_path)
    assert backend.requests == [], "its completed requests were kept"
    live = [cell for cell in again.run.info.cells if not cell.is_retired]
    assert [cell.cell_id for cell in live] == [cell.cell_id for cell in first.run.info.cells]
    assert [cell.status for cell in live] == ["completed", "completed"]
    assert cells_by_status(again.run)["retired"] == ["baseline", "dflash B=4"]
    assert any("takes its place again" in note for note in again.run.info.notes)
    assert len(again.run.records) == 16


def test_a_cell_that_measured_nothing_gives_way_without_a_trace(tmp_path: Path) -> None:
    run_simulated(tmp_path, Fault("sigint", request=0), datasets=("quickstart", "gsm8k"))
    outcome, _ = run_simulated(tmp_path, datasets=("quickstart", "gsm8k"), seed=1)
    datasets = [(cell.workload.dataset, cell.status) for cell in outcome.run.info.cells]
    assert datasets.count(("gsm8k", "completed")) == 2
    assert ("gsm8k", "retired") not in datasets, "its turn had not come"
    assert datasets.count(("quickstart", "retired")) == 1, "the arm of the cancelled request"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"block_sizes": (8,)}, "also holds dflash B=4 on quickstart, concurrency 1"),
        ({"arms": ("dflash",)}, "also holds baseline on quickstart"),
        ({"smoke": True}, "one prompt would retire the 4 of baseline on quickstart"),
    ],
)
def test_what_would_lose_measurements_is_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    run_simulated(tmp_path)
    before = {item.name: item.read_bytes() for item in (tmp_path / "run").iterdir()}
    with pytest.raises(UsageError, match=said):
        run_simulated(tmp_path, **changed)
    assert {item.name: item.read_bytes() for item in (tmp_path / "run").iterdir()} == before


def test_other_data_sets_stand_beside_those_that_are_there(tmp_path: Path) -> None:
    run_simulated(tmp_path)
    outcome, backend = run_simulated(tmp_path, datasets=("gsm8k",))
    assert len(backend.requests) == 8
    assert cells_by_status(outcome.run) == {"completed": ["baseline", "dflash B=4"] * 2}
    assert {dataset.name for dataset in outcome.run.info.datasets} == {"quickstart", "gsm8k"}


def test_without_resume_an_existing_run_is_refused(tmp_path: Path) -> None:
    run_simulated(tmp_path, resume=False)
    with pytest.raises(UsageError, match="run 'run' exists, and --no-resume is given"):
        run_simulated(tmp_path, resume=False)


def test_another_machine_or_version_begins_new_cells_and_keeps_both_fingerprints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_simulated(tmp_path)
    fingerprint = dflash.execution.fingerprint()
    moved = fingerprint | {"versions": fingerprint["versions"] | {"numpy": "9"}}
    monkeypatch.setattr(dflash.execution, "fingerprint", lambda: moved)
    info = run_simulated(tmp_path)[0].run.info
    retired = [cell for cell in info.cells if cell.is_retired]
    assert len(retired) == 2
    assert all("versions numpy differs: it was" in (cell.reason or "") for cell in retired)
    assert info.environment["versions"]["numpy"] == "9"
    assert info.segments[0].environment is not None
    assert info.segments[0].environment["versions"] == fingerprint["versions"]
    assert info.segments[1].environment is None


def test_another_commit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprint = dflash.execution.fingerprint() | {"git": {"commit": "aaa"}}
    monkeypatch.setattr(dflash.execution, "fingerprint", lambda: fingerprint)
    run_simulated(tmp_path)
    monkeypatch.setattr(dflash.execution, "fingerprint", lambda: fingerprint | {"git": {"commit": "bbb"}})
    outcome, _ = run_simulated(tmp_path)
    assert "resumed at another commit of dflash: aaa before, bbb now" in outcome.run.info.notes


def test_a_torn_line_is_cut_said_and_measured_again(tmp_path: Path) -> None:
    run_simulated(tmp_path)
    path = tmp_path / "run/records.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    outcome, backend = run_simulated(tmp_path)
    assert len(backend.requests) == 2
    assert len(outcome.run.records) == 8
    assert any("line 8 of records.jsonl was cut off" in note for note in outcome.run.info.notes)
    assert load_run(tmp_path / "run").info.notes == outcome.run.info.notes


def test_a_run_that_is_being_written_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    run_simulated(tmp_path)
    writer = RunWriter(tmp_path / "run")
    try:
        with pytest.raises(UsageError, match="is being written by another process"):
            run_simulated(tmp_path)
    finally:
        writer.close()


@pytest.mark.parametrize("seed", range(6))
def test_however_often_it_breaks_the_end_is_that_of_a_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Faults and torn files at random places, resumed until done: one row per request, the same answers."""
    use_made_up_prompts(monkeypatch, num_prompts=5, num_turns=2)
    rng = random.Random(seed)
    settings: dict[str, Any] = {"block_sizes": (2, 4), "datasets": ("quickstart", "gsm8k"), "repeats": 2}
    whole, _ = run_simulated(tmp_path / "whole", **settings)
    for _ in range(6):
        action = rng.choice(["sigint", "sigterm", "crash", "error", "interrupt"])
        run_simulated(tmp_path, Fault(action, request=rng.randrange(60)), **settings)
        torn = tmp_path / "run" / f"{rng.choice(['records', 'outputs', 'chunks'])}.jsonl"
        torn.write_bytes(torn.read_bytes()[: -rng.randrange(1, 200)])
    outcome, _ = run_simulated(tmp_path, **settings)
    assert outcome.error is None

    def answers(run: Run) -> list[tuple[object, ...]]:
        return sorted((r.cell_id, *r.unit, r.order, r.num_decode_steps, r.output_digest) for r in run.records)

    assert answers(outcome.run) == answers(whole.run)
    assert len(outcome.run.records) == 5 * 2 * 3 * 2 * 2
    assert all(cell.status == "completed" for cell in outcome.run.info.cells)
    finished, backend = run_simulated(tmp_path, **settings)
    assert backend.requests == []
    assert answers(finished.run) == answers(whole.run)
