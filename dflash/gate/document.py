"""A comparison -> one JSON document. Pure."""

from __future__ import annotations

import math
from typing import Any

from dflash.gate.records import CellPair, Comparison, Factor, FieldDifference, GateReport, SpeedSplit
from dflash.results.titles import capped


def gate_document(report: GateReport) -> dict[str, Any]:
    """`{"base", "new", "verdict", "exit_code", "comparisons": [...], "speed": [...], "notes": [...]}`.

    Changes are relative (new / base - 1); what is not known is null.
    """
    return {
        "base": report.base_name,
        "new": report.new_name,
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "strict": report.strict,
        "num_tested": report.num_tested,
        "notes": list(report.notes),
        "comparisons": [_comparison(item) for item in report.comparisons],
        "speed": [_split(item) for item in report.splits],
        "differences": [
            {**cell_values(pair), **_difference(item)} for pair in report.pairs for item in pair.differences
        ],
    }


def cell_values(pair: CellPair) -> dict[str, Any]:
    """What names a cell."""
    cell = pair.cell
    return {
        "backend": cell.backend,
        "dataset": cell.workload.dataset,
        "arm": cell.arm.name,
        "block_size": cell.arm.block_size,
        "concurrency": capped(cell.workload.concurrency, cell.workload.request_rate),
        "request_rate": cell.workload.request_rate,
    }


def _comparison(item: Comparison) -> dict[str, Any]:
    needed = item.needed
    return {
        **cell_values(item.pair),
        "gate": item.gate.text,
        "quantity": item.gate.quantity,
        "verdict": item.verdict,
        "reason": item.reason,
        "base": _finite(item.base),
        "new": _finite(item.new),
        "change": _finite(item.relative),
        "low": _finite(item.low),
        "high": _finite(item.high),
        "confidence": item.confidence,
        "basis": item.basis,
        "p_value": item.p_value,
        "num_prompts": item.num_prompts,
        "num_base_repeats": item.num_base_repeats,
        "num_new_repeats": item.num_new_repeats,
        "num_base_runs": item.num_base_runs,
        "num_left_out": item.num_left_out,
        "needed_repeats": None if needed is None else needed.repeats,
        "needed_prompts": None if needed is None else needed.prompts,
        "needed_base_runs": None if needed is None else needed.base_runs,
    }


def _split(item: SpeedSplit) -> dict[str, Any]:
    return {
        **cell_values(item.pair),
        "decode_tok_s": _factor(item.decode_tok_s),
        "acceptance_length": _factor(item.acceptance_length),
        "decode_step_s": _factor(item.decode_step_s),
        "baseline_tpot_s": _factor(item.baseline_tpot_s),
        "sentence": item.sentence,
    }


def _factor(item: Factor | None) -> dict[str, float | None] | None:
    return None if item is None else {"change": item.relative, "low": item.low, "high": item.high}


def _difference(item: FieldDifference) -> dict[str, Any]:
    return {
        "field": item.field,
        "base": _plain(item.base),
        "new": _plain(item.new),
        "scope": item.scope,
        "is_allowed": item.is_allowed,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
