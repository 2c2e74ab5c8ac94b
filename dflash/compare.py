"""Verb: gate a run against a base run, with a verdict and a reason for every gate; calibrate gates, keep baselines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.arguments import OneLineParser
from dflash.command_line import STANDARD_OUTPUT, check_json_file, run_verb, write_json
from dflash.errors import EXIT_DONE, UsageError

if TYPE_CHECKING:
    from dflash.gate.baselines import BaselineStore
    from dflash.gate.comparison import GatedRun, Rules
    from dflash.gate.records import GateReport
    from dflash.gate.trend import Trend


def build_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m dflash.compare",
        description="Compare run NEW with run BASE, or with the accepted baseline of --suite, under gates.",
        epilog="Exit codes: 0 nothing is worse, 1 something is worse (--strict: or cannot be told), 2 usage, "
        "5 nothing could be compared, or a gated cell could not.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        type=Path,
        help="BASE NEW; NEW alone with --suite; A/A runs to --calibrate",
    )
    gates = parser.add_argument_group("gates")
    gates.add_argument(
        "--fail-if",
        dest="fail_if",
        metavar="GATE",
        action="append",
        default=[],
        help="such as speedup:-5%%, tpot_s:+5%%, agreement:<0.99, error_rate:>0; may be repeated",
    )
    gates.add_argument("--gates", metavar="FILE", type=Path, help="TOML file with a [gate] table")
    gates.add_argument(
        "--allow",
        metavar="FIELD",
        action="append",
        default=[],
        help="compare although this field differs, as a refusal names it; may be repeated",
    )
    gates.add_argument("--strict", action="store_true", help="fail where nothing can be told, too")
    stored = parser.add_argument_group("baselines")
    stored.add_argument(
        "--suite", metavar="NAME", help="whose baseline (default: the suite that NEW was made from)"
    )
    stored.add_argument(
        "--baselines",
        metavar="FOLDER",
        type=Path,
        help="where baselines are kept (default: reports/baselines)",
    )
    stored.add_argument(
        "--accept",
        action="store_true",
        help="make NEW the baseline of its suite and machine, unless it fails",
    )
    stored.add_argument(
        "--record", action="store_true", help="note NEW in the history of its suite, for the trend"
    )
    stored.add_argument(
        "--calibrate",
        action="store_true",
        help="RUN... are runs in which nothing changed: how often do the gates cry wolf, and what can they see?",
    )
    stored.add_argument("--calibration", metavar="FILE", type=Path, help="use this calibration")
    output = parser.add_argument_group("what comes out")
    output.add_argument(
        "--markdown", metavar="FILE", help="write the page here; - for standard output (default)"
    )
    output.add_argument(
        "--json", dest="json_file", metavar="FILE", help="the same as JSON; - for standard output"
    )
    output.add_argument("--junit", metavar="FILE", help="the same as JUnit XML")
    output.add_argument("--annotations", action="store_true", help="print annotations for GitHub Actions")
    output.add_argument("--quiet", action="store_true", help="print nothing but errors, and annotations")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb and return its exit code; what goes wrong is printed as one line."""
    return run_verb(_compare, argv)


def _compare(argv: Sequence[str]) -> int:
    options = build_parser().parse_args(list(argv))
    _check_outputs(options)
    rules = _rules(options)
    if options.calibrate:
        return _calibrate(options, rules)
    if len(options.runs) == 1 and options.accept:
        return _accept(options)
    return _gate(options, rules)


def _check_outputs(options: argparse.Namespace) -> None:
    files = {"--json": options.json_file, "--markdown": options.markdown, "--junit": options.junit}
    for file in files.values():
        check_json_file(file)
    printed = [flag for flag, file in files.items() if file == STANDARD_OUTPUT]
    printed += ["--annotations"] if options.annotations and printed else []
    if len(printed) > 1:
        raise UsageError(
            f"{printed[0]} and {printed[1]} both go to standard output", "write one of them to a file"
        )


def _rules(options: argparse.Namespace) -> Rules:
    from dflash.gate.calibrated import load_calibration
    from dflash.gate.comparison import Rules
    from dflash.gate.expressions import default_gates, load_gate_file, parse_gate

    gates, allow, strict = [parse_gate(text) for text in options.fail_if], list(options.allow), options.strict
    if options.gates is not None:
        file = load_gate_file(options.gates)
        gates, allow, strict = [*file.gates, *gates], [*file.allow, *allow], strict or file.strict
    rules = Rules(tuple(gates) or default_gates(), tuple(allow), strict)
    if options.calibration is not None:
        rules = replace(rules, calibration=load_calibration(options.calibration))
    return rules


@dataclass(frozen=True, slots=True)
class _Loaded:
    folder: Path
    run: GatedRun


def _load(folder: Path) -> _Loaded:
    from dflash.gate.comparison import GatedRun
    from dflash.results.store import load_run
    from dflash.results.summary import summarise_run

    run = load_run(folder)
    return _Loaded(folder, GatedRun.of(run.info, summarise_run(run)))


def _store(options: argparse.Namespace, run: GatedRun) -> BaselineStore | None:
    """The baselines of the run's suite and machine; None where no suite is named."""
    from dflash.gate.baselines import DEFAULT_ROOT, BaselineStore, fingerprint_of, suite_of

    suite = options.suite or suite_of(run.info)
    if suite is None:
        return None
    return BaselineStore(options.baselines or DEFAULT_ROOT, fingerprint_of(run.info), suite)


def _needed_store(options: argparse.Namespace, run: GatedRun) -> BaselineStore:
    store = _store(options, run)
    if store is None:
        raise UsageError("it is not said of which suite the baseline is", "name it by --suite")
    return store


def _gate(options: argparse.Namespace, rules: Rules) -> int:
    from dflash.gate.comparison import compare_runs
    from dflash.gate.history import trends_of

    base, new, store = _two_runs(options)
    if store is not None and options.calibration is None:
        rules = replace(rules, calibration=store.calibration())
    report = compare_runs(base.run, new.run, rules)
    if store is not None and options.record:
        store.record(new.run)
    if store is not None and options.accept and report.exit_code == EXIT_DONE:
        store.accept(new.folder, new.run)
    history = () if store is None else store.history()
    _write(options, report, trends_of(history, new.run.info.cells, rules.gates))
    return report.exit_code


def _two_runs(options: argparse.Namespace) -> tuple[_Loaded, _Loaded, BaselineStore | None]:
    if len(options.runs) == 2:
        base, new = (_load(folder) for folder in options.runs)
        needs_store = options.accept or options.record
        return base, new, _needed_store(options, new.run) if needs_store else _store(options, new.run)
    if len(options.runs) != 1:
        raise UsageError(
            f"{len(options.runs)} runs are named",
            "give BASE and NEW, or NEW alone with --suite for its baseline",
        )
    new = _load(options.runs[0])
    store = _needed_store(options, new.run)
    return _load(store.baseline()), new, store


def _accept(options: argparse.Namespace) -> int:
    new = _load(options.runs[0])
    folder = _needed_store(options, new.run).accept(new.folder, new.run)
    if not options.quiet:
        print(f"Accepted: {folder}")
    return EXIT_DONE


def _calibrate(options: argparse.Namespace, rules: Rules) -> int:
    from dflash.gate.calibrated import write_calibration
    from dflash.gate.calibration import calibrate
    from dflash.gate.calibration_page import calibration_document, render_calibration

    loaded = [_load(folder) for folder in options.runs]
    report = calibrate([item.run for item in loaded], rules)
    store = _store(options, loaded[0].run)
    if store is None:
        kept = "not kept: no suite is named (--suite)"
    elif not report.is_of_like_runs:
        kept = "not kept: some of the runs cannot be compared"
    else:
        write_calibration(store.calibration_file, report.calibration)
        kept = f"kept in {store.calibration_file}"
    report = replace(report, notes=(*report.notes, kept))
    _write_page(options, render_calibration(report))
    write_json(options.json_file, calibration_document(report))
    return EXIT_DONE


def _write(options: argparse.Namespace, report: GateReport, trends: Sequence[Trend]) -> None:
    from dflash.gate.annotations import render_annotations
    from dflash.gate.document import gate_document
    from dflash.gate.history import render_trends, trend_document
    from dflash.gate.junit import render_junit
    from dflash.gate.markdown import render_gate

    page = render_gate(report)
    section = render_trends(trends)
    _write_page(options, f"{page}\n{section}" if section else page)
    if options.junit is not None:
        _write_text(options.junit, render_junit(report))
    if options.annotations:
        sys.stdout.write(render_annotations(report))
    document: dict[str, Any] = {**gate_document(report), "trend": trend_document(trends)}
    write_json(options.json_file, document)


def _write_page(options: argparse.Namespace, page: str) -> None:
    if options.markdown not in (None, STANDARD_OUTPUT):
        _write_text(options.markdown, page)
    elif options.json_file != STANDARD_OUTPUT and not options.quiet:
        sys.stdout.write(page)


def _write_text(file: str, text: str) -> None:
    from dflash.results.atomic_file import write_file

    if file == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    try:
        write_file(Path(file), text.encode())
    except OSError as error:
        raise UsageError(
            f"cannot write {file} ({error.strerror or error})", "name a file in a folder that can be written"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
