"""argv -> BenchmarkConfig, and back to the command that repeats it. Pure; imports nothing heavy."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, NoReturn

from dflash.command_secrets import hide_secrets
from dflash.config import BenchmarkConfig
from dflash.datasets.catalogue import expand_datasets
from dflash.errors import UsageError
from dflash.flags import GROUPS, add_flag, all_flags
from dflash.server_options import BASELINE, check_heeded


class OneLineParser(argparse.ArgumentParser):
    """Raises `UsageError` where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(" ".join(hide_secrets(message.split())), f"see {self.prog} --help")


# Of the one run that all parts of a suite make together.
_OF_OUTPUT = ("output_dir", "run_name", "resume", "json_file", "quiet", "list_only")


def benchmark_parser() -> argparse.ArgumentParser:
    """The parser of `python -m dflash.benchmark`."""
    parser = OneLineParser(
        prog="python -m dflash.benchmark",
        description="Run the same prompts through plain decoding and through drafting, and report.",
        epilog="LIST is comma-separated; lists make grids. Exit codes: 0 done or stopped by --time-budget, 2 usage, "
        "3 too many requests failed, 4 engine or data not to be had, 70 internal error, 130 interrupted.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            add_flag(group, flag)
            if flag.field == "arms":
                group.add_argument("--no-baseline", action="store_true", help="the same as --arms dflash")
            if flag.field == "reasoning":
                group.add_argument(
                    "--enable-thinking", action="store_true", help="the same as --reasoning on"
                )
            if flag.field == "resume":
                group.add_argument(
                    "--resume",
                    dest="resume_given",
                    action="store_true",
                    help="go on with a run of that name (the default)",
                )
    return parser


def parse_benchmark_arguments(argv: Sequence[str]) -> BenchmarkConfig:
    """argv (without the program) -> settings.

    Raises:
        UsageError: unknown flags, values that cannot be read, contradictions.
        SystemExit: after `--help`.
    """
    values = _values(argv)
    name = values.pop("suite", None)
    config = BenchmarkConfig(**values) if name is None else _suite_config(name, argv, values)
    check_heeded(config)
    return config


def _values(argv: Sequence[str]) -> dict[str, Any]:
    """What is given, by field."""
    values = vars(benchmark_parser().parse_args(list(argv)))
    if values.pop("no_baseline", False) and BASELINE in values.setdefault("arms", _arms_but_baseline(values)):
        raise UsageError("--no-baseline contradicts --arms", "give one of them")
    if values.pop("enable_thinking", False) and values.setdefault("reasoning", "on") != "on":
        raise UsageError("--enable-thinking contradicts --reasoning", "give one of them")
    if values.pop("resume_given", False) and values.get("resume") is False:
        raise UsageError("--resume contradicts --no-resume", "give one of them")
    values.update({name: tuple(value) for name, value in values.items() if isinstance(value, list)})
    return values


def _arms_but_baseline(values: dict[str, Any]) -> tuple[str, ...]:
    """What `--no-baseline` leaves: the servers that have a name, else dflash."""
    named = (text.partition("=")[0] for text in values.get("arm_urls", ()) if "base_url" not in values)
    return tuple(name for name in named if name != BASELINE) or ("dflash",)


def _suite_config(name: str, argv: Sequence[str], typed: dict[str, Any]) -> BenchmarkConfig:
    """The first grid of a suite with all of them as its parts."""
    from dflash.suite import load_suite
    from dflash.suite_parts import grid_words

    names = {alias.lstrip("-"): flag.names[0].lstrip("-") for flag in all_flags() for alias in flag.names}
    fields_typed = tuple(flag.field for flag in all_flags() if flag.field in typed)
    values = {
        flag.names[0].lstrip("-"): list(value) if isinstance(value, tuple) else value
        for flag in all_flags()
        if (value := typed.get(flag.field)) is not None
    }
    if typed.get("smoke"):
        values.setdefault("num-prompts", 1)  # one prompt of each cell, whatever the suite says
    grids = grid_words(load_suite(name), values, names, lambda names: expand_datasets(names)[0])
    in_words = (*_OF_OUTPUT, "datasets", "concurrencies")
    given = {field: value for field, value in typed.items() if field not in in_words}
    parts: list[BenchmarkConfig] = []
    for words in grids:
        try:
            part = BenchmarkConfig(**(_values(words) | given))
        except UsageError as error:
            raise UsageError(f"suite {name}: {error.fault}", error.mend) from error
        if part not in parts:
            parts.append(part)
    if not parts:
        raise UsageError(f"suite {name} leaves no cell", "its overrides drop all of them")
    output = {field: typed[field] for field in _OF_OUTPUT if field in typed}
    return replace(parts[0], **output, suite=name, parts=tuple(parts), typed=fields_typed)


def benchmark_command(config: BenchmarkConfig) -> str:
    """The shortest command line that means `config`, to be shown: secrets are hidden."""
    words = ["python", "-m", "dflash.benchmark"]
    defaults = {item.name: item.default for item in fields(config) if item.default is not MISSING}
    for flag in all_flags():
        value = getattr(config, flag.field)
        if config.suite is not None:
            if flag.field not in ("suite", "run_name", *config.typed) or value is None:
                continue
        elif value == defaults[flag.field] and flag.field != "backend":
            continue
        if flag.parse is None and value == defaults[flag.field]:
            continue
        words.append(flag.names[0])
        if flag.many:
            words[-1:] = [f"{flag.names[0]}={item}" for item in value]
        elif flag.parse is not None:
            words.append(",".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return shlex.join(hide_secrets(words))
