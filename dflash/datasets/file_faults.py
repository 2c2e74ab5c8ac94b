"""What can be wrong with a file of rows, in words, and what to do about it."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from dflash.errors import UsageError

CUT_SHORT = "the file may be cut short: fetch it again"  # where it began well, and ends where it is wrong
CORRECT = "correct it there"
OTHER_FILE = "name another file"
FORMATS = (
    "rows are read from JSON Lines (one object a line), a JSON list of objects, CSV (.csv, .tsv) or Parquet "
    "(.parquet): name such a file"
)
SHAPE = 'a row is an object, such as {"prompt": "…"} or {"turns": ["…", "…"]}'


def not_utf8(label: str, error: UnicodeDecodeError) -> UsageError:
    """The error for bytes that are no text; `label` is their place."""
    return UsageError(f"{label} is not UTF-8 text ({error.reason})", OTHER_FILE)


@contextlib.contextmanager
def read_faults(path: Path) -> Iterator[None]:
    """What reading a file raises, as `UsageError` that names it."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path} is a damaged gzip file ({error})", "fetch it again") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error})", OTHER_FILE) from error
