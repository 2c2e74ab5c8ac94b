"""One HTTP client for every server backend: JSON requests, and streams whose packets are stamped as they arrive.

Stamps are `time.perf_counter_ns`: of a packet, when it arrived (see `arrival_stamps`), not when its turn came. A
request is repeated only while the server has refused it (connection refused, 429, 503), never once it has begun to
answer; the waiting is counted and lies inside the request's own time, so that a server that refuses does not look
faster. Keys and header values are in no message, log, or repr.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

import aiohttp
import orjson

from dflash.backends.arrival_stamps import StampedConnections
from dflash.backends.deadline import Deadline
from dflash.backends.http_answer import (
    MAX_ERROR_BODY_BYTES,
    HttpAnswer,
    StreamResult,
    check_stream,
    read_at_most,
    read_whole,
    retry_after_s,
)
from dflash.backends.http_secrets import Secrets
from dflash.backends.http_settings import HttpSettings, authorization, proxy_for
from dflash.backends.sse import DONE, SseParser, read_document, server_message
from dflash.backends.stream_ends import StreamEnds
from dflash.errors import RequestError

READ_BUFFER_BYTES = 4 * 1024 * 1024  # above this the client would hold the server back
MAX_HEADER_BYTES = 64 * 1024
KEEP_ALIVE_S = 3.0  # below the 5 s after which the engines' servers close an idle connection: no race for it
SPARE_CONNECTIONS = 4  # so that reading a counter does not wait for a stream to end
DNS_CACHE_S = 3600  # a look-up in the middle of a run would be part of some request's time

# Takes an event's arrival (ns) and its JSON object; says whether the event brought the answer on, by a token or by
# its end: only such events are waited for. May raise RequestError.
Consume = Callable[[int, dict[str, Any]], bool]
T = TypeVar("T")


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
        self._ends = StreamEnds(settings.max_connections)
        self._proxy = proxy_for(settings.base_url) if settings.trust_env else None
        self.secrets = Secrets(settings, self._proxy)

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
            RequestError: what `consume` raises; a timeout (see `HttpSettings`); `connection_refused`,
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
                with self.hiding_secrets():
                    await check_stream(response)
                    num_events, done = await self._read_events(response, consume, deadline)
            except BaseException:
                response.close()  # at once: a server that is not listened to stops generating
                raise
        # What follows [DONE] is no part of the answer: no limit of the request holds for it, and nobody waits for it.
        ended_ns = time.perf_counter_ns()
        if done:
            await self._ends.add(response)
        else:
            response.release()
        return StreamResult(sent_ns, attempt_sent_ns, ended_ns, num_retries, num_events, done)

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
                content = await read_whole(response, f"{method} {path}")
            finally:
                response.close()
        content = self.secrets.hide_in_bytes(content)
        return HttpAnswer(response.status, content, sent_ns, time.perf_counter_ns(), num_retries)

    async def get_json(self, path: str, *, timeout_s: float | None = None, retry: bool = True) -> Any:
        """As `fetch`, read as JSON."""
        answer = await self.fetch("GET", path, timeout_s=timeout_s, retry=retry)
        with self.hiding_secrets():
            return answer.document()

    async def post_json(
        self, path: str, body: object, *, timeout_s: float | None = None, retry: bool = True
    ) -> Any:
        """As `fetch`, read as JSON."""
        answer = await self.fetch("POST", path, body, timeout_s=timeout_s, retry=retry)
        with self.hiding_secrets():
            return answer.document()

    async def get_text(self, path: str, *, timeout_s: float | None = None, retry: bool = True) -> str:
        """As `fetch`, read as text."""
        return (await self.fetch("GET", path, timeout_s=timeout_s, retry=retry)).text()

    async def aclose(self) -> None:
        """Close all connections; safe to call twice."""
        session, self._session = self._session, None
        await self._ends.aclose()
        if session is not None:
            await session.close()

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            settings = self.settings
            # the next request does not wait for the last one's connection
            limit = 2 * settings.max_connections + SPARE_CONNECTIONS if settings.max_connections else 0
            headers = {"User-Agent": "dflash", **settings.headers}
            if value := authorization(settings):
                headers["Authorization"] = value
            connections = StampedConnections()
            connector = aiohttp.TCPConnector(
                limit=limit,
                socket_factory=connections.make_socket,
                ssl=settings.verify_tls,
                keepalive_timeout=KEEP_ALIVE_S,
                ttl_dns_cache=DNS_CACHE_S,
            )
            # aiohttp has no public place for this; where it has not this one either, packets are stamped when read
            connector._factory = connections.make_connection  # type: ignore[assignment]
            self._session = aiohttp.ClientSession(
                connector=connector,
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
            body = await read_at_most(response, MAX_ERROR_BODY_BYTES)
        finally:
            response.close()
        message = self.secrets.hide(server_message(self.secrets.hide_in_bytes(body)))
        reason = self.secrets.hide(response.reason or "")
        fault = f"{method} {path} was answered with {response.status} {reason}".rstrip()
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
        parser, num_events = SseParser(), 0
        between_s = self.settings.timeouts.between_chunks_s
        connection = response.connection.protocol if response.connection is not None else None
        try:
            while packet := await response.content.readany():
                is_brought_on = False
                arrival_ns = getattr(connection, "arrival_ns", None) or time.perf_counter_ns()
                for event in parser.feed(packet, arrival_ns):
                    if event.data == DONE:
                        return num_events, True
                    data = self.secrets.hide_in_bytes(event.data)
                    document = read_document(event if data is event.data else event._replace(data=data))
                    if document is not None:
                        num_events += 1
                        is_brought_on = consume(event.arrival_ns, document) or is_brought_on
                if is_brought_on:  # empty chunks without end are no answer
                    deadline.expect("chunk_timeout", between_s, "the next chunk with a token, or the end")
        except aiohttp.ClientError:
            raise RequestError("stream_cut", f"the connection broke after {num_events} events") from None
        parser.close()
        return num_events, False

    @contextmanager
    def hiding_secrets(self) -> Iterator[None]:
        """Where an error that is raised may repeat what the server said."""
        try:
            yield
        except RequestError as error:
            raise RequestError(error.kind, self.secrets.hide(error.fault), error.mend) from None


class _Refused(Exception):  # noqa: N818 (an outcome within this module, not an error that leaves it)
    """An attempt that may be repeated, after `wait_s` where the server named a time."""

    def __init__(self, error: RequestError, wait_s: float | None) -> None:
        self.error = error
        self.wait_s = wait_s
        super().__init__(error.kind)
