"""Sweeps: rounds that take turns, rest, time that runs out, cells that fail, and what is listed before."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_prompts import made_up_prompts, run_simulated, simulated, use_made_up_prompts

import dflash.plan_listing
import dflash.runner
import dflash.sweep
from dflash.arguments import parse_benchmark_arguments
from dflash.backends.scenario import Fault
from dflash.benchmark import main
from dflash.config import BenchmarkConfig
from dflash.errors import UsageError
from dflash.load import Load, run_load
from dflash.plan_listing import list_cells, list_document, list_lines
from dflash.results.document import json_document
from dflash.results.report_files import write_report
from dflash.results.store import Run
from dflash.results.summary import summarise_run
from dflash.runner import execute
from dflash.time_budget import TimeBudget, format_duration

BOTH = ("quickstart", "gsm8k")


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    use_made_up_prompts(monkeypatch, num_prompts=2)


def ends(run: Run) -> list[tuple[str, str]]:
    return [(cell.workload.dataset, cell.status) for cell in run.info.cells if cell.arm.is_baseline]


def budget_of_calls(monkeypatch: pytest.MonkeyPatch, num_calls: int) -> None:
    """A budget that is used up once it has been asked so many times."""
    calls = itertools.count()
    budget = TimeBudget(num_calls, lambda: next(calls), "the time budget of 1m was used up")
    monkeypatch.setattr(dflash.runner.TimeBudget, "of", lambda seconds: budget)


def test_rounds_take_turns_and_every_request_names_its_own(tmp_path: Path) -> None:
    run = run_simulated(tmp_path, datasets=BOTH, repeats=2)[0].run
    order = [(record.round, record.prompt_id.split("/")[0]) for record in run.records]
    assert list(dict.fromkeys(order)) == [(0, "quickstart"), (0, "gsm8k"), (1, "quickstart"), (1, "gsm8k")]
    assert all(record.round == record.repeat for record in run.records)
    assert [cell.num_requests for cell in run.info.cells] == [4] * 4


def test_the_machine_rests_between_cells_and_not_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(dflash.sweep, "rest", rest)
    run_simulated(tmp_path, datasets=BOTH, repeats=2, cooldown_s=7.5)
    assert rests == [7.5] * 3
    run_simulated(tmp_path, datasets=BOTH, repeats=2, cooldown_s=7.5)
    assert len(rests) == 3, "where nothing is left to run, nothing rests"


@pytest.mark.parametrize(
    ("num_calls", "expected"),
    [
        (0, [("quickstart", "not_run"), ("gsm8k", "not_run")]),
        (2, [("quickstart", "interrupted"), ("gsm8k", "not_run")]),
        (4, [("quickstart", "completed"), ("gsm8k", "interrupted")]),
        (100, [("quickstart", "completed"), ("gsm8k", "completed")]),
    ],
)
def test_a_used_up_budget_stops_between_prompts_and_says_what_was_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_calls: int, expected: list[tuple[str, str]]
) -> None:
    budget_of_calls(monkeypatch, num_calls)
    outcome, _ = run_simulated(tmp_path, datasets=BOTH)
    assert outcome.error is None, "stopping was asked for"
    assert ends(outcome.run) == expected
    assert len(outcome.run.records) % 2 == 0, "a prompt runs in all its arms or in none"
    cut = [cell for cell in outcome.run.info.cells if cell.status in ("interrupted", "not_run")]
    assert {cell.reason for cell in cut} <= {"the time budget of 1m was used up"}
    assert bool(outcome.cut) == bool(cut)
    write_report(outcome.run)
    monkeypatch.undo()
    use_made_up_prompts(monkeypatch, num_prompts=2)
    whole, _ = run_simulated(tmp_path, datasets=BOTH)
    assert ends(whole.run) == [("quickstart", "completed"), ("gsm8k", "completed")]
    assert len({(record.cell_id, record.unit) for record in whole.run.records}) == 8


def test_the_command_says_where_the_budget_stopped_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    budget_of_calls(monkeypatch, 2)
    line = f"--backend simulated --warmup 0 --output-dir {tmp_path} --run r --time-budget 1m --dataset quickstart,gsm8k"
    assert main(line.split()) == 0
    said = capsys.readouterr().err
    assert "stopped, as the time budget of 1m was used up: of 4 cells 2 interrupted, 2 not run" in said
    assert "--run r" in said.splitlines()[-1]


@pytest.mark.parametrize("load", [Load(2), Load(2, request_rate=1e6), Load(2, request_rate=0.01)])
def test_no_job_begins_after_the_deadline(load: Load) -> None:
    begun: list[int | None] = []

    async def job(due_ns: int | None) -> None:
        begun.append(due_ns)

    asyncio.run(run_load(load, [job] * 5, deadline_ns=0))
    assert begun == []


def test_durations_are_written_as_they_are_read() -> None:
    assert [format_duration(seconds) for seconds in (45, 90, 5400, 86400, 0)] == [
        "45s",
        "1m30s",
        "1h30m",
        "24h",
        "0s",
    ]


def test_a_cell_that_fails_is_not_tried_again_in_later_rounds(tmp_path: Path) -> None:
    outcome, backend = run_simulated(tmp_path, Fault("crash", request=0), datasets=BOTH, repeats=3)
    assert ends(outcome.run) == [("quickstart", "failed"), ("gsm8k", "completed")]
    assert len(backend.requests) == 1 + 3 * 4
    assert isinstance(outcome.error, RuntimeError)
    mended, _ = run_simulated(tmp_path, datasets=BOTH, repeats=3)
    assert ends(mended.run) == [("quickstart", "completed"), ("gsm8k", "completed")]


def test_a_report_shows_retired_cells_apart(tmp_path: Path) -> None:
    run_simulated(tmp_path)
    run = run_simulated(tmp_path, temperature=1.0)[0].run
    summary = summarise_run(run)
    assert [cell.cell.workload.temperature for cell in summary.cells] == [1.0, 1.0]
    document = json_document(run, summary, 0)
    assert [(cell["arm"], cell["num_requests"]) for cell in document["retired_cells"]] == [
        ("baseline", 2),
        ("dflash", 2),
    ]
    page = write_report(run)[0].read_text()
    assert "Retired cells" in page
    assert page.count("temperature differs: it was 0.0 and is now 1.0") >= 2


def listed(**settings: Any) -> tuple[Any, ...]:
    return list_cells(BenchmarkConfig(backend="simulated", list_only=True, **settings))


def test_the_list_names_the_cells_that_will_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dflash.plan_listing, "load_prompt_sets", lambda part: (made_up_prompts(2),))
    monkeypatch.setattr(dflash.plan_listing, "create_backend", lambda name, settings: simulated())
    settings: dict[str, Any] = {
        "block_sizes": (2, 4),
        "repeats": 3,
        "output_dir": tmp_path,
        "run_name": "run",
    }
    before = listed(**settings)
    run = run_simulated(tmp_path, block_sizes=(2, 4), repeats=3)[0].run
    assert [cell.cell_id for cell in before] == [cell.cell_id for cell in run.info.cells]
    assert [cell.num_requests for cell in before] == [cell.num_requests for cell in run.info.cells] == [6] * 3
    after = listed(**settings)
    assert [(cell.status, cell.num_completed) for cell in after] == [("completed", 6)] * 3
    assert list(list_lines(after))[-1] == "3 cells, about 18 requests, and 6 to warm up"
    assert list_document(after)["num_requests"] == 18


def test_data_sets_that_are_not_at_hand_are_estimated(tmp_path: Path) -> None:
    cells = listed(datasets=("mt-bench", "gsm8k"), datasets_cache=tmp_path, num_prompts=100)
    sizes = {(cell.dataset, cell.num_prompts, cell.num_requests) for cell in cells}
    assert sizes == {("mt-bench", 80, 80), ("gsm8k", 100, 100)}
    assert {cell.cell_id for cell in cells} == {None}
    assert list(tmp_path.iterdir()) == [], "nothing is fetched"


def test_the_list_shows_every_load(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--backend", "vllm", "--dataset-file", str(tmp_path), "--dataset", "gsm8k", "--list"]
    assert main([*words, "--request-rate", "4"]) == 0
    assert "vllm  gsm8k  open loop at 4 requests/s  what the server is" in capsys.readouterr().out
    assert main([*words, "--request-rate", "4", "--concurrency", "8,16"]) == 0
    assert "open loop at 4 requests/s, at most 16 under way" in capsys.readouterr().out
    assert main([*words, "--request-rate", "4", "--json", "-"]) == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert (cell["concurrency"], cell["request_rate"]) == (None, 4.0)


def test_the_list_refuses_a_load_that_the_run_would_refuse() -> None:
    with pytest.raises(UsageError, match="--concurrency 4: backend 'simulated' runs at most 1"):
        listed(concurrencies=(1, 4))


def test_the_list_is_a_document_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backend", "simulated", "--suite", "ci", "--list", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [cell["arm"] for cell in document["cells"]] == ["baseline", "dflash"]
    assert document["num_requests"] == 2 * 16 * 3
    assert main(["--model", "t", "--draft", "d", "--block-size", "2,4", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def two_engines(tmp_path: Path, second: str, **settings: Any) -> BenchmarkConfig:
    """Two grids that want different engines: two scenarios of the simulated one."""
    (tmp_path / "first.toml").write_text("jitter = 0.0\n")
    (tmp_path / "second.toml").write_text(second)
    grids = "".join(
        f'[[grid]]\nscript = "{name}.toml"\ndataset = "{dataset}"\n'
        for name, dataset in (("first", "quickstart"), ("second", "gsm8k"))
    )
    (tmp_path / "suite.toml").write_text(
        f'[settings]\nbackend = "simulated"\nblock-size = 8\nwarmup = 0\n{grids}'
    )
    words = ["--suite", str(tmp_path / "suite.toml"), "--output-dir", str(tmp_path), "--run", "run"]
    return replace(parse_benchmark_arguments(words), **settings)


def test_engines_of_a_suite_are_opened_in_turn_in_every_round(tmp_path: Path) -> None:
    config = two_engines(tmp_path, "jitter = 0.1\n")
    config = replace(config, repeats=2, parts=tuple(replace(part, repeats=2) for part in config.parts))
    run = execute(config).run
    order = list(dict.fromkeys((record.round, record.prompt_id.split("/")[0]) for record in run.records))
    assert order == [(0, "quickstart"), (0, "gsm8k"), (1, "quickstart"), (1, "gsm8k")]
    assert {cell.status for cell in run.info.cells} == {"completed"}
    assert len({cell.workload.target_revision for cell in run.info.cells}) == 2
    assert execute(config).run.records == run.records


def test_an_engine_that_does_not_open_is_recorded_and_the_others_run(tmp_path: Path) -> None:
    config = two_engines(tmp_path, "block_size = 4\nmax_block_size = 4\n")
    outcome = execute(config)
    assert isinstance(outcome.error, UsageError)
    assert ends(outcome.run) == [("quickstart", "completed"), ("gsm8k", "failed")]
    reasons = {cell.reason for cell in outcome.run.info.cells if cell.status == "failed"}
    assert len(reasons) == 1
    assert "block size 8 is above 4" in str(reasons)
    assert len(outcome.run.records) == 4
    write_report(outcome.run)
    (tmp_path / "second.toml").write_text("jitter = 0.0\n")
    mended = execute(config)
    assert mended.error is None
    assert ends(mended.run) == [("quickstart", "completed"), ("gsm8k", "completed")]
    assert len(mended.run.info.cells) == 4, "the cells of the engine that never opened left no trace"


def test_an_interrupt_at_the_second_engine_keeps_the_first(tmp_path: Path) -> None:
    outcome = execute(two_engines(tmp_path, '[[faults]]\naction = "sigint"\nrequest = 1\n'))
    assert isinstance(outcome.error, KeyboardInterrupt)
    assert ends(outcome.run) == [("quickstart", "completed"), ("gsm8k", "interrupted")]


def test_a_budget_that_ends_before_an_engine_is_opened_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget_of_calls(monkeypatch, 3)
    outcome = execute(two_engines(tmp_path, "jitter = 0.0\n"))
    assert outcome.error is None
    assert ends(outcome.run)[-1] == ("gsm8k", "not_run")
    assert outcome.cut == "the time budget of 1m was used up"
