"""What of a machine moves a time: CPU and GPU model, counts, driver, memory. Neither host name nor kernel. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

FIELDS = ("cpu", "num_cpus", "memory_gib", "architecture", "gpus", "gpu_driver")
_MEMORY_TOLERANCE = 0.02  # kernels keep a little of the memory for themselves, and not always as much
_NOT_OF_THE_MACHINE = ("CUDA_VISIBLE_DEVICES",)  # which of several equal devices was used
_MAX_NAME = 40

Fingerprint = Mapping[str, Any]


def machine_fingerprint(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the machine that times depend on; None: not known."""
    machine = environment.get("machine")
    known = machine if isinstance(machine, Mapping) else {}
    return {name: known.get(name) for name in FIELDS}


def thread_settings(environment: Mapping[str, Any]) -> dict[str, Any]:
    """How many threads were allowed, by the name of the setting."""
    threads = environment.get("threads")
    known = threads if isinstance(threads, Mapping) else {}
    return {name: value for name, value in known.items() if name not in _NOT_OF_THE_MACHINE}


def same_value(name: str, one: Any, other: Any) -> bool:
    """Whether a field is equal on two machines; memory may differ by 2 %."""
    if name == "memory_gib" and isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= _MEMORY_TOLERANCE * max(one, other)
    return bool(one == other)


def same_machine(one: Fingerprint, other: Fingerprint) -> bool:
    return all(same_value(name, one.get(name), other.get(name)) for name in FIELDS)


def machine_name(fingerprint: Fingerprint) -> str:
    """A folder's name: the GPUs or else the CPU in words, and six digits of the whole fingerprint."""
    gpus = fingerprint.get("gpus") or ()
    model = f"{len(gpus)}x {gpus[0]}" if gpus else f"{fingerprint.get('num_cpus')}x {fingerprint.get('cpu')}"
    words = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:_MAX_NAME].strip("-")
    text = json.dumps(dict(fingerprint), sort_keys=True, default=str)
    return f"{words or 'machine'}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
