"""Run a command in a process group of its own, and stop the whole group when standard input ends.

`python keeper.py NICENESS PATIENCE_S LOG COMMAND...` prints the number of the group. Standard input ends when the
process that holds its other end closes it or dies, however that comes about: a killed test run leaves no server behind.
Between SIGTERM and SIGKILL the group has PATIENCE_S seconds. Exits with the command's own code.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

POLL_S = 0.1


def main() -> int:
    niceness, patience_s, log_file, *command = sys.argv[1:]
    os.nice(int(niceness))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of standard input ends it
    with open(log_file, "ab") as log:  # noqa: PTH123 - nothing is imported that a start could do without
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=restore_signals,
        )
    print(child.pid, flush=True)
    while child.poll() is None:
        if select.select([sys.stdin], [], [], POLL_S)[0] and not os.read(sys.stdin.fileno(), 1):
            break
    stop_group(child, float(patience_s))
    return child.wait()


def restore_signals() -> None:
    """What is ignored would stay ignored in the command."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def stop_group(child: subprocess.Popen[bytes], patience_s: float) -> None:
    """SIGTERM, then SIGKILL, until no process of the group is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        give_up = time.monotonic() + patience_s
        if not send(child.pid, number):
            return
        while time.monotonic() < give_up:
            child.poll()  # the leader would stay a zombie, and the group would never be empty
            if not send(child.pid, 0):
                return
            time.sleep(POLL_S)


def send(group: int, number: int) -> bool:
    """Whether the group has a process."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
