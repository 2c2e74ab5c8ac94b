"""The history of a suite -> trends and their page. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dflash.gate.calibrated import cell_key
from dflash.gate.history_file import HistoryEntry
from dflash.gate.markdown import label_of
from dflash.gate.records import Gate
from dflash.gate.trend import MIN_RUNS, Trend, find_steps
from dflash.gate.words import count_of, signed_percent, value_of
from dflash.results.markdown_text import bullets, escape, table
from dflash.results.records import Cell

NUM_RUNS = 30  # that are looked at
MIN_SHOWN = 2  # one run has no trend
_NUM_SHOWN = 10


def trends_of(
    history: Sequence[HistoryEntry], cells: Sequence[Cell], gates: Sequence[Gate]
) -> tuple[Trend, ...]:
    """Every gated quantity of these cells over the last 30 runs that have it; of two runs or more."""
    last = history[-NUM_RUNS:]
    trends = []
    for cell in cells:
        for name in dict.fromkeys(gate.quantity for gate in gates):
            key = cell_key(cell)
            known = [
                (entry.run_id, value)
                for entry in last
                for value in (entry.values.get(key, {}).get(name),)
                if value is not None and value > 0
            ]
            if len(known) >= MIN_SHOWN:
                run_ids, values = zip(*known, strict=True)
                trends.append(Trend(name, label_of(cell), run_ids, values, find_steps(values)))
    return tuple(trends)


def render_trends(trends: Sequence[Trend]) -> str:
    """The section of a page; empty where there is nothing to show."""
    if not trends:
        return ""
    header = (
        "cell",
        "quantity",
        "runs",
        f"last {_NUM_SHOWN} runs, the newest last",
        "since the first",
        "step",
    )
    rows = [
        (
            escape(trend.cell),
            f"`{trend.quantity}`",
            str(len(trend.values)),
            _series(trend),
            signed_percent(trend.since_first),
            _steps(trend),
        )
        for trend in trends
    ]
    sentences = [
        f"{escape(trend.cell)}: `{trend.quantity}` {_said(trend, place)}"
        for trend in trends
        for place in range(len(trend.steps))
    ]
    parts: list[str] = ["## Trend", table(header, rows, num_left=2)]
    if sentences:
        parts.append(bullets(sentences))
    parts.append(
        f"A step or a creep is said where noise alone would show as much in 1 % of series; from {MIN_RUNS} runs on."
    )
    return "\n\n".join(map(str, parts)) + "\n"


def trend_document(trends: Sequence[Trend]) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "cell": trend.cell,
            "quantity": trend.quantity,
            "runs": list(trend.run_ids),
            "values": list(trend.values),
            "since_first": trend.since_first,
            "steps": [_step_values(trend, place) for place in range(len(trend.steps))],
        }
        for trend in trends
    ]


def _step_values(trend: Trend, place: int) -> Mapping[str, Any]:
    step = trend.steps[place]
    return {"run": trend.run_ids[step.place], "change": step.relative, "kind": step.kind}


def _steps(trend: Trend) -> str:
    if len(trend.values) < MIN_RUNS:
        return f"{count_of(len(trend.values), 'run')} of {MIN_RUNS}"
    return ", ".join(f"{step.kind} {signed_percent(step.relative)}" for step in trend.steps) or "none"


def _said(trend: Trend, place: int) -> str:
    step = trend.steps[place]
    run = escape(trend.run_ids[step.place])
    if step.kind == "creep":
        return (
            f"creeps: {signed_percent(step.relative)} from the mean before run {run} to the mean from it on"
        )
    return f"stepped by {signed_percent(step.relative)} at run {run}"


def _series(trend: Trend) -> str:
    """The last values, with their unit once."""
    *earlier, last = (value_of(trend.quantity, value) for value in trend.values[-_NUM_SHOWN:])
    return " ".join([*(text.split(" ")[0].rstrip("x") for text in earlier), last])
