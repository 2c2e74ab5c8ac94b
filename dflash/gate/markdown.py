"""A comparison -> Markdown, for a job summary or a comment on a pull request. Pure.

The verdict comes first, then what is worse or cannot be compared, then every comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dflash.gate.records import VERDICTS, CellPair, Comparison, GateReport, SpeedSplit, Verdict
from dflash.gate.words import count_of, percent_interval, signed_percent, value_of
from dflash.results.markdown_text import bullets, escape, table
from dflash.results.records import Cell

_GRAVE: tuple[Verdict, ...] = ("worse", "incomparable", "inconclusive")


def render_gate(report: GateReport) -> str:
    """The whole page."""
    parts = [
        f"# {escape(report.new_name)} against {escape(report.base_name)}: {report.verdict}",
        headline(report),
    ]
    grave = [item for item in report.comparisons if item.verdict in _GRAVE]
    if grave:
        parts.append(bullets(_lines(grave)))
    if report.comparisons:
        parts += ["## Gates", _table(report.comparisons)]
        parts.append(_how_to_read(report))
    if report.splits:
        parts += ["## Speed", bullets([_split(item) for item in report.splits])]
        parts.append(
            "Decode speed = acceptance length / step time. Changes with their 95 % intervals, each by itself: they "
            "say where a change comes from and are no verdict."
        )
    if report.notes:
        parts += ["## Notes", bullets([escape(note) for note in report.notes])]
    return "\n\n".join(map(str, parts)) + "\n"


def headline(report: GateReport) -> str:
    """`8 comparisons: 1 worse, 7 the same.`"""
    counts = Counter(item.verdict for item in report.comparisons)
    if not counts:
        return "Nothing could be compared."
    words = [
        f"{counts[verdict]} {'the same' if verdict == 'same' else verdict}"
        for verdict in VERDICTS
        if counts[verdict]
    ]
    return f"{count_of(len(report.comparisons), 'comparison')}: {', '.join(words)}."


def cell_label(pair: CellPair) -> str:
    """See `label_of`."""
    return label_of(pair.cell)


def label_of(cell: Cell) -> str:
    """`dflash B=8 on gsm8k (vllm, concurrency 32)`."""
    workload = cell.workload
    load = f"concurrency {workload.concurrency}"
    if workload.request_rate is not None:
        load = f"{workload.request_rate:g} requests/s"
    return f"{cell.arm.label} on {workload.dataset} ({cell.backend}, {load})"


def _lines(items: Sequence[Comparison]) -> list[str]:
    """The gravest first; gates that cannot be compared in one cell for one reason share a line."""
    gates: dict[tuple[Verdict, str, str], list[str]] = {}
    for item in sorted(items, key=lambda item: VERDICTS.index(item.verdict)):
        gates.setdefault((item.verdict, cell_label(item.pair), item.reason), []).append(item.gate.text)
    return [
        f"**{verdict}**: {', '.join(f'`{text}`' for text in texts)}, {escape(label)}: {escape(reason)}"
        for (verdict, label, reason), texts in gates.items()
    ]


def _table(items: Sequence[Comparison]) -> str:
    header = ("cell", "gate", "verdict", "base", "new", "change", "interval", "over")
    rows = []
    for item in items:
        quantity = item.gate.quantity
        rows.append(
            (
                escape(cell_label(item.pair)),
                f"`{item.gate.text}`",
                f"**{item.verdict}**" if item.verdict in _GRAVE else item.verdict,
                value_of(quantity, item.base),
                value_of(quantity, item.new),
                signed_percent(item.relative),
                _bounds(item),
                _over(item),
            )
        )
    return table(header, rows, num_left=3)


def _bounds(item: Comparison) -> str:
    if item.basis == "exact":
        return "exact"
    if item.gate.is_limit:
        if item.low is None or item.high is None:
            return "as counted" if item.verdict != "incomparable" else "n/a"
        return f"[{value_of(item.gate.quantity, item.low)}, {value_of(item.gate.quantity, item.high)}]"
    return percent_interval(item.low, item.high) or "n/a"


def _over(item: Comparison) -> str:
    if not item.num_prompts:
        return "n/a"
    repeats = f"{item.num_base_repeats} and {item.num_new_repeats} repeats"
    if item.num_base_repeats == item.num_new_repeats:
        repeats = count_of(item.num_new_repeats, "repeat")
    if item.num_base_runs > 1:
        repeats = f"{item.num_base_runs} base runs, {repeats}"
    return f"{count_of(item.num_prompts, 'prompt')}, {repeats}"


def _split(item: SpeedSplit) -> str:
    factors = [
        (name, factor)
        for name, factor in (
            ("decode speed", item.decode_tok_s),
            ("acceptance length", item.acceptance_length),
            ("step time", item.decode_step_s),
        )
        if factor is not None
    ]
    bounds = ", ".join(
        f"{name} {percent_interval(factor.low, factor.high)}"
        for name, factor in factors
        if factor.low is not None and factor.low != factor.high
    )
    return f"{escape(cell_label(item.pair))}: {escape(item.sentence)}" + (
        f" ({escape(bounds)})" if bounds else ""
    )


def _how_to_read(report: GateReport) -> str:
    text = (
        "*worse* and *better*: the interval excludes no change, and the change is more than the gate allows. *same*: "
        "neither, and a change of that size would have been seen. *inconclusive*: it could have been missed."
    )
    if report.num_tested > 1:
        text += (
            f" Intervals are corrected for {report.num_tested} comparisons (Holm): together they call something a "
            "change where nothing changed in at most 5 % of such pages."
        )
    return text
