"""Writes a run's report beside its records."""

from __future__ import annotations

from pathlib import Path

from dflash.results.atomic_file import write_file
from dflash.results.markdown import render_report
from dflash.results.plots import plot_run
from dflash.results.store import Run
from dflash.results.summary import RunSummary, summarise_run

REPORT_NAME = "report.md"


def write_report(run: Run, folder: Path | None = None, summary: RunSummary | None = None) -> tuple[Path, ...]:
    """Write `report.md` and its pictures, each whole or not at all; what stood there before is replaced.

    Args:
        run: with zero records too: the reasons then stand where numbers would be.
        folder: the run's own where None; made where it is missing.
        summary: where it is known already.

    Returns:
        The paths written, the report first.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = run.folder if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    summary = summarise_run(run) if summary is None else summary
    pictures = plot_run(run, summary, folder)
    report = write_file(folder / REPORT_NAME, render_report(run, summary, pictures).encode())
    return (report, *pictures)
