"""The plan: its order, its defaults, and identities that move with what they name and with nothing else."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from made_up_prompts import made_up_prompts

from dflash.asking import first_difference, request_seed
from dflash.backends.base import BackendDescription
from dflash.config import BenchmarkConfig
from dflash.errors import UsageError
from dflash.interleaved import arm_order
from dflash.plan import (
    arm_id_of,
    cell_id_of,
    make_groups,
    max_new_tokens_of,
    num_prompts_asked,
    num_warmup_of,
    planned_arms,
    workload_id_of,
)
from dflash.results.records import Arm, Workload
from dflash.server_options import NO_CAP

CONFIG = BenchmarkConfig(backend="simulated", block_sizes=(4, 8))
ENVIRONMENT: dict[str, Any] = {
    "machine": {"cpu": "x"},
    "versions": {"torch": "2"},
    "threads": {},
    "engine": {"device": "cpu"},
    "git": {"commit": "abc"},
}
WORKLOAD = Workload("t", None, "float32", "quickstart", "d", 4, 128, 0.0, None, None, 0, "off")
ARM = Arm("dflash", 4, "equality", "draft", "r1")


def description(config: BenchmarkConfig = CONFIG, **changes: Any) -> BackendDescription:
    return BackendDescription("t", "r", "float32", planned_arms(config), **changes)


def test_the_grid_has_one_baseline_per_workload() -> None:
    config = replace(CONFIG, datasets=("humaneval", "gsm8k"), concurrencies=(2, 1))
    sets = [made_up_prompts(3, dataset=name) for name in config.datasets]
    groups = make_groups(config, sets, description(config), ENVIRONMENT)
    assert [(group.workload.dataset, group.workload.concurrency) for group in groups] == [
        ("humaneval", 2),
        ("humaneval", 1),
        ("gsm8k", 2),
        ("gsm8k", 1),
    ]
    for group in groups:
        assert [cell.arm.label for cell in group.cells] == ["baseline", "dflash B=4", "dflash B=8"]
        assert len({cell.workload_id for cell in group.cells}) == 1
    assert len({cell.cell_id for group in groups for cell in group.cells}) == 12


def test_the_baseline_comes_first_in_whatever_order_arms_are_named() -> None:
    assert planned_arms(replace(CONFIG, arms=("dflash", "baseline")))[0].is_baseline
    assert planned_arms(BenchmarkConfig(arms=("dflash",))) == (Arm("dflash", None),)


def test_defaults() -> None:
    assert num_prompts_asked(CONFIG) == 128
    assert num_prompts_asked(replace(CONFIG, smoke=True)) == 1
    assert max_new_tokens_of(CONFIG, "quickstart") == 128
    assert max_new_tokens_of(CONFIG, "gsm8k") == 2048
    assert max_new_tokens_of(replace(CONFIG, max_new_tokens=5), "gsm8k") == 5
    assert [num_warmup_of(CONFIG, concurrency) for concurrency in (1, 2, 8)] == [2, 2, 8]
    assert num_warmup_of(replace(CONFIG, num_warmup=0), 8) == 0


@pytest.mark.parametrize(
    ("rate", "concurrency", "num_requests"),
    [(20.0, NO_CAP, 40), (20.0, 16, 16), (0.1, NO_CAP, 2), (5000.0, NO_CAP, 256), (2.3, NO_CAP, 5)],
)
def test_an_open_loop_is_warmed_up_for_two_seconds(rate: float, concurrency: int, num_requests: int) -> None:
    config = BenchmarkConfig(backend="vllm", request_rate=rate)
    assert num_warmup_of(config, concurrency) == num_requests


def test_ids_are_what_they_were() -> None:
    """A change of these numbers makes every stored run impossible to resume: is that meant?"""
    assert workload_id_of(WORKLOAD) == workload_id_of(replace(WORKLOAD))
    ids = (workload_id_of(WORKLOAD), arm_id_of(ARM), cell_id_of("w", "a", "simulated", ENVIRONMENT))
    assert ids == PINNED_IDS
    assert all(len(value) == 12 and int(value, 16) >= 0 for value in ids)


PINNED_IDS = ("8b649c5e2309", "b2934cd19a1a", "8415fc86c02b")


@pytest.mark.parametrize("name", [item.name for item in fields(Workload)])
def test_a_workload_id_moves_with_every_field(name: str) -> None:
    assert workload_id_of(replace(WORKLOAD, **{name: "other"})) != workload_id_of(WORKLOAD)


@pytest.mark.parametrize("name", [item.name for item in fields(Arm)])
def test_an_arm_id_moves_with_every_field(name: str) -> None:
    assert arm_id_of(replace(ARM, **{name: ("other",)})) != arm_id_of(ARM)


@pytest.mark.parametrize("part", ["machine", "versions", "threads", "engine"])
def test_a_cell_id_moves_with_machine_versions_threads_and_engine(part: str) -> None:
    moved = ENVIRONMENT | {part: {"cpu": "other"}}
    assert cell_id_of("w", "a", "b", moved) != cell_id_of("w", "a", "b", ENVIRONMENT)


def test_a_cell_id_moves_with_workload_arm_and_backend_but_not_with_the_commit() -> None:
    same = cell_id_of("w", "a", "b", ENVIRONMENT | {"git": {"commit": "def"}})
    assert same == cell_id_of("w", "a", "b", ENVIRONMENT)
    assert len({same, *(cell_id_of(*names, ENVIRONMENT) for names in ("xab", "wxb", "wax"))}) == 4


def test_answers_of_its_own_are_stamped() -> None:
    sets = [made_up_prompts(2, num_turns=2)]
    alone = replace(CONFIG, arms=("dflash",))
    (group,) = make_groups(alone, sets, description(alone), ENVIRONMENT)
    assert all(any("history=own" in note for note in cell.notes) for cell in group.cells)
    (group,) = make_groups(CONFIG, sets, description(), ENVIRONMENT)
    assert all(cell.notes == () for cell in group.cells)


def test_prompts_are_used_again_when_asked() -> None:
    """5 requests of 2 prompts: every use is a repeat of its own, and a second round goes on counting."""
    prompts = replace(made_up_prompts(2), num_requests=5)
    (group,) = make_groups(CONFIG, [prompts], description(), ENVIRONMENT)
    assert group.units(1) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    assert group.units(2)[5:] == [(0, 3), (1, 3), (0, 4), (1, 4), (0, 5)]
    assert len(set(group.units(3))) == 15
    assert all(cell.notes == ("repeat: 2 prompts make 5 requests",) for cell in group.cells)
    (once,) = make_groups(CONFIG, [made_up_prompts(2)], description(), ENVIRONMENT)
    assert once.units(2) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert group.cells[0].cell_id == once.cells[0].cell_id, "more requests go on with the same run"


def test_prompts_that_cannot_be_told_apart_are_refused() -> None:
    prompts = made_up_prompts(2)
    with pytest.raises(UsageError, match="has no prompts"):
        make_groups(CONFIG, [replace(prompts, prompts=())], description(), ENVIRONMENT)
    twice = replace(prompts, prompts=prompts.prompts[:1] * 2)
    with pytest.raises(UsageError, match="holds the prompt id 'quickstart/0000' twice"):
        make_groups(CONFIG, [twice], description(), ENVIRONMENT)


def test_the_home_folder_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    arms = (Arm("dflash", 4, draft="/home/somebody/draft"),)
    opened = BackendDescription("/home/somebody/model", None, "float32", arms)
    (group,) = make_groups(CONFIG, [made_up_prompts(1)], opened, ENVIRONMENT)
    assert (group.workload.target, group.cells[0].arm.draft) == ("~/model", "~/draft")


def test_two_arms_alternate() -> None:
    assert [arm_order(2, number) for number in range(4)] == [(0, 1), (1, 0), (0, 1), (1, 0)]
    assert arm_order(1, 3) == (0,)


@pytest.mark.parametrize("num_arms", [3, 4, 5])
def test_more_arms_take_every_place_equally_often(num_arms: int) -> None:
    orders = [arm_order(num_arms, number) for number in range(2 * num_arms)]
    for place in range(num_arms):
        assert sorted(order[place] for order in orders) == sorted([*range(num_arms)] * 2)


def test_a_seed_depends_on_prompt_turn_and_repeat() -> None:
    seeds = {
        request_seed(seed, prompt, turn, repeat)
        for seed in (0, 1)
        for prompt in ("a/1", "a/2")
        for turn in (0, 1)
        for repeat in (0, 1)
    }
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert request_seed(0, "quickstart/0000", 0, 0) == PINNED_SEED


PINNED_SEED = 8838108677654051401


@pytest.mark.parametrize(
    ("expected", "given", "position"),
    [
        ((1, 2), (1, 2), None),
        (None, (1,), None),
        ((1,), None, None),
        ((1, 2), (3, 2), 0),
        ((1, 2, 3), (1, 2, 4), 2),
        ((1, 2), (1, 2, 3), 2),
        ((1, 2, 3), (1,), 1),
        ((), (), None),
    ],
)
def test_first_difference(
    expected: tuple[int, ...] | None, given: tuple[int, ...] | None, position: int | None
) -> None:
    assert first_difference(expected, given) == position
