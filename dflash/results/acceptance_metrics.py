"""What was accepted, from what each request says of itself: one function per metric, whose docstring is its formula.

What a server counts for all of its requests together is in `server_counters.py`; neither stands for the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from dflash.results.records import RequestRecord
from dflash.results.request_metrics import Records, completed, each, pool, share
from dflash.results.stats import Pooled, arithmetic_mean, one_plus_ratio, ratio


def request_acceptance_length(record: RequestRecord) -> float | None:
    """(num_output_tokens - 1) / num_decode_steps of one request; None without a decode step."""
    terms = _delivered_terms(record)
    return None if terms is None else terms[0] / terms[1]


def pooled_acceptance_length(records: Records) -> Pooled:
    """Sums behind `acceptance_length`."""
    return pool(records, _delivered_terms, ratio)


def acceptance_length(records: Records) -> float | None:
    """sum(num_output_tokens - 1) / sum(num_decode_steps) over requests with a decode step:

    Delivered, pooled.
    """
    return pooled_acceptance_length(records).value()


def acceptance_length_request_mean(records: Records) -> float | None:
    """mean over requests of (num_output_tokens - 1) / num_decode_steps."""
    return arithmetic_mean(each(records, request_acceptance_length))


def pooled_acceptance_length_untrimmed(records: Records) -> Pooled:
    """Sums behind `acceptance_length_untrimmed`."""
    return pool(records, _accepted_terms, one_plus_ratio)


def acceptance_length_untrimmed(records: Records) -> float | None:
    """1 + sum(accepted) / sum(verify steps), tokens cut by a stop or the limit included:

    As engines count it.
    """
    return pooled_acceptance_length_untrimmed(records).value()


def acceptance_length_untrimmed_request_mean(records: Records) -> float | None:
    """mean over requests of 1 + accepted / verify steps: the form of the paper's tables."""
    terms = [_accepted_terms(record) for record in completed(records)]
    return arithmetic_mean([1 + term[0] / term[1] for term in terms if term is not None])


def acceptance_rate(records: Records) -> float | None:
    """sum(accepted) / sum(drafted), untrimmed."""

    def terms(record: RequestRecord) -> tuple[float, float] | None:
        accepted, drafted = record.num_accepted_tokens, record.num_draft_tokens
        return None if accepted is None or not drafted else (accepted, drafted)

    return pool(records, terms, ratio).value()


def acceptance_histogram(records: Records) -> tuple[int, ...] | None:
    """[k-1] = decode steps that delivered k tokens."""
    return _summed(record.acceptance_histogram for record in completed(records))


def acceptance_histogram_untrimmed(records: Records) -> tuple[int, ...] | None:
    """[k-1] = verify steps with k-1 accepted draft tokens, those included that a stop or the limit then
    cut.
    """
    return _summed(record.acceptance_histogram_untrimmed for record in completed(records))


def acceptance_rate_per_position(records: Records) -> tuple[float | None, ...] | None:
    """Joint: [i-1] = verify steps that accepted draft position i / all verify steps (each proposes it).

    From the untrimmed histogram, position i = 1..B-1; every verify step proposes B-1 tokens.
    """
    reached = _steps_reaching(records)
    return None if reached is None else tuple(share(count, reached[0]) for count in reached[1:])


def acceptance_rate_per_position_conditional(records: Records) -> tuple[float | None, ...] | None:
    """Conditional:

    [i-1] = verify steps that accepted position i / verify steps that accepted position i-1.
    """
    reached = _steps_reaching(records)
    if reached is None:
        return None
    return tuple(share(count, before) for before, count in pairwise(reached))


def _delivered_terms(record: RequestRecord) -> tuple[float, float] | None:
    tokens, steps = record.num_output_tokens, record.num_decode_steps
    return None if tokens is None or not steps else (tokens - 1, steps)


def _accepted_terms(record: RequestRecord) -> tuple[float, float] | None:
    accepted, steps = record.num_accepted_tokens, record.num_verify_steps
    return None if accepted is None or not steps else (accepted, steps)


def _steps_reaching(records: Records) -> list[int] | None:
    """[i] = verify steps that accepted at least i draft tokens; [0] = all verify steps."""
    histogram = acceptance_histogram_untrimmed(records)
    return None if histogram is None else [sum(histogram[i:]) for i in range(len(histogram))]


def _summed(histograms: Iterable[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    known = [histogram for histogram in histograms if histogram is not None]
    width = max(map(len, known), default=0)
    total = tuple(sum(h[k] for h in known if k < len(h)) for k in range(width))
    return total if any(total) else None
