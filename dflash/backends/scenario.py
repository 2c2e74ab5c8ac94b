"""What the simulated backends play, in process and as servers: a scenario in a TOML or JSON file."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dflash.backends.base import GenerationRequest
from dflash.errors import UsageError

IN_PROCESS_ACTIONS = ("error", "differ", "interrupt", "sigint", "sigterm", "sigkill", "crash")
SERVER_ACTIONS = (
    "refuse",
    "status",
    "slow_headers",
    "hang",
    "cut",
    "garbage",
    "oversized",
    "error_event",
    "missing_finish",
    "missing_usage",
    "wrong_usage",
    "differ",
    "counter_reset",
    "foreign_traffic",
    "restart",
)
FAULT_ACTIONS = (*IN_PROCESS_ACTIONS, *(action for action in SERVER_ACTIONS if action != "differ"))
SPECULATION_METRICS = ("none", "summary", "detailed")


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, at the requests that match every condition given.

    In process: `error` fails the request; `interrupt` is a Ctrl-C inside the engine, `sigint`, `sigterm` and
    `sigkill` are the signals themselves; `crash` is an error that nobody foresaw.

    Servers: `refuse` closes the port for `seconds` before request number `request` can come (None: from the
    start); `status` answers with `status` and a Retry-After of `retry_after_s`; `slow_headers` waits `seconds`
    before it answers at all; `counter_reset` sets all counters to 0, and `foreign_traffic` moves them by one
    request of `num_tokens` tokens that nobody here asked for, both when the request arrives. These come once
    `after_tokens` output tokens were sent, before the next: `hang` sends nothing for `seconds` (None: for
    ever); `cut` closes the connection; `garbage` is an event that is no JSON, `oversized` one of `size_bytes`;
    `error_event` is the engine's own error inside the stream, and its end; `restart` cuts every connection,
    forgets counters and cache, and refuses connections for `seconds`. `missing_finish` and `missing_usage`
    leave these out; `wrong_usage` adds `delta` to the output tokens.

    Both: `differ` puts another token at `position`.
    """

    action: str
    request: int | None = (
        None  # number among the measured requests of this process, from 0; servers: arrivals
    )
    request_id: str | None = None  # what the id begins with: "quickstart/0003:0:0:dflash"
    arm: str | None = None
    kind: str = "simulated"  # of an `error`
    message: str = "a simulated fault"
    position: int = 0  # of a `differ`: index of the output token
    prompt: str | None = None  # servers: what the prompt, or the last message, holds
    times: int | None = None  # servers: hits at most; None: once where `request` is given, else always
    status: int = 500
    retry_after_s: float | None = None
    seconds: float | None = None
    after_tokens: int = 0
    size_bytes: int = 32 * 1024 * 1024
    num_tokens: int = 100
    delta: int = 1

    def hits(self, request: GenerationRequest, number: int | None) -> bool:
        """Whether this fault is meant for `request`, the `number`-th measured one (None: a warm-up)."""
        if number is None:
            return self.request_id is not None and request.request_id.startswith(self.request_id)
        return (
            self.request in (None, number)
            and request.request_id.startswith(self.request_id or "")
            and self.arm in (None, request.arm.name)
        )

    def hits_arrival(self, number: int, request_id: str, arm: str, prompt: str) -> bool:
        """Whether this fault may hit the `number`-th request that came to a server, `times` aside."""
        return (
            self.action != "refuse"
            and (self.request is None or number >= self.request)
            and request_id.startswith(self.request_id or "")
            and self.arm in (None, arm)
            and (self.prompt or "") in prompt
        )

    @property
    def most_hits(self) -> float:
        if self.times is None:
            return math.inf if self.request is None else 1
        return self.times


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What the simulated servers add to a scenario: how they were "started", and their load model.

    Queueing: first come, first served; at most `max_running_requests` run, a DP rank being one such engine.
    A running request's prefill and each of its steps take their scripted time times
    1 + `slowdown_per_request` * (requests running on the rank - 1), as counted when the prefill or step begins.
    A cached share of the prompt saves that share of the prefill.
    """

    model: str = "simulated-target"
    draft_model: str = "simulated-draft"
    version: str | None = None  # None: the one whose answers were recorded (vLLM 0.32.0, SGLang 0.5.23)
    max_model_len: int = 32768
    max_running_requests: int = 256
    slowdown_per_request: float = 0.0
    dp_ranks: int = 1  # requests go to the ranks in turn
    prefix_cache: bool = True
    cache_tokens: int = 1_000_000  # kept at most; the oldest go first
    cached_tokens_in_usage: bool = False  # --enable-prompt-tokens-details; --enable-cache-report
    per_request_metrics: bool = False  # vLLM: --enable-per-request-metrics
    per_request_spec_decode_metrics: str = "none"  # vLLM: the flag of that name
    dev_mode: bool = True  # vLLM: VLLM_SERVER_DEV_MODE; without it there is no /reset_prefix_cache
    metrics: bool = True  # False: no /metrics
    ngram_draft_share: float = 0.4  # of the steps of an `ngram` arm that find something to draft
    unicode_text: bool = False  # words beyond ASCII, of two to four bytes a character
    log_requests: int = 20_000  # kept in the log at most; the oldest go first


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
    server: ServerSettings = ServerSettings()

    @property
    def digest(self) -> str:
        """Tells scenarios apart, faults aside: a run may be resumed without the fault that ended it.

        Server settings are aside too: they change no token, and the engine in process does not read them.
        """
        aside = ("faults", "server")
        parts = [(item.name, getattr(self, item.name)) for item in fields(self) if item.name not in aside]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


_NUMBERS = tuple(
    item.name
    for item in fields(Scenario)
    if item.name not in ("output_tokens", "acceptance", "faults", "server")
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
    known["server"] = _parse_server(known.get("server", {}))
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
    if fault.action in ("refuse", "slow_headers", "restart") and fault.seconds is None:
        raise ValueError(f"a fault of action {fault.action!r} needs seconds")
    return fault


def _parse_server(values: Any) -> ServerSettings:
    if not isinstance(values, Mapping):
        raise TypeError("server must be a table")
    _check_names(values, ServerSettings)
    server = ServerSettings(**values)
    for item in fields(ServerSettings):
        value, default = getattr(server, item.name), getattr(ServerSettings(), item.name)
        if isinstance(default, bool) != isinstance(value, bool):
            raise TypeError(f"server.{item.name} must be {'true or false' if default else 'no boolean'}")
        if isinstance(default, int | float) and not isinstance(default, bool):
            _check_number(f"server.{item.name}", value)
    if min(server.max_running_requests, server.dp_ranks, server.max_model_len) < 1:
        raise ValueError("server.max_running_requests, dp_ranks and max_model_len must be 1 or more")
    if server.per_request_spec_decode_metrics not in SPECULATION_METRICS:
        raise ValueError(
            f"server.per_request_spec_decode_metrics must be of {', '.join(SPECULATION_METRICS)}"
        )
    return server


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
