"""Tries out the code that the arms of a run wrote, once every clock has stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash.code_execution.programs import (
    CodeLimits,
    CodeOutcome,
    available_protections,
    check_answers,
    protection_warning,
)
from dflash.command_line import one_line
from dflash.progress import Progress
from dflash.prompts import CodeCheck, Prompt, PromptSet
from dflash.recorder import RunRecorder
from dflash.results.records import CodeRecord, OutputRecord, RequestRecord
from dflash.results.store import Run, load_run


@dataclass(frozen=True, slots=True)
class _Answer:
    output: OutputRecord
    check: CodeCheck


def execute_code(
    recorder: RunRecorder, prompt_sets: Sequence[PromptSet], progress: Progress
) -> BaseException | None:
    """Try out what the arms wrote, and give what ended it early. No measurement is lost by what goes wrong here."""
    try:
        prompts = [prompt for prompt_set in prompt_sets for prompt in prompt_set.prompts]
        execute_answers(recorder, prompts, progress)
    except KeyboardInterrupt as error:
        return error
    except Exception as error:
        progress.say(f"executing the code ended early: {one_line(f'{type(error).__name__}: {error}')}")
        return error
    return None


def execute_answers(recorder: RunRecorder, prompts: Sequence[Prompt], progress: Progress) -> None:
    """Run the tests of every completed answer that was not tried out yet; each result is kept as it comes.

    Args:
        recorder: of the run, whose outputs are saved.
        prompts: of the run; those without tests are passed over.
        progress: told what is executed, and under which protections.

    Raises:
        KeyboardInterrupt: what was tried out until then is kept.
        UsageError: the run cannot be read or written.
    """
    checks = {prompt.prompt_id: prompt.code_check for prompt in prompts if prompt.code_check is not None}
    if not checks:
        recorder.add_note("--execute-code: no prompt of this run comes with tests, so nothing was executed")
        return
    answers = _untried(load_run(recorder.folder), checks)
    limits = CodeLimits()
    protections = ", ".join(available_protections())
    recorder.add_note(
        f"Generated code was executed in a subprocess, at most {limits.wall_s:g} s and "
        f"{limits.memory_bytes >> 20} MiB each, limited by {protections}."
    )
    warning = protection_warning(available_protections())
    if warning is not None:
        recorder.add_note(warning)
        progress.say(warning)
    progress.say(f"executing the code of {len(answers)} answers, limited by {protections}")
    results = iter(answers)

    def keep(outcome: CodeOutcome) -> None:
        output = next(results).output
        recorder.add_code_result(
            CodeRecord(
                cell_id=output.cell_id,
                prompt_id=output.prompt_id,
                turn=output.turn,
                repeat=output.repeat,
                segment=output.segment,
                passed=outcome.passed,
                reason=outcome.reason,
            )
        )

    check_answers([(answer.output.text or "", answer.check) for answer in answers], limits, keep)


def _untried(run: Run, checks: dict[str, CodeCheck]) -> list[_Answer]:
    completed = {_key(record) for record in run.records if record.completed}
    wanted = completed - {_key(result) for result in run.code_results()}
    return [
        _Answer(output, checks[output.prompt_id])
        for output in run.outputs()
        if _key(output) in wanted and output.prompt_id in checks
    ]


def _key(record: RequestRecord | OutputRecord | CodeRecord) -> tuple[str, str, int, int]:
    return (record.cell_id, record.prompt_id, record.turn, record.repeat)
