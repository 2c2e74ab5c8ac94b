"""Prompts, settings and a one-call run on the simulated engine, for tests of what is around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dflash.execution
import dflash.runner
from dflash.backends.base import BackendSettings
from dflash.backends.scenario import Fault, Scenario
from dflash.backends.simulated import SimulatedBackend
from dflash.config import BenchmarkConfig
from dflash.execution import Outcome
from dflash.plan import short_digest
from dflash.prompts import Prompt, PromptSet
from dflash.runner import execute

EXACT = Scenario(
    prefill_ms=30.0,
    baseline_step_ms=20.0,
    draft_step_ms=4.0,
    verify_step_ms=20.0,
    verify_ms_per_draft_token=1.0,
    jitter=0.0,
    output_tokens=(9, 9),
    acceptance=(1.0,),
    block_size=4,
)


def made_up_prompts(num_prompts: int = 4, num_turns: int = 1, dataset: str = "quickstart") -> PromptSet:
    prompts = tuple(
        Prompt(
            prompt_id=f"{dataset}/{index:04}",
            turns=tuple(f"{dataset} question {index} turn {turn}" for turn in range(num_turns)),
            category="math" if index % 2 else "chat",
        )
        for index in range(num_prompts)
    )
    digest = short_digest([prompt.turns for prompt in prompts])
    return PromptSet(dataset, prompts, digest, None, "made up", num_prompts)


def use_made_up_prompts(monkeypatch: pytest.MonkeyPatch, num_prompts: int = 4, num_turns: int = 1) -> None:
    """The runner sees made-up prompts under whatever data set names it asks for."""
    monkeypatch.setattr(
        dflash.runner,
        "load_prompt_sets",
        lambda config: tuple(
            made_up_prompts(1 if config.smoke else num_prompts, num_turns, name) for name in config.datasets
        ),
    )
    monkeypatch.setattr(dflash.execution, "load_warmup_texts", lambda: ("warm", "up"))


def simulated(*faults: Fault, scenario: Scenario = EXACT, **settings: Any) -> SimulatedBackend:
    return SimulatedBackend(BackendSettings(**settings), replace(scenario, faults=faults))


def run_simulated(
    folder: Path, *faults: Fault, scenario: Scenario = EXACT, **settings: Any
) -> tuple[Outcome, SimulatedBackend]:
    """Run with the given settings in `folder`/run."""
    values: dict[str, Any] = {"run_name": "run", "num_warmup": 0, **settings}
    config = BenchmarkConfig(backend="simulated", output_dir=folder, **values)
    backend = simulated(*faults, scenario=scenario)
    return execute(config, backend=backend), backend
