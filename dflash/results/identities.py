"""The identities that every result is checked against: a broken one is shown with the reason, never repaired. Pure.

The sixth, of a server's counters, is in `server_counters.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from dflash.results import acceptance_metrics, metrics
from dflash.results.columns import Column, Mask, RequestTable, table_of
from dflash.results.finding import Finding, name_of, of
from dflash.results.records import Cell, RequestRecord


def check_issued(cell: Cell, records: Sequence[RequestRecord]) -> Finding | None:
    """Identity 1:

    Issued = completed + failed + cancelled, and a completed cell has issued every planned prompt.
    """
    counts = metrics.finish_reason_counts(records)
    known = sum(counts.get(reason, 0) for reason in ("stop", "length", "cancelled", "error"))
    num_prompts = table_of(records).num_prompts
    if known != len(records):
        sentence = f"{len(records)} requests were issued, but {known} are completed, failed or cancelled."
    elif cell.status == "completed" and num_prompts != cell.workload.num_prompts:
        sentence = f"{cell.workload.num_prompts} prompts were planned, but records exist for {num_prompts}."
    else:
        return None
    return Finding("requests_do_not_add_up", "error", sentence)


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """One way in which requests can break an identity."""

    is_broken: Mask  # [requests]
    words: str  # with a place for each of `numbers`
    numbers: tuple[Column, ...] = ()

    def fault(self, place: int) -> str:
        """What is wrong with the request at a place."""
        return self.words.format(*(column.values[place] for column in self.numbers))


def tokens_checks(cell: Cell, requests: RequestTable) -> list[Check]:
    """Identity 2, where it can be checked.

    In process: tokens delivered by the steps + 1 = num_output_tokens. With untrimmed accepted tokens:
    0 <= 1 + verify steps + accepted - (num_output_tokens - steps without a draft) <= B - 1.
    """
    tokens = requests.integers("num_output_tokens").where(requests.completed)
    histogram, steps = requests.histograms("acceptance_histogram"), requests.integers("num_decode_steps")
    delivered = histogram.sums(histogram.bars + 1)
    words = "the steps delivered {} tokens, and 1 from the prefill, but {} were put out"
    checks = [Check(_unequal(delivered.plus(1), tokens), words, (delivered, tokens))]
    if cell.arm.is_baseline:
        is_one = _equal_to(requests.integers("num_first_chunk_tokens"), 1)
        wrong = _unequal(steps, tokens.plus(-1)) & is_one
        return [*checks, Check(wrong, "plain decoding took {} steps for {} tokens", (steps, tokens))]
    verify, accepted = requests.integers("num_verify_steps"), requests.integers("num_accepted_tokens")
    block = cell.arm.block_size
    if block is not None:
        cut = (verify + accepted).plus(1) - (tokens - (steps - verify))
        words = (
            "1 + {} verify steps + {} accepted tokens against {} tokens put out leaves {} cut tokens, outside "
            f"0..{block - 1}"
        )
        is_outside = cut.known & ((cut.values < 0) | (cut.values > block - 1))
        checks.append(Check(is_outside, words, (verify, accepted, tokens, cut)))
    return checks


def histogram_checks(cell: Cell, requests: RequestTable) -> list[Check]:
    """Identity 3:

    The histogram's total is the number of steps, its weighted sum the tokens; no bar beyond B.
    """
    checks, block = [], cell.arm.block_size
    for name, num_steps in (
        ("acceptance_histogram", "num_decode_steps"),
        ("acceptance_histogram_untrimmed", "num_verify_steps"),
    ):
        histogram, steps = requests.histograms(name), requests.integers(num_steps)
        counted = histogram.sums().where(requests.completed)
        words = f"{name} counts {{}} steps where there were {{}}"
        checks.append(Check(_unequal(counted, steps), words, (counted, steps)))
        if block is not None:
            beyond = histogram.sums(numpy.sign(histogram.counts) * (histogram.bars >= block))
            is_beyond = counted.known & (beyond.values != 0)
            checks.append(Check(is_beyond, f"{name} has steps of more than B = {block} tokens"))
    untrimmed = requests.histograms("acceptance_histogram_untrimmed")
    weighted = untrimmed.sums(untrimmed.bars).where(requests.completed)
    accepted = requests.integers("num_accepted_tokens")
    words = "the untrimmed histogram holds {} accepted tokens, not {}"
    return [*checks, Check(_unequal(weighted, accepted), words, (weighted, accepted))]


def acceptance_checks(cell: Cell, requests: RequestTable) -> list[Check]:
    """Identity 4: accepted <= drafted, and 1 <= acceptance_length <= B."""
    accepted, drafted = requests.integers("num_accepted_tokens"), requests.integers("num_draft_tokens")
    verify, block = requests.integers("num_verify_steps"), cell.arm.block_size
    is_more = accepted.known & drafted.known & (accepted.values > drafted.values)
    checks = [Check(is_more, "{} tokens were accepted of {} drafted", (accepted, drafted))]
    if block is not None:
        most = verify.times(block - 1)
        is_more = drafted.known & most.known & (drafted.values > most.values)
        words = "{} tokens were drafted, but at most {} fit into {} steps"
        checks.append(Check(is_more, words, (drafted, most, verify)))
    length = acceptance_metrics.acceptance_lengths(requests).where(requests.completed)
    is_outside = length.values < 1 if block is None else (length.values < 1) | (length.values > block)
    words = f"acceptance length {{:.3f}} is outside 1..{block if block is not None else 'B'}"
    return [*checks, Check(length.known & is_outside, words, (length,))]


def cache_checks(requests: RequestTable) -> list[Check]:
    """0 <= cached prompt tokens <= prompt tokens."""
    cached, prompt = requests.integers("num_cached_tokens"), requests.integers("num_prompt_tokens")
    words = "{} of {} prompt tokens came from a cache"
    return [Check(cached.known & prompt.known & (cached.values > prompt.values), words, (cached, prompt))]


def stamps_checks(requests: RequestTable) -> list[Check]:
    """due <= sent <= first <= last on the clock of one segment; a completed request has the last three.

    An answer without a token has no first one.
    """
    due, sent, first, last = (requests.integers(f"{name}_ns") for name in ("due", "sent", "first", "last"))
    has_token = ~_equal_to(requests.integers("num_output_tokens"), 0)
    lacks = requests.completed & ~(sent.known & last.known & (first.known | ~has_token))
    is_disordered, before = numpy.zeros(len(requests), dtype=bool), due
    for stamp in (sent, first, last):
        is_disordered |= before.known & stamp.known & (stamp.values < before.values)
        before = stamp.or_else(before)
    return [
        Check(lacks, "a completed request lacks a time stamp"),
        Check(is_disordered, "the stamps due, sent, first, last are not in this order"),
    ]


def tokens_fault(cell: Cell, record: RequestRecord) -> str | None:
    """How one request breaks identity 2; None where it holds or cannot be checked."""
    return _fault(tokens_checks(cell, RequestTable((record,))))


def histogram_fault(cell: Cell, record: RequestRecord) -> str | None:
    """How one request breaks identity 3; None where it holds."""
    return _fault(histogram_checks(cell, RequestTable((record,))))


def acceptance_fault(cell: Cell, record: RequestRecord) -> str | None:
    """How one request breaks identity 4; None where it holds."""
    return _fault(acceptance_checks(cell, RequestTable((record,))))


def stamps_fault(record: RequestRecord) -> str | None:
    """What is wrong with the stamps of one request; None where they are in order."""
    return _fault(stamps_checks(RequestTable((record,))))


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


def broken(requests: RequestTable, code: str, checks: Sequence[Check]) -> Finding | None:
    """The requests of which a check is broken, and what is wrong with the first."""
    is_broken = numpy.any([check.is_broken for check in checks], axis=0)
    if not is_broken.any():
        return None
    place = int(numpy.argmax(is_broken))
    sentence = (
        f"{of(int(is_broken.sum()), len(requests))} break an identity; the first is {name_of(requests[place])}: "
        f"{_fault(checks, place)}."
    )
    return Finding(code, "error", sentence)


def _fault(checks: Sequence[Check], place: int = 0) -> str | None:
    return next((check.fault(place) for check in checks if check.is_broken[place]), None)


def _unequal(first: Column, second: Column) -> Mask:
    unequal: Mask = first.known & second.known & (first.values != second.values)
    return unequal


def _equal_to(column: Column, number: int) -> Mask:
    equal: Mask = column.known & (column.values == number)
    return equal
