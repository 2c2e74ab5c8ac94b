"""The real engines' servers on a CPU: how each is started, how it is known to be ready, how it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEEPER = Path(__file__).with_name("keeper.py")
MODEL_NAME = "quickstart"  # what the servers call the target
START_LIMIT_S = 900.0  # 60 to 160 s on two idle cores, several minutes on busy ones
PATIENCE_S = 20.0  # between SIGTERM and SIGKILL; vLLM takes 4
STOP_LIMIT_S = 60.0
POLL_S = 0.2
NICENESS = 10
NUM_THREADS = 2
MAX_MODEL_LEN = 2048
NUM_LOG_LINES = 30
MAX_LINE_CHARS = 300  # SGLang writes all its settings in one line


@dataclass(frozen=True, slots=True)
class ServerArm:
    """What is served. Two equal ones may share a server."""

    engine: str  # "vllm", "sglang"
    target: Path
    draft: Path | None = None  # None: plain decoding
    block_size: int | None = None  # B = 1 anchor + B-1 draft tokens; with a draft only
    extra_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.draft is None) != (self.block_size is None):
            raise ValueError("a draft goes with a block size, and plain decoding with neither")


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How the process is started."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]  # beside what is kept of this process's own


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that has said it is ready."""

    arm: ServerArm
    url: str  # without a trailing /v1
    log_file: Path
    start_s: float
    group: int  # of all its processes
    keeper: subprocess.Popen[bytes]

    def get(self, path: str) -> str:
        return _ask(urllib.request.Request(self.url + path))

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ServerRefusedError."""
        answer: dict[str, Any] = json.loads(self.post_text(path, body))
        return answer

    def post_text(self, path: str, body: Mapping[str, Any]) -> str:
        """The answer as it came, a stream of events for instance. Raises as `post`."""
        data = json.dumps(body).encode()
        return _ask(urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}))

    def stop(self) -> None:
        """End the whole process group and wait until none of it is left; safe to call twice."""
        stop_keeper(self.keeper)


class ServerRefusedError(Exception):
    """The server answered with an error status; the message has the status and its words."""


class ServerStartError(Exception):
    """A server ended, or was not ready in time; the message ends with the last lines of its log."""


def server_command(arm: ServerArm, python: Path, port: int) -> ServerCommand:
    return {"vllm": vllm_command, "sglang": sglang_command}[arm.engine](arm, python, port)


def vllm_command(arm: ServerArm, python: Path, port: int) -> ServerCommand:
    arguments = [str(python.with_name("vllm")), "serve", str(arm.target)]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL_NAME]
    arguments += ["--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "8"]
    arguments += ["--enforce-eager", "--enable-per-request-metrics"]
    if arm.draft is not None and arm.block_size is not None:
        speculative = {
            "method": "dflash",
            "model": str(arm.draft),
            "num_speculative_tokens": arm.block_size - 1,
        }
        arguments += ["--speculative-config", json.dumps(speculative)]
        arguments += ["--per-request-spec-decode-metrics", "detailed"]  # refused without speculation
    environment = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "auto",
        "LD_PRELOAD": str(python.parents[1] / "lib" / "libiomp5.so"),
    }
    return ServerCommand((*arguments, *arm.extra_args), environment)


def sglang_command(arm: ServerArm, python: Path, port: int) -> ServerCommand:
    arguments = [str(python), "-m", "sglang.launch_server", "--model-path", str(arm.target)]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL_NAME]
    arguments += ["--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
    arguments += ["--dtype", "float32", "--context-length", str(MAX_MODEL_LEN)]
    arguments += ["--max-total-tokens", "4096", "--max-running-requests", "4", "--enable-metrics"]
    arguments += ["--disable-overlap-schedule", "--disable-cuda-graph", "--skip-server-warmup"]
    arguments += ["--sleep-on-idle"]  # else an idle server keeps a core busy
    environment = {}
    if arm.draft is not None:
        arguments += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(arm.draft)]
        arguments += ["--speculative-num-draft-tokens", str(arm.block_size)]
        environment["SGLANG_PLATFORM"] = "cpu_native"
    return ServerCommand((*arguments, *arm.extra_args), environment)


@contextlib.contextmanager
def started_server(arm: ServerArm, python: Path, log_folder: Path) -> Iterator[RunningServer]:
    """A server of its own for the `with` block.

    Raises:
        ServerStartError: see there.
    """
    server = start_server(arm, python, log_folder)
    try:
        yield server
    finally:
        server.stop()


def start_server(
    arm: ServerArm, python: Path, log_folder: Path, *, limit_s: float = START_LIMIT_S
) -> RunningServer:
    """Start a server on a free port and wait until it is ready; the caller stops it.

    Raises:
        ServerStartError: it ended or was not ready in time; nothing of it is left.
    """
    port = free_port()
    log_file = log_folder / f"{arm.engine}-{'base' if arm.draft is None else 'dflash'}-{port}.log"
    command = server_command(arm, python, port)
    started = time.monotonic()
    keeper = launch(command, log_file)
    url = f"http://127.0.0.1:{port}"
    try:
        group = read_group(keeper)
        wait_until_ready(keeper, url, started + limit_s)
    except BaseException as error:
        stop_keeper(keeper)
        if isinstance(error, TimeoutError | ChildProcessError):
            raise ServerStartError(f"{error}\n{last_lines(log_file)}") from None
        raise
    return RunningServer(arm, url, log_file, time.monotonic() - started, group, keeper)


def launch(command: ServerCommand, log_file: Path) -> subprocess.Popen[bytes]:
    log_file.write_text(f"{' '.join(command.arguments)}\n", encoding="utf-8")
    arguments = [sys.executable, "-S", str(KEEPER), str(NICENESS), str(PATIENCE_S), str(log_file)]
    environment = {**kept_environment(os.environ), **command.environment}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*arguments, *command.arguments], stdin=pipe, stdout=pipe, env=environment, start_new_session=True
    )


def read_group(keeper: subprocess.Popen[bytes]) -> int:
    """Raises ChildProcessError: the command cannot be run."""
    assert keeper.stdout is not None
    line = keeper.stdout.readline()
    if not line:
        raise ChildProcessError("the server's command cannot be run")
    return int(line)


def stop_keeper(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None
    keeper.stdin.close()
    keeper.wait(STOP_LIMIT_S)


def left_running(group: int) -> list[int]:
    """The processes of a group or of its session, zombies aside. Linux only."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, _, *groups = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[:4]
            if str(group) in groups and state != "Z":
                found.append(int(stat.parent.name))
    return found


def kept_environment(own: Mapping[str, str]) -> dict[str, str]:
    """Without what would change an engine or lead it to a hub, and with the number of threads."""
    changing = ("VLLM_", "SGLANG_", "HF_", "TRANSFORMERS_", "PYTHON", "LD_PRELOAD", "OMP_")
    kept = {name: value for name, value in own.items() if not name.startswith(changing)}
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(NUM_THREADS)}


def wait_until_ready(keeper: subprocess.Popen[bytes], url: str, give_up: float) -> None:
    """Raises ChildProcessError: it ended; TimeoutError: `give_up`, on the monotonic clock, has come."""
    while True:
        if keeper.poll() is not None:
            raise ChildProcessError(f"the server ended with code {keeper.returncode} before it was ready")
        with contextlib.suppress(OSError, ServerRefusedError):  # no connection, or 503: not yet
            _ask(urllib.request.Request(f"{url}/health"), timeout_s=5.0)
            return
        if time.monotonic() > give_up:
            raise TimeoutError("the server was not ready in time")
        time.sleep(POLL_S)


def last_lines(log_file: Path) -> str:
    lines = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    shown = [line[:MAX_LINE_CHARS] for line in lines[-NUM_LOG_LINES:]]
    return "\n".join([f"the last lines of {log_file}:", *shown])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _ask(request: urllib.request.Request, timeout_s: float = 300.0) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            text: str = answer.read().decode("utf-8")
            return text
    except urllib.error.HTTPError as error:
        words = error.read().decode("utf-8", errors="replace")
        raise ServerRefusedError(f"{error.code} at {request.full_url}: {words}") from None


class ServerPool:
    """Servers that are kept for the tests to come: a start takes minutes, and few fit on a machine at once.

    Both arms of one engine may live side by side; asking for another engine stops those that nobody is using.
    """

    def __init__(self, log_folder: Path) -> None:
        self._log_folder = log_folder
        self._servers: dict[ServerArm, RunningServer] = {}
        self._num_users: dict[ServerArm, int] = {}

    @contextlib.contextmanager
    def use(self, arm: ServerArm, python: Path) -> Iterator[RunningServer]:
        """Raises ServerStartError: see `start_server`."""
        server = self._servers.get(arm)
        if server is None or server.keeper.poll() is not None:
            self._stop_idle(other_than=arm.engine)
            server = self._servers[arm] = start_server(arm, python, self._log_folder)
        self._num_users[arm] = self._num_users.get(arm, 0) + 1
        try:
            yield server
        finally:
            self._num_users[arm] -= 1

    def _stop_idle(self, other_than: str) -> None:
        for arm in list(self._servers):
            if arm.engine != other_than and not self._num_users[arm]:
                self._servers.pop(arm).stop()

    def close(self) -> None:
        """Stop all, also when one of them does not end well.

        Raises:
            RuntimeError: something of a server is left running.
        """
        servers = list(self._servers.values())
        self._servers.clear()
        with contextlib.ExitStack() as stack:
            for server in servers:
                stack.callback(server.stop)
        left = [process for server in servers for process in left_running(server.group)]
        if left:
            raise RuntimeError(f"left running: {left}")
