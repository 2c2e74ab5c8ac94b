"""The sections of a report on arms that are servers: load, throughput, latency, and what the server counted. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from dflash.results.formats import (
    UNKNOWN,
    format_cache_mark,
    format_count,
    format_counts,
    format_ms,
    format_number,
    format_percent,
    format_rate,
    format_speedup,
    format_times,
)
from dflash.results.goodput import Slo
from dflash.results.markdown_merge import merged
from dflash.results.markdown_text import bullets, escape, table
from dflash.results.server_counters import COMPARED, COUNTER_WORDS
from dflash.results.server_words import VERDICT_WORDS, counters_name, slo_words
from dflash.results.summary import CellSummary, Group
from dflash.results.titles import capped, load_words, parts_beside_load

POPULATION = (
    "Every speed and latency is over completed requests. A request that failed gives no tokens and no latency; it is "
    "counted beside them."
)
THROUGHPUT_WORDS = (
    "Output tok/s is over the time in which a request was in flight, from sending the first to the last answer; so is "
    "total tok/s, which counts prompts too. Requests/s: completed ones; of an open loop from the first that was due to "
    "the last answer, pauses included. "
    "Steady: while the set number of requests was in flight, without filling and emptying. Peak: the best 1 s; a chunk "
    "counts with its tokens."
)
LATENCY_WORDS = (
    "Percentiles are over requests, those of ICL over all gaps. ICL is the gap between chunks that carry tokens. A "
    "chunk may carry several, so it is no time per token: that is TPOT, whose tokens come from the server's usage."
)
COUNTERS_WORDS = (
    "The acceptance length is what was delivered; `as engines count` also holds tokens that a stop or the limit then "
    "cut. Answers: what the server says of each of our requests. Counters: what it counted in total meanwhile; they "
    "give the delivered form only where the engine counts verify calls and no accepted tokens. Below: what the server "
    "counted / what our own requests make, in the blocks of load whose counters are known."
)
Section = tuple[
    str, Callable[[Group], "list[str]"], str
]  # title, what it shows of a group, words for all groups
_PREFIX_CACHE_WORDS = {"reset": "emptied before", "off": "off", "unknown": "unknown"}


def sections(slo: Slo | None) -> tuple[Section, ...]:
    """What a report on servers shows of its load, in order."""
    limits = (
        "No limits were set, so there is no goodput (`--slo ttft:500ms,tpot:50ms`)."
        if slo is None
        else f"Limits: {escape(slo_words(slo))}. A failed request never keeps them."
    )
    return (
        ("Load", load, POPULATION),
        ("Throughput", partial(throughput, slo=slo), f"{THROUGHPUT_WORDS} {limits}"),
        ("Latency", latency, LATENCY_WORDS),
    )


def load(group: Group) -> list[str]:
    """How the servers were loaded, what became of the requests, and how well the client kept up."""
    header = [
        "arm",
        "issued",
        "completed",
        "failed",
        "cancelled",
        "refusals before",
        "blocks",
        "prefix cache",
        "cached prompt tokens",
        "loop lag p99 ms",
        "most ms",
    ]
    rows = [
        [
            escape(cell.label),
            str(len(cell.records)),
            str(cell.num_completed),
            str(cell.num_failed),
            str(cell.finish_reasons.get("cancelled", 0)),
            format_count(cell.number("num_retries")),
            UNKNOWN if cell.counts is None else str(len(cell.counts.windows)),
            UNKNOWN if cell.counts is None else _PREFIX_CACHE_WORDS[cell.counts.prefix_cache],
            format_percent(cell.number("cached_prompt_share")),
            format_ms(cell.number("loop_lag_p99_s")),
            format_ms(cell.number("loop_lag_max_s")),
        ]
        for cell in group.cells
    ]
    failures = [
        f"**{escape(cell.label)}**, failed by kind: {escape(format_counts(cell.error_kinds))}."
        for cell in group.cells
        if cell.error_kinds
    ]
    parts: list[str] = [_load_sentence(group), table(header, rows)]
    return [*parts, bullets(failures)] if failures else parts


def _load_sentence(group: Group) -> str:
    workload = group.first.workload
    if workload.request_rate is None:
        return "Closed loop: as many under way as the concurrency, the next is sent when one has ended."
    cap = capped(workload.concurrency, workload.request_rate)
    at_most = "" if cap is None else f", and at most {cap} are under way"
    return (
        f"Open loop: requests are due at {workload.request_rate:g} a second, whether earlier ones have come back or "
        f"not{at_most}."
    )


def throughput(group: Group, slo: Slo | None) -> list[str]:
    """Tokens and requests a second: mean, steady and peak; then requests a second within the limits."""
    header = [
        "arm",
        "output tok/s",
        "total tok/s",
        "requests/s",
        "steady tok/s",
        "peak tok/s",
        "throughput speedup",
        "decode tok/s",
        "steady decode tok/s",
        "steady for s",
        "goodput requests/s",
        "within limits",
    ]
    rows = [
        [
            escape(cell.label),
            *(format_rate(cell.number(name)) for name in ("output_tok_s", "total_tok_s")),
            format_number(cell.number("completed_req_s")),
            *(format_rate(cell.number(name)) for name in ("steady_output_tok_s", "peak_output_tok_s")),
            "reference" if cell.cell.arm.is_baseline else format_times(cell.number("throughput_speedup")),
            format_rate(cell.number("decode_tok_s")),
            format_rate(cell.number("steady_decode_tok_s")),
            format_number(cell.number("steady_s"), 1),
            format_number(cell.number("goodput_req_s")),
            UNKNOWN
            if slo is None
            else f"{format_count(cell.number('num_within_slo'))} of {len(cell.records)}",
        ]
        for cell in group.cells
    ]
    reasons = [
        f"**{escape(cell.label)}**: no {name}, because {escape(why)}."
        for cell in group.cells
        for name, why in (("steady figure", cell.why_no_steady), ("peak", cell.why_no_peak))
        if why is not None
    ]
    return [table(header, rows), *([bullets(reasons)] if reasons else [])]


def latency(group: Group) -> list[str]:
    """Percentiles over requests; of gaps between chunks, over all gaps."""
    figures = [("TTFT", "ttft_s", "ttft_s")]
    if group.first.workload.request_rate is not None:
        figures += [
            ("due to sent", "queue_s", "queue_s"),
            ("TTFT from due", "ttft_from_due_s", "ttft_from_due_s"),
        ]
    figures += [
        ("TPOT", "tpot_s_request_mean", "tpot_s"),
        ("ICL", "icl_s", "icl_s"),
        ("E2EL", "e2el_s", "e2el_s"),
    ]
    rows = [
        [
            escape(cell.label),
            _figure(title, cell),
            format_ms(cell.number(mean)),
            *(format_ms(cell.number(f"{name}_p{percent}")) for percent in (50, 90, 99)),
        ]
        for cell in group.cells
        for title, mean, name in figures
    ]
    return [table(["arm", "figure", "mean ms", "p50", "p90", "p99"], rows, num_left=2)]


def _figure(title: str, cell: CellSummary) -> str:
    if not title.startswith("TTFT"):
        return title
    mark = format_cache_mark(cell.cache_mark, cell.number("cached_prompt_share"))
    return f"{title}, {mark}" if mark else title


def concurrency(groups: Sequence[Group]) -> list[str]:
    """Every data set load by load, all arms beside each other."""
    datasets: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        key = (group.first.workload.dataset, group.first.backend, *parts_beside_load(group))
        datasets.setdefault(key, []).append(group)
    several = len({backend for _, backend, *_ in datasets}) > 1
    bodies = []
    for (dataset, backend, *beside), members in datasets.items():
        parts = [part for part in (dataset, backend if several else "", *beside) if part]
        bodies.append((escape(" · ".join(parts)), [_concurrency_table(members)]))
    shown = merged(bodies, "data set")
    words = (
        "tok/s: output throughput of the whole server. Speedup: of decoding, request by request. Accept.: "
        "delivered tokens a step, as the answers tell them; (counters): as the engine counts them."
    )
    return [*shown, words]


def _concurrency_table(groups: Sequence[Group]) -> str:
    labels = list(dict.fromkeys(cell.label for group in groups for cell in group.cells))
    drafting = {cell.label for group in groups for cell in group.cells if not cell.cell.arm.is_baseline}
    header = ["load"]
    for label in labels:
        header.append(f"{escape(label)} tok/s")
        if label in drafting:
            header += ["speedup", "throughput speedup", "accept."]
    rows = []
    for group in groups:
        by_label = {cell.label: cell for cell in group.cells}
        row = [escape(load_words(group.first))]
        for label in labels:
            row += _concurrency_cells(by_label.get(label), label in drafting)
        rows.append(row)
    return table(header, rows)


def _concurrency_cells(cell: CellSummary | None, drafts: bool) -> list[str]:
    if cell is None:
        return [UNKNOWN] * (4 if drafts else 1)
    failed = f" ({cell.num_failed} failed)" if cell.num_failed else ""
    cells = [format_rate(cell.number("output_tok_s")) + failed]
    if drafts:
        cells += [
            format_speedup(cell.interval("speedup")),
            format_times(cell.number("throughput_speedup")),
            _acceptance(cell),
        ]
    return cells


def _acceptance(cell: CellSummary) -> str:
    """Never one figure in place of the other: the counters' is named."""
    counted = cell.number("acceptance_length_untrimmed_counters")
    named = "" if counted is None else f" ({format_number(counted)} {counters_name(cell)})"
    return format_number(cell.number("acceptance_length")) + named


def counters(group: Group) -> list[str]:
    """Acceptance from two sources, and whether the server's counters are the sum of our own requests."""
    drafting = [cell for cell in group.cells if not cell.cell.arm.is_baseline]
    header = ["arm", "source", "acceptance length", "as engines count", "acceptance rate"]
    rows = [row for cell in drafting for row in _source_rows(cell)]
    parts: list[str] = [table(header, rows, num_left=2)] if rows else []
    positions = [
        f"**{escape(cell.label)}**, share of drafts that had position 1, 2, … accepted, by {counters_name(cell)}: "
        f"{', '.join(map(format_percent, rates))}."
        for cell in drafting
        if (rates := cell.numbers("acceptance_rate_per_position_counters")) is not None
    ]
    if positions:
        parts.append(bullets(positions))
    checked = [
        [
            escape(cell.label),
            UNKNOWN if cell.counts is None else VERDICT_WORDS[cell.counts.verdict],
            *(_compared(cell, name) for name in COMPARED),
        ]
        for cell in group.cells
    ]
    names = ["arm", "counters", *(COUNTER_WORDS[name] for name in COMPARED)]
    return [*parts, table(names, checked, num_left=2)]


def _source_rows(cell: CellSummary) -> list[list[str]]:
    label = escape(cell.label)
    answers = [
        format_number(cell.number(name)) for name in ("acceptance_length", "acceptance_length_untrimmed")
    ]
    counted = [
        format_number(cell.number(name))
        for name in ("acceptance_length_counters", "acceptance_length_untrimmed_counters")
    ]
    return [
        [label, "answers", *answers, format_percent(cell.number("acceptance_rate"))],
        [
            label,
            counters_name(cell),
            *counted,
            format_percent(cell.number("acceptance_rate_counters")),
        ],
    ]


def _compared(cell: CellSummary, name: str) -> str:
    if cell.counts is None:
        return UNKNOWN
    return f"{format_count(cell.counts.total(name))} / {format_count(cell.counts.own.get(name))}"
