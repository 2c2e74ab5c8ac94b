"""Bytes are stamped when they come, also when this process reads them late."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from own_certificate import self_signed_context

from dflash.backends import arrival_stamps
from dflash.backends.arrival_stamps import StampedConnections, StampedSocket, has_kernel_stamps
from dflash.backends.http import HttpClient
from dflash.backends.http_settings import HttpSettings, parse_base_url

kernel_stamps = pytest.mark.skipif(not has_kernel_stamps(), reason="this kernel stamps no packets of TCP")

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
EVENT = b'data: {"number": %d}\n\n'
Wrap = Callable[[socket.socket], socket.socket]


class Late:
    """A server that sends two events; the second is sent, and lies there, while the client's loop stands still."""

    def __init__(self) -> None:
        self.send_second = threading.Event()
        self.second_was_sent = threading.Event()

    def serve(self, listener: socket.socket, wrap: Wrap) -> None:
        connection = wrap(listener.accept()[0])
        with connection:
            connection.recv(65536)
            connection.sendall(HEAD + EVENT % 1)
            self.send_second.wait(30)
            connection.sendall(EVENT % 2)
            self.second_was_sent.set()


@contextmanager
def serving(late: Late, wrap: Wrap = lambda connection: connection) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=late.serve, args=(listener, wrap), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(30)


def read_late(url: str, late: Late, **settings: Any) -> tuple[list[int], int]:
    """The stamps of both events, and when the loop went on, after the second had come."""
    stamps: list[int] = []
    went_on_ns = 0

    def consume(arrival_ns: int, document: dict[str, Any]) -> bool:
        nonlocal went_on_ns
        stamps.append(arrival_ns)
        if document["number"] == 1:
            late.send_second.set()
            assert late.second_was_sent.wait(30)  # the event loop stands still
            time.sleep(0.01)  # and not for so short a time that two readings of a clock could be taken for it
            went_on_ns = time.perf_counter_ns()
        return True

    async def run() -> None:
        async with HttpClient(HttpSettings(base_url=parse_base_url(url), **settings)) as client:
            await client.stream("/", {}, consume)

    asyncio.run(run())
    return stamps, went_on_ns


@kernel_stamps
def test_what_came_while_the_loop_stood_still_has_its_own_time() -> None:
    late = Late()
    with serving(late) as port:
        stamps, went_on_ns = read_late(f"http://127.0.0.1:{port}", late)
    assert stamps[0] < stamps[1] < went_on_ns


@kernel_stamps
def test_under_tls_too(tmp_path: Path) -> None:
    context = self_signed_context(tmp_path)
    late = Late()
    with serving(late, lambda connection: context.wrap_socket(connection, server_side=True)) as port:
        stamps, went_on_ns = read_late(f"https://127.0.0.1:{port}", late, verify_tls=False)
    assert stamps[0] < stamps[1] < went_on_ns


def test_where_the_kernel_has_no_stamps_the_event_loop_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival_stamps, "_ask_for_stamps", lambda made: False)
    assert not has_kernel_stamps()
    late = Late()
    with serving(late) as port:
        stamps, went_on_ns = read_late(f"http://127.0.0.1:{port}", late)
    assert stamps[0] < went_on_ns < stamps[1]


@kernel_stamps
@pytest.mark.parametrize("seconds", [-3600, 3600], ids=["set back", "set ahead"])
def test_a_wall_clock_that_is_set_meanwhile_moves_no_stamp(
    monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    wall_clock = time.time_ns
    monkeypatch.setattr(arrival_stamps.time, "time_ns", lambda: wall_clock() + seconds * 1_000_000_000)
    before_ns = time.perf_counter_ns()
    late = Late()
    with serving(late) as port:
        stamps, went_on_ns = read_late(f"http://127.0.0.1:{port}", late)
    assert before_ns < stamps[0] < went_on_ns < stamps[1] < time.perf_counter_ns()


@kernel_stamps
def test_an_interruption_between_two_clocks_is_in_no_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first readings of the wall clock come 5 ms late, as where another process takes the core."""
    wall_clock, interrupted = time.time_ns, iter([True, True])

    def late_wall_clock() -> int:
        reading = wall_clock()
        if next(interrupted, False):
            time.sleep(0.005)
        return reading

    offset_ns = time.perf_counter_ns() - wall_clock()
    monkeypatch.setattr(arrival_stamps.time, "time_ns", late_wall_clock)
    now_ns, wall_clock_ns = arrival_stamps._both_clocks_ns()
    assert abs(now_ns - wall_clock_ns - offset_ns) < 1_000_000


@kernel_stamps
def test_stamps_of_a_connection_never_go_back() -> None:
    async def run() -> list[int | None]:
        connections = StampedConnections()
        connection = connections.make_connection()
        made = connections.make_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", None))
        assert isinstance(made, StampedSocket)
        seen: list[int | None] = []
        with made:
            connection._stamped = made
            for made.arrival_ns in (5, 3, 7):
                connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
                seen.append(connection.arrival_ns)
        return seen

    assert asyncio.run(run()) == [5, 5, 7]
