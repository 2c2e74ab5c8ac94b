"""Files of data sets at hand: one that the user names, or one in the folder of `DFLASH_DATASETS_DIR`.

The catalogue knows the digests of most published files: it is said of every file whether it is one of them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import dflash
from dflash.cache_folder import expand_path
from dflash.datasets.catalogue import CATALOGUE, CUSTOM
from dflash.datasets.fetched import Fetched, name_of
from dflash.datasets.files import iter_rows
from dflash.datasets.spec import DatasetSpec, PublishedFile
from dflash.errors import UsageError
from dflash.folder_manifest import file_sha256

FILES_VARIABLE = "DFLASH_DATASETS_DIR"
PACKAGE = Path(dflash.__file__).resolve().parent


def read_named(spec: DatasetSpec, path: Path) -> Fetched:
    """The rows of a file that the user names.

    Raises:
        UsageError: it cannot be read, or is the published file of another data set.
    """
    digest = _digest(path)
    _refuse_other_set(spec, path, digest)
    source = f"file {name_of(path)}"
    return Fetched(iter_rows(path), source, f"sha256:{digest}", find_doubt(spec, digest, name_of(path)))


def read_published(spec: DatasetSpec, path: Path) -> Fetched:
    """The rows of a file that `find_published` found.

    Raises:
        UsageError: it cannot be read, or is the published file of another data set under this one's name.
    """
    digest, name = _digest(path), name_of(path)
    _refuse_other_set(spec, path, digest)
    source = f"file {name} of {FILES_VARIABLE}"
    return Fetched(iter_rows(path), source, f"sha256:{digest}", find_doubt(spec, digest, name))


def read_shipped(spec: DatasetSpec) -> Fetched:
    """The rows of a data set that this package holds."""
    assert spec.shipped is not None
    path = PACKAGE / spec.shipped
    return Fetched(iter_rows(path), "shipped with dflash", f"sha256:{_digest(path)}")


def published_digests(spec: DatasetSpec) -> tuple[str, ...]:
    """SHA-256 of every file that is known to hold the data set; none: no digest is known."""
    if spec.shipped is not None:
        return (_digest(PACKAGE / spec.shipped),)
    return tuple(file.sha256 for file in spec.files if file.sha256)


def find_doubt(spec: DatasetSpec, digest: str, name: str) -> str | None:
    """Why the rows of a file are not known to be the published ones, in a sentence, or None."""
    if spec.name == CUSTOM:  # rows of the user's own
        return None
    known = published_digests(spec)
    if not known:
        return (
            f"whether these rows are the published ones could not be checked: {name} was taken as it is, and no "
            f"digest of a published file of {spec.name} is known"
        )
    if digest in known:
        return None
    return (
        f"these rows are not the published ones as far as is known: {name} has the sha256 {digest}, the published "
        f"file of {spec.name} has {' or '.join(known)}"
    )


def find_published(spec: DatasetSpec) -> tuple[Path | None, str | None]:
    """The data set's original file in the folder that `DFLASH_DATASETS_DIR` names.

    It is looked for by its path, then under any name up to two levels deep by its size and digest.

    Returns:
        The file or None, and what is wrong with the file in its place that was not taken.

    Raises:
        UsageError: the variable names no folder.
    """
    named = os.environ.get(FILES_VARIABLE)
    if not named:
        return None, None
    folder = expand_path(named, FILES_VARIABLE)
    if not _holds(folder.is_dir):
        raise UsageError(f"{FILES_VARIABLE} names {named}, which is no folder", "correct it, or unset it")
    fault = None
    for file in spec.files:
        path = folder / file.path
        if not _holds(path.is_file):
            continue
        try:
            found = file_sha256(path)
        except OSError as error:
            fault = f"{file.path} in {FILES_VARIABLE} cannot be read ({error.strerror or error})"
            continue
        if file.sha256 is None or found == file.sha256:
            return path, None
        fault = f"{file.path} in {FILES_VARIABLE} is not as published: its sha256 is {found} and not {file.sha256}"
    path_by_content = _find_by_content(folder, spec.files)
    return (path_by_content, None) if path_by_content else (None, fault)


def _find_by_content(folder: Path, files: Iterable[PublishedFile]) -> Path | None:
    digests = {file.num_bytes: file.sha256 for file in files if file.num_bytes and file.sha256}
    if not digests:
        return None
    try:
        paths = sorted(itertools.chain(folder.glob("*"), folder.glob("*/*")))
    except OSError:
        return None
    for path in paths:
        try:
            expected = digests.get(path.stat().st_size) if path.is_file() else None
            if expected and file_sha256(path) == expected:
                return path
        except OSError:  # not to be read, so not to be used
            continue
    return None


def _holds(test: Callable[[], bool]) -> bool:
    """Whether a path is what it is tested for; one that may not be looked at is not."""
    try:
        return test()
    except OSError:
        return False


def _refuse_other_set(spec: DatasetSpec, path: Path, digest: str) -> None:
    if spec.name == CUSTOM or digest in published_digests(spec):
        return
    for other in CATALOGUE.values():
        if digest in published_digests(other):
            raise UsageError(
                f"{name_of(path)} is not the data set {spec.name}: that is the file of {other.name}",
                f"name {other.name}, or the file of {spec.name}",
            )


def _digest(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error})", "name another file") from error
