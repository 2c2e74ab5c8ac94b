"""Runs with outputs, reference answers and code results in their folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from made_up_run import made_up_run

from dflash.results.records import AnswerRecord, CodeRecord, OutputRecord, RequestRecord
from dflash.results.store import Run, RunWriter, load_run

BASELINE, ARM = "quickstart-baseline", "quickstart-b2"


def stored(
    folder: Path,
    run: Run,
    texts: Mapping[tuple[str, str, int, int], str | None] | None = None,
    answers: Mapping[str, str] | None = None,
    code: Sequence[CodeRecord] = (),
) -> Run:
    """The run as read back from `folder`; `texts` are by cell, prompt, turn and repeat."""
    writer = RunWriter(folder)
    writer.write_info(run.info)
    for prompt_id, answer in (answers or {}).items():
        writer.append(AnswerRecord(prompt_id, answer))
    for record in run.records:
        key = (record.cell_id, *record.unit)
        if texts is not None and key in texts:
            writer.append(OutputRecord(*key, segment=record.segment, text=texts[key]))
        writer.append(record)
    for result in code:
        writer.append(result)
    writer.close()
    return load_run(folder)


def scored_run(
    folder: Path,
    wrong: Mapping[str, Sequence[int]] | None = None,
    num_prompts: int = 8,
    **changes: object,
) -> Run:
    """Every answer is right but those of the prompts in `wrong`, by cell; `changes` go into every record."""
    run = made_up_run(num_prompts=num_prompts)
    records = tuple(replace(record, **changes) for record in run.records)
    answers = {f"quickstart/{prompt}": str(prompt) for prompt in range(num_prompts)}
    texts: dict[tuple[str, str, int, int], str | None] = {}
    for record in records:
        number = int(record.prompt_id.rpartition("/")[2])
        said = 1000 if number in (wrong or {}).get(record.cell_id, ()) else number
        texts[(record.cell_id, *record.unit)] = f"So it is \\boxed{{{said}}}."
    return stored(folder, replace(run, records=records), texts, answers)


def code_results(run: Run, outcome: Mapping[str, tuple[bool | None, str]]) -> list[CodeRecord]:
    """One result for every request of the prompts in `outcome`."""
    return [
        CodeRecord(*_key(record), record.segment, *outcome[record.prompt_id])
        for record in run.records
        if record.prompt_id in outcome
    ]


def _key(record: RequestRecord) -> tuple[str, str, int, int]:
    return (record.cell_id, *record.unit)
