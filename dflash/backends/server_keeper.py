"""Run by `server.py` as a script: keeps one server, and ends all of it when told to or when its owner is gone.

It imports nothing of the package and no more of the library than it needs. Standard input brings one line of JSON (what
to run), and stays open as long as the owner lives: it ends when the owner closes it or dies, however that comes about,
and then everything that the server has started is ended too. Standard output says `started PID`, `refused REASON`,
`ended CODE` (minus the signal) and at last `left N`, the number of processes that could not be ended.

On Linux the keeper adopts what the server's processes leave behind (PR_SET_CHILD_SUBREAPER), so that a process that
left the group is found as well, and the server itself is killed if the keeper is.
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

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WATCH_S = 1.0  # how often the owner is looked for, beside its pipe
END_POLL_S = 0.02
KILL_S = 10.0  # to wait after SIGKILL: a process may be stuck in a driver
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Keeper:
    """One server and everything that it starts."""

    def __init__(self, libc: ctypes.CDLL | None) -> None:
        self.libc = libc  # None: not on Linux
        self.group = 0
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
            self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

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


def main() -> None:
    told_to_end = []
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, lambda received, frame: told_to_end.append(received))
    signal.signal(signal.SIGCHLD, lambda received, frame: None)  # wakes the watch up
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    owner = os.getppid()
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as unbuffered:
        job = json.loads(unbuffered.readline() or "null")
    if job is None:
        return  # the owner is gone already
    keeper = Keeper(ctypes.CDLL(None) if sys.platform == "linux" else None)
    try:
        keeper.start(job["argv"], job["environment"], job["log"])
    except OSError as error:
        say(f"refused {error.strerror or error}")
        return
    say(f"started {keeper.group}")
    while keeper.code is None and not told_to_end and os.getppid() == owner:
        ready, _, _ = select.select([sys.stdin, reader], [], [], WATCH_S)
        if reader in ready:
            os.read(reader, 4096)
        if sys.stdin in ready and not os.read(sys.stdin.fileno(), 4096):
            break
        keeper.collect()
    if keeper.code is not None:
        say(f"ended {keeper.code}")
    num_left = keeper.end(job["patience_s"])
    say(f"left {num_left}")


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # the owner is gone
        os.write(sys.stdout.fileno(), f"{text}\n".encode())


if __name__ == "__main__":
    main()
