"""Files that are either whole or not there; what is no regular file is written straight into."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

_MODE = 0o644
_MAX_LINKS = 40
_PREFIX_CHARS = 50  # of the name, so that the partial file's own is never too long


def write_file(path: Path, data: bytes) -> Path:
    """Replace the content of `path` in one step, so that a reader never sees half a file.

    A regular file keeps its mode, and a symbolic link stays: its target is replaced. Anything else that exists (a
    device, a pipe, a file that this process has open, as in `/dev/stdout`) is written into and never replaced.

    Raises:
        OSError: it cannot be written, under the name that was given; no partial file is left behind.
    """
    try:
        _write(path, data)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def _write(path: Path, data: bytes) -> None:
    descriptor = _own_descriptor(path)
    if descriptor is not None:
        _write_into(os.dup(descriptor), data)
        return
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG | _MODE
    if stat.S_ISREG(mode):
        _replace(Path(os.path.realpath(path)), data, stat.S_IMODE(mode))
    else:
        _write_into(os.open(path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0)), data)


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Write beside `path` and move into place."""
    prefix = f".{path.name[:_PREFIX_CHARS]}."
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=path.parent)
    partial = Path(name)
    try:
        _write_into(descriptor, data)
        partial.chmod(mode)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write_into(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def _own_descriptor(path: Path) -> int | None:
    """The number behind `/dev/stdout` or `/dev/fd/63`: where a shell's redirection goes, whatever that is."""
    folders = {"/dev/fd", "/proc/self/fd", f"/proc/{os.getpid()}/fd"}
    for _ in range(_MAX_LINKS):
        folder = Path(os.path.realpath(path.parent))
        if str(folder) in folders and path.name.isdecimal():
            return int(path.name)
        path = folder / path.name
        if not path.is_symlink():
            return None
        path = folder / path.readlink()
    return None
