"""Starting an engine's own server, waiting until it is ready, and stopping all of it, whatever happens to this process.

The server runs below a keeper (`server_keeper.py`), in a session of its own, so that Ctrl-C in a terminal reaches only
this process. The keeper ends every process of the server when this process says so, and also when it is gone; a guard
does the same when the keeper is gone.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from dflash.backends.base import StartedAs
from dflash.backends.launch_commands import LaunchCommand
from dflash.backends.server_log import (
    begin_log,
    clean_log,
    find_fault,
    last_lines,
    last_words,
    read_dtype,
    read_tail,
)
from dflash.command_secrets import without_secrets
from dflash.errors import RequestError, UnavailableError, UsageError

if TYPE_CHECKING:
    from dflash.backends.http import HttpClient

KEEPER = Path(__file__).with_name("server_keeper.py")
READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0  # between SIGTERM and SIGKILL; engines take about 4 s
ANNOUNCE_EVERY_S = 10.0
ANNOUNCE_END_S = 2.0  # after which it is said that the end of a server is waited for
ASK_TIMEOUT_S = 5.0
KEEPER_START_S = 30.0
KEEPER_END_S = 15.0  # beside the waiting that it is asked for
POLL_S = 0.02
MAX_POLL_S = 0.5
READY_KINDS = ("http_401", "http_403")  # it answers, and wants a key


class LaunchedServer:
    """An engine's server that lives as long as the `async with` block.

    Entering starts it and waits until it is ready; leaving ends every process of it, also after an exception or a
    cancellation. Should this process be killed, the keeper does the same.

    Args:
        log_file: all that the server prints is appended to it.
        announce: told in single lines what is started, how long it takes, and how a log ends.
        ready_timeout_s: from the start until it is ready.
        stop_timeout_s: from SIGTERM until SIGKILL.

    Raises (on entering):
        UsageError: the log cannot be written, or the port is taken.
        UnavailableError: the server cannot be started, ended, or was not ready in time. Nothing of it is left.
    """

    def __init__(
        self,
        command: LaunchCommand,
        *,
        log_file: Path,
        announce: Callable[[str], None],
        ready_timeout_s: float = READY_TIMEOUT_S,
        stop_timeout_s: float = STOP_TIMEOUT_S,
        announce_every_s: float = ANNOUNCE_EVERY_S,
        announce_end_s: float = ANNOUNCE_END_S,
    ) -> None:
        self.command = command  # with the port, once the server is started
        self.log_file = log_file
        self.start_s: float | None = None  # until it was ready
        self.pid: int | None = None  # of the server, and the number of its process group
        self._tell = announce
        self._ready_timeout_s = ready_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._announce_every_s = announce_every_s
        self._announce_end_s = announce_end_s
        self._log_start = 0
        self._keeper: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._refusal: str | None = None
        self._exit_code: int | None = None
        self._num_left: int | None = None
        self._is_lost = False  # keeper or guard was killed, and the server is ended therefore
        self._is_silent = False  # keeper and guard have both ended

    @property
    def url(self) -> str:
        return self.command.url

    @property
    def started_as(self) -> StartedAs:
        """By the command; what that leaves to the engine by the log, once the server is ready."""
        stated = self.command.started_as
        return replace(stated, dtype=stated.dtype or read_dtype(self.log_file, self._log_start))

    @property
    def is_running(self) -> bool:
        """Whether the server is there at this moment."""
        lives = self._keeper is not None and self._keeper.poll() is None
        return lives and self.pid is not None and self.exit_code is None and not self._is_lost

    @property
    def exit_code(self) -> int | None:
        """How the server ended by itself, minus the signal; None: it did not."""
        self._read_keeper()
        return self._exit_code

    async def __aenter__(self) -> LaunchedServer:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fault = await self._stop()
        if fault is not None and error is None:
            raise fault

    def tail(self) -> list[str]:
        """The last lines of interest of the log, harmless to print."""
        return last_lines(self._read_log())

    def _announce(self, line: str) -> None:
        self._tell("".join(character if character.isprintable() else " " for character in line))

    async def _start(self) -> None:
        began = time.monotonic()
        self.command = with_free_port(self.command)
        printable = self.command.printable(os.environ)
        self._log_start = begin_log(self.log_file, f"$ {printable}")
        self._announce(f"starting the {self.command.title}: {printable}")
        for note in self.command.notes:
            self._announce(f"{self.command.arm.label}: {note}")
        await self._start_keeper()
        await self._wait_until_ready(began)
        self.start_s = time.monotonic() - began
        self._announce(f"the {self.command.title} is ready at {self.url} after {self.start_s:.0f} s")

    async def _start_keeper(self) -> None:
        job = {
            "argv": self.command.argv,
            "environment": self.command.full_environment(os.environ),
            "log": str(self.log_file),
            "patience_s": self._stop_timeout_s,
        }
        try:
            with self.log_file.open("ab") as log:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(KEEPER)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    start_new_session=True,
                )
            assert self._keeper.stdin is not None
            assert self._keeper.stdout is not None
            os.set_blocking(self._keeper.stdout.fileno(), False)
            _write(self._keeper.stdin.fileno(), json.dumps(job).encode() + b"\n")
        except OSError as error:
            raise self._unavailable(f"cannot be started ({error.strerror or error})") from None
        give_up = time.monotonic() + KEEPER_START_S
        while self.pid is None:
            gone = self._keeper.poll() is not None
            self._read_keeper()
            if self._refusal is not None:
                raise self._unavailable(f"cannot be started ({self.command.argv[0]}: {self._refusal})")
            if self.pid is None and (gone or time.monotonic() > give_up):
                raise self._unavailable("cannot be started (its keeper did not come up)")
            await asyncio.sleep(POLL_S)

    async def _wait_until_ready(self, began: float) -> None:
        from dflash.backends.http import HttpClient
        from dflash.backends.http_settings import HttpSettings, parse_base_url

        next_line_s, poll_s, told = self._announce_every_s, POLL_S, ""
        async with HttpClient(HttpSettings(base_url=parse_base_url(self.url))) as client:
            while not await self._answers(client):
                waited_s = time.monotonic() - began
                if not self.is_running or waited_s > self._ready_timeout_s:
                    raise self._not_ready(waited_s)
                if waited_s >= next_line_s:
                    next_line_s = waited_s + self._announce_every_s
                    last = last_words(self._read_log()) or "nothing yet"
                    new = "" if last == told else f"; its log: {last}"
                    self._announce(f"waiting for the {self.command.title}: {waited_s:.0f} s{new}")
                    told = last
                await asyncio.sleep(poll_s)
                poll_s = min(2 * poll_s, MAX_POLL_S)
        if not self.is_running:  # another one answered in its place
            raise self._not_ready(time.monotonic() - began)

    async def _answers(self, client: HttpClient) -> bool:
        try:
            for path in self.command.ready_paths:
                await client.fetch("GET", path, timeout_s=ASK_TIMEOUT_S, retry=False)
        except RequestError as error:
            return error.kind in READY_KINDS
        return True

    def _not_ready(self, waited_s: float) -> UnavailableError:
        lines = self._read_log()
        if last_lines(lines):
            self._announce(f"the last lines of {self.log_file}:")
        for line in last_lines(lines):
            self._announce(f"  {line}")
        cause = find_fault(lines)
        if self.exit_code is not None:
            end = f"{describe_exit(self.exit_code)} after {waited_s:.0f} s, before it was ready"
        else:
            late = f"was not ready after {waited_s:.0f} s; --ready-timeout-s gives it longer"
            end = late if self.is_running else "was lost with its keeper"
        return self._unavailable(f"{end}{f' (its log: {cause})' if cause else ''}")

    def _unavailable(self, what: str) -> UnavailableError:
        return UnavailableError(f"the {self.command.title} {what}", f"see its log {self.log_file}")

    def _read_log(self) -> list[str]:
        lines = read_tail(self.log_file, self._log_start)
        return [without_secrets(line, self.command.secrets) for line in lines]

    def _read_keeper(self) -> None:
        """Take in what the keeper has said."""
        if self._keeper is None or self._keeper.stdout is None or self._keeper.stdout.closed:
            return
        read = self._keeper.stdout.read()  # None: nothing new
        self._is_silent = self._is_silent or read == b""
        self._unread += read or b""
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            what, _, value = line.decode(errors="replace").partition(" ")
            if what == "started":
                self.pid = int(value)
            elif what == "refused":
                self._refusal = value
            elif what == "ended":
                self._exit_code = int(value)
            elif what == "lost":
                self._is_lost = True
            elif what == "left":
                self._num_left = int(value)

    async def _stop(self) -> UnavailableError | None:
        """End all of it; safe to call twice. A cancellation meanwhile waits: the next server needs the room.

        Returns:
            what is wrong, where something of the server may be left.
        """
        keeper, cancelled = self._keeper, None
        if keeper is None:
            return None
        assert keeper.stdin is not None
        with suppress(OSError):
            keeper.stdin.close()  # from here on the keeper ends the server, with or without this process
        began = time.monotonic()
        give_up = began + self._stop_timeout_s + KEEPER_END_S
        is_told = False
        while not self._has_ended(keeper) and time.monotonic() < give_up:
            if not is_told and time.monotonic() - began > self._announce_end_s:
                is_told = True
                self._announce(
                    f"waiting for the {self.command.title} to end: it was sent SIGTERM, and is killed after "
                    f"{self._stop_timeout_s:.0f} s"
                )
            try:
                await asyncio.sleep(POLL_S)
            except asyncio.CancelledError as error:
                cancelled = error
        self._read_keeper()
        self._keeper = None
        fault = self._end_without_keeper(keeper)
        clean_log(self.log_file, self.command.secrets)
        if cancelled is not None:
            raise cancelled
        return fault

    def _has_ended(self, keeper: subprocess.Popen[bytes]) -> bool:
        """Whether both have: should one be killed, the other may still be ending the server."""
        self._read_keeper()
        return keeper.poll() is not None and self._is_silent

    def _end_without_keeper(self, keeper: subprocess.Popen[bytes]) -> UnavailableError | None:
        """What is left to do where keeper and guard were killed, or could not end everything."""
        if keeper.poll() is None:
            keeper.kill()
            keeper.wait()
        if keeper.stdout is not None:
            keeper.stdout.close()
        if self.pid is None or self._num_left == 0:
            return None
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        fault = self._unavailable(f"may not have ended: look for processes of the group {self.pid}")
        self._announce(fault.fault)
        return fault


def with_free_port(command: LaunchCommand) -> LaunchCommand:
    """The command with a port that nothing listens on: its own one, or one that the system chooses where it has none.

    Raises:
        UsageError: the port is taken, or cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in command.host else socket.AF_INET
    with socket.socket(family) as listener:
        if os.name == "posix":  # else the last server's closed connections would hold the port for a minute
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((command.host, command.port))
            listener.listen()
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "something else listens on it" if taken else error.strerror or str(error)
            raise UsageError(
                f"the {command.title} cannot have port {command.port} of {command.host}: {reason}",
                "stop that server, or choose another port",
            ) from None
        port: int = listener.getsockname()[1]
    return command.with_port(port)


def describe_exit(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
        return f"was killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"
    return f"was killed by signal {-code}"


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
