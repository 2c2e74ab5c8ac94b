"""Engines by name; each is imported only when it is asked for."""

from __future__ import annotations

import importlib

from dflash.backends.base import Backend, BackendSettings
from dflash.errors import MissingExtraError, UsageError

# name -> (module, class, extra that installs what it needs)
BACKENDS: dict[str, tuple[str, str, str | None]] = {
    "transformers": ("dflash.backends.transformers", "TransformersBackend", "transformers"),
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
