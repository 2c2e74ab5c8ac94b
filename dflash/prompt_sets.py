"""The prompts that a run's settings ask for: read once, the same for every arm, engine and concurrency."""

from __future__ import annotations

from dataclasses import replace

from dflash.config import BenchmarkConfig
from dflash.datasets.catalogue import CUSTOM
from dflash.datasets.custom import CustomSource
from dflash.errors import UnavailableError
from dflash.plan import num_prompts_asked
from dflash.prompts import PromptSet


def load_prompt_sets(config: BenchmarkConfig) -> tuple[PromptSet, ...]:
    """The prompts of every data set: the same, in the same order, for all that is run on it.

    A set that only a group stands for, and that cannot be had, is left out and named in the notes of the others.

    Raises:
        UsageError, UnavailableError: a set that was named itself, or every set of the groups.
    """
    found: list[PromptSet] = []
    failures: list[UnavailableError] = []
    for dataset in config.dataset_names:
        try:
            found.append(_load(config, dataset))
        except UnavailableError as error:
            if dataset in config.datasets:
                raise
            failures.append(error)
    if not found and failures:
        raise failures[0]
    notes = tuple(f"left out: {error.fault}" for error in failures)
    return (*(replace(prompt_set, notes=(*prompt_set.notes, *notes)) for prompt_set in found),)


def _load(config: BenchmarkConfig, dataset: str) -> PromptSet:
    from dflash.built_folder import announce_on_stderr
    from dflash.dataset_store import load_prompts

    return load_prompts(
        dataset,
        num_prompts=num_prompts_asked(config),
        seed=config.seed,
        category=config.category,
        min_prompt_chars=config.min_prompt_chars,
        max_prompt_chars=config.max_prompt_chars,
        repeat=config.repeat,
        custom=custom_source(config) if dataset == CUSTOM else None,
        dataset_file=config.dataset_file,
        cache_folder=config.datasets_cache,
        announce=_silent if config.quiet else announce_on_stderr,
    )


def _silent(line: str) -> None:
    return None


def custom_source(config: BenchmarkConfig) -> CustomSource:
    """Where the rows of the data set `custom` are, and how they are read."""
    return CustomSource(
        file=config.dataset_file,
        hub_id=config.dataset_id,
        hub_config=config.dataset_config,
        hub_split=config.dataset_split,
        hub_revision=config.dataset_revision,
        prompt_field=config.prompt_field,
        turns_field=config.turns_field,
    )


def load_warmup_texts() -> tuple[str, ...]:
    """Prompts that are used for nothing but warming up."""
    from dflash.quickstart import warmup_prompts

    return tuple(prompt.turns[0] for prompt in warmup_prompts())
