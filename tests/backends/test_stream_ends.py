"""What follows [DONE] is read beside the next requests: a server that lingers keeps no place in the load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dflash.backends import stream_ends
from dflash.backends.stream_ends import StreamEnds


class Response:
    """An answer whose end comes when it is told to."""

    def __init__(self) -> None:
        self.end, self.state = asyncio.Event(), "open"

    def close(self) -> None:
        self.state = "closed"

    def release(self) -> None:
        self.state = "released"


def run(monkeypatch: pytest.MonkeyPatch, use: Callable[[StreamEnds], Any]) -> None:
    monkeypatch.setattr(stream_ends, "WAIT_S", 0.01)
    monkeypatch.setattr(stream_ends, "drain", lambda response: response.end.wait())

    async def whole() -> None:
        await use(StreamEnds(2))

    asyncio.run(whole())


def test_an_end_that_comes_at_once_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(ends: StreamEnds) -> None:
        response: Any = Response()
        response.end.set()
        await ends.add(response)
        assert response.state == "released"

    run(monkeypatch, use)


def test_one_that_does_not_come_holds_up_one_request_and_is_read_beside_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[Any] = []
    wait = asyncio.wait
    monkeypatch.setattr(asyncio, "wait", lambda *args, **named: waits.append(args) or wait(*args, **named))

    async def use(ends: StreamEnds) -> None:
        late: list[Any] = [Response() for _ in range(4)]
        for response in late:
            await ends.add(response)
        assert len(waits) == 1
        assert [response.state for response in late] == ["closed", "closed", "open", "open"]
        late[2].end.set()
        await asyncio.sleep(0.01)
        assert late[2].state == "released"
        await ends.aclose()
        assert [response.state for response in late] == ["closed", "closed", "released", "closed"]

    run(monkeypatch, use)
