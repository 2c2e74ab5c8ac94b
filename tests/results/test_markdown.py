from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from edge_runs import EDGE_RUNS
from made_up_run import made_up_run, with_difference

from dflash.results.markdown import MEANINGS, render_report
from dflash.results.markdown_text import code_block, escape, table
from dflash.results.plots import BY_PLACE, PICTURES
from dflash.results.records import DatasetInfo
from dflash.results.report_files import write_report
from dflash.results.summary import summarise_run

GOLDEN = Path(__file__).parent.parent / "golden" / "report.md"
HEADINGS = [
    "Speed",
    "Paper's form",
    "Acceptance",
    "Histogram and positions",
    "Agreement",
    "Task score",
    "Output lengths",
    "Where the time goes",
    "Memory",
    "By category",
    "By prompt length",
    "By turn",
    "Errors",
    "Findings",
    "What the numbers mean",
    "Machine and versions",
    "Settings",
    "Command",
]


def rendered(run) -> str:
    return render_report(run, summarise_run(run), [Path(name) for name in PICTURES])


def section(report: str, heading: str) -> str:
    return report.split(f"## {heading}\n")[1].split("\n## ")[0]


def test_the_report_of_a_small_run_is_the_golden_one():
    """Set DFLASH_UPDATE_GOLDEN=1 to write it again, then read the difference."""
    report = rendered(with_difference(made_up_run(block_sizes=(2, 3))))
    if os.environ.get("DFLASH_UPDATE_GOLDEN"):
        GOLDEN.write_text(report, encoding="utf-8")
    assert report == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", EDGE_RUNS)
def test_every_run_has_a_report_with_all_its_headings(name):
    report = render_report(EDGE_RUNS[name], summarise_run(EDGE_RUNS[name]), [Path("speedup.png")])
    assert [title for title in re.findall(r"^## (.*)$", report, re.M) if title != "Block size"] == HEADINGS
    assert re.findall(r"!\[[^]]*\]\((.*)\)", report) == ["speedup.png"]
    assert not re.search(r"\bNone\b(?!:)|\bnan\b|\binf\b", report)
    for block in re.findall(r"(?:^\|.*\|$\n?)+", report, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
        assert len(widths) == 1, block


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no cells", "No cell was planned"),
        ("no records", "no speedup, because no request completed in both arms"),
        ("all failed", "no decode speed, because no request completed (out\\_of\\_memory 30)"),
        ("failed arm", "no decode speed, because out of memory while loading"),
        ("failed baseline", "failed in the baseline: 8"),
        ("one prompt", "too few prompts for an interval (5 or more give one), so nothing can be concluded"),
        ("one-token outputs", "every output ended with its first chunk"),
        ("no baseline", "no baseline arm in this run"),
        ("baseline only", "Only plain decoding was run"),
        ("nothing accepted", "Here drafting makes this model slower"),
        ("unlike prompts", "comparison refused"),
        ("counts unknown", "token counts or time stamps were not measured"),
    ],
)
def test_the_reason_stands_where_a_number_would_be(name, words):
    assert words in rendered(EDGE_RUNS[name])


def test_every_arm_is_reported_with_b_and_b_minus_one():
    rows = section(rendered(made_up_run(block_sizes=(2, 8))), "Speed").splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:4]] for row in rows if "**dflash" in row]
    assert [row[1:] for row in cells] == [["2", "1"], ["8", "7"]]


@pytest.mark.parametrize(("gap", "verdict"), [(2e-5, "near-tie"), (0.7, "**fault**"), (None, "n/a")])
def test_every_difference_is_listed_with_its_verdict(gap, verdict):
    body = section(rendered(with_difference(made_up_run(), logit_gap=gap)), "Agreement")
    (row,) = [line for line in body.splitlines() if "quickstart/1" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[4:7] == ["17", "281", "504"]
    assert cells[-1] == verdict


def test_unequal_outputs_add_the_speedup_over_equal_ones():
    assert "over the prompts with equal outputs alone" in rendered(with_difference(made_up_run()))
    assert "over the prompts with equal outputs alone" not in rendered(made_up_run())


def test_the_data_sets_of_a_run_are_named_with_their_identity():
    run = made_up_run()
    dataset = DatasetInfo(
        name="gsm8k", digest="d1", num_prompts=8, num_available=1319, source="a|b", revision="r3"
    )
    body = section(rendered(replace(run, info=replace(run.info, datasets=(dataset,)))), "Settings")
    header, _, row = body.split("Data sets:\n\n")[1].splitlines()[:3]
    assert [cell.strip() for cell in header.strip("|").split("|")][:4] == [
        "name",
        "digest",
        "num prompts",
        "num available",
    ]
    assert row.startswith("| gsm8k | d1 | 8 | 1319 | a\\|b | r3 | n/a |")


def test_text_from_outside_cannot_break_the_report():
    run = EDGE_RUNS["all failed"]
    wild = "x | y\n# heading <script>alert(1)</script> [a](http://b.c) `code` **bold** \x1b[31m"
    records = tuple(replace(record, error_message=wild, prompt_id=wild) for record in run.records)
    cells = tuple(replace(cell, reason=wild, notes=(wild,), status="failed") for cell in run.info.cells)
    info = replace(
        run.info, name=wild, command="```\n# x", cells=cells, environment={wild: wild}, notes=(wild,)
    )
    report = render_report(
        replace(run, info=info, records=records), summarise_run(replace(run, info=info, records=records))
    )
    assert "<script>" not in report
    assert "\x1b" not in report
    assert re.search(r"(?<!\\)\]\(http", report) is None
    assert "http:" not in report
    assert re.findall(r"^# .*heading", report, re.M) == [f"# {escape(wild)}"[: len("# x \\| y \\# heading")]]
    assert [title for title in re.findall(r"^## (.*)$", report, re.M) if title != "Block size"] == HEADINGS
    assert section(report, "Command").strip().startswith("````")


def test_escape():
    assert escape("a*b_c|d`e") == "a\\*b\\_c\\|d\\`e"
    assert escape("<b>&amp;") == "&lt;b&gt;&amp;amp;"
    assert escape("1. one") == "1\\. one"
    assert escape("- one") == "\\- one"
    assert escape("2.5 and 2026-01-02") == "2.5 and 2026-01-02"
    # such links are made of `http:` and `www.` as they stand
    assert escape("see http://example.org") == "see http\\://example.org"
    assert escape("WWW.example.org") == "WWW\\.example.org"


def test_code_block_outgrows_backticks():
    assert code_block("a ``` b").startswith("````\n")
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| :-- | --: |\n| 1 | 2 |"


def test_every_column_of_the_main_table_is_explained():
    assert {"speedup", "TTFT", "TPOT", "acceptance length", "agreement", "break-even"} <= MEANINGS.keys()


def test_a_report_replaces_the_one_before_and_leaves_no_other_file(tmp_path: Path):
    write_report(made_up_run(), tmp_path / "deep" / "folder")
    write_report(with_difference(made_up_run()), tmp_path / "deep" / "folder")
    names = sorted(path.name for path in (tmp_path / "deep" / "folder").iterdir())
    of_servers = {"concurrency.png", "pareto.png"}
    assert names == sorted(["report.md", BY_PLACE, *(name for name in PICTURES if name not in of_servers)])
    assert "near-tie" in (tmp_path / "deep" / "folder" / "report.md").read_text(encoding="utf-8")


def test_the_page_of_definitions_is_linked_only_where_it_is(tmp_path):
    """Reports of a checkout lie two folders below it; one that is written elsewhere has no such page."""
    run = made_up_run()
    elsewhere = write_report(run, tmp_path / "elsewhere" / "report")[0].read_text()
    assert "](../../METHODOLOGY.md)" not in elsewhere
    assert "METHODOLOGY.md beside dflash's README" in elsewhere
    (tmp_path / "METHODOLOGY.md").write_text("# Methodology\n")
    inside = write_report(run, tmp_path / "reports" / "made-up")[0].read_text()
    assert "[METHODOLOGY.md](../../METHODOLOGY.md)" in inside
