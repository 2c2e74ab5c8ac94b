"""A server's own counters around one stretch of load: read when it begins, read again until they stand still.

Counters are evidence beside what the requests themselves say. Where they cannot be read the window says why, and
the measurement goes on.
"""

from __future__ import annotations

from dataclasses import fields
from urllib.parse import urlsplit

from dflash.backends.base import BackendSettings, ServerWindow
from dflash.backends.http import HttpClient
from dflash.backends.http_settings import HttpSettings, parse_base_url
from dflash.backends.prometheus import (
    MAX_WAIT_S,
    QUIET_S,
    MetricsSnapshot,
    SettledReading,
    SpecDecodeCounters,
    difference,
    parse_metrics,
    read_settled,
)
from dflash.errors import RequestError
from dflash.results.records import CountersState, PrefixCacheState

METRICS_PATH = "/metrics"
READ_TIMEOUT_S = 10.0
NOT_OFFERED = ("http_404", "http_405", "http_501")
WINDOW_FIELDS = frozenset(field.name for field in fields(ServerWindow))


class CountersWindow:
    """The counters of one server.

    Args:
        client: of the server that makes the tokens.
        settings: for a client of its own, where the counters are elsewhere. The key and headers of the first server
            are not shown to another host.
        metrics_url: address of the counters; without a path, `/metrics` there. None: `/metrics` of the server.
        quiet_s: how long counters must stand still.
        max_wait_s: how long that is waited for.
    """

    def __init__(
        self,
        client: HttpClient,
        settings: BackendSettings,
        metrics_url: str | None,
        *,
        quiet_s: float = QUIET_S,
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        self._own_client: HttpClient | None = None
        self._client, self._path = client, METRICS_PATH
        if metrics_url is not None:
            self._own_client, self._path = _metrics_client(client, settings, metrics_url)
            self._client = self._own_client
        self._quiet_s, self._max_wait_s = quiet_s, max_wait_s
        self._before: MetricsSnapshot | None = None
        self._fault: tuple[CountersState, str] = ("missing", "the window was never begun")

    @property
    def address(self) -> str:
        """Where the counters are, without credentials."""
        return self._client.settings.base_url.url + self._path

    async def read(self) -> MetricsSnapshot:
        """The counters now.

        Raises:
            RequestError: see `HttpClient.fetch` and `parse_metrics`.
        """
        text = await self._client.get_text(self._path, timeout_s=READ_TIMEOUT_S, retry=False)
        with self._client.hiding_secrets():
            return parse_metrics(text)

    async def begin(self) -> None:
        """Read the counters, once they stand still: engines publish late. Never raises for their sake."""
        self._before = None
        try:
            reading = await self._read_settled()
        except RequestError as error:
            self._fault = _fault_of(error)
        else:
            self._before = reading.snapshot
            self._fault = ("settled", "")
            if not reading.is_settled:
                self._fault = ("unsettled", f"they still moved {reading.waited_s:.0f} s before the window")

    async def end(self, prefix_cache: PrefixCacheState) -> ServerWindow:
        """What was added since `begin`; never raises for counters that cannot be read."""
        before, (state, reason) = self._before, self._fault
        self._before, self._fault = None, ("missing", "the window was never begun")
        if before is None:
            return ServerWindow(state, reason, prefix_cache)
        try:
            reading = await self._read_settled()
            change = difference(before, reading.snapshot)
        except RequestError as error:
            return ServerWindow(*_fault_of(error), prefix_cache)
        if change.was_reset:
            names = ", ".join(change.reset)
            return ServerWindow("reset", f"the server was restarted in between ({names})", prefix_cache)
        if change.appeared:
            state, reason = "missing", f"first seen after the window: {', '.join(change.appeared)}"
        elif change.added == SpecDecodeCounters():
            state, reason = "missing", "the metrics hold none of the engine's counters"
        elif state == "settled" and not reading.is_settled:
            state, reason = "unsettled", f"they still moved {reading.waited_s:.0f} s after the window"
        added = {
            field.name: getattr(change.added, field.name)
            for field in fields(change.added)
            if field.name in WINDOW_FIELDS
        }
        if change.added.num_drafts is None:
            added["num_drafts"] = change.added.num_verify_calls  # an engine that drafts on every step: SGLang
        return ServerWindow(state, reason or None, prefix_cache, **added)

    async def aclose(self) -> None:
        """Close the connections of this window's own; safe to call twice."""
        if self._own_client is not None:
            await self._own_client.aclose()

    async def _read_settled(self) -> SettledReading:
        return await read_settled(self.read, quiet_s=self._quiet_s, max_wait_s=self._max_wait_s)


def _metrics_client(
    client: HttpClient, settings: BackendSettings, metrics_url: str
) -> tuple[HttpClient, str]:
    """A client for the counters' address, and the path there."""
    base = parse_base_url(metrics_url)
    url, path = base.url, METRICS_PATH
    if urlsplit(base.url).path:
        url, _, name = base.url.rpartition("/")
        path = f"/{name}"
    same_host = base.host == client.settings.base_url.host
    place = parse_base_url(url)
    return HttpClient(
        HttpSettings(
            base_url=type(base)(place.url, base.host, base.user, base.password),
            timeouts=client.settings.timeouts,
            api_key=settings.api_key if same_host and base.user is None else None,
            headers=dict(settings.headers) if same_host else {},
            verify_tls=settings.verify_tls,
        )
    ), path


def _fault_of(error: RequestError) -> tuple[CountersState, str]:
    return ("missing" if error.kind in NOT_OFFERED else "unreadable"), error.fault
