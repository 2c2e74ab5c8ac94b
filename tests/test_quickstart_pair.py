"""The real pair, end to end: drafting changes nothing that the target says, and a run ends in a report."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash import quickstart
from dflash.backends.base import BackendSettings, GenerationRequest, Message
from dflash.benchmark import main
from dflash.datasets.catalogue import find_dataset, make_prompts
from dflash.datasets.files import read_rows
from dflash.results.metrics import acceptance_length, completed
from dflash.results.records import BASELINE, Arm
from dflash.results.store import load_run

pytestmark = [pytest.mark.real_model, pytest.mark.slow, pytest.mark.usefixtures("quickstart_target")]

BLOCK_SIZES = (2, 4, 8)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a shared machine threads that wait for each other take several times as long as one alone."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_block_size_says_what_plain_decoding_says() -> None:
    from dflash.backends.transformers import TransformersBackend

    rows = read_rows(quickstart.PROMPTS_FILE)[:3]
    prompts = make_prompts(find_dataset("quickstart"), rows, quickstart.PROMPTS_FILE.name)
    backend = TransformersBackend(BackendSettings(device="cpu", dtype="float32"))
    arms = (Arm(BASELINE), *(Arm("dflash", block_size) for block_size in BLOCK_SIZES))
    description = asyncio.run(backend.open(arms))
    assert description.target == quickstart.TARGET_NAME
    num_accepted = 0
    for prompt in prompts:
        messages = (Message("user", prompt.turns[0]),)
        expected, *drafted = (
            backend.run(GenerationRequest("r", arm, messages, max_new_tokens=32)) for arm in description.arms
        )
        assert expected.text
        for block_size, generation in zip(BLOCK_SIZES, drafted, strict=True):
            assert generation.prompt_ids == expected.prompt_ids
            assert generation.output_ids == expected.output_ids, f"{prompt.prompt_id} B={block_size}"
            num_accepted += generation.num_accepted_tokens or 0
    assert num_accepted > 0, "a trained draft that is never right is wired wrongly"


def test_the_benchmark_verb_writes_a_report(shared_folder: Path, tmp_path: Path) -> None:
    gsm8k = shared_folder / "datasets" / "gsm8k" / "test.jsonl"
    if not gsm8k.is_file():
        pytest.skip(f"{gsm8k.name} of gsm8k is not in the shared test data")
    arguments = ["--backend", "transformers", "--dataset", "gsm8k", "--dataset-file", str(gsm8k)]
    small = ["--num-prompts", "2", "--max-new-tokens", "16", "--device", "cpu"]
    place = ["--output-dir", str(tmp_path), "--run", "pair"]
    assert main([*arguments, *small, *place, "--quiet"]) == 0
    assert (tmp_path / "pair" / "report.md").stat().st_size > 500
    run = load_run(tmp_path / "pair")
    by_arm = {
        cell.arm.name: [record for record in run.records if record.cell_id == cell.cell_id]
        for cell in run.info.cells
    }
    assert by_arm.keys() == {"baseline", "dflash"}
    assert all(len(completed(records)) == 2 for records in by_arm.values())
    assert run.differences == [] or run.differences == ()
    tau = acceptance_length(by_arm["dflash"])
    assert tau is not None
    assert tau >= 1
