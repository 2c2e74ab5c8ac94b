"""Keys, tokens, passwords, header values and the users of addresses are in no file and on no screen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_prompts import EXACT, use_made_up_prompts

import dflash.execution
from dflash.arguments import benchmark_command, parse_benchmark_arguments
from dflash.backends.base import StartedAs
from dflash.backends.launch_commands import LaunchSettings, launch_command
from dflash.backends.scenario import ServerSettings
from dflash.backends.simulated_http import simulated_server, simulated_server_thread
from dflash.benchmark import main
from dflash.command_secrets import hide_in_text, hide_secrets, is_secret_name, secrets_in, without_secrets
from dflash.publishing import config_values
from dflash.results.records import Arm

SCENARIO = replace(EXACT, server=ServerSettings(per_request_spec_decode_metrics="detailed"))
SECRET = "swordfish"  # part of every secret here

OF_SERVERS = (
    ["--api-key", f"{SECRET}-1", "--header", f"X-Key: {SECRET}-2"],
    [f"--api-key={SECRET}-1", f"--header=X-Key: {SECRET}-2", f"--header=X-Other:{SECRET}"],
)
SERVER_ARGS = (
    [f"--server-arg=--api-key={SECRET}"],
    [f"--server-arg=--api-key {SECRET} {SECRET}-2"],
    ["--server-arg=--api-key", f"--server-arg={SECRET}"],
    ["--server-arg=dflash:--api-key", f"--server-arg=dflash:{SECRET}"],
    ["--server-arg=--api_key", "--server-arg=baseline:--seed=1", f"--server-arg=dflash:{SECRET}"],
    [f"--server-arg=baseline:--hf-token={SECRET}", f"--server-arg=dflash:--hf-token {SECRET}"],
    [f"--server-arg=--ssl-keyfile-password={SECRET}", f"--server-arg=--admin-api-key {SECRET}"],
    [f"--server-arg=--seed 4 --client-secret {SECRET}", f"--server-arg=--otlp-headers=a={SECRET}"],
    [f'--server-arg=--extra={{"auth_token": "{SECRET}", "depth": 3}}'],
    [f"--server-arg=--otlp-traces-endpoint=http://me:{SECRET}@host/v1"],
)


def assert_hidden(folder: Path, printed: str) -> None:
    assert SECRET not in printed
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "report.md" for path in files)
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path.name


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    use_made_up_prompts(monkeypatch, 2)


def run(folder: Path, *words: str) -> int:
    to_folder = ["--output-dir", str(folder), "--run", "run", "--json", str(folder) + ".json"]
    return main(["--backend", "vllm", "--warmup", "0", *to_folder, *words])


def test_keys_headers_and_users_of_servers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with simulated_server_thread("vllm", SCENARIO, arm="baseline", time_scale=0) as server:
        assert run(tmp_path, "--base-url", server.url, *OF_SERVERS[0], "--time-budget", "0.001") == 0
        printed = "".join(capfd.readouterr())
        assert "--arm=dflash=URL" in printed, "the command that adds the other arm"
        assert "this goes on from there" in printed
        assert_hidden(tmp_path, printed)
        place = f"me:{SECRET}@{server.url.removeprefix('http://')}"
        assert (
            run(tmp_path / "named", "--arm", f"baseline={place}", f"--metrics-url=baseline={place}/metrics")
            == 0
        )
    assert_hidden(tmp_path / "named", "".join(capfd.readouterr()))


def test_words_for_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def launch(config: Any, arm: Arm, announce: Any) -> AsyncIterator[Any]:
        settings = LaunchSettings(model="m", draft_model="d", server_args=config.server_args)
        announce(launch_command("vllm", arm, settings).printable())
        async with simulated_server(
            "vllm", SCENARIO, arm=arm.name, block_size=arm.block_size, time_scale=0
        ) as server:
            yield SimpleNamespace(url=server.url, started_as=StartedAs())

    monkeypatch.setattr(dflash.execution, "launch_arm", launch)
    monkeypatch.setattr(dflash.execution, "check_arms", lambda config, arms: None)
    words = [word for words in SERVER_ARGS for word in words]
    assert run(tmp_path, "--serve", "--model", "quickstart", "--block-size", "4", *words) == 0
    assert_hidden(tmp_path, "".join(capfd.readouterr()))


@pytest.mark.parametrize("words", SERVER_ARGS)
def test_a_launch_that_is_shown(words: list[str]) -> None:
    settings = LaunchSettings(model="m", draft_model="d", server_args=tuple(word[13:] for word in words))
    command = launch_command("vllm", Arm("dflash", 4), settings)
    assert SECRET not in command.printable()
    assert SECRET not in without_secrets(" ".join(command.argv), command.secrets)


@pytest.mark.parametrize("scheme", ["", "http://"])
@pytest.mark.parametrize("user", [f"me:{SECRET}", f"{SECRET}-token", f"me:a?#={SECRET}"])
def test_users_of_addresses(scheme: str, user: str) -> None:
    place = f"{scheme}{user}@127.0.0.1:8000"
    for words in (
        ["--base-url", place, "--metrics-url", place],
        [f"--baseline-url={place}", f"--arm=eagle3={place}/v1", f"--metrics-url=eagle3={place}/metrics"],
        ["--arm", f"baseline={place}"],
    ):
        argv = ["--backend", "vllm", *words]
        assert SECRET not in str(hide_secrets(argv))
        config = parse_benchmark_arguments(argv)
        assert SECRET not in benchmark_command(config)
        assert SECRET not in str(config_values(config))


@pytest.mark.parametrize("words", [*OF_SERVERS, *SERVER_ARGS])
def test_commands_and_settings_that_are_shown(words: list[str]) -> None:
    argv = ["--backend", "vllm", *words]
    if words in SERVER_ARGS:
        argv += ["--serve", "--model", "quickstart"]
    config = parse_benchmark_arguments(argv)
    assert SECRET not in benchmark_command(config)
    assert SECRET not in str(config_values(config))
    assert SECRET not in str(hide_secrets(argv))
    for word, shown in zip(argv, hide_secrets(argv), strict=True):
        assert shown == word or SECRET in word or "***" in shown


def test_what_is_no_secret_is_shown() -> None:
    words = ["--max-num-batched-tokens", "32768", "--api-key-env", "MY_KEY", "--base-url", "http://host:1/v1"]
    words += ["--server-arg=dflash:--attention-backend fa3", '--server-arg=--extra={"token_limit": "4"}']
    words += ["--arm", "eagle3=[::1]:8000/@v1", "--server-arg=http://host:1", "--dataset-id", "a@b"]
    assert hide_secrets(words) == tuple(words)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at http://me:pw@host:80/v1 and me:pw@host:80", "at http://host:80/v1 and host:80"),
        ("http://host/v1?api_key=abc&n=1", "http://host/v1?api_key=***&n=1"),
        ('{"api_key": "abc", "n": "1"}', '{"api_key": "***", "n": "1"}'),
        ("mail a@b, ratio 3:4", "mail a@b, ratio 3:4"),
    ],
)
def test_secrets_in_running_text(text: str, shown: str) -> None:
    assert hide_in_text(text) == shown


def test_names_of_secrets() -> None:
    assert all(map(is_secret_name, ("--api-key", "HF_TOKEN", "--apikey", "--api-keys", "--DB_PASSWORD")))
    assert not any(map(is_secret_name, ("--tokenizer", "--max-tokens", "--ssl-keyfile", "--api-key-env")))


def test_what_a_log_is_searched_for() -> None:
    words = ["--api-key", "longer-key", "longer", "--url", "http://me:password@host", "--seed", "short"]
    assert secrets_in(words, {"HF_TOKEN": "of-the-hub"}) == (
        "me:password", "longer-key", "of-the-hub", "password", "longer",
    )  # fmt: skip


def test_an_error_does_not_repeat_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backend", "vllm", "--arm", f"me:{SECRET}@host"]) == 2
    assert main(["--backend", "vllm", f"--apikey={SECRET}"]) == 2
    assert SECRET not in "".join(capsys.readouterr())
