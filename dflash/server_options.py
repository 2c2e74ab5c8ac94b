"""What the settings say of servers: where they are, how they are waited for, what load they get. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dflash.backends.base import Endpoint, RequestTimeouts
from dflash.command_secrets import hide_in_address
from dflash.errors import UsageError
from dflash.results.titles import NO_CAP as NO_CAP

if TYPE_CHECKING:
    from dflash.config import BenchmarkConfig

SERVER_BACKENDS = ("vllm", "sglang")
ROUTES = ("chat", "completions", "generate")
ARRIVALS = ("poisson", "constant")
BASELINE = "baseline"
DEFAULT_ARMS = (BASELINE, "dflash")
QUICKSTART = "quickstart"  # as a model: the pair that the first run uses
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
_SLO_LIMITS = {"ttft": "ttft_s", "tpot": "tpot_s", "e2el": "e2el_s"}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_ARM_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._+-]*")
_NAMED_URL = re.compile(rf"({_ARM_NAME.pattern})=")


def endpoints_of(config: BenchmarkConfig) -> tuple[Endpoint, ...]:
    """The servers that are named, the baseline first; empty: the engine's own port on this machine.

    A server without a label is asked what it is.

    Raises:
        UsageError: a name without an address, a name twice, metrics of a server that is not there.
    """
    named: list[tuple[str | None, str]] = [split_arm("--arm", text) for text in config.arm_urls]
    if config.baseline_url is not None:
        named.append((BASELINE, config.baseline_url))
    if config.base_url is not None:
        named.append((_name_of_base_url(config, [name for name, _ in named]), config.base_url))
    names = [name for name, _ in named]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two servers are named {twice!r}", "give every arm a name of its own")
    metrics = _metrics_urls(config, names)
    endpoints = [Endpoint(url, name, metrics.get(name)) for name, url in named]
    return tuple(sorted(endpoints, key=lambda endpoint: endpoint.arm != BASELINE))


def _name_of_base_url(config: BenchmarkConfig, others: Collection[str | None]) -> str | None:
    """What the user calls the server of `--base-url`, by `--arms` or `--metrics-url`; None: it is asked what it is."""
    called = [] if config.arms == DEFAULT_ARMS else list(config.arms)
    called += [match[1] for text in config.metrics_urls if (match := _NAMED_URL.match(text))]
    own = {name for name in called if name not in others}
    return own.pop() if len(own) == 1 else None


def with_named_servers(config: BenchmarkConfig, found: str) -> BenchmarkConfig:
    """The same servers by `--arm NAME=URL` alone, so that more of them can be added.

    Args:
        found: what the server is that the user gave no name.
    """
    endpoints = [replace(endpoint, arm=endpoint.arm or found) for endpoint in endpoints_of(config)]
    return replace(
        config,
        arms=DEFAULT_ARMS,
        base_url=None,
        baseline_url=None,
        arm_urls=tuple(f"{endpoint.arm}={endpoint.url}" for endpoint in endpoints),
        metrics_urls=tuple(f"{item.arm}={item.metrics_url}" for item in endpoints if item.metrics_url),
    )


def split_arm(flag: str, text: str) -> tuple[str, str]:
    """NAME=VALUE.

    Raises:
        UsageError: it has another form.
    """
    name, equals, value = text.partition("=")
    if not equals or not value or not _ARM_NAME.fullmatch(name):
        shown = hide_in_address(text)
        raise UsageError(f"{flag} {shown!r} is not NAME=URL", f"such as {flag} eagle3=http://127.0.0.1:8001")
    return name, value


def timeouts_of(config: BenchmarkConfig) -> RequestTimeouts:
    """How long a server is waited for; what is not given has its default."""
    given = {
        "connect_s": config.connect_timeout_s,
        "first_token_s": config.first_token_timeout_s,
        "between_chunks_s": config.chunk_timeout_s,
        "total_s": config.timeout_s,
    }
    return RequestTimeouts(**{name: value for name, value in given.items() if value is not None})


def headers_of(config: BenchmarkConfig) -> tuple[tuple[str, str], ...]:
    """Further headers as (name, value)."""
    pairs = (header.partition(":") for header in config.headers)
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def api_key_of(config: BenchmarkConfig, environment: Mapping[str, str]) -> str | None:
    """The key that servers are given: of the settings, else of the environment.

    Raises:
        UsageError: the variable that is named holds none.
    """
    if config.backend not in SERVER_BACKENDS or config.api_key is not None:
        return config.api_key
    name = config.api_key_variable
    key = environment.get(name or DEFAULT_KEY_VARIABLE)
    if name is not None and not key:
        raise UsageError(f"--api-key-env names {name}, which holds no key", "set it, or drop the flag")
    return key or None


def parse_slo(text: str) -> Mapping[str, float]:
    """`ttft:500ms,tpot:50ms` -> limits in seconds by metric name.

    Raises:
        UsageError: an unknown latency, no number, no unit.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([a-z0-9]+):([0-9.]+)(s|ms|us)\s*", part)
        name = _SLO_LIMITS.get(match.group(1)) if match else None
        try:
            value = float(match.group(2)) * _SECONDS[match.group(3)] if match else math.nan
        except ValueError:
            value = math.nan
        if name is None or not value > 0:
            raise UsageError(
                f"--slo {part.strip()!r} is no limit",
                f"give {', '.join(_SLO_LIMITS)} with a unit, such as ttft:500ms,tpot:50ms",
            )
        if name in limits:
            raise UsageError(f"--slo limits {name} twice", "give each latency once")
        limits[name] = value
    return limits


def check_servers(config: BenchmarkConfig) -> None:
    """Refuse settings that contradict each other or make no sense.

    Raises:
        UsageError: names the first.
    """
    on_servers = config.backend in SERVER_BACKENDS
    if not on_servers:
        _check_no_server(config)
        return
    _check_ranges(config)
    endpoints = endpoints_of(config)
    if config.serve and endpoints:
        raise UsageError("--serve starts the servers itself and contradicts a URL", "drop one of them")
    if config.serve and config.model is None:
        raise UsageError("--serve must know what to serve", "add --model")
    drafts = any(name != BASELINE for name in config.arms) and config.model != QUICKSTART
    if config.serve and drafts and config.draft_model is None:
        raise UsageError("--serve must know the draft", "add --draft-model, or --arms baseline")
    if not config.serve and len(config.block_sizes) > 1:
        raise UsageError(
            "a running server has one block size, and --block-size names several",
            "give the one to check, or let --serve start a server for each",
        )
    for flag, given in (
        ("--server-arg", config.server_args),
        ("--engine-python", config.engine_python),
        ("--ready-timeout-s", config.ready_timeout_s),
    ):
        if given and not config.serve:
            raise UsageError(f"{flag} is for servers that dflash starts", "add --serve, or drop it")
    if config.route == "generate" and config.backend != "sglang":
        raise UsageError("--route generate is SGLang's own", "use chat or completions")
    if config.slo is not None:
        parse_slo(config.slo)
    for header in config.headers:
        name, colon, value = header.partition(":")
        if not colon or not name.strip() or not value.strip():
            raise UsageError("a --header is not of the form NAME: VALUE", "give it as 'NAME: VALUE'")
    if config.api_key is not None and config.api_key_variable is not None:
        raise UsageError("--api-key contradicts --api-key-env", "give one of them")


def check_heeded(config: BenchmarkConfig) -> None:
    """Refuse what was given and would say nothing to servers. What only a suite says may be for its other backends.

    Raises:
        UsageError: names the first.
    """
    for part in config.all_parts:
        if part.backend in SERVER_BACKENDS:
            _check_heeded(part, None if config.suite is None else config.typed)


def _check_heeded(config: BenchmarkConfig, typed: Collection[str] | None) -> None:
    """
    Args:
        typed: the fields that were given; None: all of them.
    """
    engine_flags: dict[str, tuple[object, str, str]] = {
        "force_block_size": (
            config.force_block_size,
            "--force-block-size",
            "the engine decides which it takes",
        ),
        "attn_implementation": (
            config.attn_implementation,
            "--attn-implementation",
            "give --serve with --server-arg='--attention-backend NAME'",
        ),
    }
    if config.serve:
        ignored = engine_flags | {
            "metrics_urls": (config.metrics_urls, "--metrics-url", "the server that is started has its own")
        }
    else:
        ignored = engine_flags | {
            "draft_model": (config.draft_model, "--draft-model", "a running server has its draft"),
            "device": (config.device, "--device", "a running server has its device"),
            "trust_remote_code": (
                config.trust_remote_code,
                "--trust-remote-code",
                "a running server has loaded its model",
            ),
        }
    for field, (value, flag, mend) in ignored.items():
        if value and (typed is None or field in typed):
            started = "started" if config.serve else "running"
            raise UsageError(f"{flag} says nothing to a server that is {started}", f"drop it: {mend}")
    if not config.serve:
        _check_baseline_named(config)
        if typed is None or "arms" in typed:
            _check_arms_named(config)


def _check_baseline_named(config: BenchmarkConfig) -> None:
    """A running server that is named is measured: nothing else leaves its arm out, of a suite's either."""
    names = [endpoint.arm for endpoint in endpoints_of(config)]
    if BASELINE in names and BASELINE not in config.arms:
        flag = "--baseline-url" if config.baseline_url is not None else f"--arm {BASELINE}=URL"
        raise UsageError(
            f"the baseline is left out (--no-baseline, or --arms {','.join(config.arms)}), and {flag} names one",
            "drop one of them",
        )


def _check_arms_named(config: BenchmarkConfig) -> None:
    """`--arms` of running servers may say again what they are, or name the only one."""
    names = [endpoint.arm for endpoint in endpoints_of(config)]
    if config.arms == DEFAULT_ARMS or set(config.arms) == set(names) or (not names and len(config.arms) == 1):
        return
    raise UsageError(
        f"--arms {','.join(config.arms)} starts and leaves out no running server",
        "name each server that is to be measured by --arm NAME=URL",
    )


def _check_no_server(config: BenchmarkConfig) -> None:
    for_servers = {
        "--base-url": config.base_url,
        "--baseline-url": config.baseline_url,
        "--arm": config.arm_urls,
        "--metrics-url": config.metrics_urls,
        "--serve": config.serve,
        "--server-arg": config.server_args,
        "--engine-python": config.engine_python,
        "--ready-timeout-s": config.ready_timeout_s,
        "--request-rate": config.request_rate,
        "--slo": config.slo,
        "--api-key": config.api_key,
        "--api-key-env": config.api_key_variable,
        "--header": config.headers,
        "--insecure": not config.verify_tls,
        "--timeout-s": config.timeout_s,
        "--connect-timeout-s": config.connect_timeout_s,
        "--first-token-timeout-s": config.first_token_timeout_s,
        "--chunk-timeout-s": config.chunk_timeout_s,
        "--route": config.route != ROUTES[0],
        "--arrivals": config.arrivals != ARRIVALS[0],
    }
    flag = next((flag for flag, given in for_servers.items() if given), None)
    if flag is not None:
        raise UsageError(
            f"{flag} contradicts --backend {config.backend}, which runs in this process",
            f"drop it, or choose --backend {' or '.join(SERVER_BACKENDS)}",
        )


def _check_ranges(config: BenchmarkConfig) -> None:
    for flag, value in (
        ("--request-rate", config.request_rate),
        ("--timeout-s", config.timeout_s),
        ("--ready-timeout-s", config.ready_timeout_s),
        ("--connect-timeout-s", config.connect_timeout_s),
        ("--first-token-timeout-s", config.first_token_timeout_s),
        ("--chunk-timeout-s", config.chunk_timeout_s),
    ):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{flag} {value:g} is not above 0", "give a number above 0")
    for flag, word, known in (("--route", config.route, ROUTES), ("--arrivals", config.arrivals, ARRIVALS)):
        if word not in known:
            raise UsageError(f"unknown {flag} {word!r}", f"choose from {', '.join(known)}")
    if config.request_rate is None and config.arrivals != ARRIVALS[0]:
        raise UsageError("--arrivals has no meaning for a closed loop", "add --request-rate, or drop it")


def _metrics_urls(config: BenchmarkConfig, names: list[str | None]) -> dict[str | None, str]:
    found: dict[str | None, str] = {}
    for text in config.metrics_urls:
        if _NAMED_URL.match(text):
            name, url = split_arm("--metrics-url", text)
            if name not in names:
                raise UsageError(f"--metrics-url names {name!r}, which is no server here", "name an --arm")
            found[name] = url
        elif len(names) > 1 or found:
            raise UsageError("--metrics-url does not say of which server", "give it as NAME=URL")
        else:
            found[names[0] if names else None] = text
    return found
