"""What was accepted, from what each request says of itself: one function per metric, whose docstring is its formula.

What a server counts for all of its requests together is in `server_counters.py`; neither stands for the other.
"""

from __future__ import annotations

from itertools import pairwise

from dflash.results.columns import Column, RequestTable, table_of
from dflash.results.request_metrics import Records, figures, pool_columns, share, single
from dflash.results.stats import Pooled, arithmetic_mean, one_plus_ratio, ratio


def acceptance_lengths(requests: RequestTable) -> Column:
    """(num_output_tokens - 1) / num_decode_steps of one request; not known without a decode step."""
    delivered, steps = _delivered_columns(requests)
    return delivered / steps


request_acceptance_length = single(acceptance_lengths)


def pooled_acceptance_length(records: Records) -> Pooled:
    """Sums behind `acceptance_length`."""
    return pool_columns(records, _delivered_columns, ratio)


def acceptance_length(records: Records) -> float | None:
    """sum(num_output_tokens - 1) / sum(num_decode_steps) over requests with a decode step:

    Delivered, pooled.
    """
    return pooled_acceptance_length(records).value()


def acceptance_length_request_mean(records: Records) -> float | None:
    """mean over requests of (num_output_tokens - 1) / num_decode_steps."""
    return arithmetic_mean(figures(records, acceptance_lengths))


def pooled_acceptance_length_untrimmed(records: Records) -> Pooled:
    """Sums behind `acceptance_length_untrimmed`."""
    return pool_columns(records, _accepted_columns, one_plus_ratio)


def acceptance_length_untrimmed(records: Records) -> float | None:
    """1 + sum(accepted) / sum(verify steps), tokens cut by a stop or the limit included:

    As engines count it.
    """
    return pooled_acceptance_length_untrimmed(records).value()


def acceptance_length_untrimmed_request_mean(records: Records) -> float | None:
    """mean over requests of 1 + accepted / verify steps: the form of the paper's tables."""

    def lengths(requests: RequestTable) -> Column:
        accepted, steps = _accepted_columns(requests)
        return (accepted / steps).plus(1)

    return arithmetic_mean(figures(records, lengths))


def acceptance_rate(records: Records) -> float | None:
    """sum(accepted) / sum(drafted), untrimmed."""

    def columns(requests: RequestTable) -> tuple[Column, Column]:
        return requests.integers("num_accepted_tokens"), requests.integers(
            "num_draft_tokens"
        ).where_not_zero()

    return pool_columns(records, columns, ratio).value()


def acceptance_histogram(records: Records) -> tuple[int, ...] | None:
    """[k-1] = decode steps that delivered k tokens."""
    return _summed(records, "acceptance_histogram")


def acceptance_histogram_untrimmed(records: Records) -> tuple[int, ...] | None:
    """[k-1] = verify steps with k-1 accepted draft tokens, those included that a stop or the limit then
    cut.
    """
    return _summed(records, "acceptance_histogram_untrimmed")


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


def _delivered_columns(requests: RequestTable) -> tuple[Column, Column]:
    return requests.integers("num_output_tokens").plus(-1), requests.integers(
        "num_decode_steps"
    ).where_not_zero()


def _accepted_columns(requests: RequestTable) -> tuple[Column, Column]:
    return requests.integers("num_accepted_tokens"), requests.integers("num_verify_steps").where_not_zero()


def _steps_reaching(records: Records) -> list[int] | None:
    """[i] = verify steps that accepted at least i draft tokens; [0] = all verify steps."""
    histogram = acceptance_histogram_untrimmed(records)
    return None if histogram is None else [sum(histogram[i:]) for i in range(len(histogram))]


def _summed(records: Records, name: str) -> tuple[int, ...] | None:
    total = tuple(table_of(records).histogram_of_completed(name).tolist())
    return total if any(total) else None
