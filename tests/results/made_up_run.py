"""Runs made by hand or by a seeded generator, for the tests of the results room."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from dflash.results.records import (
    Arm,
    Cell,
    DifferenceRecord,
    RequestRecord,
    RunInfo,
    Segment,
    Workload,
)
from dflash.results.store import Run

MS = 1_000_000


def workload(**changes: object) -> Workload:
    plain = Workload(
        target="made-up-135m",
        target_revision="r1",
        dtype="float32",
        dataset="quickstart",
        prompts_digest="d1",
        num_prompts=8,
        max_new_tokens=128,
        temperature=0.0,
        top_p=None,
        top_k=None,
        seed=0,
        reasoning="off",
    )
    return replace(plain, **changes)


def cell(arm: Arm | None = None, cell_id: str | None = None, **changes: object) -> Cell:
    arm = arm or Arm("baseline")
    fields: dict[str, object] = {
        "cell_id": cell_id or arm.label.replace(" ", "-"),
        "workload_id": "w1",
        "arm_id": arm.label,
        "backend": "simulated",
        "workload": workload(),
        "arm": arm,
        "status": "completed",
        "weights_bytes": 300 * 1024 * 1024,
    }
    return Cell(**(fields | changes))


def dflash_arm(block_size: int) -> Arm:
    return Arm("dflash", block_size, "equality", "made-up-draft", "r7")


def plain_record(
    cell_id: str, prompt: int, num_tokens: int, step_ms: int = 100, **changes: object
) -> RequestRecord:
    """A request of the baseline: 40 ms to the first token, `step_ms` for every further one."""
    sent = prompt * 60_000 * MS
    record = RequestRecord(
        cell_id=cell_id,
        prompt_id=f"quickstart/{prompt}",
        category=("math", "code", "chat")[prompt % 3],
        sent_ns=sent,
        first_ns=sent + 40 * MS,
        last_ns=sent + (40 + step_ms * (num_tokens - 1)) * MS,
        num_prompt_tokens=30 + prompt,
        num_output_tokens=num_tokens,
        num_first_chunk_tokens=1,
        finish_reason="stop",
        num_decode_steps=num_tokens - 1,
        num_verify_steps=0,
        num_draft_tokens=0,
        num_accepted_tokens=0,
        acceptance_histogram=(num_tokens - 1,),
        peak_memory_bytes=(20 + prompt) * 1024 * 1024,
        prompt_digest=f"prompt-{prompt}",
        output_digest=f"output-{prompt}",
    )
    return replace(record, **changes)


def drafted_record(
    cell_id: str,
    prompt: int,
    accepted: tuple[int, ...],
    block_size: int,
    step_ms: int = 120,
    **changes: object,
) -> RequestRecord:
    """A request whose verify steps accepted `accepted[i]` draft tokens each; nothing is cut."""
    num_tokens = 1 + sum(count + 1 for count in accepted)
    histogram = tuple(sum(count == k for count in accepted) for k in range(block_size))
    record = plain_record(cell_id, prompt, num_tokens)
    sent = record.sent_ns or 0
    return replace(
        record,
        last_ns=sent + (40 + step_ms * len(accepted)) * MS,
        num_decode_steps=len(accepted),
        num_verify_steps=len(accepted),
        num_draft_tokens=len(accepted) * (block_size - 1),
        num_accepted_tokens=sum(accepted),
        acceptance_histogram=histogram,
        acceptance_histogram_untrimmed=histogram,
        draft_ns=len(accepted) * 18 * MS,
        verify_ns=len(accepted) * (step_ms - 20) * MS,
        **changes,
    )


def made_up_run(
    folder: Path = Path("reports/made-up"),
    block_sizes: tuple[int, ...] = (2, 3),
    num_prompts: int = 8,
    seed: int = 1,
    step_ms: tuple[int, ...] | None = None,
    num_tokens: int = 90,
    dataset: str = "quickstart",
) -> Run:
    """A baseline and one arm per block size, whose outputs have the baseline's lengths."""
    generator = random.Random(seed)
    load = workload(num_prompts=num_prompts, dataset=dataset)
    cells = [cell(workload=load, workload_id=dataset, cell_id=f"{dataset}-baseline")]
    records = []
    lengths = [num_tokens + generator.randrange(40) for _ in range(num_prompts)]
    for prompt in range(num_prompts):
        step = 100 + generator.randrange(-2, 3)
        records.append(plain_record(cells[0].cell_id, prompt, lengths[prompt], step))
    for place, block_size in enumerate(block_sizes):
        arm_cell = cell(
            dflash_arm(block_size), workload=load, workload_id=dataset, cell_id=f"{dataset}-b{block_size}"
        )
        cells.append(arm_cell)
        for prompt in range(num_prompts):
            chance = (0.65, 0.5, 0.2)[prompt % 3]
            accepted = _acceptances(generator, lengths[prompt] - 1, block_size, chance)
            step = step_ms[place] if step_ms else 108 + 9 * block_size
            records.append(
                drafted_record(arm_cell.cell_id, prompt, accepted, block_size, step, order=place + 1)
            )
    info = RunInfo(
        name=folder.name,
        created_at="2026-01-02T03:04:05+00:00",
        dflash_version="0.1.0",
        command="python -m dflash.benchmark --backend simulated --block-size 2,3",
        environment={"machine": {"cpu": "made-up CPU", "num_cores": 2}, "packages": {"numpy": "2.4"}},
        config={"backend": "simulated", "block_sizes": list(block_sizes), "seed": 0},
        cells=tuple(cells),
        segments=(Segment("2026-01-02T03:04:05+00:00", 0, (), 90_000 * MS),),
    )
    return Run(folder, info, tuple(records), ())


def _acceptances(
    generator: random.Random, num_tokens: int, block_size: int, chance: float
) -> tuple[int, ...]:
    accepted = []
    while num_tokens > 0:
        count = 0
        while count < min(block_size, num_tokens) - 1 and generator.random() < chance:
            count += 1
        accepted.append(count)
        num_tokens -= count + 1
    return tuple(accepted)


def with_difference(run: Run, prompt: int = 1, logit_gap: float | None = 0.00002) -> Run:
    """The same run with the first drafting arm's output of one prompt changed."""
    arm = next(cell for cell in run.info.cells if not cell.arm.is_baseline)
    records = tuple(
        replace(record, output_digest="other")
        if record.cell_id == arm.cell_id and record.prompt_id == f"quickstart/{prompt}"
        else record
        for record in run.records
    )
    difference = DifferenceRecord(
        arm.cell_id,
        f"quickstart/{prompt}",
        position=17,
        baseline_token_id=281,
        arm_token_id=504,
        logit_gap=logit_gap,
    )
    return replace(run, records=records, differences=(difference,))
