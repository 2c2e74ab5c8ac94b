"""Verb: gate a run against a base run, with a verdict and a reason for every gate; calibrate gates, keep baselines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.command_line import STANDARD_OUTPUT, run_verb, write_json
from dflash.compare_arguments import build_parser, check_mode, check_outputs
from dflash.errors import EXIT_DONE, EXIT_NOT_COMPARABLE, UsageError

if TYPE_CHECKING:
    from dflash.gate.baselines import BaselineStore
    from dflash.gate.gated_run import GatedRun, Rules
    from dflash.gate.records import GateReport
    from dflash.gate.trend import Trend


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb and return its exit code; what goes wrong is printed as one line."""
    return run_verb(_compare, argv)


def _compare(argv: Sequence[str]) -> int:
    options = build_parser().parse_args(list(argv))
    check_mode(options)
    check_outputs(options)
    rules = _rules(options)
    if options.calibrate:
        return _calibrate(options, rules)
    if len(options.runs) == 1 and options.accept:
        return _accept(options)
    return _gate(options, rules)


def _rules(options: argparse.Namespace) -> Rules:
    from dflash.gate.calibrated import load_calibration
    from dflash.gate.expressions import default_gates, load_gate_file, parse_gate
    from dflash.gate.gated_run import Rules

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
    from dflash.gate.gated_run import GatedRun
    from dflash.results.store import load_run
    from dflash.results.summary import summarise_run
    from dflash.results.task_scores import score_run

    run = load_run(folder)
    return _Loaded(folder, GatedRun.of(run.info, summarise_run(run), score_run(run)))


def _store(options: argparse.Namespace, run: GatedRun) -> BaselineStore | None:
    """The baselines of the run's suite and machine; None where no suite is named."""
    from dflash.gate.baselines import DEFAULT_ROOT, BaselineStore, fingerprint_of, suite_of

    suite = suite_of(run.info) if options.suite is None else options.suite
    if suite is None:
        return None
    return BaselineStore(options.baselines or DEFAULT_ROOT, fingerprint_of(run.info), suite)


def _needed_store(options: argparse.Namespace, run: GatedRun) -> BaselineStore:
    store = _store(options, run)
    if store is None:
        raise UsageError("it is not said of which suite the baseline is", "name it by --suite")
    return store


def _gate(options: argparse.Namespace, rules: Rules) -> int:
    from dflash.gate.baselines import fingerprint_of
    from dflash.gate.calibrated import check_machine
    from dflash.gate.comparison import compare_runs
    from dflash.gate.history import trends_of

    base, new, store = _two_runs(options)
    if store is not None and options.calibration is None:
        rules = replace(rules, calibration=store.calibration())
    check_machine(rules.calibration, fingerprint_of(new.run.info))
    report = compare_runs(base, new.run, rules)
    if store is not None and options.record:
        store.record(new.run)
    if store is not None and options.accept:
        done = report.exit_code == EXIT_DONE
        kept = (
            f"accepted: {store.accept([(new.folder, new.run)])[0]}" if done else "not accepted, for it fails"
        )
        report = replace(report, notes=(*report.notes, kept))
    history = () if store is None else store.history()
    _write(options, report, trends_of(history, new.run.info.cells, rules.gates))
    return report.exit_code


def _two_runs(options: argparse.Namespace) -> tuple[GatedRun, _Loaded, BaselineStore | None]:
    if len(options.runs) == 2:
        base, new = (_load(folder) for folder in options.runs)
        needs_store = options.accept or options.record
        return base.run, new, _needed_store(options, new.run) if needs_store else _store(options, new.run)
    if len(options.runs) != 1:
        raise UsageError(
            f"{len(options.runs)} runs are named",
            "give BASE and NEW, or NEW alone with --suite for its baseline",
        )
    new = _load(options.runs[0])
    store = _needed_store(options, new.run)
    first, *others = (_load(folder).run for folder in store.baseline())
    return replace(first, others=tuple(others)), new, store


def _accept(options: argparse.Namespace) -> int:
    new = _load(options.runs[0])
    (folder,) = _needed_store(options, new.run).accept([(new.folder, new.run)])
    if not options.quiet:
        print(f"Accepted: {folder}")
    return EXIT_DONE


def _calibrate(options: argparse.Namespace, rules: Rules) -> int:
    from dflash.gate.calibrated import write_calibration
    from dflash.gate.calibration import calibrate
    from dflash.gate.calibration_page import calibration_document, render_calibration

    loaded = [_load(folder) for folder in options.runs]
    report = calibrate([item.run for item in loaded], rules, as_baseline=options.accept)
    store = (_needed_store if options.accept else _store)(options, loaded[0].run)
    if store is None:
        kept = "not kept: no suite is named (--suite)"
    elif not report.is_of_like_runs:
        kept = "not kept: some of the runs cannot be compared"
    else:
        write_calibration(store.calibration_file, report.calibration)
        kept = f"kept in {store.calibration_file}"
        if options.accept:
            folders = store.accept([(item.folder, item.run) for item in loaded])
            kept += f"; these {len(folders)} runs together are the baseline"
    report = replace(report, notes=(*report.notes, kept))
    _write_page(options, render_calibration(report))
    write_json(options.json_file, calibration_document(report))
    return EXIT_DONE if report.is_of_like_runs else EXIT_NOT_COMPARABLE


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
        print(render_annotations(report), end="")
    document: dict[str, Any] = {**gate_document(report), "trend": trend_document(trends)}
    write_json(options.json_file, document)


def _write_page(options: argparse.Namespace, page: str) -> None:
    if options.markdown not in (None, STANDARD_OUTPUT):
        _write_text(options.markdown, page)
    elif options.json_file != STANDARD_OUTPUT and not options.quiet:
        print(page, end="")


def _write_text(file: str, text: str) -> None:
    from dflash.results.atomic_file import write_file

    if file == STANDARD_OUTPUT:
        print(text, end="")
        return
    try:
        write_file(Path(file), text.encode())
    except OSError as error:
        raise UsageError(
            f"cannot write {file} ({error.strerror or error})", "name a file in a folder that can be written"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
