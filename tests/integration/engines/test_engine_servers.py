"""Servers are started, awaited and stopped whole, with small stand-ins for the engines."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from engines import servers
from engines.servers import (
    RunningServer,
    ServerArm,
    ServerCommand,
    ServerPool,
    ServerRefusedError,
    ServerStartError,
    kept_environment,
    left_running,
    server_command,
    start_server,
    started_server,
)

PYTHON = Path("/env/bin/python")
ARM = ServerArm("vllm", Path("/target"))
# A server with a child, as engines have them. It says that it is ready after {delay_s}, and may ignore SIGTERM.
STAND_IN = """
import http.server, os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
print(f"child: {{child.pid}}", flush=True)
if {stubborn}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep({delay_s})
if {fails}:
    sys.exit("out of luck")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(400 if self.path == "/refused" else 200)
        self.end_headers()
        self.wfile.write(self.path.encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

StandIn = Callable[..., None]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """`stand_in(delay_s=0, fails=False, stubborn=False)`: what is started instead of an engine."""

    def choose(*, delay_s: float = 0.0, fails: bool = False, stubborn: bool = False) -> None:
        source = STAND_IN.format(delay_s=delay_s, fails=fails, stubborn=stubborn)

        def command(arm: ServerArm, python: Path, port: int) -> ServerCommand:
            return ServerCommand((sys.executable, "-c", source, str(port)), {})

        monkeypatch.setattr(servers, "server_command", command)

    choose()
    return choose


def children_in(text: str) -> list[int]:
    """What the stand-in has said of its child; at least one."""
    found = [int(number) for number in re.findall(r"^child: (\d+)$", text, re.MULTILINE)]
    assert found
    return found


def wait_until_gone(group: int, limit_s: float = 10.0) -> None:
    give_up = time.monotonic() + limit_s
    while left_running(group):
        assert time.monotonic() < give_up, f"left running: {left_running(group)}"
        time.sleep(0.05)


def test_a_server_is_ready_and_ends_with_its_children(stand_in, tmp_path):
    with started_server(ARM, PYTHON, tmp_path) as server:
        assert server.get("/health") == "/health"
        assert len(left_running(server.group)) == 2
        assert set(children_in(server.log_file.read_text())) < set(left_running(server.group))
        assert server.start_s > 0
    assert left_running(server.group) == []
    server.stop()  # twice is once


def test_a_refusal_has_the_words_of_the_server(stand_in, tmp_path):
    with (
        started_server(ARM, PYTHON, tmp_path) as server,
        pytest.raises(ServerRefusedError, match=r"400.*: /refused"),
    ):
        server.get("/refused")


def test_it_ends_too_when_a_test_is_interrupted(stand_in, tmp_path):
    found: list[RunningServer] = []

    def interrupted_test() -> None:
        with started_server(ARM, PYTHON, tmp_path) as server:
            found.append(server)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_test()
    assert left_running(found[0].group) == []


def test_one_that_does_not_heed_is_killed(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "PATIENCE_S", 0.3)
    stand_in(stubborn=True)
    with started_server(ARM, PYTHON, tmp_path) as server:
        pass
    assert left_running(server.group) == []


def test_one_that_ends_early_says_why_and_leaves_no_child(stand_in, tmp_path):
    stand_in(fails=True)
    with pytest.raises(ServerStartError, match="ended with code 1 before it was ready") as caught:
        start_server(ARM, PYTHON, tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[-1] == "out of luck"
    assert [child for child in children_in(str(caught.value)) if Path(f"/proc/{child}").exists()] == []


def test_one_that_is_not_ready_in_time_is_stopped(stand_in, tmp_path):
    stand_in(delay_s=300)
    with pytest.raises(ServerStartError, match="not ready in time") as caught:
        start_server(ARM, PYTHON, tmp_path, limit_s=1.0)
    assert [child for child in children_in(str(caught.value)) if Path(f"/proc/{child}").exists()] == []


def test_a_command_that_cannot_be_run_is_a_failed_start(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "server_command", lambda *_: ServerCommand(("/no/such/engine",), {}))
    with pytest.raises(ServerStartError, match="cannot be run"):
        start_server(ARM, PYTHON, tmp_path)


def test_only_the_end_of_a_long_log_is_shown(tmp_path):
    log_file = tmp_path / "log"
    log_file.write_text("".join(f"line {number}\n" for number in range(100)))
    lines = servers.last_lines(log_file).splitlines()[1:]
    assert lines == [f"line {number}" for number in range(70, 100)]


def test_a_killed_test_run_leaves_no_server(tmp_path):
    source = f"""
        import sys, time
        from pathlib import Path
        sys.path.insert(0, {str(Path(servers.__file__).parents[1])!r})
        from engines import servers
        command = (sys.executable, "-c", {STAND_IN.format(delay_s=0, fails=False, stubborn=False)!r})
        servers.server_command = lambda arm, python, port: servers.ServerCommand((*command, str(port)), {{}})
        arm = servers.ServerArm("vllm", Path("/target"))
        print(servers.start_server(arm, Path("/p"), Path({str(tmp_path)!r})).group, flush=True)
        time.sleep(300)
    """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    group = int(process.stdout.readline())
    assert len(left_running(group)) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until_gone(group)


def test_the_pool_keeps_a_server_for_those_who_want_the_same(stand_in, tmp_path):
    pool = ServerPool(tmp_path)
    drafted = ServerArm("vllm", Path("/target"), Path("/draft"), 4)
    with pool.use(ARM, PYTHON) as first, pool.use(drafted, PYTHON) as second:
        assert first.url != second.url
    with pool.use(ServerArm("vllm", Path("/target")), PYTHON) as again:
        assert again is first
    pool.close()
    assert left_running(first.group) == left_running(second.group) == []


def test_the_pool_stops_the_idle_servers_of_another_engine(stand_in, tmp_path):
    pool = ServerPool(tmp_path)
    other = ServerArm("sglang", Path("/target"))
    with pool.use(ARM, PYTHON) as first, pool.use(other, PYTHON) as second:
        assert first.get("/health")  # in use, and so not stopped
    with pool.use(ServerArm("sglang", Path("/another")), PYTHON):
        assert left_running(first.group) == []
        assert second.get("/health")
    pool.close()


def test_the_pool_replaces_one_that_has_ended(stand_in, tmp_path):
    pool = ServerPool(tmp_path)
    with pool.use(ARM, PYTHON) as first:
        first.stop()
    with pool.use(ARM, PYTHON) as second:
        assert second.get("/health")
    pool.close()
    assert left_running(second.group) == []


def value_after(arguments: tuple[str, ...], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_a_block_of_four_is_three_speculative_tokens_for_vllm_and_four_for_sglang():
    arms = [
        ServerArm(engine, Path("/target"), Path("/draft"), 4, ("--extra",)) for engine in ("vllm", "sglang")
    ]
    vllm, sglang = (server_command(arm, PYTHON, 1234).arguments for arm in arms)
    speculative = json.loads(value_after(vllm, "--speculative-config"))
    assert speculative == {"method": "dflash", "model": "/draft", "num_speculative_tokens": 3}
    assert value_after(sglang, "--speculative-num-draft-tokens") == "4"
    assert vllm[-1] == sglang[-1] == "--extra"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_baseline_is_served_without_a_draft(engine):
    command = server_command(ServerArm(engine, Path("/target")), PYTHON, 1234)
    assert [argument for argument in command.arguments if "spec" in argument.split("-")[2:3]] == []
    assert "SGLANG_PLATFORM" not in command.environment


@pytest.mark.parametrize(("draft", "block_size"), [(Path("/draft"), None), (None, 4)])
def test_a_draft_without_a_block_size_is_refused(draft, block_size):
    with pytest.raises(ValueError, match="block size"):
        ServerArm("vllm", Path("/target"), draft, block_size)


def test_nothing_of_the_surroundings_changes_an_engine():
    own = {"PATH": "/bin", "VLLM_API_KEY": "k", "PYTHONPATH": "x", "HF_ENDPOINT": "h", "OMP_NUM_THREADS": "9"}
    assert kept_environment(own) == {"PATH": "/bin", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
