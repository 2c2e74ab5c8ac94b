"""Writes reports: of one run beside its records, of several in a folder of their own."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.errors import UsageError
from dflash.results.atomic_file import write_file
from dflash.results.csv_table import render_csv
from dflash.results.document import json_document_of_runs
from dflash.results.html import render_html
from dflash.results.markdown import METHODOLOGY, anchors_of, render_runs
from dflash.results.plots import plot_runs
from dflash.results.published import Published
from dflash.results.store import INFO_FILE, RECORDS_FILE, Run
from dflash.results.summary import RunSummary, summarise_run
from dflash.results.unread import UnreadRun

REPORT_NAME = "report.md"
NAMES = {"markdown": REPORT_NAME, "csv": "report.csv", "json": "report.json", "html": "report.html"}
FORMATS = tuple(NAMES)
_MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class Report:
    """What is reported together."""

    runs: tuple[Run, ...]
    summary: RunSummary
    unread: tuple[UnreadRun, ...] = ()
    published: Published | None = None
    exit_code: int = 0


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
    summary = summarise_run(run) if summary is None else summary
    return write_reports(Report((run,), summary), run.folder if folder is None else folder)


def write_reports(report: Report, folder: Path, formats: Sequence[str] = ("markdown",)) -> tuple[Path, ...]:
    """The same in every format that is asked for. Pictures are written for Markdown; an HTML page holds its own.

    Returns:
        The paths written, the reports in the order of `formats`, then the pictures.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures = (
        plot_runs(report.runs, report.summary, report.published) if {"markdown", "html"} & {*formats} else {}
    )
    infos = [run.info for run in report.runs]
    text = render_runs(
        infos,
        report.summary,
        [Path(name) for name in pictures],
        report.unread,
        report.published,
        METHODOLOGY
        if (folder / METHODOLOGY).is_file()
        else None,  # reports of a checkout are two folders below it
    )

    def document() -> dict[str, Any]:
        return json_document_of_runs(report.runs, report.summary, report.exit_code, report.unread)

    contents = {
        "markdown": lambda: text,
        "csv": lambda: render_csv(document()["cells"]),
        "json": lambda: json.dumps(document(), indent=2, allow_nan=False) + "\n",
        "html": lambda: render_html(text, pictures, anchors_of(text)),
    }
    paths = [write_file(folder / NAMES[name], contents[name]().encode()) for name in dict.fromkeys(formats)]
    if "markdown" in formats:
        paths += [write_file(folder / name, content) for name, content in pictures.items()]
    return tuple(paths)


def folder_of_report(folders: Sequence[Path]) -> Path:
    """Where the report of these runs goes: of one, its own folder; of several, one beside the first, named by all.

    Raises:
        UsageError: that folder holds a run itself.
    """
    if len(folders) == 1:
        return folders[0]
    name = "+".join(folder.resolve().name for folder in folders)
    if len(name) > _MAX_NAME:
        name = f"{name[: _MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    folder = folders[0].resolve().parent / re.sub(r"[^\w.+=-]", "_", name)
    if (folder / INFO_FILE).exists():
        raise UsageError(f"{folder} is a run itself", "name another folder by --output-dir")
    return folder


def may_hold_report_of_unread(folder: Path) -> bool:
    """Whether a report that only says why nothing could be read may go there: beside a run, over no other report."""
    is_run = (folder / INFO_FILE).exists() or (folder / RECORDS_FILE).exists()
    return is_run and not (folder / REPORT_NAME).exists()
