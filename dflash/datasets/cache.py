"""The folder of fetched data sets: each written whole or not at all, and verified when it is read.

A data set is a folder: `rows.jsonl`, one row a line as it was published, and `manifest.json` with where it came
from. One process at a time writes it; its digest is checked at every use.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dflash.built_folder import Announce, FolderError, build_folder, find_fault, is_there, read_manifest
from dflash.cache_folder import expand_path, user_cache_folder
from dflash.datasets.catalogue import CUSTOM, make_prompts
from dflash.datasets.custom import CustomSource
from dflash.datasets.facts import ROWS_NAME, STORE_FORMAT, find_facts_fault, find_other_format
from dflash.datasets.fetched import Fetched
from dflash.datasets.files import Row, checked_rows, format_row, iter_rows
from dflash.datasets.published import FILES_VARIABLE, PACKAGE, published_digests, read_named
from dflash.datasets.sources import THREE_WAYS, fetch_custom_rows, fetch_rows
from dflash.datasets.spec import DatasetSpec
from dflash.errors import MissingExtraError, UnavailableError, UsageError
from dflash.prompts import Prompt

CACHE_VARIABLE = "DFLASH_DATASETS_CACHE"

_CHOSEN_BY = f"--datasets-cache or {CACHE_VARIABLE}"
_NO_CACHE = f"do without: give its file by --dataset-file, or name a folder of such files in {FILES_VARIABLE}"


def datasets_cache_folder() -> Path:
    """`DFLASH_DATASETS_CACHE`, else a checkout's `datasets_cache/`, else a folder in the user's cache.

    An installed package never writes beside itself. A variable that is empty counts as none.

    Raises:
        UsageError: the variable names the home of somebody unknown.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return expand_path(chosen, CACHE_VARIABLE).absolute()
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
        UsageError: the file is not the data set, or cannot be read.
        OSError: what was fetched cannot be read.
    """
    if spec.shipped is not None:
        return (PACKAGE / spec.shipped).parent
    folder = folder_of(spec, custom, cache_folder)

    named = None if dataset_file is None else read_named(spec, dataset_file)

    def fetch(scratch: Path) -> Fetched:
        if named is not None:
            return named
        return fetch_custom_rows(custom, announce) if custom else fetch_rows(spec, scratch, announce)

    def build(partial: Path) -> Mapping[str, Any]:
        announce(f"fetching the data set {spec.name} into {cache_folder}")
        scratch = Path(tempfile.mkdtemp(prefix="download-", dir=partial))
        try:
            fetched = fetch(scratch)
            with _blaming(spec, fetched):
                facts = _write_rows(spec, fetched, partial / ROWS_NAME)
            for note in (*count_notes(spec, facts["num_prompts"], fetched.source), fetched.doubt):
                if note is not None:
                    announce(note)
            return facts
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def find_stale(manifest: Mapping[str, Any]) -> str | None:
        return _find_difference(spec, manifest) or (_find_altered(spec, manifest) if named is None else None)

    fault = find_fault(folder, hashes=True) if is_there(folder) else None
    unfit = f"cannot be used ({fault})" if fault else None
    if unfit is None and (manifest := read_manifest(folder)) is not None:
        unfit = find_stale(manifest)
    if unfit is not None and fault is None:
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
            is_current=lambda manifest: find_stale(manifest) is None,
            chosen_by=_CHOSEN_BY,
        )
    except UnavailableError as error:
        at_hand = f"{folder} {unfit}; " if unfit is not None else ""
        fault = f"the data set {spec.name} cannot be had: {at_hand}{error.fault}"
        mend = f"{error.mend}, or {_NO_CACHE}" if isinstance(error, FolderError) else error.mend
        raise UnavailableError(fault, mend) from error


def read_cached(folder: Path) -> Fetched:
    """The rows of a fetched data set, which is not verified here."""
    manifest = read_manifest(folder) or {}
    rows = _rows_of(folder / ROWS_NAME)
    return Fetched(rows, str(manifest.get("source")), manifest.get("revision"), manifest.get("doubt"))


def _rows_of(path: Path) -> Iterator[Row]:
    """The rows of the cache; it is read again where the folder has just been replaced by another process."""
    rows = iter_rows(path)
    try:
        first = next(rows)
    except UsageError as error:
        if not isinstance(error.__cause__, FileNotFoundError) or find_fault(path.parent) is not None:
            raise
        rows = iter_rows(path)
        first = next(rows)
    yield first
    yield from rows


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
    manifest = read_manifest(folder)
    return "is being replaced" if manifest is None else _find_difference(spec, manifest)


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
    num_rows = 0

    def passing() -> Iterator[Row]:
        nonlocal num_rows
        for row in checked_rows(rows, spec.columns, spec.name, label):
            num_rows += 1
            each(row)
            yield row

    return make_prompts(spec, passing(), label), num_rows


def count_notes(spec: DatasetSpec, num_prompts: int, label: str) -> tuple[str, ...]:
    """A line where rows make another number of prompts than the data set has, with the pin to look at."""
    if spec.num_rows is None or num_prompts == spec.num_rows:
        return ()
    pin = f" at the pinned revision {spec.revision}" if spec.revision else ""
    return (f"{label} gives {num_prompts} prompts, the data set {spec.name} has {spec.num_rows}{pin}",)


def _write_rows(spec: DatasetSpec, fetched: Fetched, path: Path) -> dict[str, Any]:
    with path.open("wb") as stream:

        def write(row: Row) -> None:
            stream.write(format_row({name: row[name] for name in row if name not in spec.unused_columns}))

        prompts, num_rows = make_counted_prompts(spec, fetched.rows, fetched.source, each=write)
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
        "doubt": fetched.doubt,
    }


@contextlib.contextmanager
def _blaming(spec: DatasetSpec, fetched: Fetched) -> Iterator[None]:
    """What is wrong with rows that a host gave unchecked is a fault of the host."""
    try:
        yield
    except MissingExtraError:
        raise
    except UsageError as error:
        if fetched.host is None:
            raise
        kept = f"remove {fetched.kept_in}, which the client keeps, and {THREE_WAYS}"
        fault = f"{fetched.host} gives something else than the data set {spec.name}: {error.fault}"
        raise UnavailableError(fault, kept if fetched.kept_in is not None else THREE_WAYS) from error


def _find_difference(spec: DatasetSpec, manifest: Mapping[str, Any]) -> str | None:
    """What makes a whole folder another one than `spec` asks for."""
    other = find_other_format(manifest)
    if other is not None:
        return other
    fault = find_facts_fault(spec, manifest)
    if fault is not None:
        return f"cannot be used ({fault})"
    if manifest["pin"] != spec.revision:
        return f"is of the pinned revision {manifest['pin']} and not {spec.revision}"
    # The rows of `custom` are whatever the hub has; which of their columns are read is no matter of the cache.
    if spec.name != CUSTOM and manifest["template_version"] != spec.template_version:
        return f"was made for the template {manifest['template_version']} and not {spec.template_version}"
    return None


def _find_altered(spec: DatasetSpec, manifest: Mapping[str, Any]) -> str | None:
    """That the rows are of a named file which is not the published one: they stay until the set is fetched."""
    if manifest["doubt"] is None or spec.name == CUSTOM or not published_digests(spec):
        return None
    return f"is of a {manifest['source']}, and {manifest['doubt']}"
