"""Prompts of a data set: found at hand or fetched once, verified, and selected the same way for everyone.

Rows are looked for in this order: the file that is named, this package, the folder of fetched data sets, a
folder of original files (`DFLASH_DATASETS_DIR`), the package index, GitHub, the model hub.
"""

from __future__ import annotations

from pathlib import Path

from dflash.built_folder import Announce, announce_on_stderr, is_there
from dflash.datasets.cache import (
    count_notes,
    datasets_cache_folder,
    fetch_dataset,
    find_unfit,
    folder_of,
    make_counted_prompts,
    read_cached,
)
from dflash.datasets.catalogue import CUSTOM, find_dataset
from dflash.datasets.custom import CustomSource, custom_spec
from dflash.datasets.facts import ROWS_NAME
from dflash.datasets.fetched import Fetched, name_of, text_of_path
from dflash.datasets.published import FILES_VARIABLE, find_published, read_named, read_published, read_shipped
from dflash.datasets.selection import Selection, select, select_prompts
from dflash.datasets.spec import DatasetSpec
from dflash.datasets.stored import StoredDataset, read_stored, verify_stored
from dflash.prompts import PromptSet, prompts_digest

__all__ = [
    "StoredDataset",
    "datasets_cache_folder",
    "fetch_dataset",
    "find_rows_sha256",
    "load_prompts",
    "read_stored",
    "select_prompts",
    "verify_stored",
]


def load_prompts(
    name: str,
    *,
    num_prompts: int | None = None,
    seed: int = 0,
    category: str | None = None,
    min_prompt_chars: int | None = None,
    max_prompt_chars: int | None = None,
    repeat: bool = False,
    custom: CustomSource | None = None,
    dataset_file: Path | None = None,
    cache_folder: Path | None = None,
    announce: Announce = announce_on_stderr,
) -> PromptSet:
    """The prompts of one data set, in an order that depends on the data set and `seed` alone.

    See `datasets.selection` for the order. No prompt is taken twice; fewer than asked is said in the notes, and
    `repeat` only sets how many requests are to be made of them.

    Args:
        name: of the catalogue, or `custom`.
        num_prompts: how many; None takes all.
        seed: of the order.
        category: only prompts of this category.
        min_prompt_chars: only prompts of this many characters or more (`Prompt.num_chars`).
        max_prompt_chars: only prompts of this many characters or less.
        repeat: where there are fewer than `num_prompts`, they may be used again: `num_requests` is set.
        custom: where the rows of `custom` are and which of their columns are the prompt.
        dataset_file: the original file as published.
        cache_folder: of fetched data sets; default `datasets_cache_folder()`.
        announce: told in one line what takes long or was found damaged.

    Raises:
        UsageError: unknown data set or category, or a file that does not hold the data set, or no prompt of
            that length.
        UnavailableError: the rows are nowhere to be had; the message names the three ways.
    """
    if name == CUSTOM and custom is not None:
        spec, dataset_file = custom_spec(custom), dataset_file or custom.file
    else:
        spec, custom = find_dataset(name), None
    found, label = _find_rows(spec, custom, dataset_file, cache_folder or datasets_cache_folder(), announce)
    prompts, _ = make_counted_prompts(spec, found.rows, label)
    selection = Selection(
        num_prompts=num_prompts,
        seed=seed,
        category=category,
        min_prompt_chars=min_prompt_chars,
        max_prompt_chars=max_prompt_chars,
        repeat=repeat,
    )
    selected = select(prompts, selection, spec.name)
    return PromptSet(
        dataset=spec.name,
        prompts=selected.prompts,
        digest=prompts_digest(spec.template_version, selected.prompts),
        revision=found.revision,
        source=found.source,
        num_available=selected.num_available,
        notes=(
            *((found.doubt,) if found.doubt else ()),
            *count_notes(spec, len(prompts), label),
            *selected.notes,
            *((spec.caution,) if spec.caution else ()),
        ),
        template_version=spec.template_version,
        licence=spec.licence,
        num_requests=selected.num_requests,
    )


def find_rows_sha256(
    prompt_set: PromptSet,
    custom: CustomSource | None = None,
    *,
    dataset_file: Path | None = None,
    cache_folder: Path | None = None,
) -> str | None:
    """SHA-256 of the file that `load_prompts` read with the same arguments, or None where it is not known."""
    if dataset_file is None:
        spec = find_dataset(prompt_set.dataset) if custom is None else custom_spec(custom)
        stored = read_stored(spec, cache_folder or datasets_cache_folder(), custom=custom)
        if stored is not None and stored.source == prompt_set.source:
            return stored.sha256
    kind, _, digest = (prompt_set.revision or "").partition(":")
    return digest if kind == "sha256" else None


def _find_rows(
    spec: DatasetSpec, custom: CustomSource | None, file: Path | None, cache_folder: Path, announce: Announce
) -> tuple[Fetched, str]:
    """The rows, and the label of their file for messages."""
    if file is not None:
        return read_named(spec, file), name_of(file)
    if spec.shipped is not None:
        return read_shipped(spec), Path(spec.shipped).name
    folder = folder_of(spec, custom, cache_folder)
    unfit = find_unfit(spec, folder)
    if unfit is not None:
        published, _ = find_published(spec)
        if published is not None:  # needs no cache, which may be one that cannot be written
            if is_there(folder):
                announce(f"{folder} {unfit}: {published.name} of {FILES_VARIABLE} is read in its place")
            return read_published(spec, published), name_of(published)
        fetch_dataset(spec, cache_folder, announce=announce, custom=custom)
    return read_cached(folder), text_of_path(folder / ROWS_NAME)
