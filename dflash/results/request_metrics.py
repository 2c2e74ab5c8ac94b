"""One request's figures, and how requests are pooled: what every metric is made from. Pure.

Only completed requests (ended by a stop token or at the limit) enter a metric, and of those only the ones that
carry every field of the formula. A formula is written once, over columns of many requests; its form for a single
request is made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from dflash.results.columns import Column, Mask, RequestTable, first_come, table_of
from dflash.results.records import RequestRecord
from dflash.results.stats import Pooled, PromptSums

NS_PER_S = 1_000_000_000

Records = Sequence[RequestRecord]
Figure = Callable[[RequestTable], Column]  # one figure of each request
# One record's share in each pooled sum; None: the record does not carry what the formula needs.
Terms = Callable[[RequestRecord], "tuple[float, ...] | None"]


def single(figure: Figure) -> Callable[[RequestRecord], Any]:
    """A figure of one request; None where it does not carry what the formula needs."""

    def of_request(record: RequestRecord) -> Any:
        return figure(RequestTable((record,))).only()

    of_request.__doc__ = figure.__doc__
    return of_request


# --- one figure of each request


def decode_token_counts(requests: RequestTable) -> Column:
    """num_output_tokens - num_first_chunk_tokens.

    An unknown first chunk counts as 1 token (`verify.py` says so).
    """
    return requests.integers("num_output_tokens") - requests.integers("num_first_chunk_tokens").filled(1)


def decode_times_ns(requests: RequestTable) -> Column:
    """last - first."""
    return requests.integers("last_ns") - requests.integers("first_ns")


def ttfts_s(requests: RequestTable) -> Column:
    """Time to first token: first - sent."""
    return (requests.integers("first_ns") - requests.integers("sent_ns")) / NS_PER_S


def queue_times_s(requests: RequestTable) -> Column:
    """Open loop: sent - due."""
    return (requests.integers("sent_ns") - requests.integers("due_ns")) / NS_PER_S


def ttfts_from_due_s(requests: RequestTable) -> Column:
    """Open loop: first - due."""
    return (requests.integers("first_ns") - requests.integers("due_ns")) / NS_PER_S


def e2els_s(requests: RequestTable) -> Column:
    """End-to-end latency: last - sent."""
    return (requests.integers("last_ns") - requests.integers("sent_ns")) / NS_PER_S


def e2els_from_due_s(requests: RequestTable) -> Column:
    """Open loop: last - due."""
    return (requests.integers("last_ns") - requests.integers("due_ns")) / NS_PER_S


def tpots_s(requests: RequestTable) -> Column:
    """decode time / decode tokens of one request; not known with 0 decode tokens."""
    time_ns, tokens = decode_columns(requests)
    return time_ns / NS_PER_S / tokens


def decode_columns(requests: RequestTable) -> tuple[Column, Column]:
    """(decode time in ns, decode tokens) of the requests that have a decode token."""
    time_ns, tokens = decode_times_ns(requests), decode_token_counts(requests)
    has_token = time_ns.known & tokens.known & (tokens.values > 0)
    return time_ns.where(has_token), tokens.where(has_token)


def output_columns(requests: RequestTable) -> tuple[Column, Column]:
    """(output tokens, E2EL in seconds)."""
    return requests.integers("num_output_tokens"), e2els_s(requests)


num_decode_tokens = single(decode_token_counts)
decode_time_ns = single(decode_times_ns)
request_ttft_s = single(ttfts_s)
request_queue_s = single(queue_times_s)
request_ttft_from_due_s = single(ttfts_from_due_s)
request_e2el_s = single(e2els_s)
request_e2el_from_due_s = single(e2els_from_due_s)
request_tpot_s = single(tpots_s)


def decode_terms(record: RequestRecord) -> tuple[float, float] | None:
    """(decode time in ns, decode tokens) of a request that has a decode token."""
    time_ns, tokens = (column.only() for column in decode_columns(RequestTable((record,))))
    return None if time_ns is None else (time_ns, tokens)


# --- how they are summed


def completed(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """The requests that ended by a stop token or at their limit."""
    return [record for record in records if record.completed]


def failed(records: Records) -> RequestTable:
    """The requests that ended in an error."""
    requests = table_of(records)
    return requests.take(requests.texts("finish_reason") == "error")


def num_completed(records: Records) -> int:
    """How many requests ended by a stop token or at their limit."""
    return int(table_of(records).completed.sum())


def pool(records: Records, terms: Terms, formula: Callable[..., float]) -> Pooled:
    """Sum a record's terms by prompt, one record after the other."""
    rows = ((record.prompt_id, terms(record)) for record in completed(records))
    return Pooled.of(((prompt_id, row) for prompt_id, row in rows if row is not None), formula)


def pool_columns(
    records: Records,
    columns: Callable[[RequestTable], tuple[Column, ...]],
    formula: Callable[..., float],
) -> Pooled:
    """`pool` of many requests at once: only requests that have every column enter."""
    requests = table_of(records)
    found = columns(requests)
    rows = requests.completed
    for column in found:
        rows = rows & column.known
    return sum_by_prompt(requests, rows, [column.values[rows] for column in found], formula)


def sum_by_prompt(
    requests: RequestTable, rows: Mask, columns: Sequence[NDArray[Any]], formula: Callable[..., float]
) -> Pooled:
    """Sum what belongs to each prompt (its turns and repeats).

    Args:
        rows: which requests enter.
        columns: one number of each of them.
    """
    all_codes, prompt_ids = requests.prompts
    codes = all_codes[rows]
    lowest = int(codes.min(initial=len(prompt_ids)))
    codes = codes - lowest
    order = first_come(codes)  # that decides which draws fall on which prompt
    by_code = [numpy.bincount(codes, weights=column) for column in columns]
    sums = numpy.empty((len(order), len(columns)))
    for place, column in enumerate(by_code):
        sums[:, place] = column[order]
    return Pooled(PromptSums(prompt_ids, order + lowest, sums), formula)


def each(records: Records, metric: Callable[[RequestRecord], float | None]) -> list[float]:
    """One record after the other."""
    return [value for record in completed(records) if (value := metric(record)) is not None]


def figures(records: Records, figure: Figure) -> NDArray[Any]:
    """A figure of every completed request that has it, in order."""
    requests = table_of(records)
    return figure(requests).where(requests.completed).numbers()


def share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
