"""Starting, stopping and setting up the simulated servers."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from simulated_client import (
    BOTH,
    CHAT,
    PLAIN,
    chat,
    with_server,
)

from dflash.backends.base import BackendSettings
from dflash.backends.scenario import Fault, Scenario, ServerSettings, parse_scenario
from dflash.backends.simulated import SimulatedBackend
from dflash.backends.simulated_http import SimulatedServer, simulated_server_thread
from dflash.errors import UnavailableError, UsageError


def test_it_serves_from_a_thread() -> None:
    with simulated_server_thread("vllm", PLAIN, time_scale=0) as server:
        body = json.dumps(chat()).encode()
        asked = urllib.request.Request(f"{server.url}{CHAT['vllm']}", body)
        with urllib.request.urlopen(asked, timeout=10) as response:
            assert json.load(response)["usage"]["completion_tokens"] == 32
        assert [log.outcome for log in server.log()] == ["done"]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(asked, timeout=10)


@BOTH
def test_as_a_process_it_says_its_port_and_stops_on_sigterm(protocol: str, tmp_path: Path) -> None:
    script = tmp_path / "scenario.toml"
    script.write_text('output_tokens = [5, 5]\n[server]\nmodel = "mine"\n[[faults]]\naction = "hang"\n')
    command = [sys.executable, "-m", "dflash.backends.simulated", "--protocol", protocol]
    command += ["--script", str(script), "--arm", "dflash", "--block-size", "4", "--time-scale", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            port = int(process.stdout.readline())
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as response:
                assert json.load(response)["data"][0]["id"] == "mine"
            hanging = socket.create_connection(("127.0.0.1", port), timeout=10)
            body = json.dumps(chat()).encode()
            head = f"POST {CHAT[protocol]} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            hanging.sendall(head.encode() + body)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/simulated/log", timeout=10) as response:
                assert json.load(response)["arm"] == "dflash"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
            assert process.stderr.read() == ""
            hanging.close()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("protocol", "settings", "said"),
    [
        ("grpc", {}, "unknown protocol"),
        ("vllm", {"arm": "dflash", "block_size": 17}, "block size 17 is not from 2 to 16"),
        ("vllm", {"arm": "baseline", "block_size": 4}, "a baseline has no block size"),
    ],
)
def test_what_cannot_be_served_is_refused(protocol: str, settings: dict[str, Any], said: str) -> None:
    async def run() -> None:
        await SimulatedServer(protocol, PLAIN, **settings).start()

    with pytest.raises(UsageError, match=said):
        asyncio.run(run())


def test_a_port_in_use_is_one_clear_line() -> None:
    async def run(port: int) -> None:
        await SimulatedServer("vllm", PLAIN, port=port).start()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UnavailableError, match=r"cannot listen on 127\.0\.0\.1"):
            asyncio.run(run(taken.getsockname()[1]))


def test_a_server_and_the_engine_in_process_refuse_each_others_faults() -> None:
    with pytest.raises(UsageError, match="'sigkill' is one of the engine in process"):
        SimulatedServer("vllm", with_server(PLAIN, Fault("sigkill")))
    with pytest.raises(UsageError, match="'cut' is one of a server"):
        SimulatedBackend(BackendSettings(), with_server(PLAIN, Fault("cut")))


def test_server_settings_are_read_and_are_no_part_of_a_scenarios_identity() -> None:
    values = {"server": {"dp_ranks": 2}, "faults": [{"action": "status", "status": 429, "times": 3}]}
    scenario = parse_scenario(values)
    assert scenario.server == ServerSettings(dp_ranks=2)
    assert scenario.faults == (Fault("status", status=429, times=3),)
    assert scenario.digest == Scenario().digest


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"ports": 1}, "unknown field 'ports' of a serversettings"),
        ({"dp_ranks": 0}, "must be 1 or more"),
        ({"dp_ranks": "two"}, "server.dp_ranks must be a number"),
        ({"metrics": 1}, "server.metrics must be true or false"),
        ({"dp_ranks": True}, "server.dp_ranks must be"),
        ({"per_request_spec_decode_metrics": "some"}, "must be of none, summary, detailed"),
        (3, "server must be a table"),
    ],
)
def test_server_settings_that_make_no_sense_are_refused(server: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        parse_scenario({"server": server})


def test_a_fault_that_needs_a_time_says_so() -> None:
    with pytest.raises(ValueError, match="'refuse' needs seconds"):
        parse_scenario({"faults": [{"action": "refuse"}]})
