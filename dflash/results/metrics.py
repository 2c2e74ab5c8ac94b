"""Records of one arm -> its metrics: one function per metric, whose docstring is its formula.

Only completed requests (ended by a stop token or at the limit) enter a metric, and of those only the ones
that carry every field of the formula; where none does, the metric is None ("not measured"), never 0 or 1.
`verify.py` says when some requests lacked a field. Metrics of two arms are in `paired_metrics.py`; the
definitions are in METHODOLOGY.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from dflash.results.records import RequestRecord
from dflash.results.stats import Pooled, arithmetic_mean, one_plus_ratio, ratio

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


def request_tpot_s(record: RequestRecord) -> float | None:
    """decode time / decode tokens of one request; None for 0 decode tokens."""
    terms = decode_terms(record)
    return None if terms is None else terms[0] / NS_PER_S / terms[1]


def request_acceptance_length(record: RequestRecord) -> float | None:
    """(num_output_tokens - 1) / num_decode_steps of one request; None without a decode step."""
    terms = _delivered_terms(record)
    return None if terms is None else terms[0] / terms[1]


def decode_terms(record: RequestRecord) -> tuple[float, float] | None:
    """(decode time in ns, decode tokens) of a request that has a decode token."""
    tokens, time_ns = num_decode_tokens(record), decode_time_ns(record)
    return None if tokens is None or time_ns is None or tokens <= 0 else (time_ns, tokens)


# --- speed


def pooled_decode_tok_s(records: Records) -> Pooled:
    """Sums behind `decode_tok_s`."""

    def terms(record: RequestRecord) -> tuple[float, float] | None:
        decode = decode_terms(record)
        return None if decode is None else (decode[1], decode[0] / NS_PER_S)

    return _pool(records, terms, ratio)


def decode_tok_s(records: Records) -> float | None:
    """sum(decode tokens) / sum(decode time)."""
    return pooled_decode_tok_s(records).value()


def tpot_s(records: Records) -> float | None:
    """sum(decode time) / sum(decode tokens), pooled."""
    return _scaled(_pool(records, decode_terms, ratio).value(), 1 / NS_PER_S)


def tpot_s_request_mean(records: Records) -> float | None:
    """mean over requests of decode time / decode tokens."""
    return arithmetic_mean(_each(records, request_tpot_s))


def ttft_s(records: Records) -> float | None:
    """mean over requests of first - sent."""
    return arithmetic_mean(_each(records, request_ttft_s))


def e2el_s(records: Records) -> float | None:
    """mean over requests of last - sent."""
    return arithmetic_mean(_each(records, request_e2el_s))


def queue_s(records: Records) -> float | None:
    """mean over requests of sent - due (open loop)."""
    return arithmetic_mean(_each(records, request_queue_s))


def ttft_from_due_s(records: Records) -> float | None:
    """mean over requests of first - due (open loop)."""
    return arithmetic_mean(_each(records, request_ttft_from_due_s))


def output_terms(record: RequestRecord) -> tuple[float, float] | None:
    """(output tokens, E2EL in seconds) of one request."""
    e2el = request_e2el_s(record)
    return None if record.num_output_tokens is None or e2el is None else (record.num_output_tokens, e2el)


def output_tok_s(records: Records, busy_s: float | None = None) -> float | None:
    """sum(output tokens) / sum(E2EL) in process; / `busy_s` on servers, where requests overlap."""
    if busy_s is None:
        return _pool(records, output_terms, ratio).value()
    tokens = [
        record.num_output_tokens for record in completed(records) if record.num_output_tokens is not None
    ]
    return sum(tokens) / busy_s if tokens and busy_s > 0 else None


def busy_time_s(records: Records) -> float | None:
    """Time during which at least one request, failed ones included, was in flight, summed over the
    segments.
    """
    spans = sorted(
        (record.segment, record.sent_ns, record.last_ns)
        for record in records
        if record.sent_ns is not None and record.last_ns is not None
    )
    busy_ns, open_segment, open_until = 0, None, 0
    for segment, start, end in spans:
        if segment != open_segment:
            open_segment, open_until = segment, start
        busy_ns += max(0, end - max(start, open_until))
        open_until = max(open_until, end)
    return busy_ns / NS_PER_S if busy_ns else None


def pooled_decode_step_s(records: Records) -> Pooled:
    """Sums behind `decode_step_s`."""

    def terms(record: RequestRecord) -> tuple[float, float] | None:
        time_ns, steps = decode_time_ns(record), record.num_decode_steps
        return None if time_ns is None or not steps else (time_ns / NS_PER_S, steps)

    return _pool(records, terms, ratio)


def decode_step_s(records: Records) -> float | None:
    """sum(decode time) / sum(num_decode_steps) over requests with a decode step."""
    return pooled_decode_step_s(records).value()


def draft_step_s(records: Records) -> float | None:
    """sum(draft time) / sum(num_verify_steps): drafting per step that had a draft."""
    return _per_step_s(records, lambda record: record.draft_ns, lambda record: record.num_verify_steps)


def verify_step_s(records: Records) -> float | None:
    """sum(verify time) / sum(num_decode_steps): the target's forward per step."""
    return _per_step_s(records, lambda record: record.verify_ns, lambda record: record.num_decode_steps)


# --- acceptance


def pooled_acceptance_length(records: Records) -> Pooled:
    """Sums behind `acceptance_length`."""
    return _pool(records, _delivered_terms, ratio)


def acceptance_length(records: Records) -> float | None:
    """sum(num_output_tokens - 1) / sum(num_decode_steps) over requests with a decode step:

    Delivered, pooled.
    """
    return pooled_acceptance_length(records).value()


def acceptance_length_request_mean(records: Records) -> float | None:
    """mean over requests of (num_output_tokens - 1) / num_decode_steps."""
    return arithmetic_mean(_each(records, request_acceptance_length))


def pooled_acceptance_length_untrimmed(records: Records) -> Pooled:
    """Sums behind `acceptance_length_untrimmed`."""
    return _pool(records, _accepted_terms, one_plus_ratio)


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

    return _pool(records, terms, ratio).value()


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
    return None if reached is None else tuple(_share(count, reached[0]) for count in reached[1:])


def acceptance_rate_per_position_conditional(records: Records) -> tuple[float | None, ...] | None:
    """Conditional:

    [i-1] = verify steps that accepted position i / verify steps that accepted position i-1.
    """
    reached = _steps_reaching(records)
    if reached is None:
        return None
    return tuple(_share(count, before) for before, count in pairwise(reached))


# --- requests and memory


def completed(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """The requests that ended by a stop token or at their limit."""
    return [record for record in records if record.completed]


def finish_reason_counts(records: Records) -> dict[str, int]:
    """Requests by why they ended: stop, length, cancelled, error."""
    return dict(sorted(Counter(record.finish_reason for record in records).items()))


def error_kind_counts(records: Records) -> dict[str, int]:
    """Failed requests by kind, the most frequent first."""
    kinds = Counter(record.error_kind or "unknown" for record in records if record.finish_reason == "error")
    return dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


def error_rate(records: Records) -> float | None:
    """failed / issued; None where nothing was issued."""
    return _share(sum(record.finish_reason == "error" for record in records), len(records))


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


# --- how they are summed


def _pool(records: Records, terms: Terms, formula: Callable[..., float]) -> Pooled:
    rows = ((record.prompt_id, terms(record)) for record in completed(records))
    return Pooled.of(((prompt_id, row) for prompt_id, row in rows if row is not None), formula)


def _each(records: Records, metric: Callable[[RequestRecord], float | None]) -> list[float]:
    return [value for record in completed(records) if (value := metric(record)) is not None]


def _delivered_terms(record: RequestRecord) -> tuple[float, float] | None:
    tokens, steps = record.num_output_tokens, record.num_decode_steps
    return None if tokens is None or not steps else (tokens - 1, steps)


def _accepted_terms(record: RequestRecord) -> tuple[float, float] | None:
    accepted, steps = record.num_accepted_tokens, record.num_verify_steps
    return None if accepted is None or not steps else (accepted, steps)


def _per_step_s(
    records: Records,
    time_ns: Callable[[RequestRecord], int | None],
    num_steps: Callable[[RequestRecord], int | None],
) -> float | None:
    def terms(record: RequestRecord) -> tuple[float, float] | None:
        time, steps = time_ns(record), num_steps(record)
        return None if time is None or not steps else (time, steps)

    return _scaled(_pool(records, terms, ratio).value(), 1 / NS_PER_S)


def _steps_reaching(records: Records) -> list[int] | None:
    """[i] = verify steps that accepted at least i draft tokens; [0] = all verify steps."""
    histogram = acceptance_histogram_untrimmed(records)
    return None if histogram is None else [sum(histogram[i:]) for i in range(len(histogram))]


def _summed(histograms: Iterable[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    known = [histogram for histogram in histograms if histogram is not None]
    width = max(map(len, known), default=0)
    total = tuple(sum(h[k] for h in known if k < len(h)) for k in range(width))
    return total if any(total) else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _difference(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else end - start


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / NS_PER_S


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
