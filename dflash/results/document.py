"""A run -> one JSON document: what was not measured is null, and NaN never appears."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dflash.results.breakdowns import PartSummary
from dflash.results.measured import Measured, MetricValue
from dflash.results.records import Cell, RunInfo
from dflash.results.server_counters import COMPARED, ServerCounts
from dflash.results.stats import Interval
from dflash.results.store import Run
from dflash.results.summary import CellSummary, RunSummary
from dflash.results.titles import capped

if TYPE_CHECKING:
    from dflash.results.unread import UnreadRun


def json_document(run: Run, summary: RunSummary, exit_code: int) -> dict[str, Any]:
    """`{"run", "exit_code", "notes", "cells": [...]}`; every cell carries every metric under its code name,
    and its parts the main ones.

    `notes` are facts that a reader of the numbers must know, of the run and of each cell.

    `{"value", "low", "high"}`: speedup, e2el_speedup, throughput_speedup, acceptance_length,
    acceptance_length_untrimmed, decode_tok_s, agreement, task_score. All others are plain numbers, lists, or null.
    """
    return {
        "run": str(run.folder),
        "exit_code": exit_code,
        "notes": list(run.info.notes),
        "cells": [_cell_document(cell, summary.infos) for cell in summary.cells],
        "retired_cells": [_retired_document(run, cell) for cell in run.info.cells if cell.is_retired],
    }


def _retired_document(run: Run, cell: Cell) -> dict[str, Any]:
    """What a run keeps of a cell that another took the place of: no figure, as it is compared with nothing."""
    return {
        "cell_id": cell.cell_id,
        "backend": cell.backend,
        "arm": cell.arm.name,
        "block_size": cell.arm.block_size,
        "dataset": cell.workload.dataset,
        "concurrency": capped(cell.workload.concurrency, cell.workload.request_rate),
        "reason": cell.reason,
        "num_requests": sum(record.cell_id == cell.cell_id for record in run.records),
    }


def json_document_of_runs(
    runs: Sequence[Run], summary: RunSummary, exit_code: int, unread: Sequence[UnreadRun] = ()
) -> dict[str, Any]:
    """The same of several runs together: `runs` in place of `run`, and what could not be read of others in the notes.

    One run that was read has the document of `json_document`.
    """
    if len(runs) == 1 and not unread:
        return json_document(runs[0], summary, exit_code)
    notes = [item.words for item in unread]
    notes += [f"run {run.info.name}: {note}" for run in runs for note in run.info.notes]
    return {
        "runs": [str(run.folder) for run in runs],
        "exit_code": exit_code,
        "notes": notes,
        "cells": [_cell_document(cell, summary.infos) for cell in summary.cells],
        "retired_cells": [
            {"run": run.info.name, **_retired_document(run, cell)}
            for run in runs
            for cell in run.info.cells
            if cell.is_retired
        ],
    }


def _cell_document(summary: CellSummary, infos: Sequence[RunInfo]) -> dict[str, Any]:
    cell = summary.cell
    workload = cell.workload
    block_size = cell.arm.block_size
    parts = summary.breakdowns
    return {
        "run": infos[summary.run].name if infos else None,
        "cell_id": cell.cell_id,
        "backend": cell.backend,
        "arm": cell.arm.name,
        "dataset": workload.dataset,
        "prompts_digest": workload.prompts_digest,
        "concurrency": capped(workload.concurrency, workload.request_rate),
        "request_rate": workload.request_rate,
        "block_size": block_size,
        "num_speculative_tokens": None if block_size is None else block_size - 1,
        "workload_id": cell.workload_id,
        "arm_id": cell.arm_id,
        "baseline_cell_id": summary.baseline_cell_id,
        "baseline_run": infos[summary.baseline_run].name if infos and summary.baseline_cell_id else None,
        "target": workload.target,
        "target_revision": workload.target_revision,
        "draft": cell.arm.draft,
        "draft_revision": cell.arm.draft_revision,
        "dtype": workload.dtype,
        "temperature": workload.temperature,
        "top_p": workload.top_p,
        "top_k": workload.top_k,
        "seed": workload.seed,
        "reasoning": workload.reasoning,
        "max_new_tokens": workload.max_new_tokens,
        "status": cell.status,
        "reason": cell.reason,
        "notes": list(cell.notes),
        **_plain_metrics(summary),
        "ttft_cache": summary.cache_mark,
        "counters": None if summary.counts is None else _counters(summary.counts),
        "finish_reasons": dict(summary.finish_reasons),
        "error_kinds": dict(summary.error_kinds),
        "agreement_basis": dict(summary.agreement_basis),
        "between_repeats": {
            name: {"values": list(spread.values), **_plain(spread.interval)}
            for name, spread in summary.between_repeats.items()
        },
        "why_no_speed": summary.why_no_speed,
        "why_no_steady": summary.why_no_steady,
        "why_no_peak": summary.why_no_peak,
        "why_no_speedup": None if cell.arm.is_baseline else summary.why_no_speedup,
        "left_out": {} if summary.pairing is None else dict(summary.pairing.left_out),
        "unscored": dict(summary.unscored),
        "categories": _parts("category", parts.categories),
        "prompt_lengths": _parts("prompt_length", parts.prompt_lengths),
        "num_unknown_prompt_lengths": parts.num_unknown_lengths,
        "turns": _parts("turn", parts.turns, int),
        "findings": [
            {"code": finding.code, "severity": finding.severity, "sentence": finding.sentence}
            for finding in summary.findings
        ],
    }


def _counters(counts: ServerCounts) -> dict[str, Any]:
    """What a server counted, and what our own requests make of the same."""
    return {
        "state": counts.verdict,
        "reasons": list(counts.reasons),
        "num_windows": len(counts.windows),
        "num_requests_covered": counts.num_covered,
        "prefix_cache": counts.prefix_cache,
        "server": {name: counts.total(name) for name in COMPARED},
        "own": {name: counts.own.get(name) for name in COMPARED},
    }


def _parts(
    name: str, parts: Sequence[PartSummary], value: Callable[[str], str | int] = str
) -> list[dict[str, Any]]:
    return [{name: value(part.name), **_plain_metrics(part)} for part in parts]


def _plain_metrics(measured: Measured) -> dict[str, Any]:
    return {name: _plain(value) for name, value in measured.metrics.items()}


def _plain(value: MetricValue) -> Any:
    if isinstance(value, Interval):
        return {"value": _plain(value.value), "low": _plain(value.low), "high": _plain(value.high)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, int) or math.isfinite(value) else None
