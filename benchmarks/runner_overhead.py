"""CPU time of the runner per request: everything around the engine, with the simulated engine at no cost of its own.

A sweep of two arms runs on the simulated engine in a temporary folder. Its CPU time less that of reading the run back
and of the engine's scripts alone is what the runner adds: plan, request, record, three lines written, progress.

    python benchmarks/runner_overhead.py --prompts 2000 --repeats 5
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

from dflash import runner
from dflash.backends.base import BackendSettings
from dflash.backends.scenario import Scenario
from dflash.backends.simulated import SimulatedBackend
from dflash.config import BenchmarkConfig
from dflash.prompts import Prompt, PromptSet, prompts_digest
from dflash.results.store import load_run

NUM_ARMS = 2
NS_PER_US = 1_000


def prompt_set(num_prompts: int) -> PromptSet:
    prompts = tuple(
        Prompt(f"quickstart/{number:06}", (f"What is {number} times 3?",)) for number in range(num_prompts)
    )
    digest = prompts_digest("made-up-1", prompts)
    return PromptSet("quickstart", prompts, digest, None, "made up", num_prompts)


def cpu_ns_of_run(num_prompts: int, scenario: Scenario) -> tuple[int, int, int]:
    """CPU time of the whole run, of its engine alone on the same requests, and of reading the run back."""
    backend = SimulatedBackend(BackendSettings(), scenario)
    with tempfile.TemporaryDirectory() as folder:
        config = BenchmarkConfig(
            backend="simulated",
            num_prompts=num_prompts,
            num_warmup=0,
            output_dir=Path(folder),
            run_name="run",
        )
        prompts = prompt_set(num_prompts)
        with mock.patch.object(runner, "load_prompt_sets", return_value=(prompts,)):
            started_ns = time.process_time_ns()
            runner.execute(config, backend=backend)
            whole_ns = time.process_time_ns() - started_ns
        started_ns = time.process_time_ns()
        load_run(Path(folder) / "run")
        read_ns = time.process_time_ns() - started_ns
    alone = SimulatedBackend(BackendSettings(), scenario)

    async def generate_all() -> None:
        for request in backend.requests:
            await alone.generate(request)

    started_ns = time.process_time_ns()
    asyncio.run(generate_all())
    return whole_ns, time.process_time_ns() - started_ns, read_ns


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of the runner per request.")
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output-tokens", type=int, default=32, help="tokens of every answer")
    options = parser.parse_args()
    tokens = options.output_tokens
    scenario = Scenario(output_tokens=(tokens, tokens), jitter=0.0)
    cpu_ns_of_run(50, scenario)  # imports, and what is made once
    num_requests = options.prompts * NUM_ARMS
    figures = [cpu_ns_of_run(options.prompts, scenario) for _ in range(options.repeats)]
    names = ("whole run", "engine alone", "reading back")
    for place, name in enumerate(names):
        values = [figure[place] / num_requests / NS_PER_US for figure in figures]
        print(f"{name:>14}: {statistics.median(values):7.1f} us a request (lowest {min(values):.1f})")
    runner_us = [(whole - engine - read) / num_requests / NS_PER_US for whole, engine, read in figures]
    print(f"{'runner':>14}: {statistics.median(runner_us):7.1f} us a request (lowest {min(runner_us):.1f})")


if __name__ == "__main__":
    main()
