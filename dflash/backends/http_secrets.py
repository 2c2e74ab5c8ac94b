"""The one gate for what a server says: keys, passwords and header values that it repeats are hidden there.

A server, or a proxy that shows what it was sent, may repeat a key anywhere: in an error, a model's name, a finish
reason, a label of its counters, the answer itself. So bodies and events are searched as they come, before they are
read.
"""

from __future__ import annotations

import html
import json
from urllib.parse import quote, urlsplit

from dflash.backends.http_settings import HttpSettings, authorization
from dflash.command_secrets import is_secret_name

MIN_SECRET_CHARS = 6  # of a header's value: shorter ones, as in `X-Mode: fast`, are words
# In bodies only what no engine says by itself is looked for: with `--api-key vllm` the counters had other names, with
# `--header "X-Model: NAME"` the model. So it must be long, and be called a secret.
MIN_CHARS_IN_BODIES = 8
HIDDEN = "[hidden]"


class Secrets:
    """What must be in no message, note or record.

    Args:
        proxy: its address, with the credentials for it.
    """

    def __init__(self, settings: HttpSettings, proxy: str | None) -> None:
        base, sent = settings.base_url, (authorization(settings) or "").rpartition(" ")[2]
        keys = {settings.api_key, base.password or base.user, sent, urlsplit(proxy or "").password}
        values: set[str] = set()
        for name, value in settings.headers.items():
            parts = {part for part in (value, *value.split()) if len(part) >= MIN_SECRET_CHARS}
            values |= parts
            if is_secret_name(name) or name.lower() == "cookie":
                keys |= parts
        found = {key for key in keys if key}
        self._in_messages = sorted(found | values, key=len, reverse=True)  # one may be part of another
        long = [key for key in sorted(found, key=len, reverse=True) if len(key) >= MIN_CHARS_IN_BODIES]
        self._in_bodies = tuple(dict.fromkeys(form for key in long for form in _forms(key)))

    def hide(self, text: str) -> str:
        """A message without them, also where one is cut off at the message's end."""
        for secret in self._in_messages:
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


def _forms(secret: str) -> tuple[bytes, ...]:
    """A secret as it may be written."""
    as_json = [json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True)]
    with_slashes = [form.replace("/", "\\/") for form in as_json]
    forms = (secret, *as_json, *with_slashes, html.escape(secret), quote(secret, safe=""))
    return tuple(form.encode() for form in forms)
