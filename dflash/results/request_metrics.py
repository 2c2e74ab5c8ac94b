"""One request's figures, and how requests are pooled: what every metric is made from. Pure.

Only completed requests (ended by a stop token or at the limit) enter a metric, and of those only the ones that
carry every field of the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dflash.results.records import RequestRecord
from dflash.results.stats import Pooled

NS_PER_S = 1_000_000_000

Records = Sequence[RequestRecord]
# One record's share in each pooled sum; None: the record does not carry what the formula needs.
Terms = Callable[[RequestRecord], "tuple[float, ...] | None"]


# --- one request


def num_decode_tokens(record: RequestRecord) -> int | None:
    """num_output_tokens - num_first_chunk_tokens.

    An unknown first chunk counts as 1 token (`verify.py` says so).
    """
    if record.num_output_tokens is None:
        return None
    first = 1 if record.num_first_chunk_tokens is None else record.num_first_chunk_tokens
    return record.num_output_tokens - first


def decode_time_ns(record: RequestRecord) -> int | None:
    """last - first."""
    return _difference(record.first_ns, record.last_ns)


def request_ttft_s(record: RequestRecord) -> float | None:
    """Time to first token: first - sent."""
    return _seconds(_difference(record.sent_ns, record.first_ns))


def request_queue_s(record: RequestRecord) -> float | None:
    """Open loop: sent - due."""
    return _seconds(_difference(record.due_ns, record.sent_ns))


def request_ttft_from_due_s(record: RequestRecord) -> float | None:
    """Open loop: first - due."""
    return _seconds(_difference(record.due_ns, record.first_ns))


def request_e2el_s(record: RequestRecord) -> float | None:
    """End-to-end latency: last - sent."""
    return _seconds(_difference(record.sent_ns, record.last_ns))


def request_e2el_from_due_s(record: RequestRecord) -> float | None:
    """Open loop: last - due."""
    return _seconds(_difference(record.due_ns, record.last_ns))


def request_tpot_s(record: RequestRecord) -> float | None:
    """decode time / decode tokens of one request; None for 0 decode tokens."""
    terms = decode_terms(record)
    return None if terms is None else terms[0] / NS_PER_S / terms[1]


def decode_terms(record: RequestRecord) -> tuple[float, float] | None:
    """(decode time in ns, decode tokens) of a request that has a decode token."""
    tokens, time_ns = num_decode_tokens(record), decode_time_ns(record)
    return None if tokens is None or time_ns is None or tokens <= 0 else (time_ns, tokens)


def output_terms(record: RequestRecord) -> tuple[float, float] | None:
    """(output tokens, E2EL in seconds) of one request."""
    e2el = request_e2el_s(record)
    return None if record.num_output_tokens is None or e2el is None else (record.num_output_tokens, e2el)


# --- how they are summed


def completed(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """The requests that ended by a stop token or at their limit."""
    return [record for record in records if record.completed]


def pool(records: Records, terms: Terms, formula: Callable[..., float]) -> Pooled:
    rows = ((record.prompt_id, terms(record)) for record in completed(records))
    return Pooled.of(((prompt_id, row) for prompt_id, row in rows if row is not None), formula)


def each(records: Records, metric: Callable[[RequestRecord], float | None]) -> list[float]:
    return [value for record in completed(records) if (value := metric(record)) is not None]


def share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _difference(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else end - start


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / NS_PER_S
