"""What of a command and its settings may stand in a file that is shown to others. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dflash.config import BenchmarkConfig
from dflash.environment import without_home
from dflash.server_options import parse_slo

SECRET_FLAGS = ("--api-key", "--header")  # their values are in no file
HIDDEN = "HIDDEN"


def config_values(config: BenchmarkConfig) -> dict[str, Any]:
    """Every setting as JSON takes it, without what is private; `slo` as limits in seconds."""
    values = asdict(replace(config, parts=(), typed=()))
    del values["typed"]
    values["parts"] = [config_values(part) for part in config.parts]
    values["api_key"] = None
    values["headers"] = [header.partition(":")[0] for header in config.headers]
    values["slo"] = None if config.slo is None else dict(parse_slo(config.slo))
    values["server_args"] = list(public_words(config.server_args))
    for name, value in values.items():
        if isinstance(value, Path):
            values[name] = publishable(str(value))
        elif isinstance(value, tuple):
            values[name] = list(value)
        elif isinstance(value, str):
            values[name] = publishable(value)
    return values


def public_words(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without what is secret: keys, header values, passwords in addresses."""
    words: list[str] = []
    for word in argv:
        flag, equals, _ = word.partition("=")
        if words and words[-1] in SECRET_FLAGS:
            words.append(HIDDEN)
        elif equals and flag in SECRET_FLAGS:
            words.append(f"{flag}={HIDDEN}")
        else:
            words.append(publishable(word))
    return tuple(words)


def publishable(text: str) -> str:
    """Text without the user and password of a URL, the home folder as `~`."""
    return without_home(re.sub(r"(?<=://)[^/\s]*@", "", text))
