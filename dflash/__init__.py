"""dflash: measure speculative decoding.

Importing this package imports no heavy package: public names are resolved when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash.config import BenchmarkConfig
    from dflash.results.store import Run, load_run
    from dflash.runner import run_benchmark

__version__ = "0.1.0.dev0"

_PUBLIC = {
    "BenchmarkConfig": "dflash.config",
    "Run": "dflash.results.store",
    "load_run": "dflash.results.store",
    "run_benchmark": "dflash.runner",
}

__all__ = ["BenchmarkConfig", "Run", "__version__", "load_run", "run_benchmark"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
