"""The folder of fetched data sets: each written whole or not at all, and verified when it is read.

A data set is a folder: `rows.jsonl`, one row a line as it was published, and `manifest.json` with where it came
from. One process at a time writes it; its digest is checked at every use.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import dflash
from dflash.built_folder import Announce, build_folder, file_sha256, find_fault, read_manifest
from dflash.cache_folder import user_cache_folder
from dflash.dataset_catalogue import CUSTOM, make_prompts
from dflash.dataset_custom import CustomSource
from dflash.dataset_files import Row, checked_rows, format_row, iter_rows
from dflash.dataset_sources import Fetched, fetch_custom_rows, fetch_rows, read_named
from dflash.dataset_spec import DatasetSpec
from dflash.errors import UnavailableError, UsageError
from dflash.prompts import Prompt

CACHE_VARIABLE = "DFLASH_DATASETS_CACHE"
ROWS_NAME = "rows.jsonl"
STORE_FORMAT = 1  # of the facts in the manifest; before it was counted, they were fewer
PACKAGE = Path(dflash.__file__).resolve().parent

_CHOSEN_BY = f"--datasets-cache or {CACHE_VARIABLE}"
# what the manifest says besides the list of files
_FACTS = {
    "dataset",
    "source",
    "revision",
    "pin",
    "num_rows",
    "num_prompts",
    "licence",
    "template_version",
    "fetched_at",
}


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """What the cache holds of a data set, as its manifest says; `num_bytes` and `sha256` are of its rows."""

    name: str
    folder: Path
    num_rows: int
    num_prompts: int
    num_bytes: int
    sha256: str
    source: str
    revision: str | None
    pin: str | None
    template_version: str
    licence: str
    fetched_at: str  # ISO 8601, UTC; empty for what is shipped


def datasets_cache_folder() -> Path:
    """`DFLASH_DATASETS_CACHE`, else a checkout's `datasets_cache/`, else a folder in the user's cache.

    An installed package never writes beside itself.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    checkout = PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "datasets_cache").is_dir():
        return checkout / "datasets_cache"
    return user_cache_folder() / "datasets"


def fetch_dataset(
    spec: DatasetSpec,
    cache_folder: Path,
    *,
    announce: Announce,
    replace: bool = False,
    custom: CustomSource | None = None,
    dataset_file: Path | None = None,
) -> Path:
    """Put a data set into the cache unless it is there, whole, of the pinned revision, and of this version.

    An old one stays until the new one is whole. A shipped data set needs no cache.

    Args:
        spec: the data set.
        cache_folder: of fetched data sets.
        announce: told in one line what takes long, was found damaged, or is of another version.
        replace: fetch it anew in any case.
        custom: the source of the data set `custom` on the model hub.
        dataset_file: take the rows of this file, and of nothing else; what is there of another one is replaced.

    Returns:
        Its folder: `rows.jsonl` and `manifest.json`.

    Raises:
        UnavailableError: it cannot be fetched, or the folder cannot be written; what is there, and why it is
            not used, is said too.
        UsageError: what was fetched is not the data set.
    """
    if spec.shipped is not None:
        return (PACKAGE / spec.shipped).parent
    folder = folder_of(spec, custom, cache_folder)

    named = None if dataset_file is None else read_named(dataset_file)

    def fetch(scratch: Path) -> Fetched:
        if named is not None:
            return named
        return fetch_custom_rows(custom, announce) if custom else fetch_rows(spec, scratch, announce)

    def build(partial: Path) -> Mapping[str, Any]:
        announce(f"fetching the data set {spec.name} into {cache_folder}")
        scratch = Path(tempfile.mkdtemp(prefix="download-", dir=partial))
        try:
            fetched = fetch(scratch)
            facts = _write_rows(spec, fetched, partial / ROWS_NAME)
            for note in count_notes(spec, facts["num_prompts"], fetched.source):
                announce(note)
            return facts
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    unfit = find_unfit(spec, folder) if folder.exists() else None
    if unfit is not None and find_fault(folder, hashes=True) is None:
        announce(f"{folder} {unfit} and is fetched anew")
    if named is not None and (read_manifest(folder) or {}).get("revision") != named.revision:
        replace = True
    try:
        return build_folder(
            folder,
            build,
            announce=announce,
            replace=replace,
            hashes=True,
            is_current=lambda manifest: _find_difference(spec, manifest) is None,
            chosen_by=_CHOSEN_BY,
        )
    except UnavailableError as error:
        at_hand = f"{folder} {unfit}; " if unfit is not None else ""
        fault = f"the data set {spec.name} cannot be had: {at_hand}{error.fault}"
        raise UnavailableError(fault, error.mend) from error


def read_stored(
    spec: DatasetSpec, cache_folder: Path, *, custom: CustomSource | None = None
) -> StoredDataset | None:
    """What the cache holds of a data set, from its manifest and the sizes of its files; nothing is hashed.

    It may be of another pin or template version than `spec`, which its fields tell.

    Returns:
        None where there is none, or where it is damaged or of another version of the cache.
    """
    if spec.shipped is not None:
        return _shipped(spec)
    folder = folder_of(spec, custom, cache_folder)
    manifest = read_manifest(folder)
    if manifest is None or _find_other_format(manifest) is not None or find_fault(folder) is not None:
        return None
    return _stored(spec, folder, manifest)


def verify_stored(
    spec: DatasetSpec, cache_folder: Path, *, custom: CustomSource | None = None
) -> StoredDataset:
    """Read and hash all that the cache holds of a data set, and make every prompt of it.

    Raises:
        UnavailableError: it is not there, is damaged, or is of another pin or version; with the mend.
    """
    if spec.shipped is not None:
        return _shipped(spec)
    folder = folder_of(spec, custom, cache_folder)
    again = f"fetch it: python -m dflash.data fetch {spec.name}"
    if not folder.exists():
        raise UnavailableError(f"the data set {spec.name} is not in {cache_folder}", again)
    unfit = find_unfit(spec, folder)
    if unfit is not None:
        raise UnavailableError(f"{folder} {unfit}", again)
    stored = _stored(spec, folder, read_manifest(folder) or {})
    try:
        prompts, num_rows = make_counted_prompts(spec, iter_rows(folder / ROWS_NAME), str(folder / ROWS_NAME))
    except UsageError as error:
        raise UnavailableError(error.fault, f"{error.mend}; {again}") from error
    found, expected = (num_rows, len(prompts)), (stored.num_rows, stored.num_prompts)
    if found != expected:
        raise UnavailableError(
            f"{folder} holds {found[0]} rows and {found[1]} prompts, its manifest says {expected[0]} and "
            f"{expected[1]}",
            again,
        )
    return stored


def read_cached(folder: Path) -> Fetched:
    """The rows of a fetched data set, which is not verified here."""
    manifest = read_manifest(folder) or {}
    return Fetched(iter_rows(folder / ROWS_NAME), str(manifest.get("source")), manifest.get("revision"))


def folder_of(spec: DatasetSpec, custom: CustomSource | None, cache_folder: Path) -> Path:
    """Where a data set is kept. That of `custom` depends on all that says which rows it has."""
    if spec.name != CUSTOM or custom is None:
        return cache_folder / spec.name
    parts = [custom.hub_id, custom.hub_config, custom.hub_split, custom.hub_revision]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
    # The digest tells ids apart; the words are for people, and no more of an id can get into a path.
    words = re.sub(r"[^A-Za-z0-9]+", "-", custom.hub_id or "").strip("-")[:60]
    return cache_folder / f"{CUSTOM}-{words}-{digest}"


def find_unfit(spec: DatasetSpec, folder: Path) -> str | None:
    """Why a fetched data set cannot be used as it is, to follow its folder in a sentence, or None."""
    fault = find_fault(folder, hashes=True)
    if fault is not None:
        return f"cannot be used ({fault})"
    return _find_difference(spec, read_manifest(folder) or {})


def make_counted_prompts(
    spec: DatasetSpec, rows: Iterable[Row], label: str, *, each: Callable[[Row], object] = lambda row: None
) -> tuple[tuple[Prompt, ...], int]:
    """The prompts of rows that are read as they are asked for, and how many rows there were.

    Args:
        spec: the data set.
        rows: of it.
        label: of their file, for messages.
        each: is given every row.

    Raises:
        UsageError: a row lacks a column, or its texts are empty or no text.
    """
    counted = _CountedRows(checked_rows(rows, spec.columns, spec.name, label), each)
    return make_prompts(spec, cast(Sequence[Row], counted), label), len(counted)


def count_notes(spec: DatasetSpec, num_prompts: int, label: str) -> tuple[str, ...]:
    """A line where rows make another number of prompts than the data set has, with the pin to look at."""
    if spec.num_rows is None or num_prompts == spec.num_rows:
        return ()
    pin = f" at the pinned revision {spec.revision}" if spec.revision else ""
    return (f"{label} gives {num_prompts} prompts, the data set {spec.name} has {spec.num_rows}{pin}",)


class _CountedRows:
    """Rows that pass once; their number is known afterwards."""

    def __init__(self, rows: Iterable[Row], each: Callable[[Row], object]) -> None:
        self._rows, self._each, self._num_rows = rows, each, 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            self._num_rows += 1
            self._each(row)
            yield row

    def __len__(self) -> int:
        return self._num_rows


def _write_rows(spec: DatasetSpec, fetched: Fetched, path: Path) -> dict[str, Any]:
    with path.open("wb") as stream:
        prompts, num_rows = make_counted_prompts(
            spec, fetched.rows, fetched.source, each=lambda row: stream.write(format_row(row))
        )
    return {
        "store_format": STORE_FORMAT,
        "dataset": spec.name,
        "source": fetched.source,
        "revision": fetched.revision,
        "pin": spec.revision,
        "num_rows": num_rows,
        "num_prompts": len(prompts),
        "licence": spec.licence,
        "template_version": spec.template_version,
        "fetched_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _find_other_format(manifest: Mapping[str, Any]) -> str | None:
    number = manifest.get("store_format", 0)
    if number == STORE_FORMAT and manifest.keys() >= _FACTS and ROWS_NAME in manifest["files"]:
        return None
    newer = isinstance(number, int) and number > STORE_FORMAT
    age = "a newer" if newer else "an older"
    return f"was written by {age} version of dflash (format {number}, this one writes {STORE_FORMAT})"


def _find_difference(spec: DatasetSpec, manifest: Mapping[str, Any]) -> str | None:
    """What makes a whole folder another one than `spec` asks for."""
    other = _find_other_format(manifest)
    if other is not None:
        return other
    if manifest["pin"] != spec.revision:
        return f"is of the pinned revision {manifest['pin']} and not {spec.revision}"
    # The rows of `custom` are whatever the hub has; which of their columns are read is no matter of the cache.
    if spec.name != CUSTOM and manifest["template_version"] != spec.template_version:
        return f"was made for the template {manifest['template_version']} and not {spec.template_version}"
    return None


def _stored(spec: DatasetSpec, folder: Path, manifest: Mapping[str, Any]) -> StoredDataset:
    facts = {fact: manifest[fact] for fact in _FACTS - {"dataset"}}
    rows = manifest["files"][ROWS_NAME]
    return StoredDataset(
        name=spec.name, folder=folder, num_bytes=rows["num_bytes"], sha256=rows["sha256"], **facts
    )


def _shipped(spec: DatasetSpec) -> StoredDataset:
    assert spec.shipped is not None
    path = PACKAGE / spec.shipped
    prompts, num_rows = make_counted_prompts(spec, iter_rows(path), path.name)
    digest = file_sha256(path)
    return StoredDataset(
        name=spec.name,
        folder=path.parent,
        num_rows=num_rows,
        num_prompts=len(prompts),
        num_bytes=path.stat().st_size,
        sha256=digest,
        source="shipped with dflash",
        revision=f"sha256:{digest}",
        pin=spec.revision,
        template_version=spec.template_version,
        licence=spec.licence,
        fetched_at="",
    )
