"""A load and a server's counters in short words, for terminal and report alike. Pure."""

from __future__ import annotations

from dflash.results.formats import UNKNOWN, format_count, format_limit, format_number, format_rate
from dflash.results.goodput import Slo
from dflash.results.server_counters import CountersVerdict
from dflash.results.summary import CellSummary

VERDICT_WORDS: dict[CountersVerdict, str] = {
    "reconciled": "reconciled",
    "contaminated": "contaminated",
    "too_low": "below our own requests",
    "unlike": "drafts unlike our own requests",
    "not_checkable": "not checkable",
    "unsettled": "still moving",
    "reset": "reset",
    "unreadable": "unreadable",
    "missing": "missing",
}


def slo_words(slo: Slo) -> str:
    """`TTFT <= 500 ms, TPOT <= 50 ms`."""
    limits = (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("E2EL", slo.e2el_s))
    return ", ".join(f"{name} <= {format_limit(limit)}" for name, limit in limits if limit is not None)


def load_line(cell: CellSummary, slo: Slo | None) -> str | None:
    """`412.0 tok/s, steady 431.2, peak 640; goodput 3.20 req/s (87 of 128 within TTFT <= 500 ms)`; None in process."""
    if not cell.cell.on_server:
        return None
    speeds = [
        format_rate(cell.number(name))
        for name in ("output_tok_s", "steady_output_tok_s", "peak_output_tok_s")
    ]
    whys = ["" if why is None else f" ({why})" for why in (cell.why_no_steady, cell.why_no_peak)]
    line = f"output {speeds[0]} tok/s, steady {speeds[1]}{whys[0]}, peak {speeds[2]}{whys[1]}"
    if slo is None:
        return line
    within = f"{format_count(cell.number('num_within_slo'))} of {len(cell.records)}"
    goodput = format_number(cell.number("goodput_req_s"))
    return f"{line}; goodput {goodput} requests/s ({within} within {slo_words(slo)})"


def distrust_words(cell: CellSummary) -> str:
    """What must stand beside every figure from this cell's counters; nothing where they are ours or may be."""
    counts = cell.counts
    return VERDICT_WORDS[counts.verdict] if counts is not None and counts.is_distrusted else ""


def counters_name(cell: CellSummary) -> str:
    """`counters`, or `counters, contaminated`: where a figure is from, and whether it is to be trusted."""
    return ", ".join(filter(None, ("counters", distrust_words(cell))))


def counters_line(cell: CellSummary) -> str | None:
    """The acceptance that the server counted, with its state and the one that requests tell; None where none is."""
    if cell.counts is None or cell.cell.arm.is_baseline:
        return None
    untrimmed = cell.number("acceptance_length_untrimmed_counters")
    if untrimmed is not None:
        own, form = cell.number("acceptance_length_untrimmed"), "as engines count"
    else:
        untrimmed = cell.number("acceptance_length_counters")
        own, form = cell.number("acceptance_length"), "delivered"
    state = VERDICT_WORDS[cell.counts.verdict]
    if untrimmed is None:
        return f"acceptance length by the server's counters {UNKNOWN} ({state})"
    return (
        f"acceptance length, {form}: {format_number(untrimmed)} by the server's counters ({state}), "
        f"{format_number(own)} by its answers"
    )
