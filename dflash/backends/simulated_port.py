"""The listening port of a simulated server, which can be closed for a time and opened again."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from aiohttp import web

from dflash.errors import UnavailableError

_BACKLOG = 2048


class Port:
    """Belongs to one event loop. `number` is 0 until a free one was chosen, and stays the same from then on."""

    def __init__(self, host: str, number: int) -> None:
        self.host, self.number = host, number
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return self._listener is not None

    async def open(self, server: web.Server) -> None:
        """Listen, and hand every connection to `server`.

        Raises:
            UnavailableError: the port cannot be had.
        """
        self._server = server
        listening = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self.host, self.number))
        except (OSError, OverflowError) as error:
            listening.close()
            reason = error.strerror if isinstance(error, OSError) else error
            raise UnavailableError(
                f"cannot listen on {self.host}:{self.number} ({reason})", "give another --port, or 0"
            ) from error
        self.number = listening.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(server, sock=listening, backlog=_BACKLOG)

    def close_for(self, seconds: float) -> None:
        """Refuse connections for `seconds`; those in use are closed once they have been answered."""
        if self._listener is None:
            return
        self._close_listener()
        for connection in self._connections():
            connection.close()
        self._timers.add(asyncio.get_running_loop().call_later(seconds, self._open_again))

    def cut_connections(self) -> None:
        for connection in self._connections():
            if connection.transport is not None:
                connection.transport.abort()

    def close(self) -> None:
        """For good."""
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._close_listener()
        self.cut_connections()

    def _open_again(self) -> None:
        assert self._server is not None
        task = asyncio.get_running_loop().create_task(self.open(self._server))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _connections(self) -> list[Any]:
        return list(self._server.connections) if self._server is not None else []
