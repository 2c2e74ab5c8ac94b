"""The manifest of a built folder: what it says of its files and of itself, and whether that still holds.

It is `manifest.json`: facts of the builder, the size and digest of every file, and a digest of all this, so that
no bit of it changes unseen. Whatever stands in the folder's place is looked at, and never waited for.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

MANIFEST_NAME = "manifest.json"
MANIFEST_FORMAT = 1
FACTS_DIGEST = "facts_sha256"  # in the manifest: the digest of the rest of it
_BLOCK_BYTES = 1 << 20
_SHA256_DIGITS = 64
_LOOKS, _BETWEEN_LOOKS_S = 50, 0.02
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder, or None where there is no readable one of this format."""
    return _settled(folder, lambda: _read_manifest(folder))[0]


def find_fault(folder: Path, *, hashes: bool = False) -> str | None:
    """What is wrong with a built folder, in a few words, or None.

    Sizes and the manifest are compared at every use, which costs nothing; the content of the files only with
    `hashes`. A folder that is being replaced at the moment is looked at again.
    """
    return _settled(folder, lambda: (None, _find_fault(folder, hashes)))[1] or None


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the manifest of all that is in `folder`.

    Raises:
        OSError: it cannot be written.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        path.chmod(0o644)
    files = {
        path.relative_to(folder).as_posix(): {"num_bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in paths
    }
    manifest = {"format": MANIFEST_FORMAT, **facts, "files": files}
    text = json.dumps({**manifest, FACTS_DIGEST: facts_sha256(manifest)}, indent=2, ensure_ascii=False)
    # what is no text (a file name may be any bytes) is written as its escape, which JSON reads back
    (folder / MANIFEST_NAME).write_bytes(f"{text}\n".encode(errors="backslashreplace"))


def facts_sha256(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest without its own digest, in hex digits; the order of its keys does not matter."""
    facts = {name: value for name, value in manifest.items() if name != FACTS_DIGEST}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a regular file, in hex digits.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. A pipe or a device could make the reader wait for ever: it is refused at once.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    _check_regular(path, path.stat())
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_regular(path, os.fstat(file))  # another one may have come into its place
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def is_there(path: Path) -> bool:
    """Whether anything stands there: a link to nothing too, and what cannot be looked at."""
    try:
        path.lstat()
    except OSError as error:
        return error.errno not in _NOT_THERE
    return True


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "it is a folder" if stat.S_ISDIR(status.st_mode) else "it is a pipe, a socket or a device"
        raise OSError(errno.EINVAL, f"no regular file: {kind}", str(path))


def _settled(
    folder: Path, look: Callable[[], tuple[dict[str, Any] | None, str]]
) -> tuple[dict[str, Any] | None, str]:
    """What `look` finds. Between the two renames of a replacement there is no folder: then it looks again."""
    for _ in range(_LOOKS):
        with _held(folder) as before:
            manifest, fault = look()
            is_same = _identity(folder) == before
        if not fault or (is_same and not _is_on_its_way_out(folder, before)):
            break
        time.sleep(_BETWEEN_LOOKS_S)
    return manifest, fault


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[tuple[int, int] | None]:
    """The identity of the folder that stands there now, held open: meanwhile no other one can be given it."""
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # nothing there, no folder, or one that may not be listed
        yield _identity(folder)
        return
    try:
        status = os.fstat(file)
        yield status.st_dev, status.st_ino
    finally:
        os.close(file)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_on_its_way_out(folder: Path, identity: tuple[int, int] | None) -> bool:
    if identity is not None:
        return False
    try:
        return any(folder.parent.glob(f".{folder.name}.*.old.tmp"))
    except OSError:  # a parent that cannot be looked into
        return False


def _read_manifest(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The manifest and "", or None and what is wrong with it."""
    unreadable = f"no readable {MANIFEST_NAME}"
    try:
        with open_regular(folder / MANIFEST_NAME) as stream:
            manifest = json.loads(stream.read().decode("utf-8"))
    except PermissionError as error:
        return None, f"{unreadable}: {error.strerror}"
    except (OSError, ValueError, RecursionError):
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
    if not all(_is_inside(name) and _is_file_entry(entry) for name, entry in files.items()):
        return None, unreadable
    if FACTS_DIGEST in manifest and manifest[FACTS_DIGEST] != facts_sha256(manifest):
        return None, f"{MANIFEST_NAME} is not as it was written"
    return manifest, ""


def _is_inside(name: str) -> bool:
    return bool(name) and not name.startswith("/") and ".." not in name.split("/") and "\0" not in name


def _is_file_entry(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    num_bytes, sha256 = entry.get("num_bytes"), entry.get("sha256")
    is_size = type(num_bytes) is int and num_bytes >= 0
    return is_size and isinstance(sha256, str) and len(sha256) == _SHA256_DIGITS


def _find_fault(folder: Path, hashes: bool) -> str:
    manifest, fault = _read_manifest(folder)
    if manifest is None:
        return fault
    for name, facts in manifest["files"].items():
        path = folder / name
        try:
            with open_regular(path) as stream:  # whether it may be read is looked at too
                num_bytes = os.fstat(stream.fileno()).st_size
            if num_bytes != facts["num_bytes"]:
                return f"{name} has {num_bytes} bytes and not {facts['num_bytes']}"
            if hashes and file_sha256(path) != facts["sha256"]:
                return f"{name} has another sha256 than when it was written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"
    return ""
