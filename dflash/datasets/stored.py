"""What the cache holds of a data set: as its manifest says, and as reading all of it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.built_folder import file_sha256, find_fault, is_there, read_manifest
from dflash.datasets.cache import (
    find_unfit,
    folder_of,
    make_counted_prompts,
)
from dflash.datasets.custom import CustomSource
from dflash.datasets.facts import FACTS, ROWS_NAME, find_facts_fault, find_other_format
from dflash.datasets.files import iter_rows
from dflash.datasets.published import PACKAGE
from dflash.datasets.spec import DatasetSpec
from dflash.errors import UnavailableError, UsageError


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
    doubt: str | None = None  # why its rows are not known to be the published ones


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
    if manifest is None or find_fault(folder) is not None:
        return None
    if find_other_format(manifest) is not None or find_facts_fault(spec, manifest) is not None:
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
    if not is_there(folder):
        raise UnavailableError(f"the data set {spec.name} is not in {cache_folder}", again)
    unfit = find_unfit(spec, folder)
    if unfit is not None:
        raise UnavailableError(f"{folder} {unfit}", again)
    manifest = read_manifest(folder)
    if manifest is None:
        raise UnavailableError(f"{folder} is being replaced by another process", "verify it again")
    stored = _stored(spec, folder, manifest)
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


def _stored(spec: DatasetSpec, folder: Path, manifest: Mapping[str, Any]) -> StoredDataset:
    facts = {fact: manifest[fact] for fact in FACTS if fact != "dataset"}
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
