"""The temporary folder that one program runs in, and what is left of those whose owner was killed.

The owner of a folder holds a lock on it (on the folder itself: the program finds it empty), which the system
drops when the owner ends, however that comes about. What nobody holds is a leftover.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PREFIX = "dflash-code-"


@contextmanager
def program_folder() -> Iterator[str]:
    """An empty folder, by its absolute path without links; it is removed at the end.

    Raises:
        OSError: none can be made.
    """
    with ExitStack() as stack:
        lock = None
        while lock is None:  # a sweep may have come between making and locking
            folder = os.path.realpath(tempfile.mkdtemp(prefix=PREFIX))
            try:
                lock = _lock(folder)
            except OSError:  # a file system without locks, where none is swept either
                break
        if lock is not None:
            stack.callback(os.close, lock)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def sweep_program_folders() -> None:
    """Remove the folders of programs, of this user, that no living process holds."""
    with suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            with suppress(OSError):
                if path.lstat().st_uid != os.getuid():
                    continue
                lock = _lock(str(path))
                if lock is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(lock)


def _lock(folder: str) -> int | None:
    """The open and locked folder; None where another process holds it, or it is gone.

    Raises:
        OSError: it cannot be opened or locked.
    """
    import fcntl

    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), os.lstat(folder)):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(file)
        raise
    os.close(file)
    return None
