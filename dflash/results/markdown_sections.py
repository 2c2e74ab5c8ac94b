"""The sections of a report that show one group of comparable cells: each returns its paragraphs. Pure."""

from __future__ import annotations

from dflash.results import request_metrics
from dflash.results.formats import (
    UNKNOWN,
    format_agreement,
    format_cache_mark,
    format_count,
    format_counts,
    format_mib,
    format_ms,
    format_number,
    format_rate,
    format_speedup,
    format_times,
    format_with_bounds,
)
from dflash.results.markdown_text import Explanation, bullets, escape, table
from dflash.results.stats import percentile
from dflash.results.summary import CellSummary, Group, all_at_limit
from dflash.results.tables import FASTEST_MARK
from dflash.results.verify import OUTPUT_LENGTH_RATIO_RANGE

_MAX_ERRORS = 20


def speed(group: Group) -> list[str]:
    """The main table, then why numbers are missing."""
    header = [
        "arm",
        "B",
        "B-1",
        "speedup",
        "end to end",
        "decode tok/s",
        "baseline tok/s",
        "TTFT ms",
        "TPOT ms",
        "step ms",
        "acceptance length",
        "request mean",
        "break-even",
        "agreement",
        "output ratio",
        "requests completed",
    ]
    return [table(header, [_speed_row(group, cell) for cell in group.cells]), *_speed_notes(group)]


def _speed_row(group: Group, cell: CellSummary) -> list[str]:
    block_size = cell.cell.arm.block_size
    is_baseline = cell.cell.arm.is_baseline
    baseline = group.baseline_of(cell)
    mark = f"{FASTEST_MARK} " if group.is_fastest(cell) else ""
    paired = "reference" if is_baseline else UNKNOWN
    return [
        f"{mark}**{escape(cell.label)}**",
        "-" if is_baseline else format_count(block_size),
        "-" if is_baseline else format_count(None if block_size is None else block_size - 1),
        paired if cell.interval("speedup") is None else format_speedup(cell.interval("speedup")),
        paired if cell.interval("e2el_speedup") is None else format_speedup(cell.interval("e2el_speedup")),
        format_with_bounds(cell.interval("decode_tok_s"), 1),
        "-" if is_baseline else format_rate(None if baseline is None else baseline.number("decode_tok_s")),
        _ttft(cell),
        format_ms(cell.number("tpot_s")),
        format_ms(cell.number("decode_step_s")),
        format_with_bounds(cell.interval("acceptance_length")),
        format_number(cell.number("acceptance_length_request_mean")),
        "-" if is_baseline else format_number(cell.number("break_even_acceptance_length")),
        "-" if is_baseline else format_agreement(cell.interval("agreement")),
        "-" if is_baseline else format_number(cell.number("output_length_ratio")),
        f"{cell.num_completed} of {len(cell.records)}"
        + (f", {cell.num_failed} failed" if cell.num_failed else ""),
    ]


def _ttft(cell: CellSummary) -> str:
    """With what must stand beside it: that prompts came from the prefix cache, or that nobody knows."""
    mark = format_cache_mark(cell.cache_mark, cell.number("cached_prompt_share"))
    return f"{format_ms(cell.number('ttft_s'))} {mark}".strip()


def _speed_notes(group: Group) -> list[str]:
    lines = []
    for cell in group.cells:
        label = f"**{escape(cell.label)}**"
        if cell.why_no_speed is not None:
            lines.append(f"{label}: no decode speed, because {escape(cell.why_no_speed)}.")
        if cell.cell.arm.is_baseline:
            continue
        if cell.why_no_speedup is not None:
            lines.append(f"{label}: no speedup, because {escape(cell.why_no_speedup)}.")
        elif cell.pairing is not None and cell.pairing.left_out:
            left_out = format_counts(cell.pairing.left_out)
            lines.append(
                f"{label}: the speedup is over {len(cell.pairing.pairs)} pairs of requests; left out: "
                f"{escape(left_out)}."
            )
        agreeing = _agreeing(cell)
        if agreeing:
            lines.append(f"{label}: {agreeing}")
    return [bullets(lines)] if lines else []


def _agreeing(cell: CellSummary) -> str:
    """The speedup over prompts with equal outputs, where lengths or outputs differ."""
    length_ratio, agreement = cell.number("output_length_ratio"), cell.number("agreement")
    low, high = OUTPUT_LENGTH_RATIO_RANGE
    differs = (
        (length_ratio is not None and not low <= length_ratio <= high)
        or (agreement or 1) < 1
        or agreement == 0
    )
    if not differs:
        return ""
    value = cell.number("speedup_agreeing")
    if value is None:
        return "outputs differ, and there is no speedup over prompts with equal outputs."
    return f"over the prompts with equal outputs alone the speedup is {format_times(value)}."


def output_lengths(group: Group) -> list[str]:
    """How long the outputs were in each arm, and why they ended."""
    header = ["arm", "mean", "shortest", "median", "longest", "stop token", "limit", "cancelled", "error"]
    rows = []
    for cell in group.cells:
        lengths = request_metrics.figures(
            cell.records, lambda requests: requests.integers("num_output_tokens")
        ).tolist()
        counts = [
            str(cell.finish_reasons.get(reason, 0)) for reason in ("stop", "length", "cancelled", "error")
        ]
        rows.append(
            [
                escape(cell.label),
                format_number(cell.number("output_tokens_mean"), 1),
                format_count(min(lengths, default=None)),
                format_number(percentile(lengths, 50), 1),
                format_count(max(lengths, default=None)),
                *counts,
            ]
        )
    if all_at_limit(group.cells):
        limit = group.first.workload.max_new_tokens
        words = (
            f"Every completed request ended at the limit of {limit} new tokens: the lengths are not drawn."
        )
        return [table(header, rows), words]
    return [table(header, rows)]


def step_time(group: Group) -> list[str]:
    """Step time, split into draft and verify where the engine tells."""
    header = [
        "arm",
        "step ms",
        "draft ms",
        "verify ms",
        "rest ms",
        "TTFT p50 ms",
        "p90",
        "p99",
        "TPOT p50 ms",
        "p90",
        "p99",
        "E2EL p50 ms",
        "p90",
        "p99",
    ]
    rows = []
    for cell in group.cells:
        step, draft, verify = (cell.number(f"{name}_step_s") for name in ("decode", "draft", "verify"))
        rest = None if step is None or verify is None or (draft is None) else step - draft - verify
        tails = [
            cell.number(f"{name}_p{percent}")
            for name in ("ttft_s", "tpot_s", "e2el_s")
            for percent in (50, 90, 99)
        ]
        row = [escape(cell.label), *map(format_ms, (step, draft, verify, rest, *tails))]
        row[5] = f"{row[5]} {format_cache_mark(cell.cache_mark, cell.number('cached_prompt_share'))}".strip()
        rows.append(row)
    words = Explanation("Draft and verify are per step; rest is what the loop itself costs.")
    return [table(header, rows), words]


def memory(group: Group) -> list[str]:
    """Peak memory of each arm, weights excluded and included."""
    if all(cell.number("peak_memory_bytes") is None for cell in group.cells):
        return ["Memory was not measured."]
    rows = [
        [
            escape(cell.label),
            format_mib(cell.number("peak_memory_bytes")),
            format_mib(cell.cell.weights_bytes),
            format_mib(cell.number("peak_memory_with_weights_bytes")),
        ]
        for cell in group.cells
    ]
    return [table(["arm", "peak above the weights, MiB", "weights, MiB", "peak with weights, MiB"], rows)]


def errors(group: Group) -> list[str]:
    """Failed requests by kind, with their messages."""
    failed = [(cell, record) for cell in group.cells for record in request_metrics.failed(cell.records)]
    if not failed:
        return ["No request failed."]
    counts = [
        f"**{escape(cell.label)}**: {escape(format_counts(cell.error_kinds))}"
        for cell in group.cells
        if cell.error_kinds
    ]
    rows = [
        [
            escape(cell.label),
            escape(record.prompt_id),
            escape(record.error_kind or "unknown"),
            escape(record.error_message or UNKNOWN),
        ]
        for cell, record in failed[:_MAX_ERRORS]
    ]
    parts = [bullets(counts), table(["arm", "prompt", "kind", "message"], rows, num_left=4)]
    if len(failed) > _MAX_ERRORS:
        parts.append(f"The first {_MAX_ERRORS} of {len(failed)} are shown; all are in `records.jsonl`.")
    return parts
