"""One HTTP client for every server backend: JSON requests, and streams whose packets are stamped as they arrive.

Stamps are `time.perf_counter_ns` when the event loop hands a packet over. A request is repeated only while the
server has refused it (connection refused, 429, 503), never once it has begun to answer; the waiting is counted and
lies inside the request's own time, so that a server that refuses does not look faster. Keys and header values are
in no message, log, or repr.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import math
import os
import re
import time
import urllib.request
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timezone
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import aiohttp
import orjson

from dflash.backends.sse import DONE, SseEvent, SseParser, one_line, read_document, server_message
from dflash.errors import RequestError, UsageError

READ_BUFFER_BYTES = 4 * 1024 * 1024  # above this the client would hold the server back
MAX_HEADER_BYTES = 64 * 1024
MAX_ERROR_BODY_BYTES = 64 * 1024
KEEP_ALIVE_S = 3.0  # below the 5 s after which the engines' servers close an idle connection: no race for it
SPARE_CONNECTIONS = 4  # so that reading a counter does not wait for a stream to end
MIN_SECRET_CHARS = 6  # of a header's value: shorter ones, as in `X-Mode: fast`, are words
DNS_CACHE_S = 3600  # a look-up in the middle of a run would be part of some request's time
DRAIN_S = 1.0  # how long to wait for the end of a stream that has said [DONE], to keep its connection

# Takes an event's arrival (ns) and its JSON object; says whether the event carried a token. May raise RequestError.
Consume = Callable[[int, dict[str, Any]], bool]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """Seconds; None waits for ever. Each has a `RequestError` kind of its own, `total_timeout` among them."""

    connect_s: float | None = 10.0  # `connect_timeout`: name, connection, TLS handshake
    first_token_s: float | None = 300.0  # `first_token_timeout`: from sending to the first token
    between_chunks_s: float | None = 120.0  # `chunk_timeout`: between two events after the first token
    total_s: float | None = None  # `total_timeout`: the whole request, retries included


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """What a client is made from.

    Raises:
        UsageError: a key or header that cannot be sent, or two authorizations.
    """

    base_url: BaseUrl
    max_connections: int = 0  # requests in flight at most; 0: no limit
    timeouts: HttpTimeouts = HttpTimeouts()
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


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer (status 2xx)."""

    status: int
    body: bytes = field(repr=False)
    sent_ns: int = 0  # of the first attempt
    received_ns: int = 0  # its last byte
    num_retries: int = 0

    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace")

    def document(self) -> Any:
        """The answer read as JSON.

        Raises:
            RequestError: `bad_answer`: it is none.
        """
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise RequestError(
                "bad_answer", f"the server's answer is no JSON: {one_line(self.text())}"
            ) from None


@dataclass(frozen=True, slots=True)
class StreamResult:
    """What the transport knows of a stream that ended well."""

    sent_ns: int  # of the first attempt: a wait for a server that refused is part of the request
    attempt_sent_ns: int  # of the attempt that was answered
    ended_ns: int
    num_retries: int
    num_events: int  # [DONE] and empty events left out
    done: bool  # whether the server said [DONE]


class HttpClient:
    """A session with one server, opened at the first request, inside the event loop that makes it.

    Args:
        sleep: waits between retries.
    """

    def __init__(
        self, settings: HttpSettings, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self.settings = settings
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None
        self._proxy = proxy_for(settings.base_url) if settings.trust_env else None
        self._secrets = _secrets(settings, self._proxy)

    def __repr__(self) -> str:
        return f"HttpClient({self.settings.base_url.url!r})"

    def stamps(self) -> dict[str, Any]:
        """The settings that a result is stamped with: no address, key, or header among them."""
        settings = self.settings
        return {
            "verify_tls": settings.verify_tls,
            "proxy": self._proxy is not None,
            "timeouts": asdict(settings.timeouts),
            "retries": asdict(settings.retries),
        }

    async def stream(self, path: str, body: object, consume: Consume) -> StreamResult:
        """POST `body` as JSON and hand every event of the answer to `consume` as it arrives.

        Raises:
            RequestError: what `consume` raises; a timeout (see `HttpTimeouts`); `connection_refused`,
                `connection_failed`, `tls_failed`, `disconnected`; `http_NNN`: the server's refusal in its own words;
                `not_a_stream`; `bad_event`: garbage or an event too large; `server_error`: an error within the
                stream; `stream_cut`: the connection broke, or the stream ended, before its end.
        """
        timeouts, payload = self.settings.timeouts, orjson.dumps(body)
        sent_ns = attempt_sent_ns = time.perf_counter_ns()

        async def attempt() -> aiohttp.ClientResponse:
            nonlocal attempt_sent_ns
            deadline.expect("first_token_timeout", timeouts.first_token_s, "the first token")
            attempt_sent_ns = time.perf_counter_ns()
            return await self._send("POST", path, payload, "text/event-stream")

        with Deadline(timeouts.total_s, "the end of the answer") as deadline:
            response, num_retries = await self._retrying(attempt, deadline)
            try:
                await _check_stream(response)
                num_events, done = await self._read_events(response, consume, deadline)
            except RequestError as error:
                response.close()
                raise self._without_secrets(error) from None
            except BaseException:
                response.close()  # at once: a server that is not listened to stops generating
                raise
            response.release()
        return StreamResult(sent_ns, attempt_sent_ns, time.perf_counter_ns(), num_retries, num_events, done)

    async def fetch(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        timeout_s: float | None = None,
        retry: bool = True,
    ) -> HttpAnswer:
        """One request whose whole answer is wanted, within `timeout_s` (default: that of the first token).

        Raises:
            RequestError: as `stream`.
        """
        limit_s = self.settings.timeouts.first_token_s if timeout_s is None else timeout_s
        payload = None if body is None else orjson.dumps(body)
        sent_ns = time.perf_counter_ns()
        with Deadline(limit_s, f"the answer to {method} {path}") as deadline:
            response, num_retries = await self._retrying(
                lambda: self._send(method, path, payload, "*/*"), deadline, retry=retry
            )
            try:
                content = await response.read()
            except aiohttp.ClientError:
                raise RequestError("stream_cut", f"the answer to {method} {path} broke off") from None
            finally:
                response.close()
        return HttpAnswer(response.status, content, sent_ns, time.perf_counter_ns(), num_retries)

    async def get_json(self, path: str, *, timeout_s: float | None = None, retry: bool = True) -> Any:
        """As `fetch`, read as JSON."""
        return (await self.fetch("GET", path, timeout_s=timeout_s, retry=retry)).document()

    async def post_json(
        self, path: str, body: object, *, timeout_s: float | None = None, retry: bool = True
    ) -> Any:
        """As `fetch`, read as JSON."""
        return (await self.fetch("POST", path, body, timeout_s=timeout_s, retry=retry)).document()

    async def get_text(self, path: str, *, timeout_s: float | None = None, retry: bool = True) -> str:
        """As `fetch`, read as text."""
        return (await self.fetch("GET", path, timeout_s=timeout_s, retry=retry)).text()

    async def aclose(self) -> None:
        """Close all connections; safe to call twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            settings = self.settings
            limit = settings.max_connections + SPARE_CONNECTIONS if settings.max_connections else 0
            headers = {"User-Agent": "dflash", **settings.headers}
            if authorization := _authorization(settings):
                headers["Authorization"] = authorization
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=limit,
                    ssl=settings.verify_tls,
                    keepalive_timeout=KEEP_ALIVE_S,
                    ttl_dns_cache=DNS_CACHE_S,
                ),
                headers=headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, connect=settings.timeouts.connect_s),
                trust_env=False,  # it would also send what ~/.netrc holds; the proxy is given with each request
                read_bufsize=READ_BUFFER_BYTES,
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
            )
        return self._session

    async def _send(
        self, method: str, path: str, payload: bytes | None, accept: str
    ) -> aiohttp.ClientResponse:
        """One attempt, up to the head of a good answer.

        Raises:
            RequestError: see `stream`.
            _Refused: the server may be asked again.
        """
        url = self.settings.base_url.url + path
        headers = {"Accept": accept, "Accept-Encoding": "identity"}  # compression would hold tokens back
        if payload is not None:
            headers["Content-Type"] = "application/json"
        try:
            response = await self._open_session().request(
                method, url, data=payload, headers=headers, proxy=self._proxy, allow_redirects=False
            )
        except aiohttp.ServerTimeoutError:
            waited = f"waited {self.settings.timeouts.connect_s:g} s"
            raise RequestError(
                "connect_timeout", f"no connection to {self.settings.base_url.url}: {waited}"
            ) from None
        except aiohttp.ClientError as error:
            raise self._connection_error(error) from None
        if 200 <= response.status < 300:
            return response
        try:
            message = self._hide(server_message(await _read_at_most(response, MAX_ERROR_BODY_BYTES)))
        finally:
            response.close()
        fault = f"{method} {path} was answered with {response.status} {response.reason or ''}".rstrip()
        refusal = RequestError(f"http_{response.status}", f"{fault}: {message}" if message else fault)
        if response.status in (429, 503):
            raise _Refused(refusal, retry_after_s(response.headers.get("Retry-After")))
        raise refusal

    def _connection_error(self, error: aiohttp.ClientError) -> Exception:
        """What to raise instead of `error`, whose own text and request may hold headers."""
        url = self.settings.base_url.url
        if isinstance(error, aiohttp.ClientSSLError):
            mend = "trust its certificate, or turn verification off"
            return RequestError("tls_failed", f"no safe connection to {url} ({type(error).__name__})", mend)
        if isinstance(error, aiohttp.ClientConnectorError):
            reason = error.os_error.strerror or "no such host"
            by = " by the proxy" if isinstance(error, aiohttp.ClientProxyConnectionError) else ""
            if error.os_error.errno == errno.ECONNREFUSED:
                fault = f"the connection to {url} was refused{by}"
                return _Refused(RequestError("connection_refused", fault, "is the server running?"), None)
            return RequestError("connection_failed", f"no connection to {url}{by}: {reason}")
        if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
            return RequestError("disconnected", f"{url} closed the connection before it answered")
        return RequestError(
            "bad_answer", f"{url} does not answer in HTTP as it should ({type(error).__name__})"
        )

    async def _retrying(
        self, attempt: Callable[[], Awaitable[T]], deadline: Deadline, *, retry: bool = True
    ) -> tuple[T, int]:
        """The first good answer and how many retries it took."""
        policy, loop = self.settings.retries, asyncio.get_running_loop()
        max_retries, num_retries, started = policy.max_retries if retry else 0, 0, loop.time()
        while True:
            try:
                return await attempt(), num_retries
            except _Refused as refused:
                wait_s = refused.wait_s
                if wait_s is None:
                    wait_s = policy.first_wait_s * 2**num_retries
                error = refused.error
                is_late = loop.time() - started + wait_s > policy.max_total_s
                if num_retries >= max_retries or is_late:
                    tried = f" (retries: {num_retries}"
                    tried += f"; {wait_s:g} s more would pass {policy.max_total_s:g} s)" if is_late else ")"
                    raise RequestError(error.kind, error.fault + tried, error.mend) from None
            num_retries += 1
            deadline.expect("total_timeout", None, "")
            await self._sleep(wait_s)

    async def _read_events(
        self, response: aiohttp.ClientResponse, consume: Consume, deadline: Deadline
    ) -> tuple[int, bool]:
        """(events handed to `consume`, whether [DONE] was said)."""
        parser, num_events, has_token = SseParser(), 0, False
        between_s = self.settings.timeouts.between_chunks_s
        try:
            while packet := await response.content.readany():
                num_before = num_events
                for event in parser.feed(packet, time.perf_counter_ns()):
                    if event.data == DONE:
                        await _drain(response)
                        return num_events, True
                    document = read_document(event)
                    if document is not None:
                        num_events += 1
                        has_token = consume(event.arrival_ns, document) or has_token
                if has_token and num_events > num_before:
                    deadline.expect("chunk_timeout", between_s, "the next chunk")
        except aiohttp.ClientError:
            raise RequestError("stream_cut", f"the connection broke after {num_events} events") from None
        parser.close()
        return num_events, False

    def _without_secrets(self, error: RequestError) -> RequestError:
        return RequestError(error.kind, self._hide(error.fault), error.mend)

    def _hide(self, text: str) -> str:
        """The text without keys, passwords and header values, also where one is cut off at the text's end."""
        for secret in self._secrets:
            text = text.replace(secret, "[hidden]")
            for length in range(len(secret) - 1, MIN_SECRET_CHARS - 1, -1):
                text = text.removesuffix(secret[:length] + "…")
        return text


class Deadline:
    """Cancels the task that runs inside it when its time is over, and then raises a `RequestError` in its place.

    `expect` moves the time without a new timer, so that it may be called for every packet. Timers of a task
    of its own for each read, as `asyncio.wait_for` makes them, would cost more than reading does.
    """

    def __init__(self, total_s: float | None, awaited: str) -> None:
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._total = (math.inf if total_s is None else now + total_s, "total_timeout", total_s, awaited)
        self._current = self._total
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    def expect(self, kind: str, seconds: float | None, awaited: str) -> None:
        """From now on allow `seconds` (None: no limit but the total) for `awaited`."""
        at = math.inf if seconds is None else self._loop.time() + seconds
        self._current = min((at, kind, seconds, awaited), self._total, key=lambda limit: limit[0])
        if self._timer is None or self._timer.when() > self._current[0]:
            self._arm()

    def __enter__(self) -> Deadline:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._num_cancels = task.cancelling() if hasattr(task, "cancelling") else 0
        self._arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._expired:
            return
        # Python 3.10 cannot tell a cancel from outside that comes in the same moment.
        outside = self._task.uncancel() > self._num_cancels if hasattr(self._task, "uncancel") else False
        if not outside and isinstance(error, asyncio.CancelledError):
            _, name, seconds, awaited = self._current
            raise RequestError(name, f"waited {seconds:g} s for {awaited}") from None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (
            None if math.isinf(self._current[0]) else self._loop.call_at(self._current[0], self._fire)
        )

    def _fire(self) -> None:
        self._timer = None
        if self._loop.time() < self._current[0]:  # it was moved meanwhile
            self._arm()
            return
        self._expired = True
        self._task.cancel()


class _Refused(Exception):  # noqa: N818 (an outcome within this module, not an error that leaves it)
    """An attempt that may be repeated, after `wait_s` where the server named a time."""

    def __init__(self, error: RequestError, wait_s: float | None) -> None:
        self.error = error
        self.wait_s = wait_s
        super().__init__(error.kind)


def parse_base_url(text: str) -> BaseUrl:
    """A server's address as a person writes it: scheme, trailing slash and trailing `/v1` may be there or not.

    Raises:
        UsageError: it is no http or https address; no password in it is shown.
    """
    text = text.strip()
    shown = text.split("?")[0].split("#")[0].rpartition("@")[2]  # without credentials
    mend = "write it as http://HOST:PORT, an IPv6 address in brackets"
    try:
        parts = urlsplit(text if "://" in text else f"http://{text.removeprefix('//')}")
        host, port = parts.hostname, parts.port
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


def retry_after_s(value: str | None, now_s: float | None = None) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or as an HTTP date; None where it is neither.

    Args:
        now_s: the time of day, in seconds since 1970 (default: now).
    """
    value = (value or "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=timezone.utc)
    return max(0.0, date.timestamp() - (time.time() if now_s is None else now_s))


async def _check_stream(response: aiohttp.ClientResponse) -> None:
    """Refuse an answer that is no event stream.

    Raises:
        RequestError: `not_a_stream`, or `server_error` where the answer is an error in spite of its status.
    """
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        fault = f"the stream is compressed ({one_line(encoding)}), which holds tokens back"
        raise RequestError("not_a_stream", fault, "turn compression off in the server or proxy")
    if "Content-Type" not in response.headers or response.content_type == "text/event-stream":
        return
    body = await _read_at_most(response, MAX_ERROR_BODY_BYTES)
    with suppress(orjson.JSONDecodeError):
        orjson.loads(body)
        read_document(SseEvent(0, body))
    fault = f"a stream was asked for, {response.content_type} came: {server_message(body)}"
    raise RequestError("not_a_stream", fault)


async def _read_at_most(response: aiohttp.ClientResponse, num_bytes: int) -> bytes:
    """The first bytes of a body; of one that breaks off, what came."""
    pieces, left = [], num_bytes
    with suppress(aiohttp.ClientError):
        while left > 0 and (piece := await response.content.read(left)):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read a stream that has said [DONE] to its end, so that its connection can be used again."""
    try:
        with Deadline(DRAIN_S, "the end of the stream"):
            while await response.content.readany():
                pass
    except (RequestError, aiohttp.ClientError):
        response.close()


def _is_header_value(text: str) -> bool:
    return text == text.strip() and text.isprintable()


def _authorization(settings: HttpSettings) -> str | None:
    base = settings.base_url
    if settings.api_key is not None:
        return f"Bearer {settings.api_key}"
    if base.user is None:
        return None
    return f"Basic {b64encode(f'{base.user}:{base.password or str()}'.encode()).decode()}"


def _secrets(settings: HttpSettings, proxy: str | None) -> tuple[str, ...]:
    """What must be in no message, the longest first."""
    base, sent = settings.base_url, (_authorization(settings) or "").rpartition(" ")[2]
    found = {settings.api_key, base.password or base.user, sent, urlsplit(proxy or "").password}
    for value in settings.headers.values():
        found |= {part for part in (value, *value.split()) if len(part) >= MIN_SECRET_CHARS}
    return tuple(sorted((secret for secret in found if secret), key=len, reverse=True))
