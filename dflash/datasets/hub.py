"""Data sets from the model hub: files of the catalogue at a pinned revision, and any data set by its id.

No loader script is run and no pickle is read. Endpoint and token are those of the hub's client (`HF_ENDPOINT`,
`HF_TOKEN`).
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.built_folder import Announce
from dflash.datasets.download import (
    FULL,
    NoSpaceError,
    check_free_space,
    format_size,
    is_large,
    shows_progress,
)
from dflash.datasets.files import Row, plain_row
from dflash.datasets.spec import HubSource
from dflash.errors import UnavailableError, UsageError
from dflash.reachability import find_unreachable, reason_of

if TYPE_CHECKING:
    from dflash.datasets.custom import CustomSource

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REFUSED = (401, 403)
_NOT_ROWS = ("Audio", "Image", "Pdf", "Video", "Nifti")  # features that would be decoded, and are no text


def fetch_hub_files(hub: HubSource, folder: Path, announce: Announce) -> tuple[list[Path], str | None]:
    """The files of a source, in its order, and the commit that they are of.

    They stay in the cache of the hub's client; members of archives are put into `folder`. A pinned file that is
    there is taken without asking the hub; `HF_HUB_OFFLINE` leaves that cache alone to be asked.

    Args:
        hub: what to fetch.
        folder: for what is unpacked; its disk must have space for the rows that will be written.
        announce: told in one line of a large download.

    Raises:
        UnavailableError: the hub cannot be reached, has no such file, refuses it, or gives another commit than
            the pinned one; or its client does not start.
    """
    _check_client(hub.dataset_id)
    at_hand = all(_at_hand(hub, _archive_of(name), hub.revision) for name in hub.files)
    if hub.num_bytes is not None and not at_hand and not _is_offline():
        for place in (_client_cache(), folder):
            check_free_space(place, hub.num_bytes)
        if is_large(hub.num_bytes) and find_unreachable(endpoint()) is None:
            announce(f"downloading {hub.dataset_id}: {format_size(hub.num_bytes)}")
    commit, paths = hub.revision, []
    for number, name in enumerate(hub.files):
        path = _fetch_file(hub, _archive_of(name), commit)
        found = _commit_of(path)
        if commit is not None and found not in (commit, None):
            raise _other_commit(f"{name} of {hub.dataset_id}", found, commit)
        commit = commit or found
        _, _, member = name.partition(":")
        if member:
            path = _extract(path, member, folder / f"{number}-{Path(member).name}")
        paths.append(path)
    return paths, commit


def iter_custom_rows(source: CustomSource, split: str, commit: str | None) -> Iterator[Row]:
    """The rows of any data set on the hub. Images and sounds are left out of them.

    Raises:
        UnavailableError: it cannot be had; the reason is the hub library's.
    """
    import datasets

    assert source.hub_id is not None
    with _hub_faults(source.hub_id), _quiet(bars=sys.stderr.isatty()):
        table = datasets.load_dataset(
            source.hub_id, source.hub_config, split=split, revision=commit, **_no_code(datasets)
        )
        features = getattr(table, "features", None) or {}
        unreadable = [name for name, kind in features.items() if type(kind).__name__ in _NOT_ROWS]
        for row in table.remove_columns(unreadable) if unreadable else table:
            yield plain_row(row)


def resolve_custom(source: CustomSource) -> tuple[str, str | None]:
    """The split (that of the source, else test, else train) and the commit of a data set on the hub.

    Returns:
        The commit is None where the hub cannot be asked and what is at hand is taken (`HF_HUB_OFFLINE`).

    Raises:
        UsageError: the data set has neither of the splits.
        UnavailableError: the hub cannot be reached or does not give it.
    """
    hub_id, commit = str(source.hub_id), source.hub_revision
    _check_client(hub_id)
    fault = None if _is_offline() else find_unreachable(endpoint())
    if fault is not None:
        raise UnavailableError(f"{hub_id} cannot be had from the model hub ({fault})")
    import datasets
    from huggingface_hub import HfApi

    with _hub_faults(hub_id), _quiet(bars=False):
        if not _is_offline():
            found = HfApi().dataset_info(hub_id, revision=commit, timeout=10).sha
            if commit is not None and _COMMIT.fullmatch(commit) and found != commit:
                raise _other_commit(hub_id, found, commit)
            commit = found
        if source.hub_split is not None:
            return source.hub_split, commit
        splits = datasets.get_dataset_split_names(
            hub_id, source.hub_config, revision=commit, **_no_code(datasets)
        )
    for split in ("test", "train"):
        if split in splits:
            return split, commit
    raise UsageError(
        f"{hub_id} has neither a split test nor train", f"choose one of {', '.join(map(str, splits))}"
    )


def _fetch_file(hub: HubSource, name: str, commit: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    at_hand = _at_hand(hub, name, commit)
    if commit is not None and at_hand is not None:
        return at_hand
    # What no commit pins is asked for even where it is at hand: there may be a newer one.
    offline = (
        "HF_HUB_OFFLINE is set, and it is not in the cache of the hub's client" if _is_offline() else None
    )
    fault = offline or find_unreachable(endpoint())
    if fault is None:
        with _hub_faults(hub.dataset_id), _quiet(bars=shows_progress(hub.num_bytes)):
            return Path(hf_hub_download(hub.dataset_id, name, repo_type="dataset", revision=commit))
    if at_hand is None:
        raise UnavailableError(f"{hub.dataset_id} cannot be had from the model hub ({fault})")
    return at_hand


def _at_hand(hub: HubSource, name: str, commit: str | None) -> Path | None:
    """A file in the cache of the hub's client, which is not asked to look elsewhere."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(hub.dataset_id, name, revision=commit, repo_type="dataset")
    if not isinstance(path, str):
        return None
    # The client believes a host that calls one commit by the name of another, and keeps it under both.
    is_other = commit is not None and _commit_of(Path(path)) not in (commit, None)
    return None if is_other else Path(path)


def _archive_of(name: str) -> str:
    """The file of the repository: "archive:member" is a file inside of one."""
    return name.partition(":")[0]


def _extract(archive: Path, member: str, target: Path) -> Path:
    try:
        with (
            zipfile.ZipFile(archive) as opened,
            opened.open(member) as source,
            target.open("wb") as stream,
        ):
            shutil.copyfileobj(source, stream, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise UnavailableError(
            f"{archive.name} from the model hub holds no readable {member} ({reason_of(error)})",
            f"remove {archive} and fetch it again",
        ) from error
    return target


def _commit_of(path: Path) -> str | None:
    """The commit, as the hub's client names the folder in which it keeps a file."""
    parts = path.parts
    places = [
        number
        for number, part in enumerate(parts[:-1])
        if part == "snapshots" and parts[number - 1].startswith("datasets--")
    ]
    return parts[places[0] + 1] if places else None


def _other_commit(what: str, found: str | None, commit: str) -> UnavailableError:
    return UnavailableError(
        f"{endpoint()} gives {what} at the commit {found} and not at the pinned {commit}",
        "name another mirror in HF_ENDPOINT, or unset it",
    )


def _check_client(dataset_id: str) -> None:
    """The hub's client reads its settings when it is imported.

    Raises:
        UnavailableError: it cannot.
    """
    try:
        importlib.import_module("huggingface_hub.constants")
    except Exception as error:
        raise UnavailableError(
            f"{dataset_id} cannot be had from the model hub (its client does not start: HF_ENDPOINT, or another "
            f"variable that is named HF_…, is wrong: {reason_of(error)})",
            "correct it, or unset it",
        ) from error


def _client_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def endpoint() -> str:
    """The address of the model hub, or of the mirror that `HF_ENDPOINT` names."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _no_code(datasets: Any) -> dict[str, Any]:
    """Versions that could run code of a data set ask on the terminal unless they are told not to."""
    return {"trust_remote_code": False} if int(datasets.__version__.split(".")[0]) < 4 else {}


@contextlib.contextmanager
def _hub_faults(dataset_id: str) -> Iterator[None]:
    """The libraries raise from several trees: offline, refused, not found, proxy, script, damaged …."""
    try:
        yield
    except UnavailableError:
        raise
    except Exception as error:
        causes = list(_chain(error))
        if any(getattr(cause, "errno", None) in FULL for cause in causes):
            raise NoSpaceError(
                f"no space is left to fetch {dataset_id}", "free some in the hub's cache (HF_HOME)"
            ) from error
        statuses = [getattr(getattr(cause, "response", None), "status_code", None) for cause in causes]
        refused = next((status for status in statuses if status in _REFUSED), None)
        if refused is not None:
            fault = (
                f"{dataset_id} is not given by the model hub (status {refused}): an account that accepted its "
                "terms and a token of it (HF_TOKEN) are needed, or there is no such data set"
            )
        else:
            fault = f"{dataset_id} cannot be had from the model hub ({reason_of(causes[-1])})"
        raise UnavailableError(fault) from error


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


@contextlib.contextmanager
def _quiet(*, bars: bool) -> Iterator[None]:
    """No log lines (every retry is one; the last reason is in the error), and progress bars only where wanted."""
    libraries = [library for library in map(sys.modules.get, ("huggingface_hub", "datasets")) if library]
    loggers = [logging.getLogger(library.__name__) for library in libraries]
    levels = [logger.level for logger in loggers]
    shown = [
        library.utils for library in libraries if not bars and not library.utils.are_progress_bars_disabled()
    ]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    for progress_bars in shown:
        progress_bars.disable_progress_bars()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for progress_bars in shown:
            progress_bars.enable_progress_bars()
