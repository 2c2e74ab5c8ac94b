"""Folders that are built once, whole or not there, by one process at a time, and can be verified later.

A folder is built under a temporary name beside its place and then renamed, with a `manifest.json` that lists
every file. A build that is interrupted or killed leaves no folder; what it left under the temporary name is
removed by the next build.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from dflash.errors import UnavailableError

MANIFEST_NAME = "manifest.json"
MANIFEST_FORMAT = 1
_BLOCK_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_WRITABLE = (errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EIO)

Announce = Callable[[str], None]


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
        UnavailableError: the folder cannot be written (disk full, read-only).
    """
    if not replace and _is_usable(folder, is_current, hashes):
        return folder
    with _disk_faults(folder, chosen_by), _only_process(folder, announce):
        # Another process may have built it while this one waited.
        if not replace and _is_usable(folder, is_current, hashes):
            return folder
        fault = find_fault(folder, hashes=hashes)
        if folder.exists() and fault:
            announce(f"{folder} cannot be used ({fault}) and is built anew")
        _remove_leftovers(folder)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
        try:
            _write_manifest(partial, build(partial))
            partial.chmod(0o755)
            _move_into_place(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder, or None where there is no readable one of this format."""
    return _read_manifest(folder)[0]


def _read_manifest(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The manifest, or None and what is wrong with it."""
    unreadable = f"no readable {MANIFEST_NAME}"
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None, unreadable
    if not isinstance(manifest, dict):
        return None, unreadable
    number = manifest.get("format")
    if isinstance(number, int) and number > MANIFEST_FORMAT:
        return (
            None,
            f"{MANIFEST_NAME} has format {number} of a newer version, this one writes {MANIFEST_FORMAT}",
        )
    files = manifest.get("files")
    if number != MANIFEST_FORMAT or not isinstance(files, dict):
        return None, unreadable
    if not all(_is_file_entry(entry) for entry in files.values()):
        return None, unreadable
    return manifest, ""


def _is_file_entry(entry: object) -> bool:
    return isinstance(entry, dict) and {"num_bytes", "sha256"} <= entry.keys()


def find_fault(folder: Path, *, hashes: bool = False) -> str | None:
    """What is wrong with a built folder, in a few words, or None.

    Sizes are compared at every use, which costs nothing; the content only with `hashes`.
    """
    manifest, fault = _read_manifest(folder)
    if manifest is None:
        return fault
    for name, facts in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != facts["num_bytes"]:
            return f"{name} has {path.stat().st_size} bytes and not {facts['num_bytes']}"
        if hashes and file_sha256(path) != facts["sha256"]:
            return f"{name} has another sha256 than when it was written"
    return None


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex digits.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _is_usable(folder: Path, is_current: Callable[[Mapping[str, Any]], bool], hashes: bool) -> bool:
    if find_fault(folder, hashes=hashes):
        return False
    manifest = read_manifest(folder)
    return manifest is not None and is_current(manifest)


def _write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        path.chmod(0o644)
    files = {
        path.relative_to(folder).as_posix(): {"num_bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in paths
    }
    manifest = {"format": MANIFEST_FORMAT, **facts, "files": files}
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")


def _move_into_place(partial: Path, folder: Path) -> None:
    """Rename; an old folder is moved away first, since one that is not empty cannot be replaced at once."""
    if not folder.exists():
        partial.rename(folder)
        return
    outgoing = partial.with_name(f".{folder.name}.{os.getpid()}.old.tmp")
    folder.rename(outgoing)
    try:
        partial.rename(folder)
    except BaseException:
        outgoing.rename(folder)
        raise
    shutil.rmtree(outgoing, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed builds left (the lock is held). An old folder returns to its empty place."""
    for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
        if leftover.name.endswith(".old.tmp") and not folder.exists():
            leftover.rename(folder)
        else:
            shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def _only_process(folder: Path, announce: Announce) -> Iterator[None]:
    """Hold the lock of `folder`. The system drops it when its holder ends, however that comes about."""
    import fcntl

    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(f"another process is building {folder.name}: waiting for it")
            _wait_for(lock)
        yield


def _wait_for(lock: IO[str]) -> None:
    import fcntl

    fcntl.flock(lock, fcntl.LOCK_EX)


@contextlib.contextmanager
def _disk_faults(folder: Path, chosen_by: str) -> Iterator[None]:
    chosen = f" ({chosen_by})" if chosen_by else ""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            mend = f"free some space or choose another cache folder{chosen}"
        elif error.errno in _NOT_WRITABLE:
            mend = f"choose a cache folder that can be written{chosen}"
        else:  # what was read while building failed, not the folder
            raise
        raise UnavailableError(f"cannot write {folder}: {error.strerror or error}", mend) from error
