"""Settings, prompts and an opened engine -> what is run, in order, with its identities. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dflash.backends.base import BackendDescription
from dflash.config import DEFAULT_DATASET, BenchmarkConfig
from dflash.environment import without_home
from dflash.errors import UsageError
from dflash.prompts import Prompt, PromptSet
from dflash.results.records import BASELINE, Arm, Cell, Workload
from dflash.server_options import SERVER_BACKENDS, endpoints_of

DEFAULT_NUM_PROMPTS = 128
DEFAULT_MAX_NEW_TOKENS = 2048
QUICKSTART_MAX_NEW_TOKENS = 128
IDENTITY_PARTS = ("machine", "versions", "threads", "engine")  # of the environment
OPEN_LOOP_START_S = 2.0
MAX_OPEN_LOOP_START = 256
_ID_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Group:
    """One workload with all its arms: what may be compared, and what runs interleaved."""

    prompts: tuple[Prompt, ...]
    cells: tuple[Cell, ...]  # one per arm, the baseline first
    num_requests: int  # per arm and round; more than prompts: they are used again
    config: BenchmarkConfig  # of the grid that it belongs to

    @property
    def workload(self) -> Workload:
        return self.cells[0].workload

    @property
    def workload_id(self) -> str:
        return self.cells[0].workload_id

    @property
    def has_baseline(self) -> bool:
        return self.cells[0].arm.is_baseline

    @property
    def has_turns(self) -> bool:
        """Whether a prompt has later turns, whose history is an answer."""
        return any(len(prompt.turns) > 1 for prompt in self.prompts)

    def units_of_round(self, round_number: int) -> list[tuple[int, int]]:
        """(prompt index, repeat) of what one round runs, in order. A prompt that is used again has a repeat of its
        own."""
        num_prompts = len(self.prompts)
        num_uses = -(-self.num_requests // num_prompts)  # of a prompt in one round
        return [
            (number % num_prompts, round_number * num_uses + number // num_prompts)
            for number in range(self.num_requests)
        ]

    def units(self, repeats: int) -> list[tuple[int, int]]:
        """(prompt index, repeat) of all rounds."""
        return [unit for number in range(repeats) for unit in self.units_of_round(number)]


def planned_arms(config: BenchmarkConfig) -> tuple[Arm, ...]:
    """The baseline once, and every other arm once per block size (None: the draft's own).

    On running servers one arm per server; one that has no label is named "" until it was asked.
    """
    if config.backend in SERVER_BACKENDS and not config.serve:
        return _arms_of_servers(config)
    drafting = [
        Arm(name, block_size)
        for name in config.arms
        if name != BASELINE
        for block_size in config.block_sizes or (None,)
    ]
    return (*((Arm(BASELINE),) if BASELINE in config.arms else ()), *drafting)


def _arms_of_servers(config: BenchmarkConfig) -> tuple[Arm, ...]:
    names = [endpoint.arm or "" for endpoint in endpoints_of(config)] or [
        config.arms[0] if len(config.arms) == 1 else ""
    ]
    block_size = config.block_sizes[0] if config.block_sizes else None
    return tuple(Arm(name, None if name == BASELINE else block_size) for name in names)


def num_prompts_asked(config: BenchmarkConfig) -> int:
    """How many prompts of each data set are asked for."""
    return 1 if config.smoke else config.num_prompts or DEFAULT_NUM_PROMPTS


def max_new_tokens_of(config: BenchmarkConfig, dataset: str) -> int:
    """The limit on output tokens for a data set."""
    if config.max_new_tokens is not None:
        return config.max_new_tokens
    return QUICKSTART_MAX_NEW_TOKENS if dataset == DEFAULT_DATASET else DEFAULT_MAX_NEW_TOKENS


def num_warmup_of(config: BenchmarkConfig, concurrency: int) -> int:
    """Requests per arm that are run before anything is measured."""
    if config.num_warmup is not None:
        return config.num_warmup
    return max(2, num_under_way(concurrency, config.request_rate))


def num_under_way(concurrency: int, request_rate: float | None) -> int:
    """Requests that a closed loop keeps under way; of an open loop, whose number is not known before, what is due in
    its first two seconds: `min(concurrency, 256, ceil(2 s · rate))`."""
    if request_rate is None:
        return concurrency
    return min(concurrency, MAX_OPEN_LOOP_START, math.ceil(OPEN_LOOP_START_S * request_rate))


def make_groups(
    config: BenchmarkConfig,
    prompt_sets: Sequence[PromptSet],
    description: BackendDescription,
    environment: Mapping[str, Any],
    *,
    has_baseline: bool | None = None,
) -> tuple[Group, ...]:
    """Every data set with every concurrency, all arms in each.

    Args:
        prompt_sets: one per data set, in the order of `config.datasets`.
        environment: the fingerprint, the engine's under `engine`.
        has_baseline: whether the history of later turns is a baseline's; None: where one is among the arms.

    Raises:
        UsageError: a data set is empty, or holds a prompt id twice.
    """
    config = replace(config, parts=())
    for prompt_set in prompt_sets:
        _check_prompts(prompt_set)
    return tuple(
        _make_group(config, prompt_set, concurrency, description, environment, has_baseline)
        for prompt_set in prompt_sets
        for concurrency in config.loads
    )


def workload_id_of(workload: Workload) -> str:
    """First 12 hexadecimal digits of the SHA-256 of every field of the workload."""
    return short_digest(asdict(workload))


def arm_id_of(arm: Arm) -> str:
    """The same of every field of the arm, but of a server's address only where there is one: ids that were given
    before arms had it stay."""
    values = asdict(arm)
    if arm.server is None:
        del values["server"]
    return short_digest(values)


def cell_id_of(workload_id: str, arm_id: str, backend: str, environment: Mapping[str, Any]) -> str:
    """The same of workload, arm, backend, and the parts of the environment that move a number."""
    identity = {part: environment.get(part, {}) for part in IDENTITY_PARTS}
    return short_digest([workload_id, arm_id, backend, identity])


def short_digest(value: object) -> str:
    """First 12 hexadecimal digits of the SHA-256 of `value` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]


def _make_group(
    config: BenchmarkConfig,
    prompt_set: PromptSet,
    concurrency: int,
    description: BackendDescription,
    environment: Mapping[str, Any],
    has_baseline: bool | None,
) -> Group:
    workload = Workload(
        target=without_home(description.target),
        target_revision=description.target_revision,
        dtype=description.dtype,
        dataset=prompt_set.dataset,
        prompts_digest=prompt_set.digest,
        num_prompts=len(prompt_set.prompts),
        max_new_tokens=max_new_tokens_of(config, prompt_set.dataset),
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        seed=config.seed,
        reasoning=config.reasoning,
        concurrency=concurrency,
        request_rate=config.request_rate,
    )
    arms = [replace(arm, draft=without_home(arm.draft)) if arm.draft else arm for arm in description.arms]
    arms.sort(key=lambda arm: not arm.is_baseline)
    num_requests = prompt_set.num_requests or len(prompt_set.prompts)
    notes = []
    if has_baseline is None:
        has_baseline = any(arm.is_baseline for arm in arms)
    if any(len(prompt.turns) > 1 for prompt in prompt_set.prompts) and not has_baseline:
        notes.append("history=own: later turns follow this arm's own answers, so it is paired with nothing")
    if num_requests > len(prompt_set.prompts):
        notes.append(f"repeat: {len(prompt_set.prompts)} prompts make {num_requests} requests")
    num_turns = sum(
        len(prompt_set.prompts[number % len(prompt_set.prompts)].turns) for number in range(num_requests)
    )
    cells = tuple(
        replace(
            _make_cell(config, workload, arm, description, environment, tuple(notes)),
            num_requests=num_turns * config.repeats,
        )
        for arm in arms
    )
    return Group(prompt_set.prompts, cells, num_requests, config)


def _make_cell(
    config: BenchmarkConfig,
    workload: Workload,
    arm: Arm,
    description: BackendDescription,
    environment: Mapping[str, Any],
    notes: tuple[str, ...],
) -> Cell:
    workload_id, arm_id = workload_id_of(workload), arm_id_of(arm)
    return Cell(
        cell_id=cell_id_of(workload_id, arm_id, config.backend, environment),
        workload_id=workload_id,
        arm_id=arm_id,
        backend=config.backend,
        workload=workload,
        arm=arm,
        weights_bytes=description.weights_bytes.get(arm.name),
        on_server=config.backend in SERVER_BACKENDS,
        notes=notes,
    )


def _check_prompts(prompt_set: PromptSet) -> None:
    if not prompt_set.prompts:
        raise UsageError(f"data set {prompt_set.dataset!r} has no prompts", "check its file and --category")
    empty = [prompt.prompt_id for prompt in prompt_set.prompts if not prompt.turns]
    if empty:
        raise UsageError(
            f"prompt {empty[0]!r} of data set {prompt_set.dataset!r} says nothing", "check its file"
        )
    ids = [prompt.prompt_id for prompt in prompt_set.prompts]
    if len(set(ids)) != len(ids):
        twice = next(prompt_id for prompt_id in ids if ids.count(prompt_id) > 1)
        raise UsageError(
            f"data set {prompt_set.dataset!r} holds the prompt id {twice!r} twice", "make ids unique"
        )
