"""Whatever a run looks like, a report is written, with the reason where a number would be."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from edge_runs import EDGE_RUNS
from made_up_run import made_up_run, with_difference
from run_folders import write_run

from dflash.report import main
from dflash.results.formats import (
    UNKNOWN,
    format_bounds,
    format_count,
    format_mib,
    format_ms,
    format_number,
    format_percent,
    format_rate,
    format_times,
)
from dflash.results.markdown import render_report
from dflash.results.stats import Interval
from dflash.results.store import INFO_FILE, RECORDS_FILE
from dflash.results.summary import summarise_run

NO_PICTURES = ("--format", "csv,json", "--quiet")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    run = made_up_run(block_sizes=(3,))
    write_run(tmp_path / "good", run.info, run.records)
    return tmp_path / "good"


def bad_run(folder: Path, **changes: object) -> Path:
    """A run whose `run.json` has these values; None: the field is not there."""
    run = made_up_run(block_sizes=(3,))
    write_run(folder, run.info, run.records)
    values = {**json.loads((folder / INFO_FILE).read_bytes()), **changes}
    values = {name: value for name, value in values.items() if value is not None}
    (folder / INFO_FILE).write_text(json.dumps(values))
    return folder


def damage(folder: Path, kind: str) -> str:
    """Damage the run in `folder`; returns what must be said of it."""
    if kind == "newer format":
        bad_run(folder, format_version=99)
        return "has format 99, and this release reads up to"
    if kind == "no format":
        bad_run(folder, format_version=None)
        return "cannot be read (format_version is None)"
    bad_run(folder)
    records = folder / RECORDS_FILE
    if kind == "no run.json":
        (folder / INFO_FILE).unlink()
        return f"it holds no {INFO_FILE}"
    if kind == "torn run.json":
        (folder / INFO_FILE).write_bytes((folder / INFO_FILE).read_bytes()[:100])
        return "run.json of run"
    assert kind == "NaN"
    lines = records.read_text().splitlines(keepends=True)
    lines[3] = re.sub(r'"last_ns":\d+', '"last_ns":NaN', lines[3])
    records.write_text("".join(lines))
    return f"line 4 of {RECORDS_FILE}"


KINDS = ("newer format", "no format", "no run.json", "torn run.json", "NaN")


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_cannot_be_read_does_not_keep_the_others_from_their_report(kind, good, tmp_path, capsys):
    words = damage(tmp_path / "bad", kind)
    assert main([str(good), str(tmp_path / "bad"), *NO_PICTURES]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    document = json.loads((tmp_path / "good+bad" / "report.json").read_text())
    assert document["exit_code"] == 2
    assert words in document["notes"][0]
    assert document["cells"][1]["speedup"]["value"] > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_on_it_alone_says_why_there_are_no_numbers(kind, tmp_path, capsys):
    words = damage(tmp_path / "bad", kind)
    assert main([str(tmp_path / "bad"), "--quiet"]) == 2
    assert words in capsys.readouterr().err
    report = (tmp_path / "bad" / "report.md").read_text()
    assert report.startswith("# Nothing could be read\n\n**Not in this report: ")
    assert words.split(" (")[0].replace("_", "\\_") in report
    assert [path.name for path in tmp_path.glob("bad/*.png")] == []


def test_a_report_that_a_newer_release_wrote_is_left_alone(tmp_path):
    damage(tmp_path / "bad", "newer format")
    (tmp_path / "bad" / "report.md").write_text("of a newer release")
    assert main([str(tmp_path / "bad"), "--quiet"]) == 2
    assert (tmp_path / "bad" / "report.md").read_text() == "of a newer release"


def test_a_folder_that_is_no_run_gets_no_report(tmp_path):
    (tmp_path / "photos").mkdir()
    assert main([str(tmp_path / "photos"), "--quiet"]) == 2
    assert list((tmp_path / "photos").iterdir()) == []


def test_a_damaged_further_file_is_found_too(good, tmp_path, capsys):
    bad_run(tmp_path / "bad")
    (tmp_path / "bad" / "answers.jsonl").write_text("{}\n")
    assert main([str(good), str(tmp_path / "bad"), *NO_PICTURES]) == 2
    assert "line 1 of answers.jsonl" in capsys.readouterr().err
    document = json.loads((tmp_path / "good+bad" / "report.json").read_text())
    assert {cell["run"] for cell in document["cells"]} == {"good"}


def test_a_half_written_run_is_reported_with_what_it_holds(tmp_path):
    folder = bad_run(tmp_path / "half")
    content = (folder / RECORDS_FILE).read_bytes()
    (folder / RECORDS_FILE).write_bytes(content[: len(content) - 200])
    values = json.loads((folder / INFO_FILE).read_bytes())
    for cell in values["cells"]:
        cell["status"] = "running"
    (folder / INFO_FILE).write_text(json.dumps(values))
    assert main([str(folder), "--quiet"]) == 0
    report = (folder / "report.md").read_text()
    assert "Not ended after 7 of 8 prompts (its process was killed, or is still at work)" in report
    assert "was cut short by a crash and is passed over" in report
    assert re.search(r"\*\*dflash B=3\*\* \| 3 \| 2 \| \d\.\d\dx", report)


@pytest.mark.parametrize("name", EDGE_RUNS)
def test_every_run_is_reported_by_the_verb(name, tmp_path):
    run = EDGE_RUNS[name]
    write_run(tmp_path / "run", run.info, run.records)
    assert main([str(tmp_path / "run"), *NO_PICTURES]) == 0
    document = json.loads((tmp_path / "run" / "report.json").read_text())
    for cell in document["cells"]:
        if cell["decode_tok_s"] is None:
            assert cell["why_no_speed"]
        if cell["speedup"] is None and cell["arm"] != "baseline":
            assert cell["why_no_speedup"]


def test_every_run_together_with_every_other_is_one_report():
    from dflash.results.markdown import render_runs
    from dflash.results.summary import summarise_runs

    runs = [replace(run, info=replace(run.info, name=name)) for name, run in EDGE_RUNS.items()]
    report = render_runs([run.info for run in runs], summarise_runs(runs))
    assert "dflash B=3 (one prompt)" in report
    assert not re.search(r"\bNone\b(?!:)|\bnan\b|\binf\b", report)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_what_is_no_number_prints_as_unknown(value):
    formats = (format_number, format_count, format_ms, format_rate, format_times, format_percent, format_mib)
    assert [form(value) for form in formats] == [UNKNOWN] * len(formats)
    assert format_bounds(Interval(1.0, value, 2.0)) == ""


def test_a_logit_gap_that_is_no_number_is_no_fault():
    run = with_difference(made_up_run(), logit_gap=math.nan)
    report = render_report(run, summarise_run(run))
    (row,) = [line for line in report.splitlines() if "quickstart/1 " in line]
    assert row.endswith("| n/a | n/a |")
