"""Whole run folders that the simulated backend wrote, and the reports that they must give."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dflash.results.markdown import render_runs
from dflash.results.plots import plot_runs
from dflash.results.published import load_published
from dflash.results.unread import load_runs, summarise_readable

GOLDEN = Path(__file__).parents[1] / "golden"
RUNS = GOLDEN / "runs"
# Report -> the runs that it is of; `make_runs.py` makes their folders.
REPORTS = {
    "sweep": ("runs/sweep",),
    "failing": ("runs/failing",),
    "one_prompt": ("runs/one_prompt",),
    "one_token": ("runs/one_token",),
    "yesterday+today": ("runs/yesterday", "runs/today"),
    "yesterday+longer": ("runs/yesterday", "runs/longer"),
    "servers_of_format_1": ("format_1/on_servers",),
}


def report_of(names: tuple[str, ...]) -> str:
    readable, unread = load_runs([GOLDEN / name for name in names])
    runs, summary, damaged = summarise_readable(readable)
    assert (unread, damaged) == ([], [])
    published = load_published("paper") if len(names) > 1 else None
    return render_runs([run.info for run in runs], summary, published=published)


@pytest.mark.parametrize("name", REPORTS)
def test_a_stored_run_gives_its_report(name):
    """Set DFLASH_UPDATE_GOLDEN=1 to write it again, then read the difference."""
    report = report_of(REPORTS[name])
    expected = RUNS / f"{name}.md"
    if os.environ.get("DFLASH_UPDATE_GOLDEN"):
        expected.write_text(report, encoding="utf-8")
    assert report == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sweep", "| quickstart | dflash | "),
        ("sweep", "## Between repeats"),
        ("failing", "no decode speed, because no request completed (out\\_of\\_memory 6)"),
        ("failing", "no memory \\| &lt;b&gt;left&lt;/b&gt;"),
        ("one_prompt", "too few prompts for an interval"),
        ("one_token", "every output ended with its first chunk"),
        ("yesterday+today", "did not take turns"),
        ("yesterday+today", "No published figure has this target (simulated-target)"),
        (
            "yesterday+longer",
            "that of run yesterday is not compared: max\\_new\\_tokens differs (32, there 24)",
        ),
    ],
)
def test_the_expected_reports_say_what_matters(name, words):
    assert words in (RUNS / f"{name}.md").read_text(encoding="utf-8")


def test_two_runs_give_the_figures_of_one():
    """The simulated engine has no drift: yesterday's baseline is today's."""
    together = (RUNS / "yesterday+today.md").read_text(encoding="utf-8")
    alone, _ = load_runs([RUNS / "sweep"])
    _, summary, _ = summarise_readable(alone)
    eight = next(cell for cell in summary.cells if cell.cell.arm.block_size == 8)
    speedup = re.search(r"\*\*dflash B=8\*\* \| 8 \| 7 \| (\d\.\d\d)x", together)
    assert speedup is not None
    assert float(speedup[1]) == pytest.approx(eight.number("speedup"), rel=0.02)


def test_the_pictures_of_a_stored_sweep_are_there():
    runs, _ = load_runs([RUNS / "sweep"])
    _, summary, _ = summarise_readable(runs)
    names = plot_runs(runs, summary)
    assert {"speedup.png", "step_time.png", "timeline.png", "acceptance_by_place.png"} <= names.keys()
