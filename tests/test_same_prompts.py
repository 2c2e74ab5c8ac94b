"""The same command on two backends sees the same prompts in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from loops.tiny_models import save_tiny_pair

from dflash.config import BenchmarkConfig
from dflash.results.store import Run
from dflash.runner import run_benchmark


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def order(run: Run) -> list[tuple[str, int]]:
    """Prompts and turns in the order in which they were first asked."""
    return list(dict.fromkeys((record.prompt_id, record.turn) for record in run.records))


@pytest.mark.parametrize(
    ("dataset", "file"), [("gsm8k", "gsm8k/test.jsonl"), ("mt-bench", "mt_bench/question.jsonl")]
)
def test_two_backends_see_the_same_prompts(
    tmp_path: Path, shared_folder: Path, dataset: str, file: str
) -> None:
    pair = save_tiny_pair(tmp_path / "pair")
    common = BenchmarkConfig(
        datasets=(dataset,),
        dataset_file=shared_folder / "datasets" / file,
        num_prompts=5,
        seed=3,
        max_new_tokens=4,
        num_warmup=0,
        output_dir=tmp_path,
        block_sizes=(4,),
    )
    real = run_benchmark(
        replace(
            common,
            backend="transformers",
            model=str(pair.target),
            draft_model=str(pair.draft),
            run_name="real",
        )
    )
    simulated = run_benchmark(replace(common, backend="simulated", run_name="simulated"))
    assert order(real) == order(simulated)
    assert len(order(real)) == (10 if dataset == "mt-bench" else 5)
    digests = {cell.workload.prompts_digest for run in (real, simulated) for cell in run.info.cells}
    assert len(digests) == 1
    assert real.info.datasets == simulated.info.datasets
    for run in (real, simulated):
        per_unit: dict[tuple[str, int], set[str | None]] = {}
        for record in run.records:
            per_unit.setdefault((record.prompt_id, record.turn), set()).add(record.prompt_digest)
        assert all(len(found) == 1 and None not in found for found in per_unit.values()), (
            "arms see the same tokens"
        )
