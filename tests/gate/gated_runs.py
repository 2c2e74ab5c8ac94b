"""Runs made by a seeded generator, for the tests of the gate: a baseline and one drafting arm, in repeats."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash.gate.comparison import compare_runs
from dflash.gate.expressions import parse_gate
from dflash.gate.gated_run import GatedRun, Rules
from dflash.gate.records import Comparison, GateReport
from dflash.results.records import Arm, Cell, RequestRecord, RunInfo, Workload
from dflash.results.store import Run, RunWriter
from dflash.results.summary import summarise_run

NS_PER_MS = 1_000_000
MACHINE = {
    "cpu": "made-up CPU",
    "num_cpus": 8,
    "memory_gib": 62.7,
    "architecture": "x86_64",
    "gpus": ["made-up GPU, 80 GiB"],
    "gpu_driver": "1.2.3",
    "os": "Linux 6.1.0-made-up",
}
ENVIRONMENT: Mapping[str, Any] = {
    "machine": MACHINE,
    "versions": {"dflash": "0.1.0"},
    "threads": {"OMP_NUM_THREADS": "8"},
    "engine": {"device": "made-up GPU", "attn_implementation": "sdpa", "torch": "2.13.0"},
}
WORKLOAD = Workload(
    target="made-up-4b",
    target_revision="r1",
    dtype="bfloat16",
    dataset="gsm8k",
    prompts_digest="d1",
    num_prompts=16,
    max_new_tokens=512,
    temperature=0.0,
    top_p=None,
    top_k=None,
    seed=0,
    reasoning="off",
)
ARM = Arm("dflash", 8, "equality", "made-up-draft", "r7")


def made_up(
    name: str = "base",
    *,
    num_prompts: int = 16,
    num_repeats: int = 3,
    step_ms: float = 30.0,
    plain_ms: float = 20.0,
    acceptance: float = 3.0,
    noise: float = 0.0,
    run_noise: float = 0.0,
    step_noise: float = 0.0,
    seed: int = 0,
    num_failed: int = 0,
    num_differing: int = 0,
    workload: Mapping[str, Any] | None = None,
    arm: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    folder: Path = Path("reports"),
) -> Run:
    """A run. Its noise is drawn from `seed`; lengths and acceptances of prompts are always the same.

    Args:
        noise: standard deviation of a request's times, relative.
        run_noise: the same of a whole repeat.
        step_noise: the same of a request's number of steps.
        num_failed: of the first repeat's drafted requests.
        num_differing: prompts whose drafted output is not the baseline's.
    """
    generator = random.Random(seed)
    load = replace(WORKLOAD, **{"num_prompts": num_prompts, **(workload or {})})
    cells = [
        Cell("b", "w1", "plain", "transformers", load, Arm("baseline"), "completed"),
        Cell("d", "w1", "drafting", "transformers", load, replace(ARM, **(arm or {})), "completed"),
    ]
    records = []
    for repeat in range(num_repeats):
        factor = 1 + generator.gauss(0, run_noise)
        for prompt in range(num_prompts):
            num_tokens = 61 + 12 * prompt
            length = acceptance * (0.8 + 0.4 * prompt / num_prompts) * (1 + generator.gauss(0, step_noise))
            num_steps = round((num_tokens - 1) / length)
            times = [factor * (1 + generator.gauss(0, noise)) for _ in range(2)]
            plain = _record("b", repeat, prompt, num_tokens, num_tokens - 1, plain_ms * times[0])
            drafted = _record("d", repeat, prompt, num_tokens, num_steps, step_ms * times[1])
            if repeat == 0 and prompt < num_failed:
                drafted = replace(drafted, finish_reason="error", error_kind="timeout")
            if prompt < num_differing:
                drafted = replace(drafted, output_digest="another")
            records += [plain, drafted]
    info = RunInfo(
        name,
        f"2026-01-02T03:04:{seed % 60:02d}+00:00",
        dflash_version="0.1.0",
        environment=environment or ENVIRONMENT,
        config=config or {"suite": "ci"},
        cells=tuple(cells),
    )
    return Run(folder / name, info, tuple(records), ())


def gated(run: Run) -> GatedRun:
    return GatedRun.of(run.info, summarise_run(run))


def compare(base: Run, new: Run, *gates: str, **rules: Any) -> GateReport:
    parsed = tuple(parse_gate(text) for text in gates)
    return compare_runs(gated(base), gated(new), Rules(parsed, **rules))


def only(report: GateReport, arm: str = "dflash") -> Comparison:
    """The one comparison of an arm."""
    (comparison,) = [item for item in report.comparisons if item.pair.cell.arm.name == arm]
    return comparison


def write(run: Run, parent: Path) -> Path:
    """The run as a folder."""
    folder = parent / run.info.name
    writer = RunWriter(folder)
    writer.write_info(run.info)
    for record in run.records:
        writer.append(record)
    writer.close()
    return folder


def _record(
    cell_id: str, repeat: int, prompt: int, num_tokens: int, num_steps: int, step_ms: float
) -> RequestRecord:
    first = 40 * NS_PER_MS
    return RequestRecord(
        cell_id,
        f"gsm8k/{prompt}",
        repeat=repeat,
        sent_ns=0,
        first_ns=first,
        last_ns=first + round(num_steps * step_ms * NS_PER_MS),
        num_prompt_tokens=30,
        num_output_tokens=num_tokens,
        num_first_chunk_tokens=1,
        finish_reason="stop",
        num_decode_steps=num_steps,
        prompt_digest=f"prompt-{prompt}",
        output_digest=f"output-{prompt}",
    )
