"""Verb: run the same prompts through plain decoding and through drafting, and report the difference."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dflash.arguments import benchmark_command, parse_benchmark_arguments
from dflash.command_line import (
    STANDARD_OUTPUT,
    check_json_file,
    error_line,
    exit_code_of,
    report_error,
    run_verb,
    write_json,
)
from dflash.config import ARM_NAMES, DEFAULT_DATASET, IN_PROCESS_BACKENDS, BenchmarkConfig
from dflash.errors import EXIT_DONE, UsageError
from dflash.server_options import SERVER_BACKENDS, with_named_servers

if TYPE_CHECKING:
    from dflash.outcome import Outcome
    from dflash.results.store import Run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb and return its exit code; what goes wrong is printed as one line."""
    return run_verb(_benchmark, argv)


def _benchmark(argv: Sequence[str]) -> int:
    config = parse_benchmark_arguments(argv)
    if config.list_only:
        check_json_file(config.json_file)
        _list(config)
        return EXIT_DONE
    check_json_file(config.json_file)
    from dflash.interrupts import Interrupts
    from dflash.progress import make_progress
    from dflash.recorder import Invocation
    from dflash.runner import execute

    if config.backend in IN_PROCESS_BACKENDS and config.model is None and not config.quiet:
        print("no --model is given: the quickstart pair is used", file=sys.stderr)
    with Interrupts() as interrupts:  # until the report is written: a second Ctrl-C ends at once
        outcome = execute(
            config,
            progress=make_progress(config.quiet),
            interrupts=interrupts,
            invocation=Invocation(benchmark_command(config), tuple(argv)),
        )
        exit_code = EXIT_DONE if outcome.error is None else exit_code_of(outcome.error)
        if not outcome.is_first:  # another process of this run reports
            return exit_code
        try:
            _report(config, outcome.run, exit_code)
        except (OSError, UsageError) as error:  # as a full disk, which is told with what is kept
            if outcome.error is None:
                raise
            print(f"no report: {error_line(error).removeprefix('error: ')}", file=sys.stderr)
        if outcome.error is not None or outcome.cut:
            _report_end(config, outcome)
    return exit_code


def _list(config: BenchmarkConfig) -> None:
    """What would run; nothing is measured, fetched or written but the JSON document that is asked for."""
    from dflash.plan_listing import list_cells, list_document, list_lines, notes_of_groups

    cells = list_cells(config)
    if config.json_file != STANDARD_OUTPUT and not config.quiet:
        print("\n".join((*list_lines(cells), *notes_of_groups(config))))
    if config.json_file is not None:
        write_json(config.json_file, list_document(cells))


def _report(config: BenchmarkConfig, run: Run, exit_code: int) -> None:
    from dflash.results.report_files import write_report
    from dflash.results.summary import summarise_run
    from dflash.results.tables import print_summary

    summary = summarise_run(run)
    paths = write_report(run, summary=summary)
    if not config.quiet and config.json_file != STANDARD_OUTPUT:
        print_summary(run, summary)
        print(f"Report: {paths[0]}")
        other = _command_for_other_arm(config, run)
        if other is not None:
            print(f"One arm only, so speedup is n/a. This adds the other:\n  {other}")
    if config.json_file is not None:
        from dflash.results.document import json_document

        write_json(config.json_file, json_document(run, summary, exit_code))


def _report_end(config: BenchmarkConfig, outcome: Outcome) -> None:
    """What ended the run early, and what there is all the same."""
    if outcome.error is not None:
        report_error(outcome.error)
    run = outcome.run
    if outcome.cut:
        counts = Counter(cell.status for cell in run.info.cells if not cell.is_retired)
        words = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
        print(f"stopped, as {outcome.cut}: of {sum(counts.values())} cells {words}", file=sys.stderr)
    command = benchmark_command(replace(config, run_name=run.folder.name))
    print(
        f"{len(run.records)} requests are kept in {run.folder}; this goes on from there:\n  {command}",
        file=sys.stderr,
    )


def _command_for_other_arm(config: BenchmarkConfig, run: Run) -> str | None:
    arms = [cell.arm for cell in run.info.cells if not cell.is_retired]
    kinds = {arm.is_baseline for arm in arms}
    if len(kinds) != 1:
        return None
    if config.backend in SERVER_BACKENDS and not config.serve:
        if not (config.base_url or config.baseline_url or config.arm_urls):
            return None  # with a second server the first one must be named too
        named = with_named_servers(config, arms[0].name)
        other = "dflash" if True in kinds else "baseline"
        return benchmark_command(
            replace(named, arm_urls=(*named.arm_urls, f"{other}=URL"), run_name=run.folder.name)
        )
    needs_draft = config.model not in (None, DEFAULT_DATASET) and config.draft_model is None
    draft = "DRAFT" if needs_draft else config.draft_model
    return benchmark_command(replace(config, arms=ARM_NAMES, draft_model=draft, run_name=run.folder.name))


if __name__ == "__main__":
    sys.exit(main())
