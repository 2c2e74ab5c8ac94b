from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from edge_runs import EDGE_RUNS
from made_up_run import made_up_run, with_difference

from dflash.results import tables
from dflash.results.summary import summarise_run


def printed(run) -> str:
    stream = io.StringIO()
    tables.print_summary(run, summarise_run(run), stream)
    return stream.getvalue()


def test_the_table_fits_100_columns_without_a_terminal():
    text = printed(made_up_run(block_sizes=(2, 3, 4, 5, 8, 12, 16), num_prompts=128))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in text
    assert sum("128/128" in line for line in lines) == 8
    assert "…" not in text


class NarrowTerminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [60, 80, 99])
def test_a_narrow_terminal_gets_fewer_columns_and_every_arm_in_full(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    run = made_up_run(block_sizes=(2, 16), num_prompts=128)
    stream = NarrowTerminal()
    tables.print_summary(run, summarise_run(run), stream)
    text = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    lines = text[: text.index("Run folder")].splitlines()
    assert max(map(len, lines)) <= columns
    for label in ("baseline", "dflash B=2", "dflash B=16"):
        assert any(re.match(rf".* {label} +[\d-].*\d", line) for line in lines), text
    assert "…" not in text
    assert ("Left out for want of width" in text) == (columns < 99)


def test_the_fastest_arm_alone_is_marked():
    fast = printed(made_up_run(step_ms=(60, 110)))
    (marked,) = [line for line in fast.splitlines() if tables.FASTEST_MARK in line]
    assert "dflash B=2" in marked
    assert "dflash B=2 is fastest" in fast
    slow = printed(made_up_run(step_ms=(300, 400)))
    (marked,) = [line for line in slow.splitlines() if tables.FASTEST_MARK in line]
    assert "baseline" in marked
    assert "Plain decoding is fastest" in slow
    assert "slower than plain decoding" in slow


def test_acceptance_of_one_is_said_in_words():
    text = " ".join(printed(EDGE_RUNS["nothing accepted"]).split())
    assert "Not one draft token was accepted" in text
    assert "The acceptance length is 1.00" in text


def test_a_close_second_is_said_in_the_headline():
    (group,) = summarise_run(made_up_run(block_sizes=(2, 3), step_ms=(110, 125))).groups
    assert "within that interval" in tables.headline(group)


def test_columns_that_are_left_out_are_named_by_whole_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    run = made_up_run()
    on_server = tuple(replace(cell, on_server=True) for cell in run.info.cells)
    run = replace(run, info=replace(run.info, cells=on_server))
    stream = NarrowTerminal()
    tables.print_summary(run, summarise_run(run), stream)
    words = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).split())
    assert "by counters" in words[words.index("Left out for want of width") :]
    assert re.search(r"[a-z]- [a-z]", words[words.index("Left out") :].split(".")[0]) is None


def test_findings_of_all_arms_are_joined_and_worst_come_first():
    run = with_difference(made_up_run(num_tokens=10), logit_gap=5.0)
    (group,) = summarise_run(run).groups
    lines = tables.finding_lines(group)
    assert lines[0][0].code == "outputs_differ"
    assert [labels for finding, labels in lines if finding.code == "short_outputs"] == ["all arms"]


def test_control_characters_never_reach_the_terminal():
    run = made_up_run()
    cells = tuple(replace(c, status="failed", reason="\x1b[2Jgone\r\nnext") for c in run.info.cells)
    text = printed(replace(run, info=replace(run.info, cells=cells)))
    assert "\x1b" not in text
    assert "\r" not in text
    assert "[2Jgone" in text


@pytest.mark.parametrize("name", EDGE_RUNS)
def test_every_run_can_be_printed(name):
    text = printed(EDGE_RUNS[name])
    assert "Run folder: reports/edge" in text or name == "one prompt"
    assert "None" not in text
    assert "nan" not in re.findall(r"[a-z]+", text)
