"""Downloads over HTTPS: one attempt with short timeouts, checked by digest, and never onto a disk too small."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dflash.datasets.catalogue import LARGE_BYTES
from dflash.errors import UnavailableError

if TYPE_CHECKING:
    import urllib.request


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REACH_TIMEOUT_S = 4.0  # to connect and to answer a request for nothing
READ_TIMEOUT_S = 20.0  # between two blocks of a file
_GATEWAY_FAULTS = (502, 503, 504)
_BLOCK_BYTES = 1 << 18

_unreachable: dict[str, str | None] = {}  # by scheme and host: why, or None; asked once a process


class NoSpaceError(UnavailableError):
    """The disk cannot hold what is to be fetched: no other source would help (exit code 4)."""


def find_unreachable(url: str) -> str | None:
    """Why the host of `url` cannot be reached, in a few words, or None; asked once a process.

    Whatever a host answers, it is reached, but for a gateway that says that it reached nobody. So is one whose
    certificate is not accepted here: other clients bring certificates of their own.
    """
    host = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    if host not in _unreachable:
        answer: list[str | None] = []
        # Looking up a name can hang for longer than any timeout of a connection.
        asking = threading.Thread(target=lambda: answer.append(_ask(url)), daemon=True)
        asking.start()
        asking.join(REACH_TIMEOUT_S + 1)
        _unreachable[host] = answer[0] if answer else f"no answer in {REACH_TIMEOUT_S + 1:g} s"
    return _unreachable[host]


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
        with urllib.request.urlopen(_request(url), timeout=READ_TIMEOUT_S) as response:
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


def reason_of(error: BaseException) -> str:
    """What happened, in one line; a name where the error says nothing."""
    inner = getattr(error, "reason", None)
    if isinstance(inner, BaseException):
        error = inner
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(str(text).split())[:300] or type(error).__name__


def _request(url: str, method: str = "GET") -> urllib.request.Request:
    import urllib.request

    return urllib.request.Request(url, method=method, headers={"User-Agent": "dflash"})


def _ask(url: str) -> str | None:
    import http.client
    import ssl
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *arguments: Any, **options: Any) -> None:
            return None

    opener = urllib.request.build_opener(NoRedirect)
    try:
        opener.open(_request(url, "HEAD"), timeout=REACH_TIMEOUT_S).close()
    except urllib.error.HTTPError as error:
        return f"status {error.code}" if error.code in _GATEWAY_FAULTS else None
    except (http.client.HTTPException, OSError, ValueError) as error:
        if isinstance(getattr(error, "reason", error), ssl.SSLError):
            return None
        return reason_of(error)
    return None
