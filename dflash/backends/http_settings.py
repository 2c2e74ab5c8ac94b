"""What the HTTP client is made from: where a server is, who asks, how long it is waited for. Nothing is sent here."""

from __future__ import annotations

import ipaddress
import os
import re
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from dflash.backends.base import RequestTimeouts
from dflash.command_secrets import hide_in_address
from dflash.errors import UsageError

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a refusing server is asked again."""

    max_retries: int = 3
    max_total_s: float = 30.0  # from the first attempt
    first_wait_s: float = 0.5  # doubles with every retry; a Retry-After of the server takes its place


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """Where a server is. `url` has no trailing slash, no `/v1` and no credentials."""

    url: str
    host: str
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or {"http": 80, "https": 443}[parts.scheme]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """What a client is made from.

    Each limit of `timeouts` has a `RequestError` kind of its own: `connect_timeout` (name, connection, TLS handshake),
    `first_token_timeout` (from sending to the first token), `chunk_timeout` (between two events after it),
    `total_timeout` (the whole request, retries included).

    Raises:
        UsageError: a key or header that cannot be sent, or two authorizations.
    """

    base_url: BaseUrl
    max_connections: int = 0  # requests in flight at most; 0: no limit
    timeouts: RequestTimeouts = field(default_factory=RequestTimeouts)
    retries: RetryPolicy = RetryPolicy()
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify_tls: bool = True
    trust_env: bool = False  # use the proxy that the environment names; never for this machine itself

    def __post_init__(self) -> None:
        own = {
            "accept",
            "accept-encoding",
            "connection",
            "content-length",
            "content-type",
            "host",
            "transfer-encoding",
        }
        for name, value in self.headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not _is_header_value(value):
                raise UsageError(f"header {name!r} cannot be sent", "give it as NAME: VALUE, on one line")
            if name.lower() in own:
                raise UsageError(f"header {name!r} is set by the client itself", "leave it out")
        if self.api_key is not None and not (self.api_key and _is_header_value(self.api_key)):
            raise UsageError("the API key cannot be sent", "give it without blanks around it and on one line")
        has_header = any(name.lower() == "authorization" for name in self.headers)
        if has_header + (self.api_key is not None) + (self.base_url.user is not None) > 1:
            raise UsageError(
                "there is more than one authorization",
                "give one of an API key, an Authorization header, user@host",
            )


def parse_base_url(text: str) -> BaseUrl:
    """A server's address as a person writes it: scheme, trailing slash and trailing `/v1` may be there or not.

    Raises:
        UsageError: it is no http or https address; no password in it is shown.
    """
    text = text.strip()
    shown = text.rpartition("@")[2].split("?")[0].split("#")[0]  # without credentials
    mend = "write it as http://HOST:PORT, an IPv6 address in brackets"
    try:
        parts = urlsplit(text if "://" in text else f"http://{text.removeprefix('//')}")
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # refuses empty parts and those of more than 63 characters
    except ValueError:
        raise UsageError(f"{shown!r} is no server address", mend) from None
    if parts.scheme not in ("http", "https") or not host or re.search(r"[\s\\]", text):
        raise UsageError(f"{shown!r} is no server address", mend)
    if parts.query or parts.fragment:
        raise UsageError(
            f"the server address {shown!r} has a query or a fragment", "leave out what follows the path"
        )
    user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    if user is not None and ":" in user:
        raise UsageError(
            f"the user name in the address of {shown!r} holds a colon", "give the key another way"
        )
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    address = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    return BaseUrl(f"{parts.scheme}://{address}{path}", host, user, password)


def server_address(base_url: BaseUrl) -> str:
    """Which server an address means: the same however it is written, as far as that is known without a look-up.

    `localhost` and the usual addresses of this machine are one host, and the port is always there.
    """
    parts = urlsplit(base_url.url)
    host = "localhost" if base_url.host in _THIS_MACHINE else base_url.host
    host = f"[{host}]" if ":" in host else host
    return hide_in_address(f"{parts.scheme}://{host}:{base_url.port}{parts.path}")


def read_api_key(
    setting: str | None, variable: str | None, environment: Mapping[str, str] = os.environ
) -> str | None:
    """The key that was given, else the one in the environment variable `variable`; None where neither is named.

    Raises:
        UsageError: the variable is named but not set.
    """
    if setting is not None or variable is None:
        return setting
    if not environment.get(variable):
        raise UsageError(
            f"the environment variable {variable} holds no API key", f"set {variable}, or do not name it"
        )
    return environment[variable]


def proxy_for(base_url: BaseUrl) -> str | None:
    """The proxy that the environment names for a server; None for this machine itself and where there is none."""
    if is_this_machine(base_url.host) or urllib.request.proxy_bypass(base_url.host):
        return None
    return urllib.request.getproxies().get(base_url.url.partition(":")[0])


def is_this_machine(host: str) -> bool:
    """Whether a name or address means the machine that asks, without a look-up."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _is_header_value(text: str) -> bool:
    return text == text.strip() and text.isprintable()


def authorization(settings: HttpSettings) -> str | None:
    """The value of the Authorization header, where the settings themselves do not bring one."""
    base = settings.base_url
    if settings.api_key is not None:
        return f"Bearer {settings.api_key}"
    if base.user is None:
        return None
    return f"Basic {b64encode(f'{base.user}:{base.password or str()}'.encode()).decode()}"
