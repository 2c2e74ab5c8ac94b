"""Where things that were fetched or built once are kept. Never inside an installed package."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "DFLASH_CACHE"


def user_cache_folder() -> Path:
    """`DFLASH_CACHE`, else `dflash` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`)."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG rules say that a relative path is to be ignored.
    parent = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return parent / "dflash"
