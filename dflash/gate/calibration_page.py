"""A calibration -> Markdown and JSON. Pure."""

from __future__ import annotations

from typing import Any

from dflash.gate.calibrated import cell_key
from dflash.gate.calibration import FOUND_SHARE, CalibrationReport, GateCalibration
from dflash.gate.document import cell_values
from dflash.gate.markdown import cell_label
from dflash.gate.words import percent_of, signed_percent
from dflash.results.formats import UNKNOWN
from dflash.results.markdown_text import bullets, escape, table

_HOW = {
    False: "Every run is compared with every other, both ways round",
    True: "Every run is compared with all others together",
}


def render_calibration(report: CalibrationReport) -> str:
    """The whole page."""
    runs = report.calibration.runs
    header = ("cell", "gate", "pairs", "false alarms", "inconclusive", "smallest effect that is seen")
    rows = [
        (
            escape(cell_label(item.pair)),
            f"`{item.gate.text}`",
            str(item.num_pairs),
            f"{item.num_false_alarms} ({percent_of(item.num_false_alarms / item.num_pairs)})",
            str(item.verdicts.get("inconclusive", 0)),
            UNKNOWN if item.smallest_effect is None else signed_percent(item.smallest_effect),
        )
        for item in report.gates
    ]
    parts: list[str] = [
        f"# Calibration from {len(runs)} runs in which nothing changed",
        f"{_HOW[report.as_baseline]}: {', '.join(map(escape, runs))}.",
        table(header, rows, num_left=2),
        (
            f"*Smallest effect that is seen*: a change to the worse of this size would have been found in "
            f"{percent_of(FOUND_SHARE)} of these comparisons. They share runs: from few runs the rate of false alarms "
            "is coarse."
        ),
    ]
    labels = {cell_key(item.pair.cell): escape(cell_label(item.pair)) for item in report.gates}
    refused = [item for item in report.gates if item.reason is not None]
    spreads = [
        (
            labels.get(item.cell, escape(item.cell)),
            f"`{item.quantity}`",
            "none: counted exactly" if item.is_deterministic else _deviation(item.variance),
        )
        for item in report.calibration.spreads
        if item.quantity in {gate.gate.quantity for gate in report.gates}
    ]
    if refused:
        parts.append(bullets([f"**incomparable**: {_line(item)}" for item in refused]))
    if spreads:
        parts += [
            "## Spread between runs",
            table(("cell", "quantity", "standard deviation"), spreads, num_left=2),
        ]
    if report.notes:
        parts.append(bullets([escape(note) for note in report.notes]))
    return "\n\n".join(map(str, parts)) + "\n"


def calibration_document(report: CalibrationReport) -> dict[str, Any]:
    """For JSON: every gate at every cell, and how every quantity varied."""
    return {
        "runs": list(report.calibration.runs),
        "fingerprint": dict(report.calibration.fingerprint),
        "gates": [
            {
                **cell_values(item.pair),
                "gate": item.gate.text,
                "num_pairs": item.num_pairs,
                "num_false_alarms": item.num_false_alarms,
                "verdicts": dict(item.verdicts),
                "smallest_effect": item.smallest_effect,
                "reason": item.reason,
            }
            for item in report.gates
        ],
        "spreads": [
            {
                "cell": item.cell,
                "quantity": item.quantity,
                "num_runs": item.num_runs,
                "num_repeats": item.num_repeats,
                "standard_deviation": None if item.variance is None else item.variance**0.5,
                "is_deterministic": item.is_deterministic,
            }
            for item in report.calibration.spreads
        ],
        "notes": list(report.notes),
    }


def _deviation(variance: float | None) -> str:
    return UNKNOWN if variance is None else f"{100 * variance**0.5:.2f} %"


def _line(item: GateCalibration) -> str:
    return f"`{item.gate.text}`, {escape(cell_label(item.pair))}: {escape(item.reason or '')}"
