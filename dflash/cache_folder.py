"""Where things that were fetched or built once are kept. Never inside an installed package."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dflash.errors import UsageError

CACHE_VARIABLE = "DFLASH_CACHE"


def user_cache_folder() -> Path:
    """`DFLASH_CACHE`, else `dflash` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`).

    A variable that is empty counts as none.

    Raises:
        UsageError: it names the home of somebody unknown, or this user has no home.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return expand_path(chosen, CACHE_VARIABLE).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG rules say that a relative path is to be ignored.
    if base and Path(base).is_absolute():
        return Path(base) / "dflash"
    try:
        return Path.home() / ".cache" / "dflash"
    except RuntimeError as error:
        raise UsageError(
            "this user has no home folder to keep things in", f"name a folder in {CACHE_VARIABLE}"
        ) from error


def parse_folder(text: str) -> Path:
    """The folder that an argument names.

    Raises:
        argparse.ArgumentTypeError: it is empty, which a path would take for the working folder.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: name a folder, or leave it out")
    return Path(text)


def expand_path(text: str, named_by: str) -> Path:
    """The path that a setting names, with the home folder in the place of `~` or `~user`.

    Raises:
        UsageError: it is not known whose home that is.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"{named_by} names {text}, and it is not known whose home folder that is", "write out the path"
        ) from error
