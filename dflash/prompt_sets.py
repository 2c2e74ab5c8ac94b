"""The prompts that a run's settings ask for: read once, the same for every arm, engine and concurrency."""

from __future__ import annotations

from dflash.config import BenchmarkConfig
from dflash.datasets.catalogue import CUSTOM
from dflash.datasets.custom import CustomSource
from dflash.plan import num_prompts_asked
from dflash.prompts import PromptSet


def load_prompt_sets(config: BenchmarkConfig) -> tuple[PromptSet, ...]:
    """The prompts of every data set: the same, in the same order, for all that is run on it."""
    from dflash.dataset_store import load_prompts

    return tuple(
        load_prompts(
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
        )
        for dataset in config.dataset_names
    )


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
