"""Arms on servers, against simulated ones over real HTTP: what is sent, kept, counted, resumed and given up."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_prompts import EXACT, made_up_prompts

import dflash.execution
import dflash.load
import dflash.runner
import dflash.served
import dflash.serving
import dflash.sweep
from dflash.backends.base import StartedAs
from dflash.backends.scenario import Fault, Scenario, ServerSettings
from dflash.backends.sglang import SglangBackend
from dflash.backends.simulated_http import simulated_server, simulated_server_thread
from dflash.backends.vllm import VllmBackend
from dflash.config import BenchmarkConfig
from dflash.errors import EXIT_UNAVAILABLE, UnavailableError, UsageError
from dflash.execution import Outcome, backend_settings
from dflash.load import Load
from dflash.quickstart import DRAFT_FOLDER, DRAFT_NAME, QUICKSTART, TARGET_NAME
from dflash.results.records import Arm, RequestRecord
from dflash.results.store import Run
from dflash.results.summary import summarise_run
from dflash.runner import execute
from dflash.served import Block, plan_blocks, text_of_length
from dflash.time_budget import TimeBudget

PROTOCOLS = ("vllm", "sglang")
SCENARIO = replace(EXACT, server=ServerSettings(per_request_spec_decode_metrics="detailed"))


class Servers:
    """The two servers of a run, and what they saw."""

    def __init__(self, baseline: Any, drafting: Any) -> None:
        self.baseline, self.drafting = baseline, drafting


@contextmanager
def two_servers(
    protocol: str,
    scenario: Scenario = SCENARIO,
    drafting: Scenario | None = None,
    *,
    in_place_of: Servers | None = None,
) -> Iterator[Servers]:
    ports = (0, 0) if in_place_of is None else (in_place_of.baseline.port, in_place_of.drafting.port)
    with ExitStack() as stack:
        yield Servers(
            stack.enter_context(
                simulated_server_thread(protocol, scenario, arm="baseline", port=ports[0], time_scale=0)
            ),
            stack.enter_context(
                simulated_server_thread(
                    protocol, drafting or scenario, arm="dflash", port=ports[1], block_size=4, time_scale=0
                )
            ),
        )


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    use_prompts(monkeypatch)


def use_prompts(monkeypatch: pytest.MonkeyPatch, num_prompts: int = 10, num_turns: int = 1) -> None:
    prompts = made_up_prompts(num_prompts, num_turns)
    monkeypatch.setattr(dflash.runner, "load_prompt_sets", lambda config: (prompts,))
    monkeypatch.setattr(dflash.execution, "load_warmup_texts", lambda: ("warm", "up"))


def run_on(servers: Servers, folder: Path, protocol: str, **settings: Any) -> Outcome:
    values: dict[str, Any] = {
        "baseline_url": servers.baseline.url,
        "base_url": servers.drafting.url,
        "run_name": "run",
        "num_warmup": 1,
        **settings,
    }
    config = BenchmarkConfig(backend=protocol, output_dir=folder, **values)
    kind = VllmBackend if protocol == "vllm" else SglangBackend
    # the simulated counters are never late
    return execute(config, backend=kind(backend_settings(config), quiet_s=0.02))


def of_arm(run: Run, name: str) -> list[RequestRecord]:
    ids = {cell.cell_id for cell in run.info.cells if cell.arm.name == name}
    return [record for record in run.records if record.cell_id in ids]


class TestBlocks:
    UNITS = tuple((index, 0) for index in range(16))

    def test_arms_take_turns(self) -> None:
        blocks = plan_blocks([self.UNITS, self.UNITS], 2, baseline_first=False)
        assert [(block.arm_index, block.number) for block in blocks] == [(0, 0), (1, 0), (1, 1), (0, 1)]
        assert [unit for block in blocks if block.arm_index == 0 for unit in block.units] == list(self.UNITS)
        assert blocks[0].units == blocks[1].units, "both arms see the same half at about the same time"

    def test_the_baseline_comes_first_where_others_need_its_answers(self) -> None:
        blocks = plan_blocks([self.UNITS, self.UNITS, self.UNITS], 1, baseline_first=True)
        assert [block.arm_index for block in blocks] == [0, 1, 2, 0, 1, 2]

    @pytest.mark.parametrize(("num_units", "concurrency"), [(15, 2), (1, 1), (16, 3)])
    def test_few_units_are_not_split(self, num_units: int, concurrency: int) -> None:
        units = self.UNITS[:num_units]
        blocks = plan_blocks([units, units], concurrency, baseline_first=False)
        assert blocks == [Block(0, 0, units), Block(1, 0, units)]

    def test_what_is_done_is_left_out(self) -> None:
        assert plan_blocks([(), self.UNITS[:3]], 1, baseline_first=False) == [Block(1, 0, self.UNITS[:3])]
        assert plan_blocks([(), ()], 1, baseline_first=False) == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
class TestRun:
    def test_every_count_is_the_servers(self, tmp_path: Path, protocol: str) -> None:
        with two_servers(protocol) as servers:
            outcome = run_on(servers, tmp_path, protocol, concurrencies=(2,))
        assert outcome.error is None
        run = outcome.run
        assert [cell.arm.label for cell in run.info.cells] == ["baseline", "dflash B=4"]
        assert all(cell.on_server for cell in run.info.cells)
        assert len(of_arm(run, "baseline")) == len(of_arm(run, "dflash")) == 10
        for record in of_arm(run, "dflash"):
            assert (record.num_output_tokens, record.num_decode_steps) == (9, 2)
        for record in of_arm(run, "baseline"):
            assert (record.num_output_tokens, record.num_decode_steps) == (9, 8)
        baseline, drafting = summarise_run(run).cells
        assert drafting.number("acceptance_length") == pytest.approx(4.0)
        assert drafting.number("agreement") == 1.0
        assert baseline.number("num_completed") == 10

    def test_windows_know_how_many_requests_they_had(self, tmp_path: Path, protocol: str) -> None:
        with two_servers(protocol) as servers:
            run = run_on(servers, tmp_path, protocol, concurrencies=(1,)).run
        for window in run.windows():
            members = [r for r in run.records if (r.cell_id, r.block) == (window.cell_id, window.block)]
            assert window.num_own_requests == len(members) > 0

    def test_windows_hold_what_the_server_counted(self, tmp_path: Path, protocol: str) -> None:
        with two_servers(protocol) as servers:
            run = run_on(servers, tmp_path, protocol, concurrencies=(1,)).run
        windows = run.windows()
        assert len(windows) == 4, "A B B A"
        assert [window.block for window in windows] == [0, 0, 1, 1]
        cells = [
            cell.arm.name for window in windows for cell in run.info.cells if cell.cell_id == window.cell_id
        ]
        assert cells == ["baseline", "dflash", "dflash", "baseline"]
        assert sum(window.num_generation_tokens or 0 for window in windows) == 2 * 10 * 9, "no warm-up in it"
        assert all(window.started_ns < window.ended_ns for window in windows)
        blocks = {(record.cell_id, record.block) for record in run.records}
        assert blocks == {(window.cell_id, window.block) for window in windows}

    def test_later_turns_follow_the_baselines_answers(
        self, tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_prompts(monkeypatch, num_prompts=3, num_turns=2)
        differing = replace(SCENARIO, faults=(Fault("differ", position=2),))
        with two_servers(protocol, drafting=differing) as servers:
            run = run_on(servers, tmp_path, protocol, concurrencies=(2,)).run
        prompts = {
            name: {(r.prompt_id, r.turn): r.num_prompt_tokens for r in of_arm(run, name)}
            for name in ("baseline", "dflash")
        }
        assert prompts["baseline"] == prompts["dflash"]
        assert len(prompts["dflash"]) == 6
        assert {r.finish_reason for r in run.records} == {"stop"}

    def test_a_run_goes_on_where_it_was(
        self, tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with two_servers(protocol) as servers:
            run_on(servers, tmp_path, protocol)
            use_prompts(monkeypatch, num_prompts=10)
            again = run_on(servers, tmp_path, protocol)
            assert again.error is None
            assert len(again.run.records) == 20
            more = run_on(servers, tmp_path, protocol, repeats=2)
        assert len(more.run.records) == 40
        assert len({(r.cell_id, r.prompt_id, r.repeat) for r in more.run.records}) == 40

    def test_differences_are_found_in_what_was_kept(self, tmp_path: Path, protocol: str) -> None:
        differing = replace(SCENARIO, faults=(Fault("differ", position=3),))
        with two_servers(protocol, drafting=differing) as servers:
            run = run_on(servers, tmp_path, protocol).run
        drafting = summarise_run(run).cells[1]
        assert drafting.number("agreement") == 0.0
        assert {difference.position for difference in run.differences} == {3}
        assert len(run.differences) == 10

    def test_the_machine_rests_between_two_stretches_of_load(
        self, tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rests: list[float] = []

        async def rest(seconds: float) -> None:
            rests.append(seconds)

        monkeypatch.setattr(dflash.served, "rest", rest)
        monkeypatch.setattr(dflash.sweep, "rest", rest)
        with two_servers(protocol) as servers:
            run = run_on(servers, tmp_path, protocol, cooldown_s=5.0, concurrencies=(1, 2)).run
        assert rests == [5.0] * (len(run.windows()) - 1)

    def test_an_arm_whose_server_goes_away_leaves_the_other_to_finish(
        self, tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_prompts(monkeypatch, num_prompts=20)
        gone = replace(SCENARIO, faults=(Fault("refuse", request=5, seconds=600.0),))
        with two_servers(protocol, drafting=gone) as servers:
            outcome = run_on(servers, tmp_path, protocol)
        assert isinstance(outcome.error, UnavailableError)
        ends = {cell.arm.name: cell.status for cell in outcome.run.info.cells}
        assert ends == {"baseline": "completed", "dflash": "failed"}
        assert sum(record.completed for record in of_arm(outcome.run, "baseline")) == 20
        assert len(of_arm(outcome.run, "dflash")) < 20, "nobody is helped by asking a server that is gone"
        with two_servers(protocol, in_place_of=servers) as servers:
            mended = run_on(servers, tmp_path, protocol)
        assert mended.error is None
        assert len(mended.run.records) == 40

    def test_a_run_goes_on_with_another_server_as_another_cell(
        self, tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two servers at different addresses were once one arm, and their requests one figure."""
        use_prompts(monkeypatch, num_prompts=2)
        with two_servers(protocol) as first, two_servers(protocol) as second:
            run_on(first, tmp_path, protocol)
            moved = run_on(Servers(first.baseline, second.drafting), tmp_path, protocol).run
            back = run_on(first, tmp_path, protocol, base_url=first.drafting.url + "/v1").run
        assert len(of_arm(moved, "baseline")) == 2, "its server is the same: nothing is run again"
        retired, live = sorted(
            (cell for cell in moved.info.cells if cell.arm.name == "dflash"), key=lambda cell: cell.status
        )[::-1]
        assert (retired.status, live.status) == ("retired", "completed")
        addresses = [f"http://localhost:{servers.drafting.port}" for servers in (first, second)]
        assert [retired.arm.server, live.arm.server] == addresses
        assert retired.reason == f"arm server differs: it was {addresses[0]!r} and is now {addresses[1]!r}"
        assert any("a new cell begins" in note and addresses[1] in note for note in moved.info.notes)
        assert summarise_run(moved).cells[1].number("num_completed") == 2
        assert [cell.arm.server for cell in back.info.cells if not cell.is_retired][1] == addresses[0]
        assert len(back.records) == len(moved.records), "what was measured there is kept, and is enough"

    def test_a_used_up_budget_lets_requests_under_way_finish(
        self, tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with two_servers(protocol) as servers:
            monkeypatch.setattr(
                dflash.runner.TimeBudget, "of", lambda seconds: TimeBudget(1, lambda: 0, "used up")
            )
            cut = run_on(servers, tmp_path, protocol)
            assert cut.error is None
            assert {(cell.status, cell.reason) for cell in cut.run.info.cells} == {("interrupted", "used up")}
            assert cut.run.records == ()
            monkeypatch.undo()
            use_prompts(monkeypatch)
            assert len(run_on(servers, tmp_path, protocol).run.records) == 20

    def test_a_server_that_is_gone_ends_the_run_and_loses_nothing(
        self, tmp_path: Path, protocol: str
    ) -> None:
        with two_servers(protocol) as servers:
            run_on(servers, tmp_path, protocol)
        with pytest.raises(UnavailableError) as caught:
            run_on(servers, tmp_path, protocol, repeats=2)
        assert caught.value.exit_code == EXIT_UNAVAILABLE
        assert len(dflash.load_run(tmp_path / "run").records) == 20


def test_an_open_loop_is_warmed_up_at_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[tuple[Load, int]] = []

    async def run_load(load: Load, jobs: Any, deadline_ns: int | None = None) -> None:
        loads.append((load, len(jobs)))
        await dflash.load.run_load(replace(load, request_rate=load.request_rate and 1e6), jobs, deadline_ns)

    monkeypatch.setattr(dflash.served, "run_load", run_load)
    with two_servers("vllm") as servers:
        run_on(servers, tmp_path, "vllm", request_rate=3.0, num_warmup=None)
    warm_up, measured = loads[:2]
    assert warm_up == (measured[0], 6)
    assert measured[0].request_rate == 3


def test_an_open_loop_that_nobody_capped_is_split_by_what_its_rate_keeps_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_load(load: Load, jobs: Any, deadline_ns: int | None = None) -> None:
        await dflash.load.run_load(replace(load, request_rate=1e6), jobs, deadline_ns)

    monkeypatch.setattr(dflash.served, "run_load", run_load)
    with two_servers("vllm") as servers:
        run = run_on(servers, tmp_path, "vllm", request_rate=0.5).run
    labels = {cell.cell_id: cell.arm.name for cell in run.info.cells}
    windows = [(labels[window.cell_id], window.block, window.num_own_requests) for window in run.windows()]
    assert windows == [("baseline", 0, 5), ("dflash", 0, 5), ("dflash", 1, 5), ("baseline", 1, 5)]


def test_another_rate_is_another_place_in_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another concurrency is: a run that is gone on with at a second rate once gave up the first."""
    use_prompts(monkeypatch, num_prompts=2)

    async def run_load(load: Load, jobs: Any, deadline_ns: int | None = None) -> None:
        await dflash.load.run_load(replace(load, request_rate=1e6), jobs, deadline_ns)

    monkeypatch.setattr(dflash.served, "run_load", run_load)
    with two_servers("vllm") as servers:
        for rate in (4.0, 8.0):
            run = run_on(servers, tmp_path, "vllm", request_rate=rate).run
    assert [cell.workload.request_rate for cell in run.info.cells] == [4.0, 4.0, 8.0, 8.0]
    assert {cell.status for cell in run.info.cells} == {"completed"}


def test_a_key_is_in_no_file(tmp_path: Path) -> None:
    with two_servers("vllm") as servers:
        config = BenchmarkConfig(
            backend="vllm",
            base_url=servers.drafting.url,
            baseline_url=servers.baseline.url,
            api_key="sk-very-secret",
            headers=("X-Secret: swordfish-1",),
            output_dir=tmp_path,
            run_name="run",
            num_warmup=0,
        )
        execute(config)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        assert b"sk-very-secret" not in content, path
        assert b"swordfish-1" not in content, path
    assert "sk-very-secret" not in repr(config)


def test_warm_up_texts_have_the_measured_length() -> None:
    assert text_of_length("warm", 10) == "warm\nwarm"
    assert text_of_length("a long text", 6) == "a long"
    assert text_of_length("x", 0) == "x"


class TestServe:
    """Servers that are started one after the other; the engine's own server is a simulated one here."""

    @pytest.fixture
    def launched(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        arms: list[str] = []

        @asynccontextmanager
        async def launch(config: BenchmarkConfig, arm: Arm, announce: Any) -> AsyncIterator[Any]:
            if arm.name in self.failing:
                raise UnavailableError(f"the server of {arm.label} ended", "see its log")
            arms.append(arm.label)
            async with simulated_server(
                "vllm", SCENARIO, arm=arm.name, block_size=arm.block_size, time_scale=0
            ) as server:
                method = None if arm.is_baseline else "dflash"
                yield SimpleNamespace(url=server.url, started_as=StartedAs("float16", method))
            arms.append(f"{arm.label} stopped")

        self.failing: tuple[str, ...] = ()
        monkeypatch.setattr(dflash.execution, "launch_arm", launch)
        monkeypatch.setattr(dflash.execution, "check_arms", lambda config, arms: None)
        return arms

    def serve(self, folder: Path, **settings: Any) -> Outcome:
        values: dict[str, Any] = {"block_sizes": (4,), "run_name": "run", "num_warmup": 0, **settings}
        return execute(
            BenchmarkConfig(
                **{
                    "backend": "vllm",
                    "serve": True,
                    "model": "quickstart",
                    "output_dir": folder,
                    "quiet": True,
                }
                | values
            )
        )

    def test_each_arm_has_the_machine_for_itself(self, tmp_path: Path, launched: list[str]) -> None:
        outcome = self.serve(tmp_path)
        assert outcome.error is None
        assert launched == ["baseline", "baseline stopped", "dflash B=4", "dflash B=4 stopped"]
        assert [cell.arm.label for cell in outcome.run.info.cells] == ["baseline", "dflash B=4"]
        assert len({cell.workload_id for cell in outcome.run.info.cells}) == 1
        drafting = summarise_run(outcome.run).cells[1]
        assert drafting.number("agreement") == 1.0
        assert drafting.number("num_pairs") == 10

    def test_what_servers_were_started_as_is_known_where_they_do_not_say(
        self, tmp_path: Path, launched: list[str]
    ) -> None:
        run = self.serve(tmp_path).run
        assert {cell.workload.dtype for cell in run.info.cells} == {"float16"}
        assert not any("dtype" in note or "how it drafts" in note for note in run.info.notes)

    def test_the_shipped_draft_is_the_same_whether_it_is_named_or_not(
        self, tmp_path: Path, launched: list[str]
    ) -> None:
        self.serve(tmp_path, block_sizes=())
        again = self.serve(tmp_path, block_sizes=(), draft_model=QUICKSTART).run
        assert [cell.arm.label for cell in again.info.cells] == ["baseline", "dflash B=4"]
        assert len(again.records) == 20, "nothing was measured anew"

    def test_later_turns_follow_the_baseline_that_ran_before(
        self, tmp_path: Path, launched: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_prompts(monkeypatch, num_prompts=3, num_turns=2)
        run = self.serve(tmp_path).run
        lengths = {
            name: {(r.prompt_id, r.turn): r.num_prompt_tokens for r in of_arm(run, name)}
            for name in ("baseline", "dflash")
        }
        assert lengths["baseline"] == lengths["dflash"]
        assert len(lengths["dflash"]) == 6
        assert not any("history=own" in note for cell in run.info.cells for note in cell.notes)

    def test_an_arm_that_does_not_come_up_loses_nothing_of_the_others(
        self, tmp_path: Path, launched: list[str]
    ) -> None:
        self.failing = ("dflash",)
        outcome = self.serve(tmp_path)
        assert isinstance(outcome.error, UnavailableError)
        assert len(outcome.run.records) == 10
        completed, failed = outcome.run.info.cells
        assert (completed.status, failed.status, failed.arm.label) == ("completed", "failed", "dflash B=4")
        assert failed.reason == "not opened: UnavailableError: the server of dflash B=4 ended: see its log"
        assert failed.workload_id == completed.workload_id, "it stands beside the arms that came up"
        self.failing = ()
        again = self.serve(tmp_path)
        assert again.error is None
        assert len(again.run.records) == 20
        assert [cell.status for cell in again.run.info.cells] == ["completed", "completed"]

    @pytest.mark.parametrize("failing", ["baseline", "dflash"])
    def test_an_arm_that_comes_up_when_the_run_is_resumed_takes_the_place_of_the_one_that_failed(
        self, tmp_path: Path, launched: list[str], failing: str
    ) -> None:
        self.failing = (failing,)
        self.serve(tmp_path, block_sizes=())  # the draft's own
        self.failing = ()
        outcome = self.serve(tmp_path, block_sizes=())
        assert outcome.error is None
        ends = {cell.arm.label: (cell.status, cell.reason) for cell in outcome.run.info.cells}
        assert ends == {"baseline": ("completed", None), "dflash B=4": ("completed", None)}

    def test_a_baseline_that_does_not_come_up_leaves_the_others_to_run(
        self, tmp_path: Path, launched: list[str]
    ) -> None:
        self.failing = ("baseline",)
        outcome = self.serve(tmp_path)
        assert isinstance(outcome.error, UnavailableError)
        ends = {cell.arm.label: cell.status for cell in outcome.run.info.cells}
        assert ends == {"dflash B=4": "completed", "baseline": "failed"}
        assert len(outcome.run.records) == 10

    def test_every_round_starts_the_servers_anew_in_turn(self, tmp_path: Path, launched: list[str]) -> None:
        run = self.serve(tmp_path, repeats=3).run
        started = [label for label in launched if "stopped" not in label]
        assert started == ["baseline", "dflash B=4", "dflash B=4", "baseline", "baseline", "dflash B=4"]
        for name in ("baseline", "dflash"):
            rounds = {(record.round, record.launch) for record in of_arm(run, name)}
            assert len(rounds) == len({launch for _, launch in rounds}) == 3
        assert sorted({record.launch for record in run.records}) == list(range(6))
        assert [cell.status for cell in run.info.cells] == ["completed", "completed"]
        assert [cell.num_requests for cell in run.info.cells] == [30, 30]
        launched.clear()
        again = self.serve(tmp_path, repeats=3)
        assert len(again.run.records) == 60
        assert len([label for label in launched if "stopped" not in label]) == 2, "once each, to know them"

    def budget_until(self, monkeypatch: pytest.MonkeyPatch, launched: list[str], num_events: int) -> None:
        """A budget that is used up once so many servers were started and stopped."""
        far = 2**62
        budget = TimeBudget(far, lambda: far if len(launched) >= num_events else 0, "used up")
        monkeypatch.setattr(dflash.runner.TimeBudget, "of", lambda seconds: budget)

    def test_a_budget_that_ends_between_rounds_leaves_the_cells_interrupted(
        self, tmp_path: Path, launched: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.budget_until(monkeypatch, launched, 4)  # both servers were started and stopped once
        outcome = self.serve(tmp_path, repeats=3)
        assert outcome.error is None
        assert outcome.cut == "used up"
        assert {(cell.status, cell.reason) for cell in outcome.run.info.cells} == {("interrupted", "used up")}
        assert len(outcome.run.records) == 20

    def test_a_budget_that_ends_before_an_arm_is_started_says_so(
        self, tmp_path: Path, launched: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.budget_until(monkeypatch, launched, 2)
        run = self.serve(tmp_path).run
        ends = {cell.arm.name: (cell.status, cell.reason) for cell in run.info.cells}
        assert ends == {"baseline": ("completed", None), "dflash": ("not_run", "used up")}

    def test_an_arm_that_fails_in_a_later_round_keeps_its_first(
        self, tmp_path: Path, launched: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launch = dflash.execution.launch_arm

        def fail_later(config: BenchmarkConfig, arm: Arm, announce: Any) -> Any:
            self.failing = ("dflash",) if len(launched) >= 4 else ()
            return launch(config, arm, announce)

        monkeypatch.setattr(dflash.execution, "launch_arm", fail_later)
        run = self.serve(tmp_path, repeats=2).run
        assert {cell.arm.name: cell.status for cell in run.info.cells} == {
            "baseline": "completed",
            "dflash": "failed",
        }
        assert len(of_arm(run, "dflash")) == 10
        assert len(of_arm(run, "baseline")) == 20

    @pytest.mark.parametrize(
        "changed",
        [{"draft_model": "another"}, {"server_args": ("dflash:--seed=3",)}],
        ids=["draft", "arguments"],
    )
    def test_servers_started_otherwise_are_measured_anew(
        self, tmp_path: Path, launched: list[str], changed: dict[str, Any]
    ) -> None:
        first = self.serve(tmp_path, num_prompts=2)
        assert [cell.arm.draft for cell in first.run.info.cells] == [None, DRAFT_NAME]
        launched.clear()
        outcome = self.serve(tmp_path, num_prompts=2, **changed)
        assert outcome.error is None
        assert launched == ["dflash B=4", "dflash B=4 stopped"] or launched[:2] == [
            "baseline",
            "baseline stopped",
        ]
        assert "dflash B=4" in launched
        now = [cell.arm for cell in outcome.run.info.cells if cell.status == "completed"]
        drafting = [arm for arm in now if not arm.is_baseline]
        assert (drafting[-1].draft, drafting[-1].server_args) in (
            ("another", ()),
            (DRAFT_NAME, ("--seed=3",)),
        )

    @pytest.mark.parametrize("named", [None, QUICKSTART, DRAFT_NAME])
    def test_engines_are_handed_the_shipped_draft_by_its_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None
    ) -> None:
        handed: list[str | None] = []
        monkeypatch.setattr(
            dflash.serving, "launch_server", lambda *_, **settings: handed.append(settings["draft_model"])
        )
        model = QUICKSTART if named is None else str(tmp_path)
        config = BenchmarkConfig(
            backend="vllm", serve=True, model=model, draft_model=named, output_dir=tmp_path
        )
        arm = dflash.serving.with_block_size(config, Arm("dflash"))
        dflash.serving.launch_arm(config, arm, print)
        assert arm.block_size == 4
        assert handed == [str(DRAFT_FOLDER)]

    @pytest.mark.parametrize("told", [None, str(DRAFT_FOLDER)])
    def test_the_shipped_draft_has_its_name_whatever_the_server_calls_it(self, told: str | None) -> None:
        config = BenchmarkConfig(backend="sglang", serve=True, model=QUICKSTART)
        assert dflash.serving.as_started(config, Arm("dflash", 4, draft=told)).draft == DRAFT_NAME
        assert dflash.serving.as_started(config, Arm("ngram", 4, draft=told)).draft == told
        assert dflash.serving.as_started(config, Arm("baseline")).draft is None

    def test_the_quickstart_target_has_its_name_and_not_its_folder(self) -> None:
        config = BenchmarkConfig(backend="sglang", serve=True, model=QUICKSTART)
        assert dflash.serving.target_as_named(config, f"/cache/{TARGET_NAME}") == TARGET_NAME
        assert dflash.serving.target_as_named(config, "other/model") == "other/model"
        config = replace(config, model=f"/cache/{TARGET_NAME}", draft_model=DRAFT_NAME)
        assert dflash.serving.target_as_named(config, f"/cache/{TARGET_NAME}") == f"/cache/{TARGET_NAME}"

    def test_nothing_is_left_where_nothing_was_measured(self, tmp_path: Path, launched: list[str]) -> None:
        self.failing = ("baseline", "dflash")
        with pytest.raises(UnavailableError, match="the server of baseline ended"):
            self.serve(tmp_path)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        ("version", "settings", "fault"),
        [
            ("0.19.0", {}, "vLLM 0.19.0 of .* cannot draft with DFlash as published"),
            ("0.23.0", {"model": "m", "draft_model": "DRAFT"}, "the draft .* cannot be read"),
            (
                "0.23.0",
                {"model": "m", "draft_model": "DRAFT", "block_sizes": ()},
                "the draft .* cannot be read",
            ),
            ("0.23.0", {"server_args": ("--port=1",)}, "--server-arg --port cannot be given"),
            ("0.23.0", {"server_args": ("dflash:--port=1",)}, "--server-arg --port cannot be given"),
        ],
    )
    def test_an_arm_that_cannot_be_started_is_refused_before_the_first_is(
        self,
        tmp_path: Path,
        launched: list[str],
        monkeypatch: pytest.MonkeyPatch,
        version: str,
        settings: dict[str, Any],
        fault: str,
    ) -> None:
        monkeypatch.setattr(dflash.execution, "check_arms", dflash.serving.check_arms)
        python = tmp_path / "python"
        told = {"is_there": True, "versions": {"vllm": version}, "options": [], "prefix": "/", "num_cpus": 2}
        python.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
        python.chmod(0o755)
        if "draft_model" in settings:
            settings = settings | {"draft_model": str(tmp_path)}
        with pytest.raises(UsageError, match=fault):
            self.serve(tmp_path, engine_python=str(python), **settings)
        assert launched == []
        assert not (tmp_path / "run").exists()
