"""Several groups in one report: every sentence once, one table for all, no first group that stands for the others."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_run import made_up_run

from dflash.results.markdown import render_report
from dflash.results.markdown_merge import merged
from dflash.results.markdown_settings import ORDINARY
from dflash.results.markdown_text import Explanation, bullets, table
from dflash.results.records import DatasetInfo
from dflash.results.store import Run
from dflash.results.summary import summarise_run

SETS = (
    "gsm8k",
    "math500",
    "aime24",
    "humaneval",
    "mbpp",
    "livecodebench",
    "mt-bench",
    "alpaca",
    "swe-bench-lite",
)


def several(names: tuple[str, ...] = SETS, **changes: object) -> Run:
    runs = [
        made_up_run(Path("reports/nine"), dataset=name, seed=seed, **changes)
        for seed, name in enumerate(names)
    ]
    info = replace(runs[0].info, cells=sum((run.info.cells for run in runs), ()))
    return replace(runs[0], info=info, records=sum((run.records for run in runs), ()))


def report_of(run: Run) -> str:
    return render_report(run, summarise_run(run))


def section(report: str, heading: str) -> str:
    return report.split(f"## {heading}\n")[1].split("\n## ")[0]


def test_tables_of_equal_columns_become_one():
    first, second = table(["arm", "n"], [["a", "1"]]), table(["arm", "n"], [["a", "2"], ["b", "3"]])
    assert merged([("x", [first]), ("y", [second])], "data set") == [
        table(["data set", "arm", "n"], [["x", "a", "1"], ["y", "a", "2"], ["y", "b", "3"]], num_left=2)
    ]
    other = table(["arm", "m"], [["a", "2"]])
    assert len(merged([("x", [first]), ("y", [other])], "data set")) == 2


def test_sentences_stand_once_and_name_their_groups_where_those_are_not_all():
    rows = table(["arm"], [["a"]])
    bodies = [
        ("x", ["same", "one", rows, Explanation("how to read")]),
        ("y", ["same", "two", rows]),
        ("z", ["same", "two", rows]),
    ]
    parts = merged(bodies, "load")
    assert [part for part in parts if "|" not in part] == ["same", "x: one", "y, z: two", "how to read"]
    assert [place for place, part in enumerate(parts) if "|" in part] == [3]
    many = [(str(number), ["none" if number else "one"]) for number in range(9)]
    assert merged(many, "load") == ["0: one", "All but 0: none"]


def test_lines_of_lists_name_their_groups():
    bodies = [("x", [bullets(["a", "b"])]), ("y", [bullets(["b", "c"])])]
    assert merged(bodies, "load") == ["- x: a\n- b\n- y: c"]


def test_one_group_is_left_as_it_is():
    body = [table(["arm"], [["a"]]), "words"]
    assert merged([("x", body)], "load") == body


def test_a_report_of_nine_sets_repeats_no_sentence():
    report = report_of(several(block_sizes=(4, 8, 16)))
    assert len(report.splitlines()) < 600
    lines = [line for line in report.splitlines() if line and not line.startswith(("|", "```"))]
    assert len(lines) == len(set(lines))
    for sentence in ("Every prompt has one turn.", "No request failed.", "The prompts are all in one bucket"):
        assert report.count(sentence) == 1
    rows = re.findall(r"^\| ([\w-]+) \| (?:► )?\*\*", section(report, "Speed"), re.M)
    assert rows == [name for name in SETS for _ in range(4)]


def test_the_top_of_a_report_of_several_sets_is_of_all_of_them():
    report = report_of(several(("gsm8k", "mt-bench")))
    top, *_ = report.split("\n## Speed")
    first = top.split("\n\n")[1]
    assert first.startswith("**Over 2 data sets dflash B=3, the highest of 2 arms, decodes")
    assert top.index("- gsm8k: **") < top.index("- mt-bench: **") < top.index("## Averages over data sets")
    assert "2 data sets (gsm8k, mt-bench) · simulated · concurrency 1; target" in top


def test_limits_that_differ_are_all_named():
    run = several(("gsm8k", "mt-bench"))
    cells = tuple(
        replace(cell, workload=replace(cell.workload, max_new_tokens=2048))
        if cell.workload.dataset == "mt-bench"
        else cell
        for cell in run.info.cells
    )
    report = report_of(replace(run, info=replace(run.info, cells=cells)))
    assert "at most 128 or 2048 new tokens." in report
    body = section(report, "Settings").split("Workloads:")[1]
    assert "| dataset | max new tokens |" in body
    assert "| mt-bench | 2048 |" in body


# --- settings


def settings_of(**config: object) -> dict[str, str]:
    run = made_up_run()
    body = section(report_of(replace(run, info=replace(run.info, config=config))), "Settings")
    rows = [line.strip("| ").split(" | ") for line in body.split("Workload:")[0].splitlines() if "|" in line]
    return {name.replace("\\", ""): value for name, value in rows[2:]}


def test_settings_that_are_as_ever_are_not_listed():
    from dflash.config import BenchmarkConfig
    from dflash.publishing import config_values

    values = config_values(BenchmarkConfig())
    assert ORDINARY.items() <= values.items()
    assert settings_of(**values) == {
        "backend": "transformers",
        "datasets": '\\["quickstart"\\]',
        "model, as used": "made-up-135m (r1)",
        "draft, as used": "made-up-draft (r7)",
    }


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("verify_tls", False, "false"),
        ("save_outputs", False, "false"),
        ("temperature", 0.6, "0.6"),
        ("num_warmup", 0, "0"),
        ("reasoning", "on", "on"),
        ("repeat", True, "true"),
        ("block_sizes", [4], "\\[4\\]"),
        ("seed", 1, "1"),
    ],
)
def test_a_setting_that_was_changed_is_listed(name, value, shown):
    assert settings_of(backend="simulated", **{name: value})[name] == shown


def test_prompts_to_choose_from_are_those_that_pass_the_filters():
    dataset = DatasetInfo(name="gsm8k", digest="d1", num_prompts=8, num_available=23)
    run = made_up_run()
    for config, title in (({"category": "math"}, "available after filters"), ({}, "num available")):
        info = replace(run.info, datasets=(dataset,), config=config)
        assert f"| {title} |" in section(report_of(replace(run, info=info)), "Settings")
