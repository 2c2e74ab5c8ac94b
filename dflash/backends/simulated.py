"""An engine of scripted tokens, acceptances, times and faults, the same in every run: no model, no sleeping.

It is selected like any other (`--backend simulated`), so the runner, the store and the report are tested
exactly. Its clock is its own: it stands still between requests and moves by what the scenario says.

`python -m dflash.backends.simulated --protocol vllm|sglang` serves the same scenario over HTTP on the real clock.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from dflash.backends.base import (
    BackendDescription,
    BackendSettings,
    Capabilities,
    Generation,
    GenerationRequest,
)
from dflash.backends.scenario import IN_PROCESS_ACTIONS, Fault, Scenario, load_scenario
from dflash.backends.simulated_model import (
    Script,
    differing,
    histogram,
    make_script,
    output_text,
    prompt_ids,
)
from dflash.errors import DFlashError, RequestError, UsageError
from dflash.results.records import Arm

CLOCK_START_NS = 1_000_000_000


class SimulatedBackend:
    """See the module; `settings.script` names a scenario file."""

    name = "simulated"
    capabilities = Capabilities(
        in_process=True, max_concurrency=1, has_logit_gap=True, interleaves_arms=True, opens_at_once=True
    )

    def __init__(self, settings: BackendSettings, scenario: Scenario | None = None) -> None:
        self._settings = settings
        self._scenario = scenario or (load_scenario(settings.script) if settings.script else Scenario())
        self.now_ns = CLOCK_START_NS
        self.requests: list[GenerationRequest] = []  # all that were made, warm-up included
        self._num_measured = 0
        for fault in self._scenario.faults:
            if fault.action not in IN_PROCESS_ACTIONS:
                raise UsageError(
                    f"the fault {fault.action!r} is one of a server, not of the engine in process",
                    f"choose one of {', '.join(IN_PROCESS_ACTIONS)}, or serve the scenario: "
                    "python -m dflash.backends.simulated --protocol vllm",
                )

    async def open(self, arms: Sequence[Arm]) -> BackendDescription:
        scenario = self._scenario
        for arm in arms:
            if arm.block_size is not None and arm.block_size > scenario.max_block_size:
                if self._settings.force_block_size:
                    continue
                raise UsageError(
                    f"block size {arm.block_size} is above {scenario.max_block_size}, which the draft was "
                    "trained for",
                    "choose a smaller --block-size, or add --force-block-size",
                )
        return BackendDescription(
            target=self._settings.model or "simulated-target",
            target_revision=scenario.digest,
            dtype=self._settings.dtype or "float32",
            arms=tuple(self._complete(arm) for arm in arms),
            weights_bytes={
                arm.name: scenario.target_bytes + (0 if arm.is_baseline else scenario.draft_bytes)
                for arm in arms
            },
            environment={"device": "simulated"},
            notes=("Every time and token of this run is simulated: it says nothing about a real model.",),
        )

    async def generate(self, request: GenerationRequest) -> Generation:
        self.requests.append(request)
        fault = self._fault(request)
        if fault is not None and fault.action != "differ":
            self._raise(fault)
        script = make_script(
            self._scenario,
            _key(request),
            arm=request.arm.name,
            block_size=request.arm.block_size,
            max_new_tokens=request.max_new_tokens,
        )
        sent_ns = self.now_ns
        first_ns = sent_ns + script.prefill_ns
        self.now_ns = first_ns + sum(step.draft_ns + step.target_ns for step in script.steps)
        if fault is not None:
            script = replace(script, output_ids=differing(script.output_ids, fault.position))
        return _generation(request, script, (sent_ns, first_ns, self.now_ns))

    async def logit_gap(self, request: GenerationRequest, prefix_ids: Sequence[int]) -> float | None:
        return self._scenario.logit_gap

    async def aclose(self) -> None:
        return None

    def _complete(self, arm: Arm) -> Arm:
        if arm.is_baseline:
            return arm
        return replace(
            arm,
            block_size=arm.block_size or self._scenario.block_size,
            acceptance_rule="equality",
            draft=self._settings.draft_model or "simulated-draft",
            draft_revision=self._scenario.digest,
        )

    def _fault(self, request: GenerationRequest) -> Fault | None:
        if request.request_id.startswith("warmup/"):
            number = None
        else:
            number, self._num_measured = self._num_measured, self._num_measured + 1
        return next((fault for fault in self._scenario.faults if fault.hits(request, number)), None)

    def _raise(self, fault: Fault) -> None:
        if fault.action == "error":
            raise RequestError(fault.kind, fault.message)
        if fault.action == "crash":
            raise RuntimeError(fault.message)
        if fault.action == "interrupt":
            raise KeyboardInterrupt
        signal.raise_signal(signal.Signals[fault.action.upper()])


def _generation(request: GenerationRequest, script: Script, stamps_ns: tuple[int, int, int]) -> Generation:
    ids = tuple(token for message in request.messages for token in prompt_ids(message.content))
    steps = script.steps
    plain = Generation(
        sent_ns=stamps_ns[0],
        first_ns=stamps_ns[1],
        last_ns=stamps_ns[2],
        finish_reason=script.finish_reason,
        num_prompt_tokens=len(ids),
        num_output_tokens=len(script.output_ids),
        num_first_chunk_tokens=1,
        num_decode_steps=len(steps),
        num_verify_steps=0,
        prompt_ids=ids,
        output_ids=script.output_ids,
        text=output_text(script.output_ids),
        chunk_gaps_ns=tuple(step.draft_ns + step.target_ns for step in steps),
        chunk_num_tokens=(1, *(step.num_tokens for step in steps)),
    )
    block_size = request.arm.block_size
    if block_size is None:
        return plain
    accepted = tuple(step.num_accepted or 0 for step in steps)
    return replace(
        plain,
        num_verify_steps=len(steps),
        num_draft_tokens=len(steps) * script.num_step_draft_tokens,
        num_accepted_tokens=sum(accepted),
        acceptance_histogram=histogram([step.num_tokens for step in steps], block_size),
        acceptance_histogram_untrimmed=histogram([number + 1 for number in accepted], block_size),
        draft_ns=sum(step.draft_ns for step in steps),
        verify_ns=sum(step.target_ns for step in steps),
        step_num_accepted=accepted,
    )


def _key(request: GenerationRequest) -> tuple[object, ...]:
    """What the tokens depend on: the conversation, and the seed where the target samples."""
    seed = request.seed if request.sampling.temperature > 0 else None
    return (*((message.role, message.content) for message in request.messages), request.reasoning, seed)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a scenario until SIGTERM or Ctrl-C; the address is one line on standard output."""
    parser = argparse.ArgumentParser(
        prog="python -m dflash.backends.simulated",
        description="A simulated vLLM or SGLang server: scripted tokens, acceptances, times and faults.",
    )
    parser.add_argument("--protocol", choices=("vllm", "sglang"), required=True)
    parser.add_argument("--port", type=int, default=0, help="0: any free one (default)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--script", metavar="SCENARIO", help="a TOML or JSON file")
    parser.add_argument("--arm", default="baseline", choices=("baseline", "dflash", "ngram", "eagle3"))
    parser.add_argument("--block-size", type=int, help="B: the tokens of one verify forward, anchor included")
    parser.add_argument("--time-scale", type=float, default=1.0, help="0: as fast as possible")
    arguments = parser.parse_args(argv)
    from dflash.backends.simulated_http import serve

    try:
        scenario = load_scenario(arguments.script) if arguments.script else Scenario()
        serve(
            arguments.protocol,
            scenario,
            arm=arguments.arm,
            block_size=arguments.block_size,
            time_scale=arguments.time_scale,
            host=arguments.host,
            port=arguments.port,
        )
    except DFlashError as error:
        print(f"dflash: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
