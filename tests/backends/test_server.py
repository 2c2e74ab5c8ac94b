"""Servers that are started come up or say why not, and nothing of them is left, whatever ends the owner."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash.backends.launch_commands import LaunchCommand
from dflash.backends.server import LaunchedServer, describe_exit, with_free_port
from dflash.errors import EXIT_UNAVAILABLE, UnavailableError, UsageError
from dflash.results.records import Arm

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
LIMIT_S = 30.0  # of a wait that ends much earlier
KEY = "sk-very-secret-key"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux adopts what left the group")


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """Where every process of the fake engine leaves its number; what a failed test left is ended."""
    folder = tmp_path / "pids"
    folder.mkdir()
    yield folder
    for pid in left(folder):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def launch(tmp_path: Path, pids: Path, said: list[str]) -> Callable[..., LaunchedServer]:
    """A server of the fake engine with these modes, not yet started."""

    def make(*modes: str, **options: object) -> LaunchedServer:
        arguments: dict[str, object] = {
            "log_file": tmp_path / "engine.log",
            "announce": said.append,
        } | options
        return LaunchedServer(fake_command(*modes, pids=pids), **arguments)  # type: ignore[arg-type]

    return make


def fake_command(*modes: str, pids: Path, port: int = 0, **fields: object) -> LaunchCommand:
    argv = (sys.executable, "-S", str(FAKE_ENGINE), *modes, "--port", str(port))
    environment = {"FAKE_ENGINE_PIDS": str(pids), "FAKE_ENGINE_WORD": "hello"}
    values = {"environment": environment, "port": port} | fields
    return LaunchCommand("vllm", Arm("dflash", 8), argv, **values)  # type: ignore[arg-type]


def left(pids: Path) -> list[int]:
    """The fake engine's processes that are there, dead ones that nobody has waited for aside."""
    return [int(file.name) for file in pids.iterdir() if is_alive(int(file.name))]


def is_alive(pid: int) -> bool:
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return told.stdout.strip()[:1] not in ("", "Z")


def wait_until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(0.02)


def get(url: str) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=LIMIT_S) as answer:
        status: int = answer.status
        return status


async def start(server: LaunchedServer) -> None:
    async with server:
        raise AssertionError("it must not become ready")


def test_a_server_is_there_for_the_block_and_no_longer(launch, pids, said):
    async def run() -> LaunchedServer:
        async with launch("slow") as server:
            assert await asyncio.to_thread(get, f"{server.url}/health") == 200
            assert server.is_running
            assert left(pids) == [server.pid]
        return server

    server = asyncio.run(run())
    assert left(pids) == []
    assert not server.is_running
    assert server.start_s is not None
    assert server.command.port != 0
    assert said[0].startswith("starting the vLLM server of the arm dflash B=8: ")
    assert f"--port {server.command.port}" in said[0]
    assert said[-1].startswith(f"the vLLM server of the arm dflash B=8 is ready at {server.url} after ")


def test_a_server_has_a_session_of_its_own_no_input_and_its_environment(launch):
    async def run() -> str:
        async with launch() as server:
            return str(server.log_file.read_text())

    log = asyncio.run(run())
    assert "input '' session True" in log
    assert "FAKE_ENGINE_WORD=hello" in log
    assert log.startswith("$ ")


def test_waiting_is_told_with_the_last_line_of_the_log(launch, said):
    async def run() -> None:
        async with launch("slow", announce_every_s=0.0):
            pass

    asyncio.run(run())
    lines = [line for line in said if line.startswith("waiting for the vLLM server of the arm dflash B=8: ")]
    told = [line.partition(" s; its log: ")[2] for line in lines]
    assert any(words.startswith("GET /health") for words in told)
    assert not any(one and one == other for one, other in itertools.pairwise(told)), "each once"
    assert all(line.isprintable() for line in said)


def test_sglang_is_ready_only_when_it_serves_its_model(launch, pids, tmp_path):
    command = fake_command(pids=pids, ready_paths=("/health", "/v1/models"))

    async def run(command: LaunchCommand) -> str:
        async with LaunchedServer(command, log_file=tmp_path / "a.log", announce=print) as server:
            return str(server.log_file.read_text())

    assert "'/v1/models': 3}" in asyncio.run(run(command))


def test_a_server_that_wants_a_key_is_ready(pids, tmp_path):
    command = fake_command("locked", pids=pids, ready_paths=("/health", "/v1/models"))

    async def run() -> bool:
        async with LaunchedServer(command, log_file=tmp_path / "a.log", announce=print) as server:
            return server.is_running

    assert asyncio.run(run())


def test_a_server_that_crashes_is_told_with_its_fault_and_the_end_of_its_log(launch, pids, said, tmp_path):
    with pytest.raises(UnavailableError) as caught:
        asyncio.run(start(launch("crash", "helpers", stop_timeout_s=0.2)))
    message = str(caught.value)
    assert "ended with exit code 1 after" in message
    assert "(its log: ValueError: no room for the KV cache: red)" in message
    assert str(tmp_path / "engine.log") in message
    assert len(message) < 400 + len(str(tmp_path))
    assert message.isprintable()
    assert caught.value.exit_code == EXIT_UNAVAILABLE
    assert "  ValueError: no room for the KV cache: red" in said
    assert not any("File " in line for line in said[2:])
    assert left(pids) == []


@pytest.mark.parametrize(
    ("mode", "words"),
    [("exits", "ended with exit code 0"), ("killed", "was killed by SIGKILL (out of memory?)")],
)
def test_a_server_that_ends_is_told_how(launch, pids, mode, words):
    with pytest.raises(UnavailableError) as caught:
        asyncio.run(start(launch(mode)))
    assert words in str(caught.value)
    assert left(pids) == []


@pytest.mark.parametrize("mode", ["silent", "never"])
def test_a_server_that_does_not_get_ready_is_ended(launch, pids, mode):
    with pytest.raises(UnavailableError, match="was not ready after"):
        asyncio.run(start(launch(mode, "helpers", ready_timeout_s=0.5, stop_timeout_s=0.2)))
    assert left(pids) == []


def test_megabytes_of_log_come_to_a_few_lines(launch, said, tmp_path):
    with pytest.raises(UnavailableError) as caught:
        asyncio.run(start(launch("talks", "crash")))
    assert (tmp_path / "engine.log").stat().st_size > 3_000_000
    assert len(said) < 25
    assert max(map(len, said[1:])) < 250
    assert "no room for the KV cache" in str(caught.value)


def test_a_server_deaf_to_sigterm_is_killed_with_its_helpers(launch, pids):
    async def run() -> LaunchedServer:
        async with launch("deaf", "helpers", stop_timeout_s=0.2) as server:
            await asyncio.to_thread(wait_until, lambda: len(left(pids)) == 3)
        return server

    server = asyncio.run(run())
    assert left(pids) == []
    assert not server.is_running


def test_the_end_of_a_server_that_is_waited_for_is_told_once(launch, said):
    async def run() -> None:
        async with launch("deaf", stop_timeout_s=0.3, announce_end_s=0):
            pass

    asyncio.run(run())
    assert len([line for line in said if line.startswith("waiting for the vLLM server")]) == 1
    assert "it was sent SIGTERM, and is killed after 0 s" in said[-1]


@on_linux
def test_a_helper_that_left_the_group_is_ended_too(launch, pids):
    async def run() -> None:
        async with launch("escaped", stop_timeout_s=0.2):
            await asyncio.to_thread(wait_until, lambda: len(left(pids)) == 2)

    asyncio.run(run())
    assert left(pids) == []


def test_an_error_in_the_block_ends_the_server_and_stays_the_error(launch, pids):
    async def run() -> None:
        async with launch():
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(run())
    assert left(pids) == []


def test_a_cancelled_start_leaves_nothing(launch, pids):
    async def run() -> None:
        task = asyncio.create_task(start(launch("silent", "helpers", stop_timeout_s=0.2)))
        await asyncio.to_thread(wait_until, lambda: len(left(pids)) == 3)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert left(pids) == []


def test_a_cancelled_stop_is_carried_through(launch, pids):
    async def use(entered: asyncio.Event) -> None:
        async with launch("deaf", stop_timeout_s=0.5):
            entered.set()

    async def run() -> None:
        entered = asyncio.Event()
        task = asyncio.create_task(use(entered))
        await entered.wait()
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert left(pids) == []


def test_a_server_that_dies_in_the_middle_is_seen(launch):
    async def run() -> LaunchedServer:
        async with launch("dies-later") as server:
            await asyncio.to_thread(wait_until, lambda: not server.is_running)
            assert server.exit_code == 3
        return server

    assert asyncio.run(run()).exit_code == 3


def test_a_program_that_is_not_there_is_named(pids, tmp_path):
    command = LaunchCommand("vllm", Arm("baseline"), (str(tmp_path / "no-python"), "--port", "0"))
    with pytest.raises(UnavailableError, match="no-python: No such file"):
        asyncio.run(start(LaunchedServer(command, log_file=tmp_path / "a.log", announce=print)))


def test_a_log_that_cannot_be_written_is_named_and_nothing_is_started(launch, pids, tmp_path):
    with pytest.raises(UsageError, match=r"log .*engine.log cannot be written \(No such file"):
        asyncio.run(start(launch(log_file=tmp_path / "nowhere" / "engine.log")))
    assert list(pids.iterdir()) == []


def test_a_taken_port_is_named_and_nothing_is_started(pids, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        command = fake_command(pids=pids, port=other.getsockname()[1])
        with pytest.raises(
            UsageError, match=f"port {command.port} of 127.0.0.1: something else listens on it"
        ):
            asyncio.run(start(LaunchedServer(command, log_file=tmp_path / "a.log", announce=print)))
    assert list(pids.iterdir()) == []


def test_the_port_of_a_server_that_has_just_ended_is_free(pids):
    """Its closed connections linger for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = first.accept()
        served.close()
        client.close()
    assert with_free_port(fake_command(pids=pids, port=port)).port == port


def test_keys_are_not_told_and_not_kept_in_the_log(pids, said, tmp_path):
    command = fake_command(
        "crash",
        pids=pids,
        environment={"HF_TOKEN": KEY, "FAKE_ENGINE_PIDS": str(pids)},
        secrets=(KEY,),
    )
    log_file = tmp_path / "engine.log"
    with pytest.raises(UnavailableError) as caught:
        asyncio.run(start(LaunchedServer(command, log_file=log_file, announce=said.append)))
    assert not any(KEY in text for text in (*said, str(caught.value), log_file.read_text()))
    assert "HF_TOKEN=***" in said[0]
    assert "HF_TOKEN=***" in log_file.read_text()
    assert log_file.stat().st_mode & 0o077 == 0


def test_logs_of_several_starts_follow_each_other_and_only_the_last_is_told(launch, said, tmp_path):
    for mode in ("crash", "exits"):
        del said[:]
        with pytest.raises(UnavailableError) as caught:
            asyncio.run(start(launch(mode)))
    assert "ValueError" not in str(caught.value)
    assert not any("ValueError" in line for line in said)
    assert (tmp_path / "engine.log").read_text().count("$ ") == 2


OWNER = """
import asyncio, os, time
from pathlib import Path
from dflash.backends.launch_commands import LaunchCommand
from dflash.backends.server import LaunchedServer
from dflash.results.records import Arm

async def main():
    command = LaunchCommand("vllm", Arm("baseline"), {argv!r}, {environment!r})
    async with LaunchedServer(command, log_file=Path({log!r}), announce=print, stop_timeout_s=0.2):
        {forks} and (os.fork() or time.sleep(300))
        await asyncio.sleep(300)

asyncio.run(main())
"""


def start_owner(pids: Path, *modes: str, forks: bool = False) -> subprocess.Popen[bytes]:
    """A process that owns a server and waits in the block, in a group of its own."""
    command = fake_command(*modes, pids=pids)
    script = OWNER.format(
        argv=command.argv, environment=command.environment, log=str(pids.parent / "owned.log"), forks=forks
    )
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, start_new_session=True)


@on_linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_owner_is_ended(pids, number):
    owner = start_owner(pids, "deaf", "helpers", "escaped")
    wait_until(lambda: len(left(pids)) == 4)
    os.killpg(owner.pid, number)
    assert owner.wait(LIMIT_S) != 0
    wait_until(lambda: left(pids) == [])


@on_linux
def test_nothing_is_left_when_a_fork_of_the_owner_still_holds_its_pipes(pids):
    owner = start_owner(pids, "helpers", forks=True)
    try:
        wait_until(lambda: len(left(pids)) == 3 and len(group_of(owner.pid)) == 2)
        owner.kill()
        owner.wait()
        wait_until(lambda: left(pids) == [])
        assert len(group_of(owner.pid)) == 1
    finally:
        os.killpg(owner.pid, signal.SIGKILL)


def group_of(group: int) -> list[int]:
    """The living processes of a group; Linux only."""
    numbers = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in numbers if is_alive(pid) and os.getpgid(pid) == group]


def children_of(parent: int) -> list[int]:
    """Linux only."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def guard_and_keeper(owner: int) -> list[int]:
    (guard,) = children_of(owner)
    (keeper,) = children_of(guard)
    return [guard, keeper]


@on_linux
@pytest.mark.parametrize("killed", ["guard", "keeper"])
def test_a_server_is_ended_by_the_guard_or_the_keeper_when_the_other_is_killed(launch, pids, killed):
    async def run() -> None:
        async with launch("deaf", "helpers", "escaped", stop_timeout_s=0.2) as server:
            await asyncio.to_thread(wait_until, lambda: len(left(pids)) == 4)
            guard, (keeper,) = server._keeper.pid, children_of(server._keeper.pid)
            os.kill({"guard": guard, "keeper": keeper}[killed], signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: not server.is_running)

    asyncio.run(run())  # leaving the block waits until nothing is left, and has nothing to complain of
    assert left(pids) == []


@on_linux
@pytest.mark.parametrize("survivor", [0, 1])
def test_nothing_is_left_when_the_owner_is_killed_with_the_keeper_or_the_guard(pids, survivor):
    owner = start_owner(pids, "deaf", "helpers", "escaped")
    wait_until(lambda: len(left(pids)) == 4)
    both = guard_and_keeper(owner.pid)
    spared = both.pop(survivor)
    for pid in (owner.pid, *both):
        os.kill(pid, signal.SIGKILL)
    owner.wait()
    wait_until(lambda: left(pids) == [])
    wait_until(lambda: not is_alive(spared))


@on_linux
def test_a_server_is_told_to_end_when_owner_guard_and_keeper_are_killed_at_once(pids):
    owner = start_owner(pids)
    wait_until(lambda: len(left(pids)) == 1)
    for pid in (owner.pid, *guard_and_keeper(owner.pid)):
        os.kill(pid, signal.SIGKILL)
    owner.wait()
    wait_until(lambda: left(pids) == [])


@on_linux
def test_a_server_whose_guard_and_keeper_are_killed_is_killed_and_told(launch, pids):
    async def run() -> None:
        async with launch("deaf", "helpers") as server:
            await asyncio.to_thread(wait_until, lambda: len(left(pids)) == 3)
            for pid in (server._keeper.pid, *children_of(server._keeper.pid)):
                os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: not server.is_running)

    with pytest.raises(UnavailableError, match="may not have ended: look for processes of the group"):
        asyncio.run(run())
    wait_until(lambda: left(pids) == [])


@on_linux
@pytest.mark.parametrize("killed", ["guard", "keeper"])
def test_a_server_that_is_lost_before_it_is_ready_is_told(launch, pids, killed):
    async def run() -> None:
        server = launch("silent", "helpers", stop_timeout_s=0.2)
        task = asyncio.create_task(start(server))
        await asyncio.to_thread(wait_until, lambda: len(left(pids)) == 3)
        guard, (keeper,) = server._keeper.pid, children_of(server._keeper.pid)
        os.kill({"guard": guard, "keeper": keeper}[killed], signal.SIGKILL)
        await task

    with pytest.raises(UnavailableError, match="was lost with its keeper"):
        asyncio.run(run())
    assert left(pids) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [(2, "ended with exit code 2"), (-11, "was killed by SIGSEGV"), (-99, "was killed by signal 99")],
)
def test_an_end_is_put_into_words(code, words):
    assert describe_exit(code) == words
