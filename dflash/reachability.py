"""Whether a host can be reached, found out within seconds and asked once a process; every room may use it.

Clients of the model hub ask a host that is not there again and again, for over a minute.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import urllib.request

REACH_TIMEOUT_S = 4.0  # to connect and to answer a request for nothing
_GATEWAY_FAULTS = (502, 503, 504)

_unreachable: dict[str, str | None] = {}  # by scheme and host: why, or None; asked once a process


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


def find_unreachable_hub(location: str) -> str | None:
    """Why the model hub cannot be asked for `location`, naming its address, or None.

    None too for a folder, which needs no hub, and with `HF_HUB_OFFLINE`, of which the hub's client knows itself.
    """
    if Path(location).expanduser().is_dir():
        return None
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return None
    fault = find_unreachable(constants.ENDPOINT)
    return None if fault is None else f"the model hub {constants.ENDPOINT} cannot be reached: {fault}"


def local_files_only_if_unreachable(location: str) -> dict[str, bool]:
    """Arguments of `from_pretrained`: only what is at hand, where the model hub cannot be asked for `location`."""
    return {} if find_unreachable_hub(location) is None else {"local_files_only": True}


@contextlib.contextmanager
def quiet_hub() -> Iterator[None]:
    """No log lines of the hub's client: every retry is one, and the last reason is in its error."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def reason_of(error: BaseException) -> str:
    """What happened, in one line; a name where the error says nothing."""
    inner = getattr(error, "reason", None)
    if isinstance(inner, BaseException):
        error = inner
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(str(text).split())[:300] or type(error).__name__


def make_request(url: str, method: str = "GET") -> urllib.request.Request:
    """A request that says who asks."""
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
        opener.open(make_request(url, "HEAD"), timeout=REACH_TIMEOUT_S).close()
    except urllib.error.HTTPError as error:
        return f"status {error.code}" if error.code in _GATEWAY_FAULTS else None
    except (http.client.HTTPException, OSError, ValueError) as error:
        if isinstance(getattr(error, "reason", error), ssl.SSLError):
            return None
        return reason_of(error)
    return None
