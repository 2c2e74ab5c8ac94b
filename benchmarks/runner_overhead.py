"""CPU time of the runner per request: everything around the engine, written to disk.

A sweep of two arms runs on the simulated engine twice in a temporary folder: first to have its answers, then with
these answers played back at next to no cost. The CPU time of the second is the runner's: plan, request, record, three
lines written for each, the run read back at the end. The first is told beside it, the engine's scripts included.

    python benchmarks/runner_overhead.py --prompts 2000 --repeats 5
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

from dflash import runner
from dflash.backends.base import BackendSettings, Generation, GenerationRequest
from dflash.backends.scenario import Scenario
from dflash.backends.simulated import SimulatedBackend
from dflash.config import BenchmarkConfig
from dflash.prompts import Prompt, PromptSet, prompts_digest

NUM_ARMS = 2
NS_PER_US = 1_000


class PlayedBack(SimulatedBackend):
    """The simulated engine, whose answers are kept and played back."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(BackendSettings(), scenario)
        self.answers: dict[str, Generation] = {}

    async def generate(self, request: GenerationRequest) -> Generation:
        answer = self.answers.get(request.request_id)
        if answer is None:
            answer = self.answers[request.request_id] = await super().generate(request)
        return answer


def prompt_set(num_prompts: int) -> PromptSet:
    prompts = tuple(
        Prompt(f"quickstart/{number:06}", (f"What is {number} times 3?",)) for number in range(num_prompts)
    )
    digest = prompts_digest("made-up-1", prompts)
    return PromptSet("quickstart", prompts, digest, None, "made up", num_prompts)


def cpu_us_of_run(backend: PlayedBack, num_prompts: int) -> float:
    """CPU time of a whole run for each of its requests."""
    prompts = prompt_set(num_prompts)
    with tempfile.TemporaryDirectory() as folder:
        config = BenchmarkConfig(
            backend="simulated",
            num_prompts=num_prompts,
            num_warmup=0,
            output_dir=Path(folder),
            run_name="run",
        )
        with mock.patch.object(runner, "load_prompt_sets", return_value=(prompts,)):
            started_ns = time.process_time_ns()
            runner.execute(config, backend=backend)
            cpu_ns = time.process_time_ns() - started_ns
    return cpu_ns / (num_prompts * NUM_ARMS) / NS_PER_US


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of the runner per request.")
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output-tokens", type=int, default=32, help="tokens of every answer")
    options = parser.parse_args()
    tokens = options.output_tokens
    backend = PlayedBack(Scenario(output_tokens=(tokens, tokens), jitter=0.0))
    cpu_us_of_run(PlayedBack(Scenario()), 20)  # imports, and what is made once
    with_engine_us = cpu_us_of_run(backend, options.prompts)
    figures_us = [cpu_us_of_run(backend, options.prompts) for _ in range(options.repeats)]
    print(f"runner alone: {statistics.median(figures_us):.1f} us a request (lowest {min(figures_us):.1f})")
    print(
        f"with the scripts of the simulated engine, {tokens} tokens each: {with_engine_us:.1f} us a request"
    )


if __name__ == "__main__":
    main()
