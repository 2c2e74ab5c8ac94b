"""Is this cell believable? Identities that must hold, and warnings that a reader must see beside the numbers.

A result that breaks an identity is shown with the reason; it is never dropped or repaired.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from dflash.results import acceptance_metrics, metrics, request_metrics
from dflash.results.columns import RequestTable, first_come, table_of, unit_codes
from dflash.results.finding import Finding as Finding
from dflash.results.finding import Severity as Severity
from dflash.results.finding import cell_end, listed, of, plural, requests_of
from dflash.results.identities import (
    acceptance_checks,
    broken,
    cache_checks,
    check_issued,
    histogram_checks,
    stamps_checks,
    tokens_checks,
)
from dflash.results.identities import acceptance_fault as acceptance_fault
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
    requests = table_of(records)
    findings: list[Finding | None] = [
        check_issued(cell, requests),
        broken(requests, "tokens_do_not_add_up", tokens_checks(cell, requests)),
        broken(requests, "histogram_does_not_add_up", histogram_checks(cell, requests)),
        broken(requests, "acceptance_out_of_range", acceptance_checks(cell, requests)),
        broken(requests, "cached_out_of_range", cache_checks(requests)),
        broken(requests, "stamps_out_of_order", stamps_checks(requests)) if cell.is_timed else None,
        _repeated_units(requests),
        _cell_status(cell, requests),
        _failed(requests),
        _cancelled(requests),
        _duplicate_prompts(requests),
        _low_acceptance(cell, requests),
        _nothing_accepted(cell, requests),
        _short_outputs(requests),
        _few_prompts(requests),
        _assumed_first_chunk(requests),
        _short_drafts(cell, requests),
        _partly_measured(requests),
    ]
    return tuple(finding for finding in findings if finding is not None)


def _repeated_units(requests: RequestTable) -> Finding | None:
    units, _ = unit_codes(requests, RequestTable(()))
    num_recorded = numpy.bincount(units)
    if not (num_recorded > 1).any():
        return None
    repeated = [unit for unit in first_come(units).tolist() if num_recorded[unit] > 1]
    named = listed(requests[int(numpy.argmax(units == unit))].prompt_id for unit in repeated)
    return Finding("request_recorded_twice", "error", f"Recorded more than once: {named}.")


def _cell_status(cell: Cell, requests: RequestTable) -> Finding | None:
    if cell.status == "completed":
        return None
    progress = f"{requests.num_prompts} of {plural(cell.workload.num_prompts, 'prompt')}"
    if cell.num_requests not in (
        None,
        cell.workload.num_prompts,
    ):  # turns and repeats are requests of their own
        progress = f"{len(requests)} of {plural(cell.num_requests, 'request')}"
    ended = cell_end(cell, progress)
    severity: Severity = "error" if cell.status == "failed" else "warning"
    return Finding(f"cell_{cell.status}", severity, f"{ended}.")


def _failed(requests: RequestTable) -> Finding | None:
    kinds = metrics.error_kind_counts(requests)
    if not kinds:
        return None
    by_kind = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    return Finding(
        "failed_requests", "warning", f"{of(sum(kinds.values()), len(requests))} failed ({by_kind})."
    )


def _cancelled(requests: RequestTable) -> Finding | None:
    count = int((requests.texts("finish_reason") == "cancelled").sum())
    return (
        Finding("cancelled_requests", "warning", f"Cancelled: {of(count, len(requests))}.") if count else None
    )


def _duplicate_prompts(requests: RequestTable) -> Finding | None:
    digests, prompt_ids = requests.texts("prompt_digest").tolist(), requests.texts("prompt_id").tolist()
    different = dict.fromkeys(zip(digests, prompt_ids, strict=True))
    if len(different) == len({digest for digest, _ in different}):
        return None
    by_digest: dict[str, list[str]] = {}
    for digest, prompt_id in different:
        if digest is not None:
            by_digest.setdefault(digest, []).append(prompt_id)
    twins = [prompts for prompts in by_digest.values() if len(prompts) > 1]
    if not twins:
        return None
    named = listed(" = ".join(prompts) for prompts in twins)
    sentence = (
        f"Some prompts have equal tokens, so a prefix cache may serve them and they weigh double: {named}."
    )
    return Finding("duplicate_prompts", "warning", sentence)


def _low_acceptance(cell: Cell, requests: RequestTable) -> Finding | None:
    length = acceptance_metrics.acceptance_length(requests)
    if cell.arm.is_baseline or length is None or length >= LOW_ACCEPTANCE_LENGTH:
        return None
    sentence = (
        f"The acceptance length is {length:.2f}: the draft gives next to nothing. Check that it was made "
        f"for this target, "
        "its quantisation, and the prompt template."
    )
    return Finding("low_acceptance_length", "warning", sentence)


def _nothing_accepted(cell: Cell, requests: RequestTable) -> Finding | None:
    if cell.arm.is_baseline or acceptance_metrics.acceptance_rate(requests) != 0:
        return None
    sentence = "Not one draft token was accepted: every step delivered only the target's own token."
    return Finding("nothing_accepted", "warning", sentence)


def _short_outputs(requests: RequestTable) -> Finding | None:
    mean = metrics.output_tokens_mean(requests)
    if mean is None or mean >= SHORT_OUTPUT_TOKENS:
        return None
    sentence = (
        f"Outputs are short, {mean:.1f} tokens on average (below {SHORT_OUTPUT_TOKENS}): the prefill "
        f"weighs heavily in "
        "end-to-end times, and decode figures rest on few tokens."
    )
    return Finding("short_outputs", "warning", sentence)


def _few_prompts(requests: RequestTable) -> Finding | None:
    done = requests.take(requests.completed)
    count = len(set(done.texts("prompt_id").tolist()))
    if not 0 < count < MIN_PROMPTS_FOR_INTERVAL:
        return None
    sentence = (
        f"Only {requests_of(len(done), count)} completed: fewer than {MIN_PROMPTS_FOR_INTERVAL} prompts give no "
        "interval, so nothing can be concluded from the figures."
    )
    return Finding("few_prompts", "warning", sentence)


def _assumed_first_chunk(requests: RequestTable) -> Finding | None:
    tokens, first = requests.integers("num_output_tokens"), requests.integers("num_first_chunk_tokens")
    count = int((requests.completed & tokens.known & ~first.known).sum())
    if not count:
        return None
    of_all = of(count, request_metrics.num_completed(requests))
    sentence = f"In {of_all} the size of the first chunk is unknown and taken as 1 token."
    return Finding("first_chunk_assumed", "info", sentence)


def _short_drafts(cell: Cell, requests: RequestTable) -> Finding | None:
    block = cell.arm.block_size
    if block is None:
        return None
    fewer = requests.integers("num_draft_tokens") - requests.integers("num_verify_steps").times(block - 1)
    known = fewer.where(requests.completed).numbers()
    count = int((known < 0).sum())
    if not count:
        return None
    few = f"In {of(count, len(known))} some steps drafted fewer than B-1 tokens"
    sentence = f"{few}; rates per position divide by all verify steps."
    return Finding("short_drafts", "info", sentence)


def _partly_measured(requests: RequestTable) -> Finding | None:
    done = requests.take(requests.completed)
    known = {
        name: done.integers(name).known
        for name in ("num_output_tokens", "num_decode_steps", "num_accepted_tokens")
    }
    known["output_digest"] = done.texts("output_digest") != None  # noqa: E711 - of each element
    missing = {name: len(done) - int(mask.sum()) for name, mask in known.items()}
    parts = [f"{name} in {count}" for name, count in missing.items() if 0 < count < len(done)]
    if not parts:
        return None
    sentence = (
        f"Not measured: {', '.join(parts)} of {len(done)} completed requests; they are left out where needed."
    )
    return Finding("partly_measured", "warning", sentence)
