"""Server-sent events written straight to the connection, framed as HTTP chunks, in the call of the engine's timer.

aiohttp's own `write` is a coroutine: a task would have to wake for every chunk, and its wake-up would stand
between the stamp and the wire.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiohttp import web

from dflash.backends.simulated_engine import Job
from dflash.backends.simulated_requests import Format

STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Server": "uvicorn"}


class EventStream:
    """The events of one answer; whoever handles the request opens it and waits for the job.

    Events that come before the headers are out wait for them, and are stamped when they really go.
    """

    def __init__(self, request: web.Request, job: Job, answer: Format) -> None:
        self._request, self._job, self._answer = request, job, answer
        self._transport: Any = request.transport
        self._response: web.StreamResponse | None = None
        self._waiting: list[tuple[int | None, bytes]] = []
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def emit(self, index: int) -> None:
        """Send chunk `index`, and the end after the last one."""
        for event in self._answer.events(index):
            self.write(event, index)
        if index == len(self._job.answer.script.steps):
            for event in self._answer.ending():
                self.write(event)

    def write(self, event: bytes, index: int | None = None) -> None:
        if self._response is None:
            self._waiting.append((index, event))
            if not self.begun.done():
                self.begun.set_result(None)
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    async def open(self) -> None:
        """Send the headers, and what waited for them."""
        response = web.StreamResponse(headers=STREAM_HEADERS)
        response.enable_chunked_encoding()
        await response.prepare(self._request)
        self._response = response
        for index, event in self._waiting:
            if index is not None:
                self._job.log.chunk_sent_ns[index] = time.perf_counter_ns()
            self.write(event)
        self._waiting.clear()

    async def close(self) -> web.StreamResponse:
        """Send the end of the body."""
        if self._response is None:
            await self.open()
        assert self._response is not None
        if self._transport is not None and not self._transport.is_closing():
            await self._response.write_eof()
        return self._response
