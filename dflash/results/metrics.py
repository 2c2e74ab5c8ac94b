"""Records of one arm -> its metrics: one function per metric, whose docstring is its formula.

Only completed requests (ended by a stop token or at the limit) enter a metric, and of those only the ones
that carry every field of the formula; where none does, the metric is None ("not measured"), never 0 or 1.
`verify.py` says when some requests lacked a field. Acceptance is in `acceptance_metrics.py`, one request's figures
in `request_metrics.py`, what needs the times of chunks in `arrivals.py`; metrics of two arms are in
`paired_metrics.py`. The definitions are in METHODOLOGY.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dflash.results.acceptance_metrics import acceptance_length as acceptance_length
from dflash.results.acceptance_metrics import acceptance_length_untrimmed as acceptance_length_untrimmed
from dflash.results.in_flight import busy_intervals
from dflash.results.records import RequestRecord
from dflash.results.request_metrics import (
    NS_PER_S,
    Records,
    decode_terms,
    decode_time_ns,
    each,
    output_terms,
    pool,
    request_e2el_s,
    request_queue_s,
    request_tpot_s,
    request_ttft_from_due_s,
    request_ttft_s,
    share,
)
from dflash.results.request_metrics import completed as completed
from dflash.results.stats import Pooled, arithmetic_mean, ratio

# --- speed


def pooled_decode_tok_s(records: Records) -> Pooled:
    """Sums behind `decode_tok_s`."""

    def terms(record: RequestRecord) -> tuple[float, float] | None:
        decode = decode_terms(record)
        return None if decode is None else (decode[1], decode[0] / NS_PER_S)

    return pool(records, terms, ratio)


def decode_tok_s(records: Records) -> float | None:
    """sum(decode tokens) / sum(decode time)."""
    return pooled_decode_tok_s(records).value()


def tpot_s(records: Records) -> float | None:
    """sum(decode time) / sum(decode tokens), pooled."""
    return _scaled(pool(records, decode_terms, ratio).value(), 1 / NS_PER_S)


def tpot_s_request_mean(records: Records) -> float | None:
    """mean over requests of decode time / decode tokens."""
    return arithmetic_mean(each(records, request_tpot_s))


def ttft_s(records: Records) -> float | None:
    """mean over requests of first - sent."""
    return arithmetic_mean(each(records, request_ttft_s))


def e2el_s(records: Records) -> float | None:
    """mean over requests of last - sent."""
    return arithmetic_mean(each(records, request_e2el_s))


def queue_s(records: Records) -> float | None:
    """mean over requests of sent - due (open loop)."""
    return arithmetic_mean(each(records, request_queue_s))


def ttft_from_due_s(records: Records) -> float | None:
    """mean over requests of first - due (open loop)."""
    return arithmetic_mean(each(records, request_ttft_from_due_s))


def output_tok_s(records: Records, busy_s: float | None = None) -> float | None:
    """sum(output tokens) / sum(E2EL) in process; / `busy_s` on servers, where requests overlap."""
    if busy_s is None:
        return pool(records, output_terms, ratio).value()
    tokens = [
        record.num_output_tokens for record in completed(records) if record.num_output_tokens is not None
    ]
    return sum(tokens) / busy_s if tokens and busy_s > 0 else None


def busy_time_s(records: Records) -> float | None:
    """Time during which at least one request, failed ones included, was in flight, summed over the
    segments.
    """
    intervals = busy_intervals(records).values()
    busy_ns = sum(end - start for spans in intervals for start, end in spans)
    return busy_ns / NS_PER_S if busy_ns else None


def pooled_decode_step_s(records: Records) -> Pooled:
    """Sums behind `decode_step_s`."""

    def terms(record: RequestRecord) -> tuple[float, float] | None:
        time_ns, steps = decode_time_ns(record), record.num_decode_steps
        return None if time_ns is None or not steps else (time_ns / NS_PER_S, steps)

    return pool(records, terms, ratio)


def decode_step_s(records: Records) -> float | None:
    """sum(decode time) / sum(num_decode_steps) over requests with a decode step."""
    return pooled_decode_step_s(records).value()


def draft_step_s(records: Records) -> float | None:
    """sum(draft time) / sum(num_verify_steps): drafting per step that had a draft."""
    return _per_step_s(records, lambda record: record.draft_ns, lambda record: record.num_verify_steps)


def verify_step_s(records: Records) -> float | None:
    """sum(verify time) / sum(num_decode_steps): the target's forward per step."""
    return _per_step_s(records, lambda record: record.verify_ns, lambda record: record.num_decode_steps)


# --- requests and memory


def finish_reason_counts(records: Records) -> dict[str, int]:
    """Requests by why they ended: stop, length, cancelled, error."""
    return dict(sorted(Counter(record.finish_reason for record in records).items()))


def error_kind_counts(records: Records) -> dict[str, int]:
    """Failed requests by kind, the most frequent first."""
    kinds = Counter(record.error_kind or "unknown" for record in records if record.finish_reason == "error")
    return dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


def error_rate(records: Records) -> float | None:
    """failed / issued; None where nothing was issued."""
    return share(sum(record.finish_reason == "error" for record in records), len(records))


def num_retries(records: Records) -> int:
    """Sum over all requests, failed ones included, of how often the server refused before it took them."""
    return sum(record.num_retries for record in records)


def output_tokens_mean(records: Records) -> float | None:
    """mean over requests of num_output_tokens."""
    return arithmetic_mean(
        [n for record in completed(records) if (n := record.num_output_tokens) is not None]
    )


def peak_memory_bytes(records: Records, weights_bytes: int | None = 0) -> int | None:
    """Highest peak of any request above the resting level, plus `weights_bytes` where they are to be
    included.
    """
    peaks = [record.peak_memory_bytes for record in records if record.peak_memory_bytes is not None]
    return max(peaks) + weights_bytes if peaks and weights_bytes is not None else None


def _per_step_s(
    records: Records,
    time_ns: Callable[[RequestRecord], int | None],
    num_steps: Callable[[RequestRecord], int | None],
) -> float | None:
    def terms(record: RequestRecord) -> tuple[float, float] | None:
        time, steps = time_ns(record), num_steps(record)
        return None if time is None or not steps else (time, steps)

    return _scaled(pool(records, terms, ratio).value(), 1 / NS_PER_S)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
