"""Rows of a data set with what is known of where they came from."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dflash.datasets.files import Row


@dataclass(frozen=True, slots=True)
class Fetched:
    """The rows of a data set, read as they are asked for, and where they came from."""

    rows: Iterable[Row]
    source: str  # for people
    revision: str | None  # commit of the source, or the digest of the file
    doubt: str | None = None  # why they are not known to be the published rows
    host: str | None = None  # who gave them unchecked: what is wrong with them is no fault of the user's
    kept_in: Path | None = None  # what the host gave, in the cache of its client


def name_of(path: Path) -> str:
    """The name of a file as text that can be written anywhere."""
    return text_of_path(Path(path.name))


def text_of_path(path: Path) -> str:
    """A path as text that can be written anywhere: bytes of it that are no UTF-8 are written out."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
