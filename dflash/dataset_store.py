"""Prompts of a data set: found at hand or fetched once, verified, and selected the same way for everyone.

Rows are looked for in this order: the file that is named, this package, the folder of fetched data sets, a
folder of files as published (`DFLASH_DATASETS_DIR`), the package index, the model hub.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dflash
from dflash.built_folder import announce_on_stderr, build_folder, file_sha256, find_fault, read_manifest
from dflash.cache_folder import user_cache_folder
from dflash.dataset_catalogue import DatasetSpec, find_dataset, make_prompts
from dflash.dataset_files import Row, check_columns, format_rows, read_rows
from dflash.dataset_sources import fetch_rows
from dflash.errors import UnavailableError, UsageError
from dflash.prompts import Prompt, PromptSet, prompts_digest

CACHE_VARIABLE = "DFLASH_DATASETS_CACHE"
FILES_VARIABLE = "DFLASH_DATASETS_DIR"
ROWS_NAME = "rows.jsonl"

_PACKAGE = Path(dflash.__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows and where they came from."""

    rows: Sequence[Row]
    label: str  # of the file, for messages
    source: str  # for people
    revision: str | None


def load_prompts(
    name: str,
    *,
    num_prompts: int | None = None,
    seed: int = 0,
    category: str | None = None,
    dataset_file: Path | None = None,
    cache_folder: Path | None = None,
    announce: Callable[[str], None] = announce_on_stderr,
) -> PromptSet:
    """The prompts of one data set, in an order that depends on the data set and `seed` alone.

    Prompts are ordered by the SHA-256 of "<seed>:<prompt id>" and the first `num_prompts` are taken: a
    smaller selection is the beginning of a larger one. None is taken twice; fewer than asked is said in the
    notes.

    Args:
        name: of the catalogue.
        num_prompts: how many; None takes all.
        seed: of the order.
        category: only prompts of this category.
        dataset_file: the original file as published.
        cache_folder: of fetched data sets; default `datasets_cache_folder()`.
        announce: told in one line what takes long or was found damaged.

    Raises:
        UsageError: unknown data set or category, or a file that does not hold the data set.
        UnavailableError: the rows are nowhere to be had; the message names the three ways.
    """
    spec = find_dataset(name)
    found = _find_rows(spec, dataset_file, cache_folder, announce)
    check_columns(found.rows, spec.columns, spec.name, found.label)
    available = _of_category(make_prompts(spec, found.rows, found.label), category, spec.name)
    chosen = select_prompts(available, num_prompts, seed)
    return PromptSet(
        dataset=spec.name,
        prompts=chosen,
        digest=prompts_digest(spec.template_version, chosen),
        revision=found.revision,
        source=found.source,
        num_available=len(available),
        notes=(
            *_row_count_note(spec, found),
            *_fewer_note(available, num_prompts, category),
            *_equal_texts_note(spec, chosen),
        ),
    )


def select_prompts(prompts: Sequence[Prompt], num_prompts: int | None, seed: int) -> tuple[Prompt, ...]:
    """The first `num_prompts` by SHA-256 of "<seed>:<prompt id>"; None takes all, in that order."""

    def place(prompt: Prompt) -> bytes:
        return hashlib.sha256(f"{seed}:{prompt.prompt_id}".encode()).digest()

    return tuple(sorted(prompts, key=place)[:num_prompts])


def datasets_cache_folder() -> Path:
    """`DFLASH_DATASETS_CACHE`, else a checkout's `datasets_cache/`, else a folder in the user's cache.

    An installed package never writes beside itself.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "datasets_cache").is_dir():
        return checkout / "datasets_cache"
    return user_cache_folder() / "datasets"


def fetch_dataset(
    spec: DatasetSpec, cache_folder: Path, *, announce: Callable[[str], None], replace: bool = False
) -> Path:
    """Put a data set into the cache unless it is there, whole and of the pinned revision.

    It is written whole or not at all, by one process at a time; an old one stays until the new one is there.

    Returns:
        Its folder: `rows.jsonl` and `manifest.json`.

    Raises:
        UnavailableError: it cannot be fetched, or the folder cannot be written.
        UsageError: what was fetched is not the data set.
    """

    def build(partial: Path) -> Mapping[str, Any]:
        announce(f"fetching the data set {spec.name} into {cache_folder}")
        fetched = fetch_rows(spec, partial)
        check_columns(fetched.rows, spec.columns, spec.name, fetched.source)
        (partial / ROWS_NAME).write_bytes(format_rows(fetched.rows))
        return {
            "dataset": spec.name,
            "source": fetched.source,
            "revision": fetched.revision,
            "pin": spec.revision,
            "num_rows": len(fetched.rows),
            "licence": spec.licence,
            "template_version": spec.template_version,
        }

    return build_folder(
        cache_folder / spec.name,
        build,
        announce=announce,
        replace=replace,
        hashes=True,
        is_current=lambda manifest: manifest.get("pin") == spec.revision,
    )


def _find_rows(
    spec: DatasetSpec, dataset_file: Path | None, cache_folder: Path | None, announce: Callable[[str], None]
) -> _Found:
    if dataset_file is not None:
        return _read_file(dataset_file, f"file {dataset_file.name}")
    if spec.shipped is not None:
        return _read_file(_PACKAGE / spec.shipped, "shipped with dflash")
    cache = cache_folder or datasets_cache_folder()
    folder = cache / spec.name
    fault = find_fault(folder, hashes=True)
    if fault is None and (read_manifest(folder) or {}).get("pin") == spec.revision:
        return _read_cached(folder)
    published = _published_file(spec)
    if published is not None:
        return _read_file(published, f"file {published.name} of {FILES_VARIABLE}")
    try:
        return _read_cached(fetch_dataset(spec, cache, announce=announce))
    except UnavailableError as error:
        damaged = f"the fetched one is damaged ({fault}); " if fault and folder.exists() else ""
        raise UnavailableError(
            f"the data set {spec.name} cannot be had: {damaged}{error.fault}",
            error.mend
            or f"give its original file by --dataset-file, name a folder of such files in {FILES_VARIABLE}, "
            "or name a mirror of the model hub in HF_ENDPOINT",
        ) from error


def _read_file(path: Path, source: str) -> _Found:
    rows = read_rows(path)
    return _Found(rows, path.name, source, f"sha256:{file_sha256(path)}")


def _read_cached(folder: Path) -> _Found:
    manifest = read_manifest(folder) or {}
    path = folder / ROWS_NAME
    return _Found(read_rows(path), str(path), str(manifest.get("source")), manifest.get("revision"))


def _published_file(spec: DatasetSpec) -> Path | None:
    """The data set's file in the folder that `DFLASH_DATASETS_DIR` names, or None.

    Raises:
        UsageError: the variable names no folder.
    """
    named = os.environ.get(FILES_VARIABLE)
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise UsageError(f"{FILES_VARIABLE} names {named}, which is no folder", "correct it, or unset it")
    return next((folder / file.path for file in spec.files if (folder / file.path).is_file()), None)


def _of_category(prompts: Sequence[Prompt], category: str | None, dataset: str) -> tuple[Prompt, ...]:
    if category is None:
        return tuple(prompts)
    chosen = tuple(prompt for prompt in prompts if prompt.category == category)
    if not chosen:
        known = sorted({prompt.category for prompt in prompts if prompt.category})
        raise UsageError(
            f"the data set {dataset} has no prompts of category {category!r}",
            f"choose one of {', '.join(known)}",
        )
    return chosen


def _row_count_note(spec: DatasetSpec, found: _Found) -> tuple[str, ...]:
    if len(found.rows) == spec.num_rows:
        return ()
    pin = f" at the pinned revision {spec.revision}" if spec.revision else ""
    return (f"{found.label} has {len(found.rows)} rows, the data set {spec.name} has {spec.num_rows}{pin}",)


def _fewer_note(
    available: Sequence[Prompt], num_prompts: int | None, category: str | None
) -> tuple[str, ...]:
    if num_prompts is None or num_prompts <= len(available):
        return ()
    of_category = f" of category {category}" if category else ""
    return (f"asked for {num_prompts} prompts, the set has {len(available)}{of_category}",)


def _equal_texts_note(spec: DatasetSpec, chosen: Sequence[Prompt]) -> tuple[str, ...]:
    num_repeated = len(chosen) - len({prompt.turns for prompt in chosen})
    if not num_repeated:
        return ()
    return (f"{num_repeated} of the {len(chosen)} prompts of {spec.name} repeat the text of another one",)
