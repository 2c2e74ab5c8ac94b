"""Did this process keep up with its own load? What was late, and whose fault that is. Findings beside the server's."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.results.finding import Finding, Severity
from dflash.results.formats import format_ms
from dflash.results.in_flight import steady_windows
from dflash.results.load_metrics import LoadFacts
from dflash.results.measured import Measured
from dflash.results.records import Cell, RequestRecord, Workload
from dflash.results.request_metrics import NS_PER_S
from dflash.results.server_counters import ServerCounts

MAX_LOOP_LAG_NS = 5_000_000
MAX_QUEUE_SHARE = 0.05  # of TTFT from due
LAG_SHARE_OF_QUEUE = 0.5  # a loop that is as late as that may be the cause
KERNEL = "kernel"


def check_client(
    cell: Cell, records: Sequence[RequestRecord], measured: Measured, facts: LoadFacts
) -> list[Finding | None]:
    """What the client did to its own figures; None where nothing is to be said.

    Args:
        measured: every metric of the cell.
    """
    queued = _queued(cell, records, measured)
    return [queued] if facts.counts is None else [queued, _loop_lag(cell, facts.counts, facts.stamped_by)]


def _queued(cell: Cell, records: Sequence[RequestRecord], measured: Measured) -> Finding | None:
    """Coordinated omission: a client that sends late must say so, and why."""
    queue, from_due = measured.number("queue_s"), measured.number("ttft_from_due_s")
    if cell.workload.request_rate is None or queue is None or not from_due:
        return None
    if queue <= MAX_QUEUE_SHARE * from_due:
        return None
    sentence = (
        f"Requests were sent {format_ms(queue)} ms after they were due on average (p99 "
        f"{format_ms(measured.number('queue_s_p99'))} ms): {_whose(cell, records, measured, queue)} "
        "Read TTFT from due, which counts that time."
    )
    return Finding("requests_queued", "warning", sentence)


def _whose(cell: Cell, records: Sequence[RequestRecord], measured: Measured, queue_s: float) -> str:
    """A request is kept back for want of a place alone: where all were never taken, nobody but the client was late."""
    lag = measured.number("loop_lag_max_s")
    late = "" if lag is None else f" (its event loop by up to {format_ms(lag)} ms)"
    if not steady_windows(records, cell.workload.concurrency):
        return (
            f"a place was always free, so it was this process that was late{late}, not the server. Use a machine with "
            "free cores or a lower --request-rate."
        )
    places = f"all {cell.workload.concurrency} places of --concurrency were taken"
    cause = f"{places}: the load is above what the server takes in them"
    p99 = measured.number("loop_lag_p99_s")
    if p99 is not None and p99 >= LAG_SHARE_OF_QUEUE * queue_s:
        return f"{cause}, or this process was late itself{late}."
    return f"{cause}."


def _loop_lag(cell: Cell, counts: ServerCounts, stamped_by: str | None) -> Finding | None:
    """The numbers are in the table of the load: without them it is one sentence for all arms."""
    p99_ns, most_ns = counts.loop_lag_ns()
    if max(p99_ns or 0, most_ns or 0) <= MAX_LOOP_LAG_NS:
        return None
    is_often = (p99_ns or 0) > MAX_LOOP_LAG_NS
    severity: Severity = "warning"
    if stamped_by == KERNEL:
        effect = "requests may have been sent that much late; arrivals are stamped by the kernel, so latencies hold"
        severity = "warning" if is_often else "info"
    else:
        effect = "latencies here may be inflated by that much"
    sentence = (
        f"The event loop of this process woke up more than {format_ms(MAX_LOOP_LAG_NS / NS_PER_S)} ms late, "
        f"{'in over 1 % of all cases' if is_often else 'once at least'} (loop lag): {effect}. {_mend(cell.workload)}"
    )
    return Finding("event_loop_lag", severity, sentence)


def _mend(workload: Workload) -> str:
    if workload.request_rate is not None:
        return "Use a machine with free cores or a lower --request-rate."
    lower = " or a lower concurrency" if workload.concurrency > 1 else ""
    return f"Use a machine with free cores{lower}."
