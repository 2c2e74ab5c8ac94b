"""The machine and version fingerprint: what a number depends on beside the code that made it.

No host name, no user name, no folder of a user, no secret. Packages are asked for their version without being
imported; the GPU is described by torch where that has been imported already, else by the driver's own tool.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import dflash

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "safetensors",
    "accelerate",
    "triton",
    "flash-attn",
    "mlx",
    "mlx-lm",
    "aiohttp",
)
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OMP_PROC_BIND",
    "KMP_AFFINITY",
    "CUDA_VISIBLE_DEVICES",
)
_BYTES_PER_GIB = 1024**3
_MIB_PER_GIB = 1024


def fingerprint() -> dict[str, Any]:
    """`machine`, `versions` and `threads` belong to a cell's identity; `git` is told beside them."""
    return {
        "machine": _machine() | _gpus(),
        "versions": _versions(),
        "threads": _threads(),
        "git": dict(_git()),
    }


def without_home(text: str) -> str:
    """The home folder written as `~`."""
    home = str(Path("~").expanduser())
    return text.replace(home, "~") if len(home) > 1 else text


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "num_cpus": _num_usable_cpus(),
        "memory_gib": _memory_gib(),
        "architecture": platform.machine(),
        "os": f"{platform.system()} {platform.release()}",
    }


@cache
def _cpu_model() -> str | None:
    if sys.platform == "darwin":
        return _output_of("sysctl", "-n", "machdep.cpu.brand_string")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.processor() or None


def _num_usable_cpus() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _BYTES_PER_GIB, 1)
    except (AttributeError, OSError, ValueError):
        return None


def _versions() -> dict[str, str]:
    versions = {
        "dflash": dflash.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _threads() -> dict[str, Any]:
    threads: dict[str, Any] = {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}
    torch = sys.modules.get("torch")
    if torch is not None:
        threads["torch"] = torch.get_num_threads()
    return threads


def _gpus() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return _gpus_of_driver()
    if not torch.cuda.is_available():
        return {}
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "gpus": [f"{device.name}, {device.total_memory / _BYTES_PER_GIB:.0f} GiB" for device in devices],
        "cuda": torch.version.cuda,
        "gpu_driver": _gpu_driver(),
    }


def _gpus_of_driver() -> dict[str, Any]:
    """What a server on this machine may use; nothing where there is no such tool."""
    answer = _output_of("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    gpus = []
    for line in (answer or "").splitlines():
        name, _, memory_mib = line.rpartition(",")
        if name and memory_mib.strip().isdecimal():
            gpus.append(f"{name.strip()}, {int(memory_mib) / _MIB_PER_GIB:.0f} GiB")
    return {"gpus": gpus, "gpu_driver": _gpu_driver()} if gpus else {}


@cache
def _gpu_driver() -> str | None:
    answer = _output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return answer.splitlines()[0].strip() if answer else None


@cache
def _git() -> Mapping[str, Any]:
    """Commit of the checkout that this package runs from, and whether its files were changed."""
    package = Path(dflash.__file__).resolve().parent
    if not (package.parent / ".git").exists():  # installed: whatever checkout is around it is another project
        return {}
    commit = _output_of("git", "-C", str(package), "rev-parse", "HEAD")
    if commit is None:
        return {}
    changes = _output_of(
        "git", "-C", str(package), "status", "--porcelain", "--untracked-files=no", "--", "."
    )
    return {"commit": commit, "changed": None if changes is None else bool(changes)}


def _output_of(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
