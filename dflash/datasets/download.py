"""Downloads over HTTPS: one attempt with short timeouts, checked by digest, and never onto a disk too small."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dflash.datasets.catalogue import LARGE_BYTES
from dflash.errors import UnavailableError
from dflash.reachability import find_unreachable, make_request, reason_of

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
READ_TIMEOUT_S = 20.0  # between two blocks of a file
_BLOCK_BYTES = 1 << 18


class NoSpaceError(UnavailableError):
    """The disk cannot hold what is to be fetched: no other source would help (exit code 4)."""


def download(url: str, target: Path, *, sha256: str | None, num_bytes: int | None) -> None:
    """Fetch one file, once.

    Raises:
        NoSpaceError: the disk of `target` has no space for it.
        UnavailableError: it cannot be reached, ends early, or is another file than that of the digest.
        OSError: `target` cannot be written.
    """
    import http.client
    import urllib.error
    import urllib.request

    label = f"{Path(unquote(urlsplit(url).path)).name} of {urlsplit(url).netloc}"
    if fault := find_unreachable(url):
        raise UnavailableError(f"{label} cannot be reached ({fault})")
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(make_request(url), timeout=READ_TIMEOUT_S) as response:
            size = num_bytes or int(response.headers.get("Content-Length") or 0)
            # the download, and the rows that are written from it
            check_free_space(target.parent, 2 * size)
            with target.open("wb") as stream, progress(target.name, size) as advance:
                while block := response.read(_BLOCK_BYTES):
                    stream.write(block)
                    digest.update(block)
                    advance(len(block))
    except urllib.error.HTTPError as error:
        raise UnavailableError(f"{label} cannot be had (status {error.code})") from error
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        raise UnavailableError(f"{label} cannot be had ({reason_of(error)})") from error
    if sha256 is not None and digest.hexdigest() != sha256:
        raise UnavailableError(f"{label} came with sha256 {digest.hexdigest()} and not {sha256}")


def check_free_space(folder: Path, num_bytes: int) -> None:
    """Refuse a download that the disk of `folder` (which may not be there yet) cannot hold.

    Raises:
        NoSpaceError: less than `num_bytes` are free.
    """
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < num_bytes:
        raise NoSpaceError(
            f"{format_size(num_bytes)} are needed in {folder}, and {format_size(free)} are free",
            "free some space, or choose another cache folder (--datasets-cache, DFLASH_DATASETS_CACHE)",
        )


def format_size(num_bytes: int) -> str:
    """In decimal units, as disks and downloads are sold."""
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes / 1000:.3g} kB"


@contextlib.contextmanager
def progress(name: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
    """A function that is told how many bytes have come; a bar where it takes long and a person looks on."""
    if not shows_progress(num_bytes):
        yield lambda num_bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=num_bytes)
        yield lambda num_bytes: bar.advance(task, num_bytes)


def shows_progress(num_bytes: int | None) -> bool:
    """Whether a download of this size is worth a bar, and there is a terminal to draw it on."""
    return is_large(num_bytes) and sys.stderr.isatty()


def is_large(num_bytes: int | None) -> bool:
    """Whether a download takes long enough to be announced."""
    return num_bytes is not None and num_bytes > LARGE_BYTES
