"""Run by `server.py` as a script: keeps one server, and ends all of it when told to or when its owner is gone.

It imports nothing of the package and no more of the library than it needs. Standard input brings one line of JSON (what
to run), and stays open as long as the owner lives: it ends when the owner closes it or dies, however that comes about,
and then everything that the server has started is ended too. Standard output says `started PID`, `refused REASON`,
`ended CODE` (minus the signal), `lost` (of the two below one was killed) and at last `left N`, the number of processes
that could not be ended. It ends when both have.

There are two of it, each in a session of its own: the keeper is the server's parent, and the guard is the keeper's. The
keeper ends the server when the guard is gone, and the guard when the keeper is: to leave a server behind, both must be
killed at once, and the owner with them. On Linux even then the server is sent SIGTERM (PR_SET_PDEATHSIG), upon which
engines end what they have started; elsewhere it goes on.

On Linux both adopt what the server's processes leave behind (PR_SET_CHILD_SUBREAPER), so that a process that left the
group is found as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WATCH_S = 1.0  # how often the owner is looked for, beside its pipe
END_POLL_S = 0.02
KILL_S = 10.0  # to wait after SIGKILL: a process may be stuck in a driver
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Family:
    """One server and everything that it starts."""

    def __init__(self, libc: ctypes.CDLL | None) -> None:
        self.libc = libc  # None: not on Linux
        self.group = 0  # not known
        self.code: int | None = None
        self.adopts = libc is not None and libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

    def start(self, argv: list[str], environment: dict[str, str], log: str) -> None:
        with open(log, "ab") as log_file:  # noqa: PTH123 - nothing is imported that this could do without
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env=environment,
                start_new_session=True,
                preexec_fn=self._prepare_child,
            )
        self.group = child.pid
        child.returncode = 0  # it is waited for here, and not by its object

    def _prepare_child(self) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if self.libc is not None:
            self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    def collect(self) -> bool:
        """Wait for the dead; whether any process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return not self.adopts and self._send(0)
            if pid == 0:
                return True
            if pid == self.group:
                self.code = os.waitstatus_to_exitcode(status)

    def end(self, patience_s: float) -> int:
        """SIGTERM, then SIGKILL; the number of processes that are left."""
        for number, limit_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, KILL_S)):
            give_up = time.monotonic() + limit_s
            if not self.collect():
                return 0
            self._send_all(number)
            while self.collect():
                if time.monotonic() > give_up:
                    break
                if number == signal.SIGKILL:
                    self._send_all(number)  # what was being started meanwhile
                time.sleep(END_POLL_S)
            else:
                return 0
        return max(1, len(self._descendants()))

    def _send_all(self, number: int) -> None:
        """To the group at once, and to those that left it."""
        in_group = not self.adopts
        for pid in self._descendants() if self.adopts else []:
            try:
                if os.getpgid(pid) == self.group:
                    in_group = True
                else:
                    os.kill(pid, number)
            except OSError:
                pass  # it has ended meanwhile
        if in_group:  # else its number may be another's by now
            self._send(number)

    def _send(self, number: int) -> bool:
        """Whether the group has a process that could be sent to."""
        if not self.group:
            return False  # 0 would be the group of this process
        try:
            os.killpg(self.group, number)
        except OSError:  # none; on macOS also: all of them are dead
            return False
        return True

    def _descendants(self) -> list[int]:
        """The processes below this one, from /proc; none where there is no /proc."""
        children: dict[int, list[int]] = {}
        try:
            names = os.listdir("/proc")  # noqa: PTH208
        except OSError:
            return []
        for name in names:
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                        parent = int(file.read().rpartition(")")[2].split()[1])
                except (OSError, IndexError, ValueError):
                    continue  # it has ended meanwhile
                children.setdefault(parent, []).append(int(name))
        found = list(children.get(os.getpid(), []))
        for pid in found:  # it grows meanwhile
            found += children.get(pid, [])
        return found


class Watch:
    """Sleeps until something has happened."""

    def __init__(self) -> None:
        self.is_told_to_end = False
        self._reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._handle)
        signal.signal(signal.SIGCHLD, lambda received, frame: None)  # wakes it up
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def _handle(self, number: int, frame: object) -> None:
        self.is_told_to_end = True

    def wait(self, *inputs: int) -> bool:
        """Until a signal, the end of a child, or input comes, or for a while; whether one of the inputs has ended."""
        ready, _, _ = select.select([self._reader, *inputs], [], [], WATCH_S)
        if self._reader in ready:
            os.read(self._reader, 4096)
        return any(not os.read(number, 4096) for number in inputs if number in ready)


def main() -> None:
    owner = os.getppid()
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as unbuffered:
        job = json.loads(unbuffered.readline() or "null")
    if job is None:
        return  # the owner is gone already
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    family = Family(libc)  # of the guard, which adopts before there is anything to adopt
    guard = os.getpid()
    reader, writer = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(reader)
        os.setsid()
        keep(Family(libc), job, guard, writer)
    else:
        os.close(writer)
        watch_over(keeper, family, job, owner, reader)


def keep(family: Family, job: dict[str, Any], guard: int, told_group: int) -> None:
    """Start the server, and end it when it is time.

    Args:
        told_group: a pipe to the guard, which is told the server's group.
    """
    watch = Watch()
    try:
        family.start(job["argv"], job["environment"], job["log"])
    except OSError as error:
        say(f"refused {error.strerror or error}")
        return
    os.write(told_group, str(family.group).encode())
    say(f"started {family.group}")
    while family.code is None and not watch.is_told_to_end and os.getppid() == guard:
        if watch.wait(sys.stdin.fileno()):
            break
        family.collect()
    if family.code is not None:
        say(f"ended {family.code}")
    elif os.getppid() != guard:
        say("lost")
    say(f"left {family.end(job['patience_s'])}")


def watch_over(keeper: int, family: Family, job: dict[str, Any], owner: int, told_group: int) -> None:
    """Wait for the keeper, tell it when the owner is gone, and do its work when it was killed."""
    watch = Watch()
    is_told = False
    while True:
        pid, status = os.waitpid(keeper, os.WNOHANG)
        if pid:
            break
        if not is_told and (watch.is_told_to_end or os.getppid() != owner):
            is_told = True
            os.kill(keeper, signal.SIGTERM)
        watch.wait()
    if os.waitstatus_to_exitcode(status) == 0:
        return
    say("lost")
    family.group = int(os.read(told_group, 32) or 0)
    say(f"left {family.end(job['patience_s'])}")


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # the owner is gone
        os.write(sys.stdout.fileno(), f"{text}\n".encode())


if __name__ == "__main__":
    main()
