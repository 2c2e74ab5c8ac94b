"""The ends of answers that have said [DONE], read beside the requests that follow."""

from __future__ import annotations

import asyncio

import aiohttp

from dflash.backends.http_answer import drain

WAIT_S = 0.02  # for an end that comes at once, so that the next request finds the connection
MAX_OPEN = 256  # where there is no limit on requests in flight


class StreamEnds:
    """Reads what follows [DONE], so that a connection can be used again, and lets no request wait for it: a server that
    keeps its connection open would else hold its place in the load. An end is waited for `WAIT_S`, and once one took
    longer, none is any more.

    Args:
        max_open: ends that are read at once; of more the one that began first is cut off. 0: `MAX_OPEN`.
    """

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open or MAX_OPEN
        self._is_prompt = True
        self._open: dict[asyncio.Task[None], aiohttp.ClientResponse] = {}  # in their order

    async def add(self, response: aiohttp.ClientResponse) -> None:
        """Read the rest of `response` from here on; it belongs to this object now."""
        if len(self._open) >= self._max_open:
            self._cut(next(iter(self._open)))
        task = asyncio.ensure_future(self._read(response))
        self._open[task] = response
        task.add_done_callback(lambda done: self._open.pop(done, None))
        if self._is_prompt:
            await asyncio.wait((task,), timeout=WAIT_S)
            self._is_prompt = task.done()

    async def aclose(self) -> None:
        """Cut all of them off; safe to call twice."""
        tasks = list(self._open)
        for task in tasks:
            self._cut(task)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        await drain(response)
        response.release()

    def _cut(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task).close()
        task.cancel()
