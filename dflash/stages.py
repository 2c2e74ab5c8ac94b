"""A sweep in stages: parts that one opened engine serves are run on it together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.backends.base import BackendDescription, BackendSettings, Sampling
from dflash.config import BenchmarkConfig
from dflash.errors import UsageError
from dflash.plan import Group, make_groups
from dflash.prompts import PromptSet
from dflash.results.records import Arm
from dflash.results.titles import load_words
from dflash.server_options import SERVER_BACKENDS, api_key_of, endpoints_of, headers_of, timeouts_of

UNKNOWN = "not known"
_ARMS = ("arms", "block_sizes", "force_block_size", "draft_model")
_PROMPTS = (  # what decides which prompts a part has
    *("datasets", "dataset_file", "dataset_id", "dataset_config", "dataset_split", "dataset_revision"),
    *("prompt_field", "turns_field", "datasets_cache", "num_prompts", "category", "min_prompt_chars"),
    *("max_prompt_chars", "repeat", "seed", "smoke"),
)
_DECODING = ("max_new_tokens", "temperature", "top_p", "top_k", "request_rate", "concurrencies")
_ENGINE = (
    *("backend", "model", "dtype", "device", "attn_implementation", "trust_remote_code", "reasoning"),
    *("base_url", "baseline_url", "arm_urls", "metrics_urls", "serve", "server_args", "engine_python"),
    *("route", "api_key", "api_key_variable", "headers", "verify_tls", "connect_timeout_s"),
    *("first_token_timeout_s", "chunk_timeout_s", "timeout_s", "ready_timeout_s", "script", "draft_bits"),
)


@dataclass(frozen=True, slots=True)
class Stage:
    """Parts of a sweep that want the same engine."""

    config: BenchmarkConfig  # of the part with the highest load, sampled if one is: what the engine is opened with
    parts: tuple[BenchmarkConfig, ...]
    prompt_sets: tuple[tuple[PromptSet, ...], ...]  # of each part

    @property
    def has_turns(self) -> bool:
        prompts = (prompt for sets in self.prompt_sets for found in sets for prompt in found.prompts)
        return any(len(prompt.turns) > 1 for prompt in prompts)

    def groups(
        self,
        description: BackendDescription,
        environment: dict[str, Any],
        *,
        has_baseline: bool | None = None,
    ) -> tuple[Group, ...]:
        """Every workload of every part.

        Raises:
            UsageError: two parts hold the same cell, or what `plan.make_groups` refuses.
        """
        groups = tuple(
            group
            for part, prompt_sets in zip(self.parts, self.prompt_sets, strict=True)
            for group in make_groups(part, prompt_sets, description, environment, has_baseline=has_baseline)
        )
        ids = [group.workload_id for group in groups]
        twice = next((group for group in groups if ids.count(group.workload_id) > 1), None)
        if twice is not None:
            raise UsageError(
                f"two grids of the suite hold {twice.workload.dataset} at {load_words(twice.cells[0])} under the same "
                "settings",
                "name it in one of them",
            )
        return groups


def make_stages(
    config: BenchmarkConfig, load: Callable[[BenchmarkConfig], Sequence[PromptSet]]
) -> tuple[Stage, ...]:
    """The stages of a sweep in the order of its parts; equal choices of prompts are loaded once.

    Raises:
        UsageError: in process two parts run the same prompts in different arms, which would not be back to back.
    """
    members: dict[tuple[object, ...], list[BenchmarkConfig]] = {}
    sets: dict[tuple[object, ...], tuple[PromptSet, ...]] = {}
    for part in config.all_parts:
        members.setdefault(_values(part, (*_ENGINE, *_ARMS)), []).append(part)
        choice = _values(part, _PROMPTS)
        if choice not in sets:
            sets[choice] = tuple(load(part))
    _check_arms(config.all_parts)
    return tuple(
        Stage(
            max(parts, key=lambda part: (max(part.loads), part.temperature)),
            tuple(parts),
            tuple(sets[_values(part, _PROMPTS)] for part in parts),
        )
        for parts in members.values()
    )


def backend_settings(config: BenchmarkConfig) -> BackendSettings:
    """What an engine needs to know of the settings."""
    return BackendSettings(
        model=config.model,
        draft_model=config.draft_model,
        dtype=config.dtype,
        device=config.device,
        attn_implementation=config.attn_implementation,
        trust_remote_code=config.trust_remote_code,
        force_block_size=config.force_block_size,
        draft_bits=config.draft_bits,
        endpoints=endpoints_of(config) if config.backend in SERVER_BACKENDS else (),
        block_size=config.block_sizes[0] if len(config.block_sizes) == 1 else None,
        reasoning=config.reasoning,
        sampling=Sampling(config.temperature, config.top_p, config.top_k),
        route=config.route,
        timeouts=timeouts_of(config),
        api_key=api_key_of(config, os.environ),
        headers=headers_of(config),
        verify_tls=config.verify_tls,
        max_concurrency=max(config.loads),
        script=config.script,
    )


def undescribed(config: BenchmarkConfig, arms: Sequence[Arm]) -> BackendDescription:
    """An engine that was never opened, as far as the settings describe it."""
    return BackendDescription(
        target=config.model or UNKNOWN, target_revision=None, dtype=config.dtype, arms=tuple(arms)
    )


def _values(config: BenchmarkConfig, names: Sequence[str]) -> tuple[object, ...]:
    return tuple(getattr(config, name) for name in names)


def _check_arms(parts: Sequence[BenchmarkConfig]) -> None:
    seen: dict[tuple[object, ...], tuple[object, ...]] = {}
    names = [name for name in (*_ENGINE, *_PROMPTS, *_DECODING) if name != "datasets"]
    for part in parts:
        if part.backend in SERVER_BACKENDS:
            continue
        for dataset in part.dataset_names:
            key, arms = (dataset, *_values(part, names)), _values(part, _ARMS)
            if seen.setdefault(key, arms) != arms:
                raise UsageError(
                    f"two grids of the suite run {dataset} under the same settings in different arms",
                    "name their arms and block sizes in one grid: a prompt is run in all of them back to back",
                )
