"""The real engines: their environments, their servers, and which tests want them.

`make test-servers` runs the tests that are marked `servers`, with one engine (ENGINE, in the variable
DFLASH_TEST_ENGINE); no other command runs them unless `-m` names the mark.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from engines.install import ENGINES, default_cache, install
from engines.servers import RunningServer, ServerArm, ServerPool

from dflash.errors import UnavailableError

ENGINE_VARIABLE = "DFLASH_TEST_ENGINE"
DEFAULT_ENGINE = "vllm"
REQUIRE_VARIABLE = "DFLASH_REQUIRE_SERVERS"
TEST_LIMIT_S = 3600  # the first one that wants a server may install the engine

EnginePython = Callable[[str], Path]
UseServer = Callable[..., AbstractContextManager[RunningServer]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of servers for when they are asked for, and then those of the chosen engine."""
    wanted = "servers" in str(config.option.markexpr)
    engine = os.environ.get(ENGINE_VARIABLE, DEFAULT_ENGINE)
    if wanted and engine not in ENGINES:
        raise pytest.UsageError(f"{ENGINE_VARIABLE}={engine}: choose one of {', '.join(ENGINES)}")
    left_out = [item for item in items if is_left_out(item, wanted, engine)]
    for item in items:
        if item.get_closest_marker("servers") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_LIMIT_S))
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def is_left_out(item: pytest.Item, wanted: bool, engine: str) -> bool:
    """The engine of a test is its parameter `engine`, or the argument of its mark; one with neither is for all."""
    marker = item.get_closest_marker("servers")
    if marker is None:
        return False
    parameters = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    own = marker.args or ((parameters["engine"],) if "engine" in parameters else ())
    return not wanted or (bool(own) and engine not in own)


@pytest.fixture(scope="session")
def engine_python(pytestconfig: pytest.Config) -> EnginePython:
    """`engine_python("vllm")`: the python of the engine's environment, which is made at the first use."""
    found: dict[str, Path | UnavailableError] = {}  # asked once a session
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def announce(line: str) -> None:  # to the person who waits for it, not into a test's captured output
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            print(line, file=sys.stderr, flush=True)

    def find(engine: str) -> Path:
        if engine not in found:
            try:
                found[engine] = install(ENGINES[engine], default_cache(), announce)
            except UnavailableError as error:
                found[engine] = error
        result = found[engine]
        if isinstance(result, Path):
            return result
        if os.environ.get(REQUIRE_VARIABLE) == "1":
            raise result
        pytest.skip(f"{engine} cannot be installed here: {result}")

    return find


@pytest.fixture(scope="session")
def running_server(
    engine_python: EnginePython, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[UseServer]:
    """`with running_server(engine, target, draft=..., block_size=..., extra_args=...) as server:`

    The server stays for later tests that ask for the same. When the session ends, all have ended, or it fails.
    """
    pool = ServerPool(tmp_path_factory.mktemp("servers"))

    def use(
        engine: str,
        target: Path,
        *,
        draft: Path | None = None,
        block_size: int | None = None,
        extra_args: tuple[str, ...] = (),
    ) -> AbstractContextManager[RunningServer]:
        arm = ServerArm(engine, target, draft, block_size, tuple(extra_args))
        return pool.use(arm, engine_python(engine))

    try:
        yield use
    finally:
        pool.close()
