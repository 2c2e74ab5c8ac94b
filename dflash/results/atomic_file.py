"""Files that are either whole or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_MODE = 0o644


def write_file(path: Path, data: bytes) -> Path:
    """Write beside `path` and move into place, so that a reader never sees half a file.

    Raises:
        OSError: the folder cannot be written; nothing is left behind.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        partial.chmod(_MODE)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return path
