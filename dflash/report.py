"""Verb: render stored runs again: `report.md`, its pictures, the terminal table, a JSON document."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.arguments import OneLineParser
from dflash.command_line import STANDARD_OUTPUT, check_json_file, run_verb, write_json
from dflash.errors import EXIT_DONE, UsageError

if TYPE_CHECKING:
    from dflash.results.store import Run
    from dflash.results.summary import RunSummary


def build_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m dflash.report",
        description="Compute stored runs' metrics from their records; write report.md and its pictures.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run folder, as in reports/NAME")
    parser.add_argument(
        "--json",
        dest="json_file",
        metavar="FILE",
        help="also write every metric as one JSON document ('-': to standard output, and nothing else there)",
    )
    parser.add_argument("--quiet", action="store_true", help="no terminal table")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb and return its exit code; what goes wrong is printed as one line."""
    return run_verb(_report, argv)


def _report(argv: Sequence[str]) -> int:
    options = build_parser().parse_args(list(argv))
    check_json_file(options.json_file)
    _render(options.runs, options.json_file, options.quiet)
    return EXIT_DONE


def _render(folders: Sequence[Path], json_file: str | None, quiet: bool) -> None:
    from dflash.results.report_files import write_report
    from dflash.results.store import load_run
    from dflash.results.summary import summarise_run
    from dflash.results.tables import print_summary

    runs = [load_run(folder) for folder in folders]  # all are read before anything is written
    summaries = [summarise_run(run) for run in runs]
    for run, summary in zip(runs, summaries, strict=True):
        try:
            paths = write_report(run, summary=summary)
        except OSError as error:
            raise UsageError(f"cannot write the report of {run.folder}: {error}") from error
        if json_file != STANDARD_OUTPUT and not quiet:
            print_summary(run, summary)
            print(f"Report: {paths[0]}")
    if json_file is not None:
        write_json(json_file, _document(runs, summaries))


def _document(runs: Sequence[Run], summaries: Sequence[RunSummary]) -> dict[str, Any]:
    """One run: its document. Several: `{"exit_code", "runs": [document, ...]}`."""
    from dflash.results.document import json_document

    documents = [json_document(run, summary, EXIT_DONE) for run, summary in zip(runs, summaries, strict=True)]
    return documents[0] if len(documents) == 1 else {"exit_code": EXIT_DONE, "runs": documents}


if __name__ == "__main__":
    sys.exit(main())
