"""When bytes arrived: stamped by the kernel where it offers that, not when this process came to read them.

A client that reads many streams reads each a little late: its event loop is busy with the others, its machine with
something else. Linux notes with every packet when it came in (`SO_TIMESTAMPNS`, for TCP too); read with the bytes, this
is the time that a user of the server would have seen. Elsewhere the stamp is taken when the event loop hands the bytes
over, before anything is made of them. TLS changes nothing: the time is that of the encrypted bytes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aiohttp.client_proto import ResponseHandler

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; Python's socket module does not name it
_TIMESPEC = struct.Struct("@qq")  # seconds and nanoseconds since 1970, on machines of 64 bits
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
_NS_PER_S = 1_000_000_000
# An age above this is a wall clock that was set meanwhile: no event loop is as late, and then the reading counts.
_MAX_AGE_NS = 60 * _NS_PER_S
# Two readings of a clock are less than a microsecond apart where nothing comes between them.
_NARROW_BRACKET_NS = 2_000
_MAX_CLOCK_READINGS = 4

AddressInfo = tuple[int, int, int, str, Any]  # of getaddrinfo: family, type, protocol, name, address


def has_kernel_stamps() -> bool:
    """Whether this system's kernel stamps what arrives over TCP."""
    if sys.platform != "linux" or sys.maxsize < 2**32 or not _ANCILLARY_BYTES:
        return False
    with socket.socket() as trial:
        return _ask_for_stamps(trial)


def arrivals_stamped_by() -> str:
    """Who stamps arrivals here, as a result is stamped with it."""
    return "kernel" if has_kernel_stamps() else "event loop"


class StampedSocket(socket.socket):
    """A socket that knows when the bytes came that were last read from it."""

    arrival_ns: int | None = None  # by time.perf_counter_ns; None: unknown

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """As `socket.recv`; what an event loop reads plain connections with."""
        data, ancillary, _, _ = self.recvmsg(bufsize, _ANCILLARY_BYTES, flags)
        self.arrival_ns = _arrival_ns(ancillary)
        return data

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """As `socket.recv_into`; what an event loop reads TLS with."""
        view = memoryview(buffer)
        num_bytes, ancillary, _, _ = self.recvmsg_into(
            [view[:nbytes] if nbytes else view], _ANCILLARY_BYTES, flags
        )
        self.arrival_ns = _arrival_ns(ancillary)
        return num_bytes


class StampedConnections:
    """Makes the sockets and the connections of one HTTP session, so that each connection finds its own socket."""

    def __init__(self) -> None:
        self._sockets: weakref.WeakValueDictionary[int, StampedSocket] = weakref.WeakValueDictionary()

    def make_socket(self, address: AddressInfo) -> socket.socket:
        """A socket for `address`: what aiohttp calls a socket factory."""
        family, kind, protocol, _, _ = address
        made = StampedSocket(family, kind, protocol)
        if not _ask_for_stamps(made):
            made.close()
            return socket.socket(family, kind, protocol)
        self._sockets[made.fileno()] = made
        return made

    def make_connection(self) -> StampedConnection:
        """What reads one connection, inside the running event loop."""
        return StampedConnection(asyncio.get_running_loop(), self)

    def socket_of(self, transport: asyncio.BaseTransport) -> StampedSocket | None:
        """The socket beneath `transport`, where it is one of ours."""
        beneath = transport.get_extra_info("socket")
        return None if beneath is None else self._sockets.get(beneath.fileno())


class StampedConnection(ResponseHandler):
    """A connection that knows when its last bytes came.

    The task that waits for them runs after all packets of this turn of the loop, and after the tasks before it: in a
    burst over many streams that is milliseconds later.
    """

    arrival_ns: int | None = None  # by time.perf_counter_ns

    def __init__(self, loop: asyncio.AbstractEventLoop, connections: StampedConnections) -> None:
        super().__init__(loop)
        self._connections = connections
        self._stamped: StampedSocket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._stamped = self._connections.socket_of(transport)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if data:
            arrival_ns = None if self._stamped is None else self._stamped.arrival_ns
            if arrival_ns is None:
                arrival_ns = time.perf_counter_ns()
            # Bytes come in order, whatever a wall clock that is set in between says.
            self.arrival_ns = max(arrival_ns, self.arrival_ns or arrival_ns)
        super().data_received(data)

    def resume_reading(self, *arguments: Any, **options: Any) -> None:
        # The stream asks for this at every read, and it runs the parser once more: left out where nothing was paused.
        if self._reading_paused:
            super().resume_reading(*arguments, **options)


def _ask_for_stamps(made: socket.socket) -> bool:
    try:
        made.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def _arrival_ns(ancillary: Sequence[tuple[int, int, bytes]]) -> int | None:
    """The kernel's stamp, from the wall clock to the clock of all other stamps: now, less the age of the bytes."""
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(content) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(content)
            now_ns, wall_clock_ns = _both_clocks_ns()
            age_ns = wall_clock_ns - (seconds * _NS_PER_S + nanoseconds)
            return now_ns - age_ns if 0 <= age_ns <= _MAX_AGE_NS else None
    return None


def _both_clocks_ns() -> tuple[int, int]:
    """One moment by `time.perf_counter_ns` and by the wall clock.

    The process can be interrupted between two readings, on a busy machine for milliseconds, and the stamp would be
    wrong by as much: the reading is bracketed, and made again where the bracket is wide.
    """
    narrowest_ns, now_ns, wall_clock_ns = sys.maxsize, 0, 0
    for _ in range(_MAX_CLOCK_READINGS):
        before_ns = time.perf_counter_ns()
        between_ns = time.time_ns()
        bracket_ns = time.perf_counter_ns() - before_ns
        if bracket_ns < narrowest_ns:
            narrowest_ns, now_ns, wall_clock_ns = bracket_ns, before_ns + bracket_ns // 2, between_ns
        if bracket_ns <= _NARROW_BRACKET_NS:
            break
    return now_ns, wall_clock_ns
