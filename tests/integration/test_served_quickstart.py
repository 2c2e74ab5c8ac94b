"""The whole path on a real engine: dflash starts both arms, loads them, and its numbers are those of the
Transformers backend on the same prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from engines.install import ENGINES

from dflash.asking import first_difference
from dflash.backends.base import GenerationRequest, Message
from dflash.config import BenchmarkConfig
from dflash.dataset_store import load_prompts
from dflash.execution import backend_settings
from dflash.plan import planned_arms
from dflash.results.document import json_document
from dflash.results.metrics import acceptance_length
from dflash.results.records import RequestRecord
from dflash.results.store import Run
from dflash.results.summary import summarise_run
from dflash.results.verify_pair import near_tie_logit_gap
from dflash.runner import execute

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("engine", list(ENGINES), scope="module")]

CONCURRENCIES = (1, 3)  # alone, and several at once
COMMON = BenchmarkConfig(
    model="quickstart",
    datasets=("quickstart",),
    num_prompts=4,
    max_new_tokens=24,
    block_sizes=(4,),
    dtype="float32",
    device="cpu",
    num_warmup=1,
    run_name="run",
)
Key = tuple[str, str]  # arm, prompt


@dataclass(frozen=True)
class Compared:
    """One run on the engine and one in process, on the same prompts."""

    served: Run
    in_process: Run


@pytest.fixture(scope="module")
def runs(
    engine: str,
    engine_python: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    quickstart_target: Path,
) -> Compared:
    folder = tmp_path_factory.mktemp(f"{engine}-runs")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SGLANG_PLATFORM", "cpu_native")  # the plugin; no other engine reads it
        served = execute(
            replace(
                COMMON,
                backend=engine,
                serve=True,
                engine_python=str(engine_python(engine)),
                concurrencies=CONCURRENCIES,
                output_dir=folder / "served",
            )
        )
    assert served.error is None, served.error
    in_process = execute(replace(COMMON, backend="transformers", output_dir=folder / "in process"))
    assert in_process.error is None, in_process.error
    return Compared(served.run, in_process.run)


def cells_of(run: Run, arm: str, concurrency: int = 1) -> set[str]:
    return {
        cell.cell_id
        for cell in run.info.cells
        if cell.arm.name == arm and cell.workload.concurrency == concurrency
    }


def outputs_of(run: Run, arm: str, concurrency: int = 1) -> dict[str, tuple[int, ...]]:
    ids = cells_of(run, arm, concurrency)
    return {output.prompt_id: output.output_ids or () for output in run.outputs() if output.cell_id in ids}


def records_of(run: Run, arm: str, concurrency: int = 1) -> list[RequestRecord]:
    ids = cells_of(run, arm, concurrency)
    return [record for record in run.records if record.cell_id in ids]


def test_every_request_completed_in_both_arms_under_both_loads(runs: Compared) -> None:
    for concurrency in CONCURRENCIES:
        for arm in ("baseline", "dflash"):
            records = records_of(runs.served, arm, concurrency)
            assert len(records) == COMMON.num_prompts
            assert all(record.completed for record in records), (arm, concurrency)
    assert {cell.arm.block_size for cell in runs.served.info.cells} == {None, 4}


def test_prompts_are_the_same_tokens(runs: Compared) -> None:
    expected = {record.prompt_id: record.prompt_digest for record in records_of(runs.in_process, "baseline")}
    for record in runs.served.records:
        assert record.prompt_digest == expected[record.prompt_id]


def test_tokens_are_those_of_plain_decoding_but_for_proven_near_ties(runs: Compared) -> None:
    expected = outputs_of(runs.in_process, "baseline")
    assert len(expected) == COMMON.num_prompts
    for concurrency in CONCURRENCIES:
        for arm in ("baseline", "dflash"):
            given = outputs_of(runs.served, arm, concurrency)
            assert given.keys() == expected.keys()
            for prompt_id, ids in given.items():
                position = first_difference(expected[prompt_id], ids)
                if position is not None:
                    gap = logit_gap(prompt_id, expected[prompt_id][:position])
                    assert gap <= near_tie_logit_gap("float32"), (arm, concurrency, prompt_id, position, gap)


def logit_gap(prompt_id: str, prefix: tuple[int, ...]) -> float:
    """Between the target's two best tokens there, by Transformers."""
    from dflash.backends.transformers import TransformersBackend

    (prompt,) = [prompt for prompt in load_prompts("quickstart").prompts if prompt.prompt_id == prompt_id]
    config = replace(COMMON, arms=("baseline",), block_sizes=())
    backend = TransformersBackend(backend_settings(config))
    (arm,) = planned_arms(config)
    request = GenerationRequest("r", arm, (Message("user", prompt.turns[0]),), COMMON.max_new_tokens or 0)

    async def ask() -> Any:
        await backend.open([arm])
        return await backend.logit_gap(request, prefix)

    return float(asyncio.run(ask()))


def test_acceptance_is_that_of_the_transformers_backend(runs: Compared) -> None:
    """Over the prompts whose outputs are equal: after a near-tie two texts are two texts."""
    expected = outputs_of(runs.in_process, "dflash")
    for concurrency in CONCURRENCIES:
        given = outputs_of(runs.served, "dflash", concurrency)
        equal = {prompt_id for prompt_id in given if given[prompt_id] == expected[prompt_id]}
        assert len(equal) >= 3
        lengths = [
            acceptance_length([record for record in records if record.prompt_id in equal])
            for records in (
                records_of(runs.served, "dflash", concurrency),
                records_of(runs.in_process, "dflash"),
            )
        ]
        assert lengths[0] == pytest.approx(lengths[1], rel=0.02), concurrency


def test_the_servers_own_counters_say_the_same(runs: Compared) -> None:
    document = json_document(runs.served, summarise_run(runs.served), 0)
    states = {(cell["arm"], cell["concurrency"]): cell["counters"]["state"] for cell in document["cells"]}
    assert states == {(arm, load): "reconciled" for arm in ("baseline", "dflash") for load in CONCURRENCIES}
