"""What of a command and its settings may stand in a file that is shown to others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dflash.command_secrets import hide_in_address, hide_in_text, hide_secrets, hide_server_args
from dflash.config import BenchmarkConfig
from dflash.environment import without_home
from dflash.server_options import parse_slo

ADDRESSES = ("base_url", "baseline_url", "arm_urls", "metrics_urls")


def config_values(config: BenchmarkConfig) -> dict[str, Any]:
    """Every setting as JSON takes it, without what is private; `slo` as limits in seconds."""
    values = asdict(replace(config, parts=(), typed=()))
    del values["typed"]
    values["parts"] = [config_values(part) for part in config.parts]
    values["api_key"] = None
    values["headers"] = [header.partition(":")[0] for header in config.headers]
    values["slo"] = None if config.slo is None else dict(parse_slo(config.slo))
    values["server_args"] = hide_server_args(config.server_args)
    for name in ADDRESSES:
        value = values[name]
        if isinstance(value, tuple):
            values[name] = tuple(hide_in_address(item, may_be_named=True) for item in value)
        elif value is not None:
            values[name] = hide_in_address(value)
    for name, value in values.items():
        if isinstance(value, Path):
            values[name] = publishable(str(value))
        elif isinstance(value, tuple):
            values[name] = [publishable(item) if isinstance(item, str) else item for item in value]
        elif isinstance(value, str):
            values[name] = publishable(value)
    return values


def public_words(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without what is secret (see `command_secrets`), the home folder as `~`."""
    return tuple(without_home(word) for word in hide_secrets(argv))


def publishable(text: str) -> str:
    """Text without the user and password of a URL, the home folder as `~`."""
    return without_home(hide_in_text(text))
