"""Is this cell believable? Identities that must hold, and warnings that a reader must see beside the numbers.

A result that breaks an identity is shown with the reason; it is never dropped or repaired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dflash.results import metrics
from dflash.results.records import Cell, RequestRecord
from dflash.results.stats import MIN_PROMPTS_FOR_INTERVAL

Severity = Literal["error", "warning", "info"]

LOW_ACCEPTANCE_LENGTH = 1.1
SHORT_OUTPUT_TOKENS = 64
OUTPUT_LENGTH_RATIO_RANGE = (0.95, 1.05)
_NUM_NAMED = 3  # prompts named in a sentence


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a reader must know before trusting a number."""

    code: str  # stable word
    severity: Severity  # error: broken identity or refused comparison; warning: read with care; info: a fact
    sentence: str


def check_cell(cell: Cell, records: Sequence[RequestRecord]) -> tuple[Finding, ...]:
    """Findings about one arm alone: the identities 1 to 4, then believability."""
    findings: list[Finding | None] = [
        check_issued(cell, records),
        _broken(records, "tokens_do_not_add_up", lambda record: tokens_fault(cell, record)),
        _broken(records, "histogram_does_not_add_up", lambda record: histogram_fault(cell, record)),
        _broken(records, "acceptance_out_of_range", lambda record: acceptance_fault(cell, record)),
        _broken(records, "stamps_out_of_order", stamps_fault),
        _repeated_units(records),
        _cell_status(cell),
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


# --- identities


def check_issued(cell: Cell, records: Sequence[RequestRecord]) -> Finding | None:
    """Identity 1:

    Issued = completed + failed + cancelled, and a completed cell has issued every planned prompt.
    """
    counts = metrics.finish_reason_counts(records)
    known = sum(counts.get(reason, 0) for reason in ("stop", "length", "cancelled", "error"))
    num_prompts = len({record.prompt_id for record in records})
    if known != len(records):
        sentence = f"{len(records)} requests were issued, but {known} are completed, failed or cancelled."
    elif cell.status == "completed" and num_prompts != cell.workload.num_prompts:
        sentence = f"{cell.workload.num_prompts} prompts were planned, but records exist for {num_prompts}."
    else:
        return None
    return Finding("requests_do_not_add_up", "error", sentence)


def tokens_fault(cell: Cell, record: RequestRecord) -> str | None:
    """Identity 2, or None where it holds or cannot be checked.

    In process: tokens delivered by the steps + 1 = num_output_tokens. With untrimmed accepted tokens:
    0 <= 1 + verify steps + accepted - (num_output_tokens - steps without a draft) <= B - 1.
    """
    tokens, steps = record.num_output_tokens, record.num_decode_steps
    if not record.completed or tokens is None:
        return None
    if record.acceptance_histogram is not None:
        delivered = sum(k * count for k, count in enumerate(record.acceptance_histogram, start=1))
        if delivered + 1 != tokens:
            return (
                f"the steps delivered {delivered} tokens, and 1 from the prefill, but {tokens} were put out"
            )
    if cell.arm.is_baseline:
        wrong = steps is not None and record.num_first_chunk_tokens == 1 and steps != tokens - 1
        return f"plain decoding took {steps} steps for {tokens} tokens" if wrong else None
    verify, accepted, block = record.num_verify_steps, record.num_accepted_tokens, cell.arm.block_size
    if steps is None or verify is None or accepted is None or block is None:
        return None
    cut = 1 + verify + accepted - (tokens - (steps - verify))
    if 0 <= cut <= block - 1:
        return None
    return (
        f"1 + {verify} verify steps + {accepted} accepted tokens against {tokens} tokens put out leaves "
        f"{cut} cut tokens, "
        f"outside 0..{block - 1}"
    )


def histogram_fault(cell: Cell, record: RequestRecord) -> str | None:
    """Identity 3:

    The histogram's total is the number of steps, its weighted sum the tokens; no bar beyond B.
    """
    block = cell.arm.block_size
    for name, histogram, steps in (
        ("acceptance_histogram", record.acceptance_histogram, record.num_decode_steps),
        ("acceptance_histogram_untrimmed", record.acceptance_histogram_untrimmed, record.num_verify_steps),
    ):
        if not record.completed or histogram is None:
            continue
        if steps is not None and sum(histogram) != steps:
            return f"{name} counts {sum(histogram)} steps where there were {steps}"
        if block is not None and any(histogram[block:]):
            return f"{name} has steps of more than B = {block} tokens"
    untrimmed = record.acceptance_histogram_untrimmed
    if record.completed and untrimmed is not None and record.num_accepted_tokens is not None:
        weighted = sum(k * count for k, count in enumerate(untrimmed))
        if weighted != record.num_accepted_tokens:
            return (
                f"the untrimmed histogram holds {weighted} accepted tokens, not {record.num_accepted_tokens}"
            )
    return None


def acceptance_fault(cell: Cell, record: RequestRecord) -> str | None:
    """Identity 4: accepted <= drafted, and 1 <= acceptance_length <= B."""
    accepted, drafted, block = record.num_accepted_tokens, record.num_draft_tokens, cell.arm.block_size
    if accepted is not None and drafted is not None and accepted > drafted:
        return f"{accepted} tokens were accepted of {drafted} drafted"
    if drafted is not None and record.num_verify_steps is not None and block is not None:
        most = record.num_verify_steps * (block - 1)
        if drafted > most:
            return (
                f"{drafted} tokens were drafted, but at most {most} fit into {record.num_verify_steps} steps"
            )
    length = metrics.request_acceptance_length(record) if record.completed else None
    if length is not None and (length < 1 or (block is not None and length > block)):
        return f"acceptance length {length:.3f} is outside 1..{block if block is not None else 'B'}"
    return None


def stamps_fault(record: RequestRecord) -> str | None:
    """sent <= first <= last on the clock of one segment, and a completed request has all three."""
    stamps = (record.sent_ns, record.first_ns, record.last_ns)
    if record.completed and None in stamps:
        return "a completed request lacks a time stamp"
    known = [stamp for stamp in stamps if stamp is not None]
    return None if known == sorted(known) else "the stamps sent, first, last are not in this order"


def check_throughput(mean_tok_s: float | None, peak_tok_s: float | None) -> Finding | None:
    """Identity 5: peak throughput >= mean throughput; None where it holds or one of them was not measured."""
    if mean_tok_s is None or peak_tok_s is None or peak_tok_s >= mean_tok_s:
        return None
    sentence = f"The peak throughput, {peak_tok_s:.1f} tok/s, is below the mean, {mean_tok_s:.1f} tok/s."
    return Finding("peak_below_mean", "error", sentence)


def check_counters(own: int, server: int, all_completed: bool) -> Finding | None:
    """Identity 6: what a server counted equals what our own requests produced.

    With failed or cancelled requests the check is one-sided: the server may have counted more.
    """
    if own == server:
        return None
    if not all_completed and server > own:
        sentence = f"Not checkable, as some requests did not complete: the server counted {server}, we {own}."
        return Finding("counters_not_checkable", "info", sentence)
    sentence = (
        f"Acceptance from the server's counters is contaminated: it counted {server} where our own "
        f"requests make {own}; "
        "someone else used the server or its counters were reset."
    )
    return Finding("counters_contaminated", "error", sentence)


# --- believability of one arm


def _broken(
    records: Sequence[RequestRecord], code: str, fault: Callable[[RequestRecord], str | None]
) -> Finding | None:
    faults = [(record, text) for record in records if (text := fault(record)) is not None]
    if not faults:
        return None
    record, text = faults[0]
    sentence = f"{_of(len(faults), len(records))} break an identity; the first is {_name(record)}: {text}."
    return Finding(code, "error", sentence)


def _repeated_units(records: Sequence[RequestRecord]) -> Finding | None:
    repeated = [unit for unit, count in Counter(record.unit for record in records).items() if count > 1]
    if not repeated:
        return None
    named = _listed(unit[0] for unit in repeated)
    return Finding("request_recorded_twice", "error", f"Recorded more than once: {named}.")


def _cell_status(cell: Cell) -> Finding | None:
    if cell.status == "completed":
        return None
    why = f": {cell.reason}" if cell.reason else ""
    severity: Severity = "error" if cell.status == "failed" else "warning"
    return Finding(f"cell_{cell.status}", severity, f"The arm is {cell.status}, not completed{why}.")


def _failed(records: Sequence[RequestRecord]) -> Finding | None:
    kinds = metrics.error_kind_counts(records)
    if not kinds:
        return None
    listed = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    return Finding(
        "failed_requests", "warning", f"{_of(sum(kinds.values()), len(records))} failed ({listed})."
    )


def _cancelled(records: Sequence[RequestRecord]) -> Finding | None:
    count = sum(record.finish_reason == "cancelled" for record in records)
    return (
        Finding("cancelled_requests", "warning", f"{_of(count, len(records))} were cancelled.")
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
    named = _listed(" = ".join(prompts) for prompts in twins)
    sentence = (
        f"Some prompts have equal tokens, so a prefix cache may serve them and they weigh double: {named}."
    )
    return Finding("duplicate_prompts", "warning", sentence)


def _low_acceptance(cell: Cell, records: Sequence[RequestRecord]) -> Finding | None:
    length = metrics.acceptance_length(records)
    if cell.arm.is_baseline or length is None or length >= LOW_ACCEPTANCE_LENGTH:
        return None
    sentence = (
        f"The acceptance length is {length:.2f}: the draft gives next to nothing. Check that it was made "
        f"for this target, "
        "its quantisation, and the prompt template."
    )
    return Finding("low_acceptance_length", "warning", sentence)


def _nothing_accepted(cell: Cell, records: Sequence[RequestRecord]) -> Finding | None:
    if cell.arm.is_baseline or metrics.acceptance_rate(records) != 0:
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
    count = len({record.prompt_id for record in metrics.completed(records)})
    if not 0 < count < MIN_PROMPTS_FOR_INTERVAL:
        return None
    sentence = (
        f"Only {_plural(count, 'prompt')} completed: fewer than {MIN_PROMPTS_FOR_INTERVAL} give no interval."
    )
    return Finding("few_prompts", "warning", sentence)


def _assumed_first_chunk(records: Sequence[RequestRecord]) -> Finding | None:
    done = metrics.completed(records)
    count = sum(
        record.num_output_tokens is not None and record.num_first_chunk_tokens is None for record in done
    )
    if not count:
        return None
    sentence = f"In {_of(count, len(done))} the size of the first chunk is unknown and taken as 1 token."
    return Finding("first_chunk_assumed", "info", sentence)


def _short_drafts(cell: Cell, records: Sequence[RequestRecord]) -> Finding | None:
    block = cell.arm.block_size
    if block is None:
        return None
    known = [
        (record.num_draft_tokens, record.num_verify_steps)
        for record in metrics.completed(records)
        if record.num_draft_tokens is not None and record.num_verify_steps is not None
    ]
    count = sum(drafted < steps * (block - 1) for drafted, steps in known)
    if not count:
        return None
    few = f"In {_of(count, len(known))} some steps drafted fewer than B-1 tokens"
    sentence = f"{few}; rates per position divide by all verify steps."
    return Finding("short_drafts", "info", sentence)


def _partly_measured(records: Sequence[RequestRecord]) -> Finding | None:
    done = metrics.completed(records)
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


# --- how a sentence is put


def _of(count: int, total: int) -> str:
    return f"{count} of {_plural(total, 'request')}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _name(record: RequestRecord) -> str:
    return f"{record.prompt_id} (turn {record.turn}, repeat {record.repeat})"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - _NUM_NAMED
    return ", ".join(names[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
