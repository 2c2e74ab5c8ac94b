"""A folder whose permissions bind the tests, also where they are run by root, whom none bind."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NOBODY = 65534


@contextlib.contextmanager
def folder_of_bound_user() -> Iterator[Path]:
    """A new folder, and until the end only its owner's permissions. Import before what is to be used inside."""
    folder = Path(tempfile.mkdtemp(prefix="dflash-test-"))
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(folder, _NOBODY, -1)
        os.seteuid(_NOBODY)
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir():
                path.chmod(0o700)
        shutil.rmtree(folder)
