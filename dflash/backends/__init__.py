"""Engines by name; each is imported only when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dflash.backends.base import Backend, BackendSettings, RunningServer
from dflash.backends.server_args import server_words
from dflash.errors import MissingExtraError, UsageError

__all__ = ["BACKENDS", "check_launches", "create_backend", "launch_server", "server_words"]

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from dflash.backends.launch_commands import LaunchCommand
    from dflash.results.records import Arm

# name -> (module, class, extra that installs what it needs)
BACKENDS: dict[str, tuple[str, str, str | None]] = {
    "transformers": ("dflash.backends.transformers", "TransformersBackend", "transformers"),
    "mlx": ("dflash.backends.mlx", "MLXBackend", "mlx"),
    "simulated": ("dflash.backends.simulated", "SimulatedBackend", None),
    "vllm": ("dflash.backends.vllm", "VllmBackend", None),
    "sglang": ("dflash.backends.sglang", "SglangBackend", None),
}


def create_backend(name: str, settings: BackendSettings) -> Backend:
    """The engine `name`, not yet opened.

    Raises:
        UsageError: no engine of that name.
        MissingExtraError: its packages are not installed.
    """
    if name not in BACKENDS:
        raise UsageError(f"unknown backend {name!r}", f"choose one of {', '.join(BACKENDS)}")
    module_name, class_name, extra = BACKENDS[name]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "dflash" or extra is None:
            raise
        raise MissingExtraError(
            f"backend {name!r} needs the package {error.name!r}, which is not installed",
            f"pip install 'dflash[{extra}]'",
        ) from error
    backend: Backend = getattr(module, class_name)(settings)
    return backend


def launch_server(
    engine: str,
    arm: Arm,
    *,
    log_file: Path,
    announce: Callable[[str], None],
    ready_timeout_s: float | None = None,
    **settings: Any,
) -> AbstractAsyncContextManager[RunningServer]:
    """The engine's own server for one arm, which lives as long as the `async with` block that it is entered by.

    Args:
        ready_timeout_s: from the start until it must be ready; None: `server.READY_TIMEOUT_S`.
        settings: fields of `launch_commands.LaunchSettings`.

    Raises:
        UsageError: what cannot be honoured, an engine that is too old among it.
        MissingExtraError: the engine is not installed.
    """
    from dflash.backends.server import READY_TIMEOUT_S, LaunchedServer

    (command,) = _launch_commands(engine, [arm], settings)
    return LaunchedServer(
        command, log_file=log_file, announce=announce, ready_timeout_s=ready_timeout_s or READY_TIMEOUT_S
    )


def check_launches(engine: str, arms: Sequence[Arm], **settings: Any) -> None:
    """Refuse what `launch_server` would refuse of any of the arms; nothing is started.

    Raises:
        UsageError, MissingExtraError: as there.
    """
    _launch_commands(engine, arms, settings)


def _launch_commands(engine: str, arms: Sequence[Arm], settings: dict[str, Any]) -> list[LaunchCommand]:
    from dflash.backends.engine_install import check_release, inspect_engine
    from dflash.backends.launch_commands import LaunchSettings, launch_command

    install = inspect_engine(engine, settings.get("engine_python"))
    for arm in arms:
        check_release(install, arm)
    return [launch_command(engine, arm, LaunchSettings(**settings), install) for arm in arms]
