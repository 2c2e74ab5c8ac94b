"""Golden outputs of every format, from a report that holds every verdict.

Set DFLASH_UPDATE_GOLDEN=1 to write them again, then read the difference.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from gated_runs import ARM, WORKLOAD, made_up

from dflash.gate.annotations import render_annotations
from dflash.gate.document import gate_document
from dflash.gate.expressions import parse_gate
from dflash.gate.history import render_trends
from dflash.gate.junit import render_junit
from dflash.gate.markdown import render_gate
from dflash.gate.records import (
    VERDICTS,
    CellPair,
    Comparison,
    Factor,
    FieldDifference,
    GateReport,
    Needed,
    SpeedSplit,
)
from dflash.gate.trend import Step, Trend
from dflash.results.records import Cell

GOLDEN = Path(__file__).parent.parent / "golden"
CELL = Cell("d", "w1", "drafting", "vllm", replace(WORKLOAD, concurrency=32), ARM, "completed")
ODD = replace(CELL, workload=replace(WORKLOAD, dataset="own|<set>", request_rate=4.0))
PAIR = CellPair(CELL, CELL, (FieldDifference("versions.vllm", "0.31", "0.32", "listed"),))
REFUSED = CellPair(ODD, ODD, (FieldDifference("machine.cpu", "a CPU", None, "times"),))


def comparison(text: str, verdict, reason: str, **values) -> Comparison:
    return Comparison(parse_gate(text), values.pop("pair", PAIR), verdict, reason, **values)


def every_verdict() -> GateReport:
    tested = {"confidence": 0.9875, "num_prompts": 128, "num_base_repeats": 3, "num_new_repeats": 3}
    comparisons = (
        comparison(
            "tpot_s:+5%",
            "worse",
            "+8.25 % [+6.10, +10.44] %: the interval excludes no change, and it is more than 5 %",
            base=0.0101,
            new=0.01093325,
            relative=0.0825,
            low=0.061,
            high=0.1044,
            basis="prompts and repeats",
            p_value=0.00012,
            **tested,
        ),
        comparison(
            "acceptance_length:-2%",
            "same",
            "equal in both runs",
            base=3.5,
            new=3.5,
            relative=0.0,
            low=0.0,
            high=0.0,
            basis="exact",
            num_prompts=128,
            num_base_repeats=3,
            num_new_repeats=2,
        ),
        comparison(
            "ttft_s:+5%",
            "better",
            "-9.00 % [-11.20, -6.75] %: the interval excludes no change, and it is more than 5 %",
            base=0.2,
            new=0.182,
            relative=-0.09,
            low=-0.112,
            high=-0.0675,
            basis="calibration",
            p_value=0.001,
            **tested,
        ),
        comparison(
            "speedup:-5%",
            "inconclusive",
            "-3.10 % [-9.00, +3.18] %: a change of 5 % could hide in this interval; 7 repeats of each run or "
            "900 prompts would tell",
            base=2.5,
            new=2.4225,
            relative=-0.031,
            low=-0.09,
            high=0.0318,
            basis="prompts and repeats",
            p_value=0.4,
            needed=Needed(7, 900),
            **tested,
        ),
        comparison("agreement:<0.99", "worse", "98.4 %: below 99.0 %", new=0.984375),
        comparison(
            "tpot_s:+5%",
            "incomparable",
            "machine.cpu differs: 'a CPU' in the base, n/a in the new run (--allow machine.cpu compares all "
            "the same)",
            pair=REFUSED,
        ),
    )
    split = SpeedSplit(
        PAIR,
        Factor(-0.0762, -0.0946, -0.0575),
        Factor(0.0, 0.0, 0.0),
        Factor(0.0825, 0.061, 0.1044),
        None,
        "decode speed -7.62 % = acceptance length 0 % (no clear change) and step time +8.25 % (the engine got slower)",
    )
    return GateReport(
        "nightly-1",
        "pull|42",
        comparisons,
        (split,),
        (PAIR, REFUSED),
        ("versions.vllm: '0.31' in the base, '0.32' in the new run",),
        num_tested=4,
        exit_code=1,
    )


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("DFLASH_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_markdown_is_the_golden_one():
    check("gate.md", render_gate(every_verdict()))


def test_json_is_the_golden_one():
    check("gate.json", json.dumps(gate_document(every_verdict()), indent=2, allow_nan=False) + "\n")


def test_junit_is_the_golden_one():
    check("gate.xml", render_junit(every_verdict()))


def test_annotations_are_the_golden_ones():
    check("gate_annotations.txt", render_annotations(every_verdict()))


def test_a_trend_is_the_golden_one():
    trends = (
        Trend("tpot_s", "dflash B=8 on gsm8k (concurrency 1)", ("a", "b"), (0.010, 0.0104), ()),
        Trend(
            "acceptance_length",
            "dflash B=8 on gsm8k (concurrency 1)",
            tuple(f"2026010{day}-nightly" for day in range(1, 9)),
            (3.5, 3.5, 3.5, 3.5, 3.4, 3.4, 3.4, 3.4),
            (Step(4, 3.4 / 3.5 - 1, "step"),),
        ),
        Trend(
            "decode_tok_s",
            "dflash B=8 on gsm8k (concurrency 1)",
            tuple(f"2026010{day}-nightly" for day in range(1, 9)),
            (100.0, 99.6, 99.1, 98.8, 98.3, 98.1, 97.5, 97.0),
            (Step(4, -0.0169, "creep"),),
        ),
    )
    check("gate_trend.md", render_trends(trends))


def test_the_report_holds_every_verdict():
    assert {item.verdict for item in every_verdict().comparisons} == set(VERDICTS)


@pytest.mark.parametrize("strict", [False, True])
def test_junit_counts_what_it_holds(strict):
    root = ElementTree.fromstring(render_junit(replace(every_verdict(), strict=strict)))
    for element in (root, *root.iter("testsuite")):
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.get(attribute) or 0) == len(list(element.iter(tag)))
    assert root.get("failures") == ("3" if strict else "2")


def test_annotations_escape_what_would_end_them():
    odd = replace(every_verdict().comparisons[0], reason="100 % of\r\n::error::it")
    (line,) = render_annotations(replace(every_verdict(), comparisons=(odd,))).splitlines()
    assert line.startswith("::error title=worse%3A tpot_s%3A+5%25::")
    assert "100 %25 of" in line


def test_nothing_compared_is_an_error_in_every_format():
    empty = replace(every_verdict(), comparisons=(), splits=(), exit_code=5)
    assert "Nothing could be compared." in render_gate(empty)
    assert render_annotations(empty).startswith("::error ")
    assert gate_document(empty)["verdict"] == "incomparable"
    assert ElementTree.fromstring(render_junit(empty)).get("tests") == "0"


def test_gates_that_cannot_be_compared_for_one_reason_share_a_line():
    report = every_verdict()
    refused = [item for item in report.comparisons if item.verdict == "incomparable"]
    twice = replace(report, comparisons=(*refused, replace(refused[0], gate=parse_gate("speedup:-5%"))))
    page = render_gate(twice)
    assert page.count("- **incomparable**: ") == 1
    assert "- **incomparable**: `tpot_s:+5%`, `speedup:-5%`, dflash B=8 on own" in page


def test_names_from_elsewhere_break_no_table():
    page = render_gate(every_verdict())
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {9}
    assert "<set>" not in page


def test_a_page_of_real_runs_has_all_its_parts():
    from gated_runs import compare

    page = render_gate(
        compare(made_up(), made_up("new", acceptance=2.5), "tpot_s:+5%", "acceptance_length:-2%")
    )
    assert page.startswith("# new against base: worse\n")
    assert "## Gates" in page
    assert "## Speed" in page
