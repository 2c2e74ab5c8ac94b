"""The simulated engine: scenarios are read or refused, and everything it says adds up."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.backends import create_backend
from dflash.backends.base import BackendSettings, Generation, GenerationRequest, Message, Sampling
from dflash.backends.scenario import Fault, Scenario, load_scenario
from dflash.backends.simulated import CLOCK_START_NS, SimulatedBackend
from dflash.errors import RequestError, UsageError
from dflash.results.records import Arm

BASELINE, DFLASH = Arm("baseline"), Arm("dflash", 5)


def request(arm: Arm, number: int = 0, limit: int = 64, **changes: object) -> GenerationRequest:
    plain = GenerationRequest(
        f"quickstart/{number}:0:0:{arm.label}", arm, (Message("user", f"question {number}"),), limit
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def generate(*requests: GenerationRequest, scenario: Scenario | None = None) -> list[Generation]:
    backend = SimulatedBackend(BackendSettings(), scenario or Scenario())

    async def run() -> list[Generation]:
        return [await backend.generate(item) for item in requests]

    return asyncio.run(run())


@pytest.mark.parametrize("block_size", [2, 3, 5, 16])
@pytest.mark.parametrize("limit", [1, 2, 7, 64])
def test_what_it_says_adds_up(block_size: int, limit: int) -> None:
    scenario = Scenario(output_tokens=(1, 90), acceptance=(0.9, 0.6), jitter=0.2)
    arm = Arm("dflash", block_size)
    asked = [
        item
        for number in range(20)
        for item in (request(BASELINE, number, limit), request(arm, number, limit))
    ]
    answers = generate(*asked, scenario=scenario)
    clock = CLOCK_START_NS
    for plain, drafted in zip(answers[::2], answers[1::2], strict=True):
        assert plain.output_ids == drafted.output_ids
        assert plain.text == drafted.text
        assert plain.finish_reason == drafted.finish_reason
        assert (
            (plain.output_ids or ())[-1] == 0
            if plain.finish_reason == "stop"
            else plain.num_output_tokens == limit
        )
        for answer in (plain, drafted):
            assert answer.sent_ns == clock
            assert answer.first_ns is not None
            assert answer.last_ns == answer.first_ns + sum(answer.chunk_gaps_ns)
            assert sum(answer.chunk_num_tokens) == answer.num_output_tokens == len(answer.output_ids or ())
            assert (
                len(answer.chunk_num_tokens)
                == len(answer.chunk_gaps_ns) + 1
                == 1 + (answer.num_decode_steps or 0)
            )
            clock = answer.last_ns
        steps = drafted.num_decode_steps
        assert drafted.acceptance_histogram is not None
        assert len(drafted.acceptance_histogram) == block_size
        assert sum(drafted.acceptance_histogram) == steps == drafted.num_verify_steps
        assert drafted.num_draft_tokens == (steps or 0) * (block_size - 1)
        assert sum(drafted.step_num_accepted or ()) == drafted.num_accepted_tokens
        assert (drafted.draft_ns or 0) + (drafted.verify_ns or 0) == sum(drafted.chunk_gaps_ns)


def test_it_answers_the_same_every_time_whatever_ran_before() -> None:
    alone = generate(request(DFLASH, 3))[0]
    after = generate(request(BASELINE, 1), request(DFLASH, 2), request(DFLASH, 3))[2]
    assert after.output_ids == alone.output_ids
    assert after.chunk_gaps_ns == alone.chunk_gaps_ns
    assert after.sent_ns > alone.sent_ns


def test_a_seed_matters_only_where_the_target_samples() -> None:
    sampled = Sampling(temperature=1.0)
    greedy = generate(request(DFLASH, seed=1), request(DFLASH, seed=2))
    warm = generate(request(DFLASH, seed=1, sampling=sampled), request(DFLASH, seed=2, sampling=sampled))
    assert greedy[0].output_ids == greedy[1].output_ids
    assert warm[0].output_ids != warm[1].output_ids


def test_a_conversation_changes_the_answer() -> None:
    longer = (Message("user", "question 0"), Message("assistant", "x"), Message("user", "more"))
    first, second = generate(request(BASELINE), request(BASELINE, messages=longer))
    assert first.output_ids != second.output_ids
    assert (second.num_prompt_tokens or 0) > (first.num_prompt_tokens or 0)


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (Fault("error", kind="timeout", message="late"), RequestError),
        (Fault("crash"), RuntimeError),
        (Fault("interrupt"), KeyboardInterrupt),
    ],
)
def test_faults_hit_the_request_they_name(fault: Fault, raised: type[BaseException]) -> None:
    for aimed in (
        replace(fault, request=1),
        replace(fault, request_id="quickstart/1:0"),
        replace(fault, arm="dflash"),
    ):
        backend = SimulatedBackend(BackendSettings(), Scenario(faults=(aimed,)))

        async def run(backend: SimulatedBackend = backend) -> None:
            await backend.generate(request(BASELINE, 0))
            with pytest.raises(raised):
                await backend.generate(request(DFLASH, 1))
            await backend.generate(request(BASELINE, 2))

        asyncio.run(run())


def test_it_completes_the_arms_it_is_asked_for() -> None:
    backend = create_backend("simulated", BackendSettings(draft_model="mine"))
    described = asyncio.run(backend.open((BASELINE, Arm("dflash"), DFLASH)))
    assert [arm.block_size for arm in described.arms] == [None, 8, 5]
    assert [arm.draft for arm in described.arms] == [None, "mine", "mine"]
    assert described.weights_bytes == {"baseline": 500_000_000, "dflash": 550_000_000}


def test_a_block_beyond_the_drafts_is_refused_unless_forced() -> None:
    with pytest.raises(UsageError, match="add --force-block-size"):
        asyncio.run(SimulatedBackend(BackendSettings()).open((Arm("dflash", 17),)))
    forced = SimulatedBackend(BackendSettings(force_block_size=True))
    assert asyncio.run(forced.open((Arm("dflash", 17),))).arms[0].block_size == 17


def test_a_scenario_is_read_from_toml_and_json(tmp_path: Path) -> None:
    values = {"prefill_ms": 5, "output_tokens": [3, 4], "faults": [{"action": "error", "request": 2}]}
    (tmp_path / "s.json").write_text(json.dumps(values))
    (tmp_path / "s.toml").write_text(
        'prefill_ms = 5\noutput_tokens = [3, 4]\n[[faults]]\naction = "error"\nrequest = 2\n'
    )
    expected = Scenario(prefill_ms=5, output_tokens=(3, 4), faults=(Fault("error", request=2),))
    assert load_scenario(tmp_path / "s.json") == load_scenario(tmp_path / "s.toml") == expected


def test_a_fault_is_no_part_of_a_scenarios_identity() -> None:
    assert Scenario(faults=(Fault("crash"),)).digest == Scenario().digest
    assert Scenario(prefill_ms=1).digest != Scenario().digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prefil_ms = 3", "unknown field 'prefil_ms' of a scenario"),
        ("prefill_ms = ", "scenario .*s.toml"),
        ("jitter = 1", r"jitter must be in \[0, 1\)"),
        ('prefill_ms = "soon"', "prefill_ms must be a number"),
        ("prefill_ms = -1", "prefill_ms must not be negative"),
        ("acceptance = []", "acceptance must hold shares"),
        ("acceptance = [1.5]", "acceptance must hold shares"),
        ("output_tokens = [3]", "output_tokens must be"),
        ("output_tokens = [4, 3]", "output_tokens must be"),
        ("output_tokens = 4", "output_tokens must be"),
        ("block_size = 1", "block_size must be from 2"),
        ("vocabulary_size = 1", "vocabulary_size must be 2 or more"),
        ("faults = [1]", "a fault must be a table"),
        ('[[faults]]\naction = "sulk"', "unknown fault action 'sulk'"),
        ('[[faults]]\nkind = "x"', "a fault needs an action"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        load_scenario(tmp_path / "s.toml")
    assert "\n" not in str(caught.value)


def test_a_missing_scenario_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the scenario"):
        create_backend("simulated", BackendSettings(script=str(tmp_path / "none.toml")))
