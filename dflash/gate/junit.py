"""A comparison -> JUnit XML: one test case per gate and cell, one suite per cell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from dflash.gate.markdown import cell_label
from dflash.gate.records import Comparison, GateReport
from dflash.results.formats import plain_text


def render_junit(report: GateReport) -> str:
    """Worse is a failure, incomparable an error, inconclusive is skipped (a failure where it is strict)."""
    root = ElementTree.Element("testsuites", _counts(report.comparisons, report.strict))
    root.set("name", plain_text(f"dflash gate: {report.new_name} against {report.base_name}"))
    for label in dict.fromkeys(cell_label(item.pair) for item in report.comparisons):
        items = [item for item in report.comparisons if cell_label(item.pair) == label]
        suite = ElementTree.SubElement(root, "testsuite", _counts(items, report.strict))
        suite.set("name", plain_text(label))
        for item in items:
            case = ElementTree.SubElement(suite, "testcase", name=item.gate.text, classname=plain_text(label))
            kind = _kind(item, report.strict)
            if kind is not None:
                ElementTree.SubElement(case, kind, message=plain_text(item.reason), type=item.verdict)
            else:
                ElementTree.SubElement(case, "system-out").text = plain_text(f"{item.verdict}: {item.reason}")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _kind(item: Comparison, strict: bool) -> str | None:
    kinds = {"worse": "failure", "incomparable": "error", "inconclusive": "failure" if strict else "skipped"}
    return kinds.get(item.verdict)


def _counts(items: Sequence[Comparison], strict: bool) -> dict[str, str]:
    kinds = [_kind(item, strict) for item in items]
    return {
        "tests": str(len(kinds)),
        "failures": str(kinds.count("failure")),
        "errors": str(kinds.count("error")),
        "skipped": str(kinds.count("skipped")),
    }
