"""The one gate for what a server says: keys, passwords and header values that it repeats are hidden there.

A server, or a proxy that shows what it was sent, may repeat a key anywhere: in an error, a model's name, a finish
reason, a label of its counters, the answer itself. So bodies and events are searched as they come, before they are
read.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from urllib.parse import quote, urlsplit

from dflash.backends.http_settings import HttpSettings, authorization

MIN_SECRET_CHARS = 6  # of a header's value: shorter ones, as in `X-Mode: fast`, are words
# In whole bodies only what no engine says by itself is searched: with `--api-key vllm` the counters have other names.
MIN_CHARS_IN_BODIES = 8
HIDDEN = "[hidden]"


class Secrets:
    """What must be in no message, note or record.

    Args:
        secrets: the longest first.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = tuple(secrets)
        long = [secret for secret in self._secrets if len(secret) >= MIN_CHARS_IN_BODIES]
        self._in_bodies = tuple(dict.fromkeys(form for secret in long for form in _forms(secret)))

    def hide(self, text: str) -> str:
        """A message without them, also where one is cut off at the message's end."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
            for length in range(len(secret) - 1, MIN_SECRET_CHARS - 1, -1):
                text = text.removesuffix(secret[:length] + "…")
        return text

    def hide_in_bytes(self, body: bytes) -> bytes:
        """What came from a server without them, also as JSON, HTML or an address writes them."""
        for form in self._in_bodies:
            if form in body:
                body = body.replace(form, HIDDEN.encode())
        return body

    def hide_in_text(self, text: str) -> str:
        """The same of an answer whose pieces came one by one."""
        return self.hide_in_bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def secrets_of(settings: HttpSettings, proxy: str | None) -> tuple[str, ...]:
    """What must be in no message, the longest first."""
    base, sent = settings.base_url, (authorization(settings) or "").rpartition(" ")[2]
    found = {settings.api_key, base.password or base.user, sent, urlsplit(proxy or "").password}
    for value in settings.headers.values():
        found |= {part for part in (value, *value.split()) if len(part) >= MIN_SECRET_CHARS}
    return tuple(sorted((secret for secret in found if secret), key=len, reverse=True))


def _forms(secret: str) -> tuple[bytes, ...]:
    """A secret as it may be written."""
    as_json = [json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True)]
    with_slashes = [form.replace("/", "\\/") for form in as_json]
    forms = (secret, *as_json, *with_slashes, html.escape(secret), quote(secret, safe=""))
    return tuple(form.encode() for form in forms)
