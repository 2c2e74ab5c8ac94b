"""Code is tried out after the clocks, once an answer, and only where it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_prompts import made_up_prompts, run_simulated

import dflash.code_scoring
import dflash.execution
import dflash.runner
from dflash.code_execution.programs import CodeLimits, CodeOutcome
from dflash.command_line import exit_code_of
from dflash.errors import EXIT_INTERRUPTED
from dflash.prompts import CodeCheck, PromptSet
from dflash.results.records import CodeRecord
from dflash.results.store import load_run

CHECK = CodeCheck(preamble="", tests="assert True")


class FakeExecution:
    """Says that every other answer passes; may be interrupted before the answer of a number."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.interrupt_at: int | None = None

    def __call__(
        self,
        items: Iterable[tuple[str, CodeCheck]],
        limits: CodeLimits,
        on_done: Callable[[CodeOutcome], None],
    ) -> list[CodeOutcome]:
        outcomes = []
        for text, check in items:
            assert check == CHECK
            if len(self.tried) == self.interrupt_at:
                raise KeyboardInterrupt
            passed = len(self.tried) % 2 == 0
            self.tried.append(text)
            outcomes.append(CodeOutcome(passed, "passed" if passed else "failed", ""))
            on_done(outcomes[-1])
        return outcomes


def with_tests(num_prompts: int = 2, num_plain: int = 0) -> PromptSet:
    prompts = made_up_prompts(num_prompts + num_plain)
    checked = [replace(prompt, code_check=CHECK) for prompt in prompts.prompts[:num_prompts]]
    return replace(prompts, prompts=(*checked, *prompts.prompts[num_prompts:]))


@pytest.fixture
def execution(monkeypatch: pytest.MonkeyPatch) -> FakeExecution:
    fake = FakeExecution()
    monkeypatch.setattr(dflash.code_scoring, "check_answers", fake)
    monkeypatch.setattr(dflash.runner, "load_prompt_sets", lambda config: (with_tests(),))
    monkeypatch.setattr(dflash.execution, "load_warmup_texts", lambda: ("warm",))
    return fake


def results(folder: Path) -> list[CodeRecord]:
    return list(load_run(folder / "run").code_results())


def test_nothing_is_executed_unless_asked(tmp_path: Path, execution: FakeExecution) -> None:
    run_simulated(tmp_path)
    assert execution.tried == []
    assert not (tmp_path / "run/code.jsonl").exists()


def test_every_answer_is_tried_once(tmp_path: Path, execution: FakeExecution) -> None:
    outcome, _ = run_simulated(tmp_path, execute_code=True)
    assert outcome.error is None
    assert execution.tried == [output.text for output in outcome.run.outputs()]
    kept = results(tmp_path)
    assert [(item.passed, item.reason) for item in kept] == [(True, "passed"), (False, "failed")] * 2
    assert {item.cell_id for item in kept} == {cell.cell_id for cell in outcome.run.info.cells}
    assert any("executed in a subprocess" in note for note in outcome.run.info.notes)
    run_simulated(tmp_path, execute_code=True)
    assert len(execution.tried) == 4, "a resumed run tries only what is new"


def test_an_interrupt_keeps_what_was_tried(tmp_path: Path, execution: FakeExecution) -> None:
    execution.interrupt_at = 3
    outcome, _ = run_simulated(tmp_path, execute_code=True)
    assert outcome.error is not None
    assert exit_code_of(outcome.error) == EXIT_INTERRUPTED
    assert len(results(tmp_path)) == 3
    assert len(outcome.run.records) == 4
    execution.interrupt_at = None
    run_simulated(tmp_path, execute_code=True)
    assert len(results(tmp_path)) == 4


def test_prompts_without_tests_are_passed_over(
    tmp_path: Path, execution: FakeExecution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dflash.runner, "load_prompt_sets", lambda config: (with_tests(1, 2),))
    run_simulated(tmp_path, execute_code=True)
    assert {item.prompt_id for item in results(tmp_path)} == {"quickstart/0000"}


def test_a_run_without_tests_says_so(
    tmp_path: Path, execution: FakeExecution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dflash.runner, "load_prompt_sets", lambda config: (made_up_prompts(2),))
    outcome, _ = run_simulated(tmp_path, execute_code=True)
    assert execution.tried == []
    assert any("nothing was executed" in note for note in outcome.run.info.notes)
