"""Folders that are built once, whole or not there, by one process at a time, and can be verified later.

A folder is built under a temporary name beside its place and then renamed, with a `manifest.json` that lists
every file (see `folder_manifest`). A build that is interrupted or killed leaves no folder; what it left under
the temporary name (SIGTERM and SIGKILL leave it) is removed by the next build.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dflash.errors import UnavailableError
from dflash.folder_manifest import (
    MANIFEST_FORMAT,
    MANIFEST_NAME,
    file_sha256,
    find_fault,
    is_there,
    read_manifest,
    write_manifest,
)

__all__ = [
    "MANIFEST_FORMAT",
    "MANIFEST_NAME",
    "Announce",
    "FolderError",
    "announce_on_stderr",
    "build_folder",
    "file_sha256",
    "find_fault",
    "is_there",
    "read_manifest",
]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_WRITABLE = (errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EIO)

Announce = Callable[[str], None]


class FolderError(UnavailableError):
    """The folder cannot be written: its disk is full, it is read-only, or something stands in its place."""


def announce_on_stderr(line: str) -> None:
    """Tell a person in one line; standard output belongs to results."""
    print(line, file=sys.stderr, flush=True)


def build_folder(
    folder: Path,
    build: Callable[[Path], Mapping[str, Any]],
    *,
    announce: Announce,
    replace: bool = False,
    hashes: bool = False,
    is_current: Callable[[Mapping[str, Any]], bool] = lambda manifest: True,
    chosen_by: str = "",
) -> Path:
    """Return `folder`, built by `build` unless a whole one is there already.

    Args:
        build: fills the empty folder it is given; returns what the manifest says besides the list of files.
        announce: told in one line what takes long or was found damaged.
        replace: build anew even where a whole folder is there; the old one stays until the new one is whole.
        hashes: verify the content of a folder that is there, not only its sizes.
        is_current: whether the folder with this manifest is the one wanted; if not, it is built anew.
        chosen_by: how the place of the folder is chosen, for the mend of an error.

    Raises:
        FolderError: the folder cannot be written (disk full, read-only).
        OSError: what `build` reads cannot be read.
    """
    if not replace and _is_usable(folder, is_current, hashes):
        return folder
    with _disk_faults(folder, chosen_by), _only_process(folder, announce):
        # Another process may have built it while this one waited.
        if not replace and _is_usable(folder, is_current, hashes):
            return folder
        fault = find_fault(folder, hashes=hashes)
        if is_there(folder) and fault:
            announce(f"{folder} cannot be used ({fault}) and is built anew")
        _remove_leftovers(folder)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
        try:
            write_manifest(partial, build(partial))
            partial.chmod(0o755)
            _move_into_place(partial, folder)
        finally:
            _remove(partial)
    return folder


def _is_usable(folder: Path, is_current: Callable[[Mapping[str, Any]], bool], hashes: bool) -> bool:
    if find_fault(folder, hashes=hashes):
        return False
    manifest = read_manifest(folder)
    return manifest is not None and is_current(manifest)


def _move_into_place(partial: Path, folder: Path) -> None:
    """Rename; what stands there is moved away first, since a folder that is not empty cannot be replaced."""
    if not is_there(folder):
        partial.rename(folder)
        return
    outgoing = partial.with_name(f".{folder.name}.{os.getpid()}.old.tmp")
    folder.rename(outgoing)
    try:
        partial.rename(folder)
    except BaseException:
        outgoing.rename(folder)
        raise
    _remove(outgoing)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed builds left (the lock is held). An old folder returns to its empty place."""
    for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
        is_folder = leftover.is_dir() and not leftover.is_symlink()
        if is_folder and leftover.name.endswith(".old.tmp") and not is_there(folder):
            leftover.rename(folder)
        else:
            _remove(leftover)


def _remove(path: Path) -> None:
    """A folder with all that is in it, a file, or a link (and not what it points to)."""
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _only_process(folder: Path, announce: Announce) -> Iterator[None]:
    """Hold the lock of `folder`. The system drops it when its holder ends, however that comes about."""
    import fcntl

    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f".{folder.name}.lock"
    # Not emptied: a link may lead anywhere. Not waited for: a pipe may stand there.
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            raise OSError(errno.EEXIST, "its lock is no regular file: remove it", str(path))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(f"another process is building {folder.name}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _disk_faults(folder: Path, chosen_by: str) -> Iterator[None]:
    chosen = f" ({chosen_by})" if chosen_by else ""
    try:
        yield
    except OSError as error:
        if not _is_of_folder(error, folder):  # what was read while building failed, not the folder
            raise
        if error.errno in _FULL:
            mend = f"free some space or choose another cache folder{chosen}"
        else:
            mend = f"choose a cache folder that can be written{chosen}"
        raise FolderError(f"cannot write {folder}: {error.strerror or error}", mend) from error


def _is_of_folder(error: OSError, folder: Path) -> bool:
    """Whether it is about the folder, its parents, or what a build writes beside it."""
    if error.filename is None:  # a write, which knows no name
        return error.errno in (*_FULL, *_NOT_WRITABLE)
    if not isinstance(error.filename, str | bytes):  # the number of an open file
        return True
    path = Path(os.fsdecode(error.filename))
    if folder.is_relative_to(path):
        return True
    if not path.is_relative_to(folder.parent):
        return False
    name = path.relative_to(folder.parent).parts[0]
    return name == folder.name or name.startswith(f".{folder.name}.")
