"""The identities that every result is checked against: a broken one is shown with the reason, never repaired. Pure.

The sixth, of a server's counters, is in `server_counters.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dflash.results import acceptance_metrics, metrics
from dflash.results.finding import Finding, name_of, of
from dflash.results.records import Cell, RequestRecord


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
    length = acceptance_metrics.request_acceptance_length(record) if record.completed else None
    if length is not None and (length < 1 or (block is not None and length > block)):
        return f"acceptance length {length:.3f} is outside 1..{block if block is not None else 'B'}"
    return None


def stamps_fault(record: RequestRecord) -> str | None:
    """due <= sent <= first <= last on the clock of one segment; a completed request has the last three.

    An answer without a token has no first one.
    """
    needed = [record.sent_ns, record.last_ns] + ([record.first_ns] if record.num_output_tokens != 0 else [])
    if record.completed and None in needed:
        return "a completed request lacks a time stamp"
    stamps = (record.due_ns, record.sent_ns, record.first_ns, record.last_ns)
    known = [stamp for stamp in stamps if stamp is not None]
    return None if known == sorted(known) else "the stamps due, sent, first, last are not in this order"


def check_throughput(
    mean_tok_s: float | None, peak_tok_s: float | None, least_peak_tok_s: float | None = None
) -> Finding | None:
    """Identity 5: peak throughput >= mean throughput; None where it holds or one of them was not measured.

    Args:
        least_peak_tok_s: what the best of the 1 s windows that cover a run must hold at least. A little below the
            mean in short runs, whose last window is not full.
    """
    if mean_tok_s is None or peak_tok_s is None:
        return None
    if peak_tok_s >= min(mean_tok_s, mean_tok_s if least_peak_tok_s is None else least_peak_tok_s):
        return None
    sentence = f"The peak throughput, {peak_tok_s:.1f} tok/s, is below the mean, {mean_tok_s:.1f} tok/s."
    return Finding("peak_below_mean", "error", sentence)


def broken(
    records: Sequence[RequestRecord], code: str, fault: Callable[[RequestRecord], str | None]
) -> Finding | None:
    faults = [(record, text) for record in records if (text := fault(record)) is not None]
    if not faults:
        return None
    record, text = faults[0]
    sentence = f"{of(len(faults), len(records))} break an identity; the first is {name_of(record)}: {text}."
    return Finding(code, "error", sentence)
