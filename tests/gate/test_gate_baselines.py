"""Accepted runs by machine and suite, and the history."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from gated_runs import ENVIRONMENT, MACHINE, gated, made_up, write

from dflash.errors import NotComparableError, UsageError
from dflash.gate.baselines import BaselineStore, fingerprint_of, suite_of
from dflash.gate.expressions import parse_gate
from dflash.gate.history import render_trends, trend_document, trends_of
from dflash.gate.history_file import run_id
from dflash.results.store import load_run

FINGERPRINT = fingerprint_of(made_up().info)


def store(root, suite: str = "ci", fingerprint=FINGERPRINT) -> BaselineStore:
    return BaselineStore(root, fingerprint, suite)


def accept(root, **changes):
    run = made_up(**changes)
    folder = write(run, root / "runs")
    (kept,) = store(root / "kept").accept([(folder, gated(run))])
    return kept


def test_an_accepted_run_is_the_baseline_of_its_machine_and_suite(tmp_path):
    folder = accept(tmp_path, name="one", seed=1)
    assert store(tmp_path / "kept").baseline() == (folder,)
    assert folder.parent.parent.name == "ci"
    assert folder.parent.parent.parent.name.startswith("1x-made-up-gpu-80-gib-")
    assert len(load_run(folder).records) == 96


def test_the_last_accepted_run_counts(tmp_path):
    accept(tmp_path, name="one", seed=1)
    second = accept(tmp_path, name="two", seed=2)
    assert store(tmp_path / "kept").baseline() == (second,)
    assert len(list(second.parent.iterdir())) == 2


def test_accepting_twice_changes_nothing(tmp_path):
    first = accept(tmp_path, name="one", seed=1)
    run = gated(made_up("one", seed=1))
    assert store(tmp_path / "kept").accept([(tmp_path / "runs" / "one", run)]) == (first,)
    assert len(store(tmp_path / "kept").history()) == 1


def test_another_machine_has_no_baseline(tmp_path):
    accept(tmp_path, name="one", seed=1)
    other = fingerprint_of(made_up(environment={**ENVIRONMENT, "machine": {**MACHINE, "num_cpus": 4}}).info)
    with pytest.raises(NotComparableError, match="no baseline was accepted for this machine"):
        store(tmp_path / "kept", fingerprint=other).baseline()
    with pytest.raises(NotComparableError):
        store(tmp_path / "kept", suite="paper").baseline()


def test_another_kernel_is_the_same_machine(tmp_path):
    folder = accept(tmp_path, name="one", seed=1)
    machine = {**MACHINE, "os": "Linux 9", "memory_gib": 62.1}
    other = fingerprint_of(made_up(environment={**ENVIRONMENT, "machine": machine}).info)
    assert store(tmp_path / "kept", fingerprint=other).baseline() == (folder,)


@pytest.mark.parametrize("suite", ["../ci", "", "a/b", ".hidden", "a b"])
def test_a_suite_cannot_leave_the_folder(tmp_path, suite):
    with pytest.raises(UsageError, match="is no name"):
        store(tmp_path, suite=suite)


@pytest.mark.parametrize(
    ("file", "content"),
    [("baseline.json", '{"run": "../../x"}'), ("baseline.json", "{"), ("history.jsonl", "{}\n")],
)
def test_a_damaged_file_is_refused(tmp_path, file, content):
    folder = accept(tmp_path, name="one", seed=1)
    (folder.parent.parent / file).write_text(content, encoding="utf-8")
    kept = store(tmp_path / "kept")
    with pytest.raises(UsageError):
        kept.baseline() if file == "baseline.json" else kept.history()


def test_a_run_is_noted_once_and_anew_when_it_is_accepted(tmp_path):
    kept, run = store(tmp_path), gated(made_up("one", seed=1))
    kept.record(run)
    kept.record(run)
    assert [entry.is_accepted for entry in kept.history()] == [False]
    kept.accept([(write(made_up("one", seed=1), tmp_path / "runs"), run)])
    kept.record(run)
    assert [entry.is_accepted for entry in kept.history()] == [True]


def test_history_holds_the_values_in_order(tmp_path):
    kept = store(tmp_path)
    for seed in (3, 1, 2):
        kept.record(gated(made_up(f"run-{seed}", seed=seed)))
    assert [entry.run_id[-5:] for entry in kept.history()] == ["run-1", "run-2", "run-3"]
    line = json.loads((kept.folder / "history.jsonl").read_text(encoding="utf-8").splitlines()[0])
    (values,) = [value for key, value in line["values"].items() if "dflash" in key]
    assert values["tpot_s"] == pytest.approx(0.0101, rel=0.05)
    assert values["speedup"] == pytest.approx(2, rel=0.05)


def test_a_run_that_went_on_is_kept_anew(tmp_path):
    first = accept(tmp_path, name="one", seed=1, num_prompts=16)
    longer = made_up("one", seed=1, num_prompts=17)
    (second,) = store(tmp_path / "kept").accept([(write(longer, tmp_path / "later"), gated(longer))])
    assert (second.parent, second.name) == (first.parent, f"{first.name}-2")
    assert store(tmp_path / "kept").baseline() == (second,)
    assert len(load_run(first).records) == 96
    assert len(store(tmp_path / "kept").history()) == 1


def test_several_runs_are_the_baseline_together(tmp_path):
    runs = [made_up(f"run-{seed}", seed=seed) for seed in range(4)]
    kept = store(tmp_path / "kept")
    folders = kept.accept([(write(run, tmp_path / "runs"), gated(run)) for run in runs])
    assert kept.baseline() == folders
    assert [folder.name[-5:] for folder in folders] == ["run-0", "run-1", "run-2", "run-3"]
    assert [entry.is_accepted for entry in kept.history()] == [True] * 4


def test_a_baseline_of_an_earlier_release_is_read(tmp_path):
    folder = accept(tmp_path, name="one", seed=1)
    (folder.parent.parent / "baseline.json").write_text(json.dumps({"run": folder.name}), encoding="utf-8")
    assert store(tmp_path / "kept").baseline() == (folder,)


@pytest.mark.parametrize("changes", [{"status": "interrupted"}, {"status": "planned"}])
def test_a_run_that_is_not_complete_is_not_accepted(tmp_path, changes):
    run = made_up("one")
    info = replace(run.info, cells=(run.info.cells[0], replace(run.info.cells[1], **changes)))
    run = replace(run, info=info)
    with pytest.raises(UsageError, match="is not complete: dflash B=8 on gsm8k is"):
        store(tmp_path / "kept").accept([(write(run, tmp_path), gated(run))])
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("part", ["records", "cells"])
def test_a_run_that_measured_nothing_is_not_accepted(tmp_path, part):
    run = made_up("one")
    run = replace(run, records=()) if part == "records" else replace(run, info=replace(run.info, cells=()))
    with pytest.raises(UsageError, match=r"no completed request|has no cell"):
        store(tmp_path / "kept").accept([(write(run, tmp_path), gated(run))])


def test_processes_that_record_at_once_lose_nothing(tmp_path):
    runs = [gated(made_up(f"run-{seed}", seed=seed, num_prompts=2)) for seed in range(12)]
    threads = [Thread(target=store(tmp_path).record, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store(tmp_path).history()) == 12


def test_a_name_from_elsewhere_stays_in_the_folder():
    run = made_up("n")
    for name in ("../../x", "a/b", "..", "x" * 400, "new\nline"):
        kept = run_id(replace(run.info, name=name))
        assert Path(kept).name == kept
        assert len(kept) < 140


@pytest.mark.parametrize(
    "changes",
    [
        {"values": [1]},
        {"values": {"cell": []}},
        {"values": {"cell": {"tpot_s": "fast"}}},
        {"values": {"cell": {"tpot_s": float("nan")}}},
        {"run_id": 5},
        {"is_accepted": "no"},
        {"unknown": 1},
    ],
)
def test_a_damaged_line_of_the_history_is_named(tmp_path, changes):
    kept = store(tmp_path)
    kept.record(gated(made_up("one", num_prompts=2)))
    path = kept.folder / "history.jsonl"
    line = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**line, **changes}) + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"line 1 of .*history.jsonl cannot be read"):
        kept.history()


def test_a_history_with_gaps_has_the_trend_of_what_is_there(tmp_path):
    kept = store(tmp_path)
    for seed in range(3):
        kept.record(gated(made_up(f"run-{seed}", seed=seed, num_prompts=2)))
    path = kept.folder / "history.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines[0]["values"] = {}
    for values in lines[1]["values"].values():
        values["tpot_s"] = None
        del values["speedup"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    gates = [parse_gate("tpot_s:+5%"), parse_gate("acceptance_length:-2%")]
    trends = trends_of(kept.history(), made_up(num_prompts=2).info.cells, gates)
    assert {(trend.quantity, len(trend.values)) for trend in trends} == {("acceptance_length", 2)}


def test_a_run_has_an_id_and_a_suite():
    assert run_id(made_up("nightly", seed=7).info) == "20260102T030407-nightly"
    assert suite_of(made_up().info) == "ci"
    assert suite_of(made_up(config={"suite": "folder/own.toml"}).info) == "own"
    assert suite_of(made_up(config={"other": 1}).info) is None


def test_a_trend_tells_the_step(tmp_path):
    kept = store(tmp_path)
    for seed in range(16):
        kept.record(gated(made_up(f"run-{seed:02d}", seed=seed, noise=0.01, step_ms=30 if seed < 8 else 32)))
    cells = made_up().info.cells
    trends = trends_of(kept.history(), cells, [parse_gate("tpot_s:+5%"), parse_gate("speedup:-5%")])
    tpot = next(trend for trend in trends if trend.quantity == "tpot_s" and "dflash" in trend.cell)
    assert [step.place for step in tpot.steps] == [8]
    assert tpot.cell == "dflash B=8 on gsm8k (transformers, concurrency 1)"
    page = render_trends(trends)
    assert "stepped by +6." in page
    assert "run-08" in page
    (document,) = [
        item for item in trend_document(trends) if item["quantity"] == "tpot_s" and "dflash" in item["cell"]
    ]
    assert document["steps"][0]["run"].endswith("run-08")
    assert len(document["values"]) == 16


def test_no_history_has_no_trend():
    assert render_trends(trends_of((), made_up().info.cells, [parse_gate("tpot_s:+5%")])) == ""
