"""Records of one arm -> its metrics: one function per metric, whose docstring is its formula.

Only completed requests (ended by a stop token or at the limit) enter a metric, and of those only the ones
that carry every field of the formula; where none does, the metric is None ("not measured"), never 0 or 1.
`verify.py` says when some requests lacked a field. Acceptance is in `acceptance_metrics.py`, one request's figures
in `request_metrics.py`, what needs the times of chunks in `arrivals.py`; metrics of two arms are in
`paired_metrics.py`. The definitions are in METHODOLOGY.md.
"""

from __future__ import annotations

from collections import Counter

from dflash.results.acceptance_metrics import acceptance_length as acceptance_length
from dflash.results.acceptance_metrics import acceptance_length_untrimmed as acceptance_length_untrimmed
from dflash.results.columns import Column, RequestTable, table_of
from dflash.results.in_flight import busy_spans, load_spans
from dflash.results.records import Cell
from dflash.results.request_metrics import (
    NS_PER_S,
    Records,
    decode_columns,
    decode_times_ns,
    e2els_s,
    figures,
    num_completed,
    output_columns,
    pool_columns,
    queue_times_s,
    share,
    tpots_s,
    ttfts_from_due_s,
    ttfts_s,
)
from dflash.results.request_metrics import completed as completed
from dflash.results.stats import Pooled, arithmetic_mean, ratio

# --- speed


def pooled_decode_tok_s(records: Records) -> Pooled:
    """Sums behind `decode_tok_s`."""

    def columns(requests: RequestTable) -> tuple[Column, Column]:
        time_ns, tokens = decode_columns(requests)
        return tokens, time_ns / NS_PER_S

    return pool_columns(records, columns, ratio)


def decode_tok_s(records: Records) -> float | None:
    """sum(decode tokens) / sum(decode time)."""
    return pooled_decode_tok_s(records).value()


def tpot_s(records: Records) -> float | None:
    """sum(decode time) / sum(decode tokens), pooled."""
    return _scaled(pool_columns(records, decode_columns, ratio).value(), 1 / NS_PER_S)


def tpot_s_request_mean(records: Records) -> float | None:
    """mean over requests of decode time / decode tokens."""
    return arithmetic_mean(figures(records, tpots_s))


def ttft_s(records: Records) -> float | None:
    """mean over requests of first - sent."""
    return arithmetic_mean(figures(records, ttfts_s))


def e2el_s(records: Records) -> float | None:
    """mean over requests of last - sent."""
    return arithmetic_mean(figures(records, e2els_s))


def queue_s(records: Records) -> float | None:
    """mean over requests of sent - due (open loop)."""
    return arithmetic_mean(figures(records, queue_times_s))


def ttft_from_due_s(records: Records) -> float | None:
    """mean over requests of first - due (open loop)."""
    return arithmetic_mean(figures(records, ttfts_from_due_s))


def output_tok_s(records: Records, busy_s: float | None = None) -> float | None:
    """sum(output tokens) / sum(E2EL) in process; / `busy_s` on servers, where requests overlap."""
    if busy_s is None:
        return pool_columns(records, output_columns, ratio).value()
    tokens = figures(records, lambda requests: requests.integers("num_output_tokens"))
    return int(tokens.sum()) / busy_s if len(tokens) and busy_s > 0 else None


def total_tok_s(records: Records, busy_s: float) -> float | None:
    """sum(prompt tokens + output tokens) / `busy_s`; None where a completed request does not have both: it took its
    share of the time all the same.
    """
    requests = table_of(records)
    tokens = requests.integers("num_prompt_tokens") + requests.integers("num_output_tokens")
    done = requests.completed
    return int(tokens.values[done].sum()) / busy_s if done.any() and tokens.known[done].all() else None


def completed_req_s(records: Records, load_s: float) -> float | None:
    """completed requests / `load_s`."""
    return num_completed(records) / load_s or None


def load_time_s(cell: Cell, records: Records) -> float | None:
    """Time that requests a second are counted over. Closed loop: the busy time. Open loop: from when the first request
    of a stretch of load was due to its last answer, summed: waiting for the next request to be due is part of such a
    load, and no server answers more requests a second than are sent.
    """
    if cell.workload.request_rate is None:
        return busy_time_s(records)
    load_ns = sum(end - start for start, end in load_spans(records).values())
    return load_ns / NS_PER_S if load_ns else None


def busy_time_s(records: Records) -> float | None:
    """Time during which at least one request, failed ones included, was in flight, summed over the
    segments.
    """
    busy_ns = sum(int((ends - starts).sum()) for starts, ends in busy_spans(records).values())
    return busy_ns / NS_PER_S if busy_ns else None


def pooled_decode_step_s(records: Records) -> Pooled:
    """Sums behind `decode_step_s`."""

    def columns(requests: RequestTable) -> tuple[Column, Column]:
        return decode_times_ns(requests) / NS_PER_S, requests.integers("num_decode_steps").where_not_zero()

    return pool_columns(records, columns, ratio)


def decode_step_s(records: Records) -> float | None:
    """sum(decode time) / sum(num_decode_steps) over requests with a decode step."""
    return pooled_decode_step_s(records).value()


def draft_step_s(records: Records) -> float | None:
    """sum(draft time) / sum(num_verify_steps): drafting per step that had a draft."""
    return _per_step_s(records, "draft_ns", "num_verify_steps")


def verify_step_s(records: Records) -> float | None:
    """sum(verify time) / sum(num_decode_steps): the target's forward per step."""
    return _per_step_s(records, "verify_ns", "num_decode_steps")


# --- requests and memory


def finish_reason_counts(records: Records) -> dict[str, int]:
    """Requests by why they ended: stop, length, cancelled, error."""
    return dict(sorted(Counter(table_of(records).texts("finish_reason").tolist()).items()))


def error_kind_counts(records: Records) -> dict[str, int]:
    """Failed requests by kind, the most frequent first."""
    requests = table_of(records)
    failed = requests.texts("error_kind")[requests.texts("finish_reason") == "error"]
    kinds = Counter(kind or "unknown" for kind in failed.tolist())
    return dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


def error_rate(records: Records) -> float | None:
    """failed / issued; None where nothing was issued."""
    num_failed = int((table_of(records).texts("finish_reason") == "error").sum())
    return share(num_failed, len(records))


def num_retries(records: Records) -> int:
    """Sum over all requests, failed ones included, of how often the server refused before it took them."""
    return table_of(records).integers("num_retries").total()


def output_tokens_mean(records: Records) -> float | None:
    """mean over requests of num_output_tokens."""
    return arithmetic_mean(figures(records, lambda requests: requests.integers("num_output_tokens")))


def peak_memory_bytes(records: Records, weights_bytes: int | None = 0) -> int | None:
    """Highest peak of any request above the resting level, plus `weights_bytes` where they are to be
    included.
    """
    peaks = table_of(records).integers("peak_memory_bytes").numbers()
    return int(peaks.max()) + weights_bytes if len(peaks) and weights_bytes is not None else None


def _per_step_s(records: Records, time_ns: str, num_steps: str) -> float | None:
    def columns(requests: RequestTable) -> tuple[Column, Column]:
        return requests.integers(time_ns), requests.integers(num_steps).where_not_zero()

    return _scaled(pool_columns(records, columns, ratio).value(), 1 / NS_PER_S)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
