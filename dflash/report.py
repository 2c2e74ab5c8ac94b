"""Verb: render stored runs again, one or several together: a report with its pictures, the terminal table, JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.arguments import OneLineParser
from dflash.command_line import STANDARD_OUTPUT, check_json_file, report_error, run_verb, write_json
from dflash.errors import EXIT_DONE, UsageError

if TYPE_CHECKING:
    from dflash.results.report_files import Report

FORMATS = ("markdown", "csv", "json", "html")
REFERENCES = ("paper",)


def build_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m dflash.report",
        description="Compute stored runs' metrics from their records; write report.md and its pictures. Several runs "
        "make one report: an arm without a baseline of its own is compared with that of another run, where workload, "
        "engine and machine are equal.",
        epilog="Exit codes: 0 done, 2 usage, or a run that could not be read (the report of the others is written).",
        allow_abbrev=False,
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run folder, as in reports/NAME")
    parser.add_argument(
        "--format",
        dest="formats",
        metavar="LIST",
        type=_formats,
        default=("markdown",),
        help=f"of {', '.join(FORMATS)} (default: markdown)",
    )
    parser.add_argument(
        "--reference", choices=REFERENCES, help="show published figures beside the measured ones"
    )
    parser.add_argument(
        "--output-dir",
        metavar="FOLDER",
        type=Path,
        help="where the report goes (default: the run's folder; of several, one beside the first)",
    )
    parser.add_argument(
        "--json",
        dest="json_file",
        metavar="FILE",
        help="also write every metric as one JSON document ('-': to standard output, and nothing else there)",
    )
    parser.add_argument("--quiet", action="store_true", help="no terminal table")
    return parser


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(FORMATS)}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb and return its exit code; what goes wrong is printed as one line."""
    return run_verb(_report, argv)


def _report(argv: Sequence[str]) -> int:
    options = build_parser().parse_args(list(argv))
    check_json_file(options.json_file)
    report = _load(options.runs, options.reference)
    _write(report, options)
    for item in report.unread:
        report_error(item.error)
    return report.exit_code


def _load(folders: Sequence[Path], reference: str | None) -> Report:
    """All runs are read before anything is written.

    Raises:
        UsageError: a folder is not there, or the only run cannot be read.
    """
    from dflash.results.published import load_published
    from dflash.results.report_files import Report
    from dflash.results.unread import load_runs, summarise_readable

    published = None if reference is None else load_published(reference)
    readable, unread = load_runs(folders)
    runs, summary, damaged = summarise_readable(readable)
    failed = (*unread, *damaged)
    exit_code = failed[0].error.exit_code if failed else EXIT_DONE
    return Report(tuple(runs), summary, failed, published, exit_code)


def _write(report: Report, options: argparse.Namespace) -> None:
    from dflash.results.document import json_document_of_runs
    from dflash.results.report_files import folder_of_report, may_hold_report_of_unread, write_reports
    from dflash.results.tables import print_summary_of_runs

    folder = options.output_dir or folder_of_report(options.runs)
    if not report.runs and options.output_dir is None and not may_hold_report_of_unread(folder):
        raise report.unread[0].error
    try:
        paths = write_reports(report, folder, options.formats)
    except OSError as error:
        raise UsageError(
            f"cannot write the report into {folder} ({error})", "name another --output-dir"
        ) from error
    if options.json_file != STANDARD_OUTPUT and not options.quiet:
        print_summary_of_runs(report.runs, report.summary)
        for path in paths[: len(dict.fromkeys(options.formats))]:
            print(f"Report: {path}")
    if options.json_file is not None:
        document = json_document_of_runs(report.runs, report.summary, report.exit_code, report.unread)
        write_json(options.json_file, document)


if __name__ == "__main__":
    sys.exit(main())
