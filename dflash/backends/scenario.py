"""What the simulated backend plays: a scenario in a TOML or JSON file."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dflash.backends.base import GenerationRequest
from dflash.errors import UsageError

FAULT_ACTIONS = ("error", "differ", "interrupt", "sigint", "sigterm", "sigkill", "crash")


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, at the requests that match every condition given.

    `error` fails the request; `differ` puts another token at `position`; `interrupt` is a Ctrl-C inside the
    engine, `sigint`, `sigterm` and `sigkill` are the signals themselves; `crash` is an error that nobody
    foresaw.
    """

    action: str
    request: int | None = None  # number among the measured requests of this process, from 0
    request_id: str | None = None  # what the id begins with: "quickstart/0003:0:0:dflash"
    arm: str | None = None
    kind: str = "simulated"  # of an `error`
    message: str = "a simulated fault"
    position: int = 0  # of a `differ`: index of the output token

    def hits(self, request: GenerationRequest, number: int | None) -> bool:
        """Whether this fault is meant for `request`, the `number`-th measured one (None: a warm-up)."""
        if number is None:
            return self.request_id is not None and request.request_id.startswith(self.request_id)
        return (
            self.request in (None, number)
            and request.request_id.startswith(self.request_id or "")
            and self.arm in (None, request.arm.name)
        )


@dataclass(frozen=True)  # no slots: the class attributes are the defaults
class Scenario:
    """Times are means; each is moved by up to `jitter` of itself, by the same amount in every run."""

    prefill_ms: float = 30.0
    baseline_step_ms: float = 20.0
    draft_step_ms: float = 4.0
    verify_step_ms: float = 21.0
    verify_ms_per_draft_token: float = 0.4
    jitter: float = 0.03
    output_tokens: tuple[int, int] = (24, 160)  # lowest and highest length, stop token included
    acceptance: tuple[float, ...] = (
        0.85,
        0.8,
        0.75,
        0.7,
    )  # of a position, given the one before; the last repeats
    block_size: int = 8  # where none is asked for
    max_block_size: int = 16
    vocabulary_size: int = 1000
    logit_gap: float | None = 0.001
    target_bytes: int = 500_000_000
    draft_bytes: int = 50_000_000
    faults: tuple[Fault, ...] = ()

    @property
    def digest(self) -> str:
        """Tells scenarios apart, faults aside: a run may be resumed without the fault that ended it."""
        parts = [(item.name, getattr(self, item.name)) for item in fields(self) if item.name != "faults"]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


_NUMBERS = tuple(
    item.name for item in fields(Scenario) if item.name not in ("output_tokens", "acceptance", "faults")
)


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario.

    Raises:
        UsageError: no such file, no TOML or JSON, an unknown field, or a value out of range.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the scenario {path} ({error})", "give a TOML or JSON file by --script"
        ) from error
    try:
        values = json.loads(text) if path.suffix == ".json" else _parse_toml(text)
        return parse_scenario(values)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"scenario {path}: {error}", "see dflash/backends/scenario.py for the fields"
        ) from error


def parse_scenario(values: Mapping[str, Any]) -> Scenario:
    """A scenario from the contents of its file.

    Raises:
        ValueError: an unknown field or a value out of range.
        TypeError: a value of another type.
    """
    if not isinstance(values, Mapping):
        raise TypeError("the file holds no table")
    known = dict(values)
    _check_names(known, Scenario)
    for name in _NUMBERS:
        if known.get(name) is not None or (name in known and name != "logit_gap"):
            _check_number(name, known[name])
    known["faults"] = tuple(_parse_fault(fault) for fault in known.get("faults", ()))
    known["output_tokens"] = _parse_range(known.get("output_tokens", Scenario.output_tokens))
    known["acceptance"] = _parse_shares(known.get("acceptance", Scenario.acceptance))
    scenario = Scenario(**known)
    if not scenario.jitter < 1:
        raise ValueError("jitter must be in [0, 1)")
    if not 2 <= scenario.block_size <= scenario.max_block_size:
        raise ValueError("block_size must be from 2 to max_block_size")
    if scenario.vocabulary_size < 2:
        raise ValueError("vocabulary_size must be 2 or more")
    return scenario


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number")
    if not value >= 0:
        raise ValueError(f"{name} must not be negative")


def _parse_range(value: Any) -> tuple[int, int]:
    if isinstance(value, list | tuple) and len(value) == 2 and all(type(item) is int for item in value):
        low, high = value
        if 1 <= low <= high:
            return low, high
    raise ValueError("output_tokens must be [low, high] with 1 <= low <= high")


def _parse_shares(value: Any) -> tuple[float, ...]:
    shares = value if isinstance(value, list | tuple) else ()
    if shares and all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares):
        return tuple(shares)
    raise ValueError("acceptance must hold shares from 0 to 1")


def _parse_fault(values: Any) -> Fault:
    if not isinstance(values, Mapping):
        raise TypeError("a fault must be a table")
    _check_names(values, Fault)
    if "action" not in values:
        raise ValueError("a fault needs an action")
    fault = Fault(**values)
    if fault.action not in FAULT_ACTIONS:
        raise ValueError(f"unknown fault action {fault.action!r}: choose one of {', '.join(FAULT_ACTIONS)}")
    return fault


def _check_names(values: Mapping[str, Any], kind: type[Any]) -> None:
    unknown = sorted(set(values) - {item.name for item in fields(kind)})
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r} of a {kind.__name__.lower()}")


def _parse_toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]
    values: dict[str, Any] = tomllib.loads(text)
    return values
