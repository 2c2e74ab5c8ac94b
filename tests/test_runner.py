"""The runner on the simulated engine: order, exact records, faults, interruption, and what a run keeps."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_prompts import EXACT, made_up_prompts, run_simulated, simulated, use_made_up_prompts

import dflash
import dflash.runner
from dflash.asking import request_seed
from dflash.backends.base import Generation, GenerationRequest
from dflash.backends.scenario import Fault
from dflash.backends.simulated import SimulatedBackend
from dflash.command_line import exit_code_of
from dflash.config import BenchmarkConfig
from dflash.errors import (
    EXIT_FAILURES,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    RequestError,
    TooManyFailuresError,
    UsageError,
)
from dflash.interrupts import Interrupts
from dflash.publishing import publishable
from dflash.results.records import DatasetInfo, RequestRecord
from dflash.results.store import Run, load_run
from dflash.results.summary import summarise_run
from dflash.runner import execute


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    use_made_up_prompts(monkeypatch)


def asked(requests: list[GenerationRequest]) -> list[str]:
    return [request.request_id for request in requests]


def rows(run: Run) -> list[tuple[str, int, str, str]]:
    """(prompt number, turn, arm, how it ended), in the order in which they came."""
    arms = {cell.cell_id: cell.arm.label for cell in run.info.cells}
    return [
        (record.prompt_id[-1], record.turn, arms[record.cell_id], record.error_kind or record.finish_reason)
        for record in run.records
    ]


def statuses(run: Run) -> list[str]:
    return [cell.status for cell in run.info.cells]


def of_arm(run: Run, label: str) -> list[RequestRecord]:
    ids = [cell.cell_id for cell in run.info.cells if cell.arm.label == label]
    return [record for record in run.records if record.cell_id in ids]


# --- what is run


def test_arms_run_back_to_back_in_alternating_order(tmp_path: Path) -> None:
    outcome, backend = run_simulated(tmp_path)
    assert [request.rsplit(":", 1)[1] for request in asked(backend.requests)] == [
        *("baseline", "dflash B=4"),
        *("dflash B=4", "baseline"),
        *("baseline", "dflash B=4"),
        *("dflash B=4", "baseline"),
    ]
    assert [record.order for record in outcome.run.records] == [0, 1] * 4
    assert [record.prompt_id[-1] for record in outcome.run.records] == list("00112233")
    assert statuses(outcome.run) == ["completed", "completed"]
    assert outcome.error is None


def test_records_are_exact(tmp_path: Path) -> None:
    """9 tokens: 30 ms of prefill, then 8 steps of 20 ms, or at B = 4 two of 4 ms draft + 23 ms verify."""
    outcome, _ = run_simulated(tmp_path)
    baseline, dflash_record = outcome.run.records[:2]
    ms = 1_000_000
    assert baseline.first_ns is not None
    assert dflash_record.first_ns is not None
    assert baseline.sent_ns == 1_000 * ms
    assert (baseline.first_ns, baseline.last_ns) == (1_030 * ms, 1_190 * ms)
    assert (dflash_record.sent_ns, dflash_record.first_ns) == (1_190 * ms, 1_220 * ms)
    assert dflash_record.last_ns == (1_220 + 2 * (4 + 23)) * ms
    assert (baseline.num_output_tokens, baseline.num_decode_steps, baseline.num_verify_steps) == (9, 8, 0)
    assert (baseline.num_draft_tokens, baseline.acceptance_histogram) == (None, None)
    assert (dflash_record.num_decode_steps, dflash_record.num_verify_steps) == (2, 2)
    assert (dflash_record.num_draft_tokens, dflash_record.num_accepted_tokens) == (6, 6)
    assert dflash_record.acceptance_histogram == (0, 0, 0, 2)
    assert (dflash_record.draft_ns, dflash_record.verify_ns) == (8 * ms, 46 * ms)
    assert {record.finish_reason for record in outcome.run.records} == {"stop"}
    assert baseline.output_digest == dflash_record.output_digest
    assert baseline.prompt_digest == dflash_record.prompt_digest
    assert baseline.category == "chat"

    outputs, chunks = list(outcome.run.outputs()), list(outcome.run.chunks())
    assert len(outputs) == len(chunks) == 8
    assert len(outputs[0].output_ids or ()) == 9
    assert outputs[0].text
    assert chunks[1].gaps_ns == (27 * ms, 27 * ms)
    assert chunks[1].num_tokens == (1, 4, 4)
    assert chunks[1].num_accepted == (3, 3)


def test_the_report_says_what_the_scenario_says(tmp_path: Path) -> None:
    outcome, _ = run_simulated(tmp_path, block_sizes=(2, 4))
    baseline, two, four = summarise_run(outcome.run).cells
    assert baseline.number("tpot_s") == pytest.approx(0.020)
    assert two.number("acceptance_length") == pytest.approx(2.0)
    assert two.number("speedup") == pytest.approx(8 * 20 / (4 * (4 + 21)))
    assert four.number("speedup") == pytest.approx(8 * 20 / (2 * (4 + 23)))
    assert four.number("agreement") == 1.0
    severe = [item for cell in (baseline, two, four) for item in cell.findings if item.severity == "error"]
    assert severe == []


def test_a_limit_cuts_the_output_and_the_identities_still_hold(tmp_path: Path) -> None:
    scenario = replace(EXACT, output_tokens=(5, 40), acceptance=(0.8, 0.5), jitter=0.1)
    outcome, _ = run_simulated(tmp_path, scenario=scenario, max_new_tokens=16, block_sizes=(2, 5, 16))
    records = outcome.run.records
    assert {record.finish_reason for record in records} == {"stop", "length"}
    assert max(record.num_output_tokens or 0 for record in records) == 16
    for cell in summarise_run(outcome.run).cells:
        assert [finding for finding in cell.findings if finding.severity == "error"] == []
        assert cell.interval("agreement") is None or cell.number("agreement") == 1.0


def test_warm_up_is_run_in_every_arm_and_not_recorded(tmp_path: Path) -> None:
    outcome, backend = run_simulated(tmp_path, num_warmup=None)
    warm = [request for request in backend.requests if request.request_id.startswith("warmup/")]
    assert asked(backend.requests)[:4] == [
        "warmup/0:baseline",
        "warmup/0:dflash B=4",
        "warmup/1:baseline",
        "warmup/1:dflash B=4",
    ]
    assert len(warm) == 4
    assert [request.messages[0].content for request in warm] == ["warm", "warm", "up", "up"]
    assert max(request.max_new_tokens for request in warm) == 32
    assert len(outcome.run.records) == 8
    assert not any("warm" in record.prompt_id for record in outcome.run.records)


def test_a_warm_up_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    fault = Fault("error", request_id="warmup/", kind="out_of_memory")
    outcome, _ = run_simulated(tmp_path, fault, num_warmup=None)
    assert outcome.error is None
    assert statuses(outcome.run) == ["completed", "completed"]


def test_seeds_depend_on_the_prompt_only(tmp_path: Path) -> None:
    _, first = run_simulated(tmp_path / "a", block_sizes=(2, 4), temperature=1.0)
    _, second = run_simulated(tmp_path / "b", arms=("dflash",), block_sizes=(8,), temperature=1.0)
    for backend in (first, second):
        for request in backend.requests:
            prompt_id = request.request_id.split(":")[0]
            assert request.seed == request_seed(0, prompt_id, 0, 0)
    assert len({request.seed for request in first.requests}) == 4
    _, other = run_simulated(tmp_path / "c", seed=1)
    assert other.requests[0].seed == request_seed(1, "quickstart/0000", 0, 0) != first.requests[0].seed


def test_repeats_run_every_prompt_again_with_other_seeds(tmp_path: Path) -> None:
    outcome, backend = run_simulated(tmp_path, repeats=2)
    assert [record.repeat for record in outcome.run.records] == [0] * 8 + [1] * 8
    assert len({request.seed for request in backend.requests}) == 8
    first, again = outcome.run.records[0], outcome.run.records[8]
    assert (first.prompt_id, first.order) == (again.prompt_id, 0)
    assert first.cell_id != again.cell_id, "the other arm goes first in the repeat"


def test_sampling_reaches_the_engine_as_it_was_given(tmp_path: Path) -> None:
    _, backend = run_simulated(tmp_path, temperature=0.7, top_p=0.9, top_k=20, reasoning="low")
    request = backend.requests[0]
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.7, 0.9, 20)
    assert request.reasoning == "low"
    assert request.max_new_tokens == 128


def test_later_turns_follow_the_baselines_answers_in_every_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_made_up_prompts(monkeypatch, num_prompts=2, num_turns=3)
    differs = Fault("differ", arm="dflash", position=2)
    outcome, backend = run_simulated(tmp_path, differs)
    texts = {
        (o.prompt_id, o.turn): o.text for o in outcome.run.outputs() if o.cell_id == baseline_id(outcome.run)
    }
    for request in backend.requests:
        prompt_id, turn = request.request_id.split(":")[0], int(request.request_id.split(":")[1])
        answers = [message.content for message in request.messages if message.role == "assistant"]
        assert answers == [texts[prompt_id, earlier] for earlier in range(turn)]
        assert [message.role for message in request.messages] == ["user", "assistant"] * turn + ["user"]
    assert [request.split(":", 3)[1::2] for request in asked(backend.requests)[:6]] == [
        ["0", "baseline"],
        ["0", "dflash B=4"],
        ["1", "dflash B=4"],
        ["1", "baseline"],
        ["2", "baseline"],
        ["2", "dflash B=4"],
    ]


def baseline_id(run: Run) -> str:
    return next(cell.cell_id for cell in run.info.cells if cell.arm.is_baseline)


def test_without_a_baseline_an_arm_follows_its_own_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_made_up_prompts(monkeypatch, num_prompts=1, num_turns=2)
    outcome, backend = run_simulated(tmp_path, arms=("dflash",))
    (first, _) = outcome.run.outputs()
    assert [message.content for message in backend.requests[1].messages][1] == first.text
    assert "history=own" in outcome.run.info.cells[0].notes[0]


def test_a_given_context_comes_first_in_every_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = (("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"))
    prompts = made_up_prompts(2, num_turns=2)
    given = replace(prompts, prompts=tuple(replace(prompt, context=context) for prompt in prompts.prompts))
    monkeypatch.setattr(dflash.runner, "load_prompt_sets", lambda config: (given,))
    _, backend = run_simulated(tmp_path)
    assert len(backend.requests) == 8
    for request in backend.requests:
        assert [(message.role, message.content) for message in request.messages[:3]] == list(context)
        assert request.messages[3].role == "user"


@pytest.mark.parametrize("thought", ["<think>\nfirst 2, then 3\n</think>\n\n", "carry the one\n</think>\n\n"])
def test_reasoning_is_no_part_of_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thought: str
) -> None:
    use_made_up_prompts(monkeypatch, num_prompts=1, num_turns=2)
    said = SimulatedBackend.generate

    async def think_first(backend: SimulatedBackend, request: GenerationRequest) -> Generation:
        return replace(await said(backend, request), text=f"{thought}It is 5.")

    monkeypatch.setattr(SimulatedBackend, "generate", think_first)
    outcome, backend = run_simulated(tmp_path)
    later = [request for request in backend.requests if len(request.messages) > 1]
    assert [request.messages[1].content for request in later] == ["It is 5.", "It is 5."]
    assert all(output.text == f"{thought}It is 5." for output in outcome.run.outputs()), "all of it is kept"


def test_prompts_that_are_used_again_are_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(made_up_prompts(2), num_requests=5, notes=("--repeat: said",))
    monkeypatch.setattr(dflash.runner, "load_prompt_sets", lambda config: (few,))
    outcome, _ = run_simulated(tmp_path, repeat=True)
    assert [(r.prompt_id[-1], r.repeat) for r in of_arm(outcome.run, "baseline")] == [
        ("0", 0),
        ("1", 0),
        ("0", 1),
        ("1", 1),
        ("0", 2),
    ]
    assert "--repeat: said" in outcome.run.info.notes
    more = replace(few, num_requests=6)
    monkeypatch.setattr(dflash.runner, "load_prompt_sets", lambda config: (more,))
    resumed, backend = run_simulated(tmp_path, repeat=True)
    assert asked(backend.requests) == ["quickstart/0001:0:2:dflash B=4", "quickstart/0001:0:2:baseline"]
    assert len(resumed.run.records) == 12


def test_the_run_names_its_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = replace(made_up_prompts(3), revision="r1", template_version="quickstart-1", licence="MIT")
    monkeypatch.setattr(dflash.runner, "load_prompt_sets", lambda config: (named,))
    (info,) = run_simulated(tmp_path)[0].run.info.datasets
    assert info == DatasetInfo("quickstart", named.digest, 3, 3, "made up", "r1", "quickstart-1", "MIT")


def test_reference_answers_are_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = made_up_prompts(3)
    answered = (
        replace(prompts.prompts[0], answer="18"),
        prompts.prompts[1],
        replace(prompts.prompts[2], answer="3/4"),
    )
    monkeypatch.setattr(
        dflash.runner, "load_prompt_sets", lambda config: (replace(prompts, prompts=answered),)
    )
    for _ in range(2):
        outcome, _ = run_simulated(tmp_path)
    assert outcome.run.answers() == {"quickstart/0000": "18", "quickstart/0002": "3/4"}
    assert len((tmp_path / "run/answers.jsonl").read_bytes().splitlines()) == 2


def test_several_data_sets_make_groups_of_their_own(tmp_path: Path) -> None:
    outcome, _ = run_simulated(tmp_path, datasets=("quickstart", "gsm8k"))
    assert len(outcome.run.records) == 16
    assert len({cell.workload_id for cell in outcome.run.info.cells}) == 2
    assert [record.prompt_id.split("/")[0] for record in outcome.run.records] == ["quickstart"] * 8 + [
        "gsm8k"
    ] * 8


def test_outputs_are_dropped_when_asked_and_turns_still_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_made_up_prompts(monkeypatch, num_prompts=1, num_turns=2)
    outcome, backend = run_simulated(tmp_path, save_outputs=False)
    assert list(outcome.run.outputs()) == []
    assert not (tmp_path / "run/outputs.jsonl").exists()
    assert len(backend.requests[-1].messages) == 3


# --- agreement


def test_a_difference_is_recorded_with_its_position_and_gap(tmp_path: Path) -> None:
    fault = Fault("differ", request_id="quickstart/0002:0:0:dflash", position=5)
    outcome, _ = run_simulated(tmp_path, fault)
    (difference,) = outcome.run.differences
    assert (difference.prompt_id, difference.position, difference.logit_gap) == ("quickstart/0002", 5, 0.001)
    assert difference.cell_id != baseline_id(outcome.run)
    assert difference.arm_token_id == (difference.baseline_token_id or 0) + 1
    drafted, plain = outcome.run.records[5], outcome.run.records[4]
    assert drafted.prompt_digest == plain.prompt_digest
    assert drafted.output_digest != plain.output_digest
    assert summarise_run(outcome.run).cells[1].number("agreement") == 0.75


def test_sampled_outputs_are_not_compared(tmp_path: Path) -> None:
    outcome, _ = run_simulated(tmp_path, Fault("differ", arm="dflash", position=5), temperature=1.0)
    assert outcome.run.differences == ()


def test_a_gap_that_cannot_be_had_leaves_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = simulated(Fault("differ", arm="dflash", position=1))

    async def fail(*_: object) -> float:
        raise RequestError("out_of_memory", "no room")

    monkeypatch.setattr(backend, "logit_gap", fail)
    run = dflash.run_benchmark(
        BenchmarkConfig(backend="simulated", output_dir=tmp_path, num_warmup=0), backend=backend
    )
    assert [(item.position, item.logit_gap) for item in run.differences] == [(1, None)] * 4


# --- faults


@pytest.mark.parametrize("kind", ["out_of_memory", "prompt_too_long", "timeout", "simulated"])
def test_a_failed_request_is_a_row_and_the_run_goes_on(tmp_path: Path, kind: str) -> None:
    outcome, _ = run_simulated(tmp_path, Fault("error", request=2, kind=kind, message="no more\nroom"))
    assert rows(outcome.run)[2] == ("1", 0, "dflash B=4", kind)
    assert len(outcome.run.records) == 8
    failed = outcome.run.records[2]
    assert (failed.error_message, failed.sent_ns, failed.num_output_tokens) == ("no more room", None, None)
    assert isinstance(outcome.error, TooManyFailuresError)
    assert "1 of 4 requests failed" in str(outcome.error)
    assert exit_code_of(outcome.error) == EXIT_FAILURES
    assert statuses(outcome.run) == ["completed", "completed"]


@pytest.mark.parametrize(("allowed", "fails"), [(0.0, True), (0.24, True), (0.25, False), (1.0, False)])
def test_how_many_may_fail(tmp_path: Path, allowed: float, fails: bool) -> None:
    outcome, _ = run_simulated(tmp_path, Fault("error", request=2), max_error_rate=allowed)
    assert (outcome.error is not None) is fails


def test_in_python_too_many_failures_are_raised(tmp_path: Path) -> None:
    config = BenchmarkConfig(backend="simulated", output_dir=tmp_path, run_name="run", num_warmup=0)
    with pytest.raises(TooManyFailuresError, match="1 of 4 requests failed"):
        dflash.run_benchmark(config, backend=simulated(Fault("error", request=0)))
    assert len(load_run(tmp_path / "run").records) == 8


def test_a_turn_that_cannot_be_asked_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_made_up_prompts(monkeypatch, num_prompts=1, num_turns=2)
    outcome, backend = run_simulated(tmp_path, Fault("error", request=0, kind="timeout"))
    assert rows(outcome.run) == [
        ("0", 0, "baseline", "timeout"),
        ("0", 0, "dflash B=4", "stop"),
        ("0", 1, "dflash B=4", "no_history"),
        ("0", 1, "baseline", "no_history"),
    ]
    assert len(backend.requests) == 2


def test_an_arms_failure_does_not_keep_it_from_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_made_up_prompts(monkeypatch, num_prompts=1, num_turns=2)
    outcome, _ = run_simulated(tmp_path, Fault("error", request=1))
    assert [row[3] for row in rows(outcome.run)] == ["stop", "simulated", "stop", "stop"]


def test_a_crash_fails_its_cells_with_the_reason_and_the_sweep_goes_on(tmp_path: Path) -> None:
    crash = Fault("crash", request=3, message="out of\ncheese")
    outcome, _ = run_simulated(tmp_path, crash, datasets=("quickstart", "gsm8k"))
    assert isinstance(outcome.error, RuntimeError)
    assert exit_code_of(outcome.error) == EXIT_INTERNAL
    assert [row[3] for row in rows(outcome.run)] == ["stop", "stop", "stop", "internal", *["stop"] * 8]
    assert statuses(outcome.run) == ["failed", "failed", "completed", "completed"]
    assert [cell.reason for cell in outcome.run.info.cells] == ["RuntimeError: out of cheese"] * 2 + [
        None
    ] * 2
    assert outcome.run.info.segments[0].wall_ns is not None


def test_nothing_is_written_when_the_engine_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="block size 17 is above 16"):
        run_simulated(tmp_path, block_sizes=(17,))
    assert list(tmp_path.iterdir()) == []


def test_a_load_that_the_engine_cannot_take_is_refused_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = simulated()
    monkeypatch.setattr(backend, "open", None)
    config = BenchmarkConfig(backend="simulated", output_dir=tmp_path, concurrencies=(1, 2))
    with pytest.raises(UsageError, match="--concurrency 2: backend 'simulated' runs at most 1"):
        execute(config, backend=backend)
    assert list(tmp_path.iterdir()) == []


# --- interruption


@pytest.mark.parametrize("action", ["interrupt", "sigint", "sigterm"])
def test_an_interrupt_records_the_request_and_keeps_the_rest(tmp_path: Path, action: str) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    outcome, _ = run_simulated(tmp_path, Fault(action, request=3), datasets=("quickstart", "gsm8k"))
    assert [row[3] for row in rows(outcome.run)] == ["stop", "stop", "stop", "cancelled"]
    assert statuses(outcome.run) == ["interrupted", "interrupted", "planned", "planned"]
    expected = {
        "interrupt": "interrupted",
        "sigint": "interrupted by SIGINT",
        "sigterm": "interrupted by SIGTERM",
    }
    assert outcome.run.info.cells[0].reason == expected[action]
    assert outcome.error is not None
    assert exit_code_of(outcome.error) == EXIT_INTERRUPTED
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert summarise_run(outcome.run).cells[0].num_completed == 1


def test_in_python_an_interrupt_is_raised(tmp_path: Path) -> None:
    config = BenchmarkConfig(backend="simulated", output_dir=tmp_path, run_name="run", num_warmup=0)
    with pytest.raises(KeyboardInterrupt):
        dflash.run_benchmark(config, backend=simulated(Fault("sigint", request=3)))
    assert len(load_run(tmp_path / "run").records) == 4


def test_an_interrupt_while_opening_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = simulated()

    async def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(backend, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute(BenchmarkConfig(backend="simulated", output_dir=tmp_path), backend=backend)
    assert list(tmp_path.iterdir()) == []


def test_a_signal_inside_a_shield_waits_for_its_end() -> None:
    done = []
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.shield():  # noqa: PT012 - the second line must run
            signal.raise_signal(signal.SIGINT)
            done.append("written")
        assert done == ["written"]
        with interrupts.shield():
            done.append("again")
    assert done == ["written", "again"]


def test_a_run_can_be_made_inside_an_event_loop(tmp_path: Path) -> None:
    async def notebook_cell() -> Run:
        return run_simulated(tmp_path)[0].run

    run = asyncio.run(notebook_cell())
    assert statuses(run) == ["completed", "completed"]
    assert len(run.records) == 8


# --- the run's own page


def test_the_run_carries_what_it_was_made_from(tmp_path: Path) -> None:
    outcome, _ = run_simulated(tmp_path, temperature=0.5, seed=3)
    info = outcome.run.info
    assert info.config["temperature"] == 0.5
    assert info.config["seed"] == 3
    assert info.environment["engine"] == {"device": "simulated"}
    assert info.environment["versions"]["python"]
    assert info.dflash_version == dflash.__version__
    assert any("simulated" in note for note in info.notes)
    assert len(info.segments) == 1
    assert info.cells[0].weights_bytes == 500_000_000
    assert info.cells[1].arm.acceptance_rule == "equality"


def test_a_run_without_a_name_gets_one_and_overwrites_nothing(tmp_path: Path) -> None:
    folders = {run_simulated(tmp_path, run_name=None)[0].run.folder for _ in range(3)}
    assert len(folders) == 3
    assert all(folder.name.endswith(("-simulated-quickstart", "-2", "-3")) for folder in folders)


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="is not a run folder"):
        run_simulated(tmp_path)
    assert [item.name for item in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_an_output_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in (None, "run"):
        with pytest.raises(UsageError, match="choose another --output-dir"):
            run_simulated(tmp_path / "file", run_name=name)


def test_an_interrupt_while_warming_up_keeps_an_empty_run(tmp_path: Path) -> None:
    outcome, _ = run_simulated(tmp_path, Fault("sigint", request_id="warmup/1"), num_warmup=2)
    assert outcome.run.records == ()
    assert statuses(outcome.run) == ["interrupted", "interrupted"]
    assert exit_code_of(outcome.error or Exception()) == EXIT_INTERRUPTED


def test_a_password_in_an_address_is_not_kept() -> None:
    assert publishable("--base-url http://me:secret@host:80/v1 x@y") == "--base-url http://host:80/v1 x@y"
