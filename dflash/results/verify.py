"""Is this cell believable? Identities that must hold, and warnings that a reader must see beside the numbers.

A result that breaks an identity is shown with the reason; it is never dropped or repaired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dflash.results import acceptance_metrics, metrics, request_metrics
from dflash.results.finding import Finding as Finding
from dflash.results.finding import Severity as Severity
from dflash.results.finding import cell_end, listed, of, plural, requests_of
from dflash.results.identities import acceptance_fault as acceptance_fault
from dflash.results.identities import broken, check_issued
from dflash.results.identities import histogram_fault as histogram_fault
from dflash.results.identities import stamps_fault as stamps_fault
from dflash.results.identities import tokens_fault as tokens_fault
from dflash.results.records import Cell, RequestRecord
from dflash.results.stats import MIN_PROMPTS_FOR_INTERVAL

LOW_ACCEPTANCE_LENGTH = 1.1
SHORT_OUTPUT_TOKENS = 64
OUTPUT_LENGTH_RATIO_RANGE = (0.95, 1.05)


def check_cell(cell: Cell, records: Sequence[RequestRecord]) -> tuple[Finding, ...]:
    """Findings about one arm alone: the identities 1 to 4, then believability."""
    findings: list[Finding | None] = [
        check_issued(cell, records),
        broken(records, "tokens_do_not_add_up", lambda record: tokens_fault(cell, record)),
        broken(records, "histogram_does_not_add_up", lambda record: histogram_fault(cell, record)),
        broken(records, "acceptance_out_of_range", lambda record: acceptance_fault(cell, record)),
        broken(records, "stamps_out_of_order", stamps_fault),
        _repeated_units(records),
        _cell_status(cell, records),
        _failed(records),
        _cancelled(records),
        _duplicate_prompts(records),
        _low_acceptance(cell, records),
        _nothing_accepted(cell, records),
        _short_outputs(records),
        _few_prompts(records),
        _assumed_first_chunk(records),
        _short_drafts(cell, records),
        _partly_measured(records),
    ]
    return tuple(finding for finding in findings if finding is not None)


def _repeated_units(records: Sequence[RequestRecord]) -> Finding | None:
    repeated = [unit for unit, count in Counter(record.unit for record in records).items() if count > 1]
    if not repeated:
        return None
    named = listed(unit[0] for unit in repeated)
    return Finding("request_recorded_twice", "error", f"Recorded more than once: {named}.")


def _cell_status(cell: Cell, records: Sequence[RequestRecord]) -> Finding | None:
    if cell.status == "completed":
        return None
    num_run = len({record.prompt_id for record in records})
    ended = cell_end(cell, f"{num_run} of {plural(cell.workload.num_prompts, 'prompt')}")
    severity: Severity = "error" if cell.status == "failed" else "warning"
    return Finding(f"cell_{cell.status}", severity, f"{ended}.")


def _failed(records: Sequence[RequestRecord]) -> Finding | None:
    kinds = metrics.error_kind_counts(records)
    if not kinds:
        return None
    by_kind = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    return Finding(
        "failed_requests", "warning", f"{of(sum(kinds.values()), len(records))} failed ({by_kind})."
    )


def _cancelled(records: Sequence[RequestRecord]) -> Finding | None:
    count = sum(record.finish_reason == "cancelled" for record in records)
    return (
        Finding("cancelled_requests", "warning", f"{of(count, len(records))} were cancelled.")
        if count
        else None
    )


def _duplicate_prompts(records: Sequence[RequestRecord]) -> Finding | None:
    by_digest: dict[str, dict[str, None]] = {}
    for record in records:
        if record.prompt_digest is not None:
            by_digest.setdefault(record.prompt_digest, {})[record.prompt_id] = None
    twins = [prompts for prompts in by_digest.values() if len(prompts) > 1]
    if not twins:
        return None
    named = listed(" = ".join(prompts) for prompts in twins)
    sentence = (
        f"Some prompts have equal tokens, so a prefix cache may serve them and they weigh double: {named}."
    )
    return Finding("duplicate_prompts", "warning", sentence)


def _low_acceptance(cell: Cell, records: Sequence[RequestRecord]) -> Finding | None:
    length = acceptance_metrics.acceptance_length(records)
    if cell.arm.is_baseline or length is None or length >= LOW_ACCEPTANCE_LENGTH:
        return None
    sentence = (
        f"The acceptance length is {length:.2f}: the draft gives next to nothing. Check that it was made "
        f"for this target, "
        "its quantisation, and the prompt template."
    )
    return Finding("low_acceptance_length", "warning", sentence)


def _nothing_accepted(cell: Cell, records: Sequence[RequestRecord]) -> Finding | None:
    if cell.arm.is_baseline or acceptance_metrics.acceptance_rate(records) != 0:
        return None
    sentence = "Not one draft token was accepted: every step delivered only the target's own token."
    return Finding("nothing_accepted", "warning", sentence)


def _short_outputs(records: Sequence[RequestRecord]) -> Finding | None:
    mean = metrics.output_tokens_mean(records)
    if mean is None or mean >= SHORT_OUTPUT_TOKENS:
        return None
    sentence = (
        f"Outputs are short, {mean:.1f} tokens on average (below {SHORT_OUTPUT_TOKENS}): the prefill "
        f"weighs heavily in "
        "end-to-end times, and decode figures rest on few tokens."
    )
    return Finding("short_outputs", "warning", sentence)


def _few_prompts(records: Sequence[RequestRecord]) -> Finding | None:
    done = request_metrics.completed(records)
    count = len({record.prompt_id for record in done})
    if not 0 < count < MIN_PROMPTS_FOR_INTERVAL:
        return None
    sentence = (
        f"Only {requests_of(len(done), count)} completed: fewer than {MIN_PROMPTS_FOR_INTERVAL} prompts give no "
        "interval, so nothing can be concluded from the figures."
    )
    return Finding("few_prompts", "warning", sentence)


def _assumed_first_chunk(records: Sequence[RequestRecord]) -> Finding | None:
    done = request_metrics.completed(records)
    count = sum(
        record.num_output_tokens is not None and record.num_first_chunk_tokens is None for record in done
    )
    if not count:
        return None
    sentence = f"In {of(count, len(done))} the size of the first chunk is unknown and taken as 1 token."
    return Finding("first_chunk_assumed", "info", sentence)


def _short_drafts(cell: Cell, records: Sequence[RequestRecord]) -> Finding | None:
    block = cell.arm.block_size
    if block is None:
        return None
    known = [
        (record.num_draft_tokens, record.num_verify_steps)
        for record in request_metrics.completed(records)
        if record.num_draft_tokens is not None and record.num_verify_steps is not None
    ]
    count = sum(drafted < steps * (block - 1) for drafted, steps in known)
    if not count:
        return None
    few = f"In {of(count, len(known))} some steps drafted fewer than B-1 tokens"
    sentence = f"{few}; rates per position divide by all verify steps."
    return Finding("short_drafts", "info", sentence)


def _partly_measured(records: Sequence[RequestRecord]) -> Finding | None:
    done = request_metrics.completed(records)
    parts = []
    for name in ("num_output_tokens", "num_decode_steps", "num_accepted_tokens", "output_digest"):
        missing = sum(getattr(record, name) is None for record in done)
        if 0 < missing < len(done):
            parts.append(f"{name} in {missing}")
    if not parts:
        return None
    sentence = (
        f"Not measured: {', '.join(parts)} of {len(done)} completed requests; they are left out where needed."
    )
    return Finding("partly_measured", "warning", sentence)
