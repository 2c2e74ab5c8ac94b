"""One cell -> what its load shows: chunk times, throughput in time, goodput, the server's own counters. Pure.

Beside `arm_metrics`, which needs nothing but the records and so serves the parts of a cell as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dflash.results import arrivals as chunk_times
from dflash.results.arrivals import Arrivals
from dflash.results.goodput import Slo, goodput_req_s, num_within_slo
from dflash.results.measured import MetricValue
from dflash.results.metrics import busy_time_s, completed_req_s, load_time_s, num_retries, total_tok_s
from dflash.results.records import Cell, RequestRecord
from dflash.results.request_metrics import NS_PER_S
from dflash.results.server_counters import ServerCounts, cached_prompt_share

ICL_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """What is known of a cell beside its records."""

    arrivals: Arrivals = field(default_factory=Arrivals)
    counts: ServerCounts | None = None  # None: in process
    slo: Slo | None = None
    stamped_by: str | None = None  # who stamped arrivals: "kernel", "event loop"; None: not told


def load_metrics(cell: Cell, records: Sequence[RequestRecord], facts: LoadFacts) -> dict[str, MetricValue]:
    """Every metric of a whole cell that its parts do not have, under its code name."""
    arrivals, counts = facts.arrivals, facts.counts
    steady = chunk_times.steady_state(cell, records, arrivals)
    lag_p99_ns, lag_max_ns = (None, None) if counts is None else counts.loop_lag_ns()
    busy_s, load_s = (busy_time_s(records), load_time_s(cell, records)) if cell.on_server else (None, None)
    values: dict[str, MetricValue] = {
        "total_tok_s": None if busy_s is None else total_tok_s(records, busy_s),
        "completed_req_s": None if load_s is None else completed_req_s(records, load_s),
        "icl_s": chunk_times.icl_s(arrivals),
        "peak_output_tok_s": chunk_times.peak_output_tok_s(records, arrivals),
        "steady_s": None if steady is None else steady.seconds,
        "steady_output_tok_s": None if steady is None else steady.output_tok_s,
        "steady_decode_tok_s": None if steady is None else steady.decode_tok_s,
        "goodput_req_s": goodput_req_s(cell, records, facts.slo),
        "num_within_slo": num_within_slo(cell, records, facts.slo),
        "num_retries": num_retries(records),
        "cached_prompt_share": cached_prompt_share(records),
        "acceptance_length_counters": None if counts is None else counts.acceptance_length(),
        "acceptance_length_untrimmed_counters": (
            None if counts is None else counts.acceptance_length_untrimmed()
        ),
        "acceptance_rate_counters": None if counts is None else counts.acceptance_rate(),
        "acceptance_rate_per_position_counters": (
            None if counts is None else counts.acceptance_rate_per_position()
        ),
        "loop_lag_p99_s": None if lag_p99_ns is None else lag_p99_ns / NS_PER_S,
        "loop_lag_max_s": None if lag_max_ns is None else lag_max_ns / NS_PER_S,
    }
    percentiles = chunk_times.icl_percentiles_s(arrivals, ICL_PERCENTILES)
    values |= {
        f"icl_s_p{percent}": value for percent, value in zip(ICL_PERCENTILES, percentiles, strict=True)
    }
    return values
