"""Progress: figures by the report's formulas, plain lines where there is no terminal, nothing when quiet."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from made_up_prompts import run_simulated, simulated, use_made_up_prompts

from dflash.backends.scenario import Fault
from dflash.config import BenchmarkConfig
from dflash.progress import BarProgress, LineProgress, RunningFigures, SilentProgress, make_progress
from dflash.results.records import Arm, Cell, RequestRecord, Workload
from dflash.results.store import Run
from dflash.runner import execute


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    use_made_up_prompts(monkeypatch)


def shown(tmp_path: Path, stream: io.StringIO, *faults: Fault) -> tuple[str, Run]:
    config = BenchmarkConfig(backend="simulated", output_dir=tmp_path, num_warmup=0, max_error_rate=1)
    progress = make_progress(False, stream)
    outcome = execute(config, backend=simulated(*faults), progress=progress)
    return stream.getvalue(), outcome.run


def test_the_kind_fits_the_stream() -> None:
    assert isinstance(make_progress(False, Terminal()), BarProgress)
    assert isinstance(make_progress(False, io.StringIO()), LineProgress)
    assert isinstance(make_progress(True, Terminal()), SilentProgress)


def test_lines_tell_beginning_and_end_with_the_figures(tmp_path: Path) -> None:
    text, _ = shown(tmp_path, io.StringIO())
    assert text.splitlines() == [
        "quickstart, concurrency 1: 4 prompts in baseline, dflash B=4",
        "4/4 · dflash B=4 2.96x, length 4.00",  # 8 x 20 ms over 2 x 27 ms
    ]


def test_a_failure_is_said_when_it_happens(tmp_path: Path) -> None:
    text, _ = shown(tmp_path, io.StringIO(), Fault("error", request=1, kind="timeout", message="late\x1b[0m"))
    assert "failed: quickstart/0000:0:0:dflash B=4: timeout: late [0m" in text
    assert "1 failed" in text.splitlines()[-1]


def test_a_bar_is_drawn_on_a_terminal(tmp_path: Path) -> None:
    text, _ = shown(tmp_path, Terminal())
    assert "4/4" in text
    assert "2.96x, length 4.00" in text


def test_figures_of_one_arm_are_its_speed(tmp_path: Path) -> None:
    outcome, _ = run_simulated(tmp_path, arms=("baseline",))
    figures = RunningFigures(outcome.run.info.cells)
    assert figures.words() == ""
    for record in outcome.run.records:
        figures.add(record)
    assert figures.words() == "baseline 50.00 tok/s"


def test_on_servers_every_arm_has_its_own_speed() -> None:
    workload = Workload("t", None, "float32", "gsm8k", "d", 2, 9, 0.0, None, None, 0, "off", concurrency=4)
    cells = tuple(
        Cell(name, "w", name, "vllm", workload, Arm(name, block_size), on_server=True)
        for name, block_size in (("baseline", None), ("dflash", 4))
    )
    figures = RunningFigures(cells)
    for cell, steps in zip(cells, (8, 2), strict=True):
        record = RequestRecord(
            cell.cell_id,
            "gsm8k/0000",
            sent_ns=0,
            first_ns=10**9,
            last_ns=3 * 10**9,
            num_output_tokens=9,
            num_first_chunk_tokens=1,
            num_decode_steps=steps,
            finish_reason="stop",
        )
        figures.add(record)
    figures.add(RequestRecord("dflash", "gsm8k/0001"))
    assert figures.words() == "baseline 4.0 tok/s; dflash B=4 4.0 tok/s, length 4.00; 1 failed"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_engines_that_are_opened_in_turn_add_to_what_is_to_come(stream: io.StringIO) -> None:
    """Of servers that are started one after the other, each announces its own requests."""
    progress = make_progress(False, stream)
    if isinstance(progress, LineProgress):
        progress._seconds_between = 0
    for _ in range(3):
        progress.start(2)
        progress.end_unit()
        progress.end_unit()
    progress.close()
    assert "6/6" in stream.getvalue()
    assert "7/" not in stream.getvalue()
