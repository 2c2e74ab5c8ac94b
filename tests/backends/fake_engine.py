"""A script that behaves like an engine's server, or misbehaves: `python fake_engine.py MODE ... --port P`.

Each of its processes leaves a file named by its number in the folder FAKE_ENGINE_PIDS.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LONG_S = 300  # longer than any test


def leave_number() -> None:
    folder = os.environ.get("FAKE_ENGINE_PIDS")
    if folder:
        Path(folder, str(os.getpid())).touch()


def wait_long() -> None:
    time.sleep(LONG_S)


def start_helper(*, own_session: bool, deaf: bool) -> None:
    """A process of the engine that would live on."""
    words = ["helper", *(["deaf"] if deaf else [])]
    subprocess.Popen([sys.executable, __file__, *words], start_new_session=own_session)


def serve(port: int, modes: set[str]) -> None:
    polls = {"/health": 0, "/v1/models": 0}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            polls[self.path] = polls.get(self.path, 0) + 1
            status = 200
            if ("slow" in modes and polls["/health"] < 4) or "never" in modes:
                status = 503
            if self.path == "/v1/models":
                status = 401 if "locked" in modes else 503 if polls[self.path] < 3 else 200
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            if status == 200 and "dies-later" in modes:
                threading.Timer(0.1, os._exit, (3,)).start()

        def log_message(self, *args: object) -> None:
            print(f"GET {self.path} {polls}", flush=True)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.serve_forever()


def main() -> None:
    modes = set(sys.argv[1:])
    port = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in modes else 0
    if "deaf" in modes:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_number()
    if "helper" in modes:
        wait_long()
    print(
        f"\x1b[1mfake engine\x1b[0m input {sys.stdin.read()!r} session {os.getsid(0) == os.getpid()}",
        flush=True,
    )
    for name in ("FAKE_ENGINE_WORD", "HF_TOKEN"):
        print(f"{name}={os.environ.get(name)}", flush=True)
    if "helpers" in modes:
        start_helper(own_session=False, deaf=False)
        start_helper(own_session=False, deaf=True)
    if "escaped" in modes:
        start_helper(own_session=True, deaf=True)
    if "talks" in modes:
        for number in range(60_000):
            print(f"line {number} of a log that says a good deal, and then some more")
        print(f"{'x' * 100_000}\x07 end", flush=True)
    if "crash" in modes:
        raise ValueError("no room for the KV cache: \x1b[31mred\x1b[0m")
    if "exits" in modes:
        sys.exit(0)
    if "killed" in modes:
        os.kill(os.getpid(), signal.SIGKILL)
    if "silent" in modes:
        wait_long()
    serve(port, modes)


if __name__ == "__main__":
    main()
