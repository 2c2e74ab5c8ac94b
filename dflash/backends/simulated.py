"""An engine of scripted tokens, acceptances, times and faults, the same in every run: no model, no sleeping.

It is selected like any other (`--backend simulated`), so the runner, the store and the report are tested
exactly. Its clock is its own: it stands still between requests and moves by what the scenario says.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash.backends.base import (
    BackendDescription,
    BackendSettings,
    Capabilities,
    Generation,
    GenerationRequest,
)
from dflash.backends.scenario import Fault, Scenario, load_scenario
from dflash.errors import RequestError, UsageError
from dflash.results.records import Arm, FinishReason

STOP_ID = 0
CLOCK_START_NS = 1_000_000_000
_NS_PER_MS = 1_000_000
_WORDS = (
    "we",
    "add",
    "the",
    "next",
    "two",
    "then",
    "count",
    "what",
    "is",
    "left",
    "so",
    "it",
    "must",
    "be",
    "one",
    "more",
)


@dataclass(frozen=True, slots=True)
class _Step:
    num_tokens: int  # delivered
    num_accepted: int | None  # untrimmed; None: no draft
    draft_ns: int
    target_ns: int


class SimulatedBackend:
    """See the module; `settings.script` names a scenario file."""

    name = "simulated"
    capabilities = Capabilities(in_process=True, max_concurrency=1, has_logit_gap=True, interleaves_arms=True)

    def __init__(self, settings: BackendSettings, scenario: Scenario | None = None) -> None:
        self._settings = settings
        self._scenario = scenario or (load_scenario(settings.script) if settings.script else Scenario())
        self.now_ns = CLOCK_START_NS
        self.requests: list[GenerationRequest] = []  # all that were made, warm-up included
        self._num_measured = 0

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
        sent_ns = self.now_ns
        first_ns = sent_ns + self._duration_ns(self._scenario.prefill_ms, request, "prefill")
        output_ids, finish_reason = self._output(request)
        steps = self._steps(request, len(output_ids) - 1)
        gaps_ns = tuple(step.draft_ns + step.target_ns for step in steps)
        self.now_ns = first_ns + sum(gaps_ns)
        if fault is not None:
            output_ids = _differing(output_ids, fault.position)
        return _generation(request, steps, output_ids, finish_reason, (sent_ns, first_ns, self.now_ns))

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

    def _output(self, request: GenerationRequest) -> tuple[tuple[int, ...], FinishReason]:
        low, high = self._scenario.output_tokens
        length = low + int(_uniform(*_key(request), "length") * (high - low + 1))
        num_tokens = min(length, request.max_new_tokens)
        vocabulary = self._scenario.vocabulary_size
        ids = [
            1 + int(_uniform(*_key(request), position) * (vocabulary - 1)) for position in range(num_tokens)
        ]
        if length > request.max_new_tokens:
            return tuple(ids), "length"
        ids[-1] = STOP_ID
        return tuple(ids), "stop"

    def _steps(self, request: GenerationRequest, num_tokens: int) -> list[_Step]:
        """Decode steps that deliver `num_tokens` tokens after the prefill's."""
        scenario, block_size = self._scenario, request.arm.block_size
        if block_size is None:
            return [
                _Step(1, None, 0, self._duration_ns(scenario.baseline_step_ms, request, step))
                for step in range(num_tokens)
            ]
        verify_ms = scenario.verify_step_ms + scenario.verify_ms_per_draft_token * (block_size - 1)
        steps: list[_Step] = []
        while num_tokens > 0:
            accepted = self._num_accepted(request, len(steps), block_size - 1)
            delivered = min(accepted + 1, num_tokens)
            num_tokens -= delivered
            draft_ns = self._duration_ns(scenario.draft_step_ms, request, len(steps))
            target_ns = self._duration_ns(verify_ms, request, len(steps))
            steps.append(_Step(delivered, accepted, draft_ns, target_ns))
        return steps

    def _num_accepted(self, request: GenerationRequest, step: int, num_draft_tokens: int) -> int:
        rates = self._scenario.acceptance
        for position in range(num_draft_tokens):
            rate = rates[min(position, len(rates) - 1)]
            if _uniform(*_key(request), "accept", step, position) >= rate:
                return position
        return num_draft_tokens

    def _duration_ns(self, mean_ms: float, request: GenerationRequest, step: int | str) -> int:
        spread = self._scenario.jitter * (2 * _uniform(*_key(request), request.arm.name, "time", step) - 1)
        return round(mean_ms * _NS_PER_MS * (1 + spread))


def _generation(
    request: GenerationRequest,
    steps: Sequence[_Step],
    output_ids: tuple[int, ...],
    finish_reason: FinishReason,
    stamps_ns: tuple[int, int, int],
) -> Generation:
    prompt_ids = tuple(
        1 + int(_uniform(word) * 1000) for message in request.messages for word in message.content.split()
    )
    plain = Generation(
        sent_ns=stamps_ns[0],
        first_ns=stamps_ns[1],
        last_ns=stamps_ns[2],
        finish_reason=finish_reason,
        num_prompt_tokens=len(prompt_ids),
        num_output_tokens=len(output_ids),
        num_first_chunk_tokens=1,
        num_decode_steps=len(steps),
        num_verify_steps=0,
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        text=" ".join(_WORDS[token % len(_WORDS)] for token in output_ids if token != STOP_ID),
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
        num_draft_tokens=len(steps) * (block_size - 1),
        num_accepted_tokens=sum(accepted),
        acceptance_histogram=_histogram([step.num_tokens for step in steps], block_size),
        acceptance_histogram_untrimmed=_histogram([number + 1 for number in accepted], block_size),
        draft_ns=sum(step.draft_ns for step in steps),
        verify_ns=sum(step.target_ns for step in steps),
        step_num_accepted=accepted,
    )


def _histogram(lengths: Sequence[int], block_size: int) -> tuple[int, ...]:
    return tuple(lengths.count(length) for length in range(1, block_size + 1))


def _differing(output_ids: tuple[int, ...], position: int) -> tuple[int, ...]:
    """Another token at `position`, where there is one."""
    return tuple(token + (place == position) for place, token in enumerate(output_ids))


def _key(request: GenerationRequest) -> tuple[object, ...]:
    """What the tokens depend on: the conversation, and the seed where the target samples."""
    seed = request.seed if request.sampling.temperature > 0 else None
    return (*((message.role, message.content) for message in request.messages), request.reasoning, seed)


def _uniform(*parts: object) -> float:
    """A number in [0, 1) that depends on `parts` only."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
