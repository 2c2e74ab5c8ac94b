"""A comparison -> annotations of a GitHub Actions job: workflow commands, one a line. Pure."""

from __future__ import annotations

from dflash.gate.markdown import cell_label
from dflash.gate.records import Comparison, GateReport
from dflash.results.formats import plain_text

_LEVELS = {"worse": "error", "incomparable": "error", "inconclusive": "warning", "better": "notice"}


def render_annotations(report: GateReport) -> str:
    """Errors for what is worse or incomparable, warnings for what cannot be told, notices for what is better."""
    lines = [_line(item, report.strict) for item in report.comparisons if item.verdict in _LEVELS]
    if not report.comparisons:
        lines = ["::error title=dflash gate::nothing could be compared"]
    return "".join(f"{line}\n" for line in lines)


def _line(item: Comparison, strict: bool) -> str:
    level = "error" if strict and item.verdict == "inconclusive" else _LEVELS[item.verdict]
    title = _escaped(f"{item.verdict}: {item.gate.text}", property_value=True)
    return f"::{level} title={title}::{_escaped(f'{cell_label(item.pair)}: {item.reason}')}"


def _escaped(text: str, *, property_value: bool = False) -> str:
    """As the runner decodes it: % first, then line ends; in a property also its separators."""
    text = plain_text(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_value else text
