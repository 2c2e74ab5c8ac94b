"""Runs that went wrong in every way that a report must survive, by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from made_up_run import cell, dflash_arm, drafted_record, made_up_run, plain_record

from dflash.results.records import RequestRecord, RunInfo
from dflash.results.store import Run


def _run(cells, records=()) -> Run:
    return Run(
        Path("reports/edge"), RunInfo("edge", "2026-01-02T03:04:05+00:00", cells=tuple(cells)), tuple(records)
    )


def _failed(cell_id: str, prompt: int) -> RequestRecord:
    return RequestRecord(
        cell_id,
        f"quickstart/{prompt}",
        sent_ns=0,
        error_kind="out_of_memory",
        error_message="no | memory <b>left</b>",
    )


BASELINE, ARM = cell(cell_id="b"), cell(dflash_arm(3), "a")

EDGE_RUNS: dict[str, Run] = {
    "no cells": _run([]),
    "no records": _run([BASELINE, ARM]),
    "all failed": _run([BASELINE, ARM], [_failed(name, i) for name in "ab" for i in range(30)]),
    "failed arm": _run(
        [BASELINE, replace(ARM, status="failed", reason="out of memory while loading")],
        [plain_record("b", i, 90) for i in range(8)],
    ),
    "failed baseline": _run(
        [BASELINE, ARM],
        [
            *(_failed("b", i) for i in range(8)),
            *(drafted_record("a", i, (1, 2, 0) * 20, 3) for i in range(8)),
        ],
    ),
    "one prompt": made_up_run(num_prompts=1),
    "one-token outputs": _run(
        [BASELINE, ARM],
        [plain_record(name, i, 1, acceptance_histogram=(0,)) for name in "ab" for i in range(8)],
    ),
    "no baseline": _run([ARM], [drafted_record("a", i, (1, 2, 0) * 20, 3) for i in range(8)]),
    "baseline only": _run([BASELINE], [plain_record("b", i, 90) for i in range(8)]),
    "nothing accepted": _run(
        [BASELINE, ARM],
        [
            *(plain_record("b", i, 91) for i in range(8)),
            *(drafted_record("a", i, (0,) * 90, 3) for i in range(8)),
        ],
    ),
    "unlike prompts": _run(
        [BASELINE, ARM],
        [
            *(plain_record("b", i, 91) for i in range(8)),
            *(drafted_record("a", i, (0,) * 90, 3, prompt_digest="other") for i in range(8)),
        ],
    ),
    "counts unknown": _run(
        [BASELINE, ARM],
        [RequestRecord(name, f"p{i}", finish_reason="stop", sent_ns=0) for name in "ab" for i in range(8)],
    ),
}
