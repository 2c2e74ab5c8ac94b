"""argv -> BenchmarkConfig, and back to the command that repeats it. Pure; imports nothing heavy."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from dflash.cache_folder import parse_folder
from dflash.config import ARM_NAMES, DTYPES, BenchmarkConfig
from dflash.datasets.catalogue import expand_datasets
from dflash.errors import UsageError
from dflash.server_options import ARRIVALS, ROUTES
from dflash.time_budget import parse_duration


class OneLineParser(argparse.ArgumentParser):
    """Raises `UsageError` where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"see {self.prog} --help")


@dataclass(frozen=True, slots=True)
class _Flag:
    field: str
    names: tuple[str, ...]
    parse: Callable[[str], Any] | None  # None: a switch
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    many: bool = False  # may be repeated
    off: bool = False  # a switch that turns its field off


def _list_of(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse_list(text: str) -> tuple[Any, ...]:
        return tuple(parse(item.strip()) for item in text.split(","))

    parse_list.__name__ = f"list of {parse.__name__}"  # argparse names it in its message
    return parse_list


# Of the one run that all parts of a suite make together.
_OF_OUTPUT = ("output_dir", "run_name", "resume", "json_file", "quiet", "list_only")

_GROUPS: dict[str, tuple[_Flag, ...]] = {
    "what decodes": (
        _Flag("backend", ("--backend",), str, "engine (default: transformers)"),
        _Flag(
            "model", ("--model",), str, "target: model id or folder (default in process: the quickstart pair)"
        ),
        _Flag("draft_model", ("--draft-model", "--draft"), str, "draft: model id or folder"),
        _Flag("arms", ("--arms",), _list_of(str), f"of {', '.join(ARM_NAMES)} (default: both)", "LIST"),
        _Flag(
            "block_sizes",
            ("--block-size",),
            _list_of(int),
            "B = 1 known token + B-1 draft tokens (default: the draft's own)",
            "LIST",
        ),
        _Flag(
            "force_block_size",
            ("--force-block-size",),
            None,
            "allow a block larger than the draft was trained for",
        ),
        _Flag("draft_bits", ("--draft-bits",), int, "mlx: quantise the draft to 4 or 8 bits", "4|8"),
        _Flag("dtype", ("--dtype",), str, "default: float32 on CPU, the checkpoint's on GPU", choices=DTYPES),
        _Flag(
            "device",
            ("--device",),
            str,
            "such as cpu or cuda:0 (default: CUDA where there is one); mlx: cpu or gpu",
        ),
        _Flag(
            "attn_implementation", ("--attn-implementation",), str, "attention kernel of the target", "NAME"
        ),
        _Flag(
            "trust_remote_code", ("--trust-remote-code",), None, "run code that a model repository carries"
        ),
        _Flag("script", ("--script",), str, "scenario of the simulated backend (TOML or JSON)", "FILE"),
    ),
    "servers (vllm, sglang)": (
        _Flag(
            "base_url", ("--base-url",), str, "the server (default: the engine's port on this machine)", "URL"
        ),
        _Flag("baseline_url", ("--baseline-url",), str, "a second server, which decodes plainly", "URL"),
        _Flag("arm_urls", ("--arm",), str, "a server for any arm; may be repeated", "NAME=URL", many=True),
        _Flag(
            "metrics_urls",
            ("--metrics-url",),
            str,
            "its Prometheus counters (default: /metrics at the server); may be repeated",
            "[NAME=]URL",
            many=True,
        ),
        _Flag("serve", ("--serve",), None, "start the engine's own server, one arm after the other"),
        _Flag(
            "server_args",
            ("--server-arg",),
            str,
            "a word for the engine's command line, as --server-arg=WORD; after NAME: only for that arm",
            "[NAME:]WORD",
            many=True,
        ),
        _Flag("engine_python", ("--engine-python",), str, "Python that the engine is installed for", "PATH"),
        _Flag("route", ("--route",), str, "how prompts are sent (default: chat)", choices=ROUTES),
        _Flag("request_rate", ("--request-rate",), float, "open loop: requests a second", "RATE"),
        _Flag("arrivals", ("--arrivals",), str, "of an open loop (default: poisson)", choices=ARRIVALS),
        _Flag("slo", ("--slo",), str, "what counts as good, such as ttft:500ms,tpot:50ms", "LIMITS"),
        _Flag("api_key", ("--api-key",), str, "key of the servers; never stored", "KEY"),
        _Flag(
            "api_key_variable",
            ("--api-key-env",),
            str,
            "environment variable that holds it (default: OPENAI_API_KEY where it is set)",
            "NAME",
        ),
        _Flag(
            "headers",
            ("--header",),
            str,
            "a further header; may be repeated; never stored",
            "'NAME: VALUE'",
            many=True,
        ),
        _Flag("verify_tls", ("--insecure",), None, "accept any TLS certificate (stamped)", off=True),
        _Flag("connect_timeout_s", ("--connect-timeout-s",), float, "default: 10", "SECONDS"),
        _Flag("first_token_timeout_s", ("--first-token-timeout-s",), float, "default: 300", "SECONDS"),
        _Flag(
            "chunk_timeout_s", ("--chunk-timeout-s",), float, "between two chunks (default: 120)", "SECONDS"
        ),
        _Flag("timeout_s", ("--timeout-s",), float, "of a whole request (default: no limit)", "SECONDS"),
    ),
    "on what": (
        _Flag(
            "suite",
            ("--suite",),
            str,
            "a whole sweep: a TOML file, or quick, paper, ci; flags beside it hold in every grid of it",
            "SUITE",
        ),
        _Flag(
            "datasets",
            ("--dataset",),
            _list_of(str),
            "names (see `python -m dflash.data list`), math, code, chat, all, or custom "
            "(default: quickstart)",
            "LIST",
        ),
        _Flag("dataset_file", ("--dataset-file",), Path, "file that holds the data set", "FILE"),
        _Flag("dataset_id", ("--dataset-id",), str, "custom: data set on the model hub", "NAMESPACE/NAME"),
        _Flag("dataset_config", ("--dataset-config",), str, "custom: its config", "NAME"),
        _Flag(
            "dataset_split",
            ("--dataset-split",),
            str,
            "custom: its split (default: test, else train)",
            "NAME",
        ),
        _Flag("dataset_revision", ("--dataset-revision",), str, "custom: its commit", "COMMIT"),
        _Flag("prompt_field", ("--prompt-field",), str, "custom: column that holds the prompt", "COLUMN"),
        _Flag(
            "turns_field", ("--turns-field",), str, "custom: column that holds the list of turns", "COLUMN"
        ),
        _Flag("datasets_cache", ("--datasets-cache",), parse_folder, "folder of fetched data sets", "FOLDER"),
        _Flag(
            "num_prompts",
            ("--num-prompts", "--max-samples"),
            int,
            "default: 128, or all of a smaller set",
            "N",
        ),
        _Flag("category", ("--category",), str, "only prompts of this category"),
        _Flag("min_prompt_chars", ("--min-prompt-chars",), int, "only prompts of this length or longer", "N"),
        _Flag(
            "max_prompt_chars", ("--max-prompt-chars",), int, "only prompts of this length or shorter", "N"
        ),
        _Flag(
            "repeat",
            ("--repeat",),
            None,
            "use prompts again where a set has fewer than --num-prompts (stamped)",
        ),
        _Flag("max_new_tokens", ("--max-new-tokens",), int, "default: 2048; quickstart: 128", "N"),
        _Flag("reasoning", ("--reasoning",), str, "off (default), on, or a level", "off|on|LEVEL"),
        _Flag("concurrencies", ("--concurrency",), _list_of(int), "requests in flight (default: 1)", "LIST"),
    ),
    "how tokens are picked": (
        _Flag("temperature", ("--temperature",), float, "0 (default) is greedy", "T"),
        _Flag("top_p", ("--top-p",), float, "needs a temperature above 0", "P"),
        _Flag("top_k", ("--top-k",), int, "needs a temperature above 0", "K"),
        _Flag("seed", ("--seed",), int, "of prompt selection and sampling (default: 0)", "N"),
    ),
    "how it is measured": (
        _Flag(
            "repeats",
            ("--repeats",),
            int,
            "rounds: every cell is run once in each, and servers that are started are started anew (default: 1)",
            "N",
        ),
        _Flag("cooldown_s", ("--cooldown",), float, "rest between cells (default: 0)", "SECONDS"),
        _Flag(
            "time_budget_s",
            ("--time-budget",),
            parse_duration,
            "begin nothing new after this time, such as 90m; what is left is recorded as not run (exit code 0)",
            "TIME",
        ),
        _Flag(
            "num_warmup",
            ("--warmup",),
            int,
            "unmeasured requests per arm (default: max(2, concurrency))",
            "N",
        ),
        _Flag(
            "max_error_rate",
            ("--max-error-rate",),
            float,
            "share of an arm's requests that may fail (default: 0)",
            "SHARE",
        ),
        _Flag(
            "execute_code",
            ("--execute-code",),
            None,
            "try out generated code (humaneval, mbpp) in a subprocess with limits, for pass@1",
        ),
        _Flag("smoke", ("--smoke",), None, "one prompt per cell"),
    ),
    "what comes out": (
        _Flag("output_dir", ("--output-dir",), Path, "parent of run folders (default: reports)", "FOLDER"),
        _Flag(
            "run_name",
            ("--run",),
            str,
            "name of the run; an existing one is resumed (default: a time stamp)",
            "NAME",
        ),
        _Flag(
            "resume",
            ("--no-resume",),
            None,
            "refuse a run of that name instead of going on with it",
            off=True,
        ),
        _Flag("save_outputs", ("--no-save-outputs",), None, "do not keep what the models said"),
        _Flag("json_file", ("--json",), str, "write every metric as JSON; - for standard output", "FILE"),
        _Flag("quiet", ("--quiet",), None, "print errors only"),
        _Flag("list_only", ("--list",), None, "print what would run, and stop; with --json as a document"),
    ),
}


def benchmark_parser() -> argparse.ArgumentParser:
    """The parser of `python -m dflash.benchmark`."""
    parser = OneLineParser(
        prog="python -m dflash.benchmark",
        description="Run the same prompts through plain decoding and through drafting, and report.",
        epilog="LIST is comma-separated; lists make grids. Exit codes: 0 done, 2 usage, 3 too many requests "
        "failed, 4 engine or data not to be had, 70 internal error, 130 interrupted.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    for title, flags in _GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            _add(group, flag)
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
    if name is None:
        return BenchmarkConfig(**values)
    return _suite_config(name, argv, values)


def _values(argv: Sequence[str]) -> dict[str, Any]:
    """What is given, by field."""
    values = vars(benchmark_parser().parse_args(list(argv)))
    if values.pop("no_baseline", False) and values.setdefault("arms", ("dflash",)) != ("dflash",):
        raise UsageError("--no-baseline contradicts --arms", "give one of them")
    if values.pop("enable_thinking", False) and values.setdefault("reasoning", "on") != "on":
        raise UsageError("--enable-thinking contradicts --reasoning", "give one of them")
    if values.pop("resume_given", False) and values.get("resume") is False:
        raise UsageError("--resume contradicts --no-resume", "give one of them")
    values.update({name: tuple(value) for name, value in values.items() if isinstance(value, list)})
    return values


def _suite_config(name: str, argv: Sequence[str], typed: dict[str, Any]) -> BenchmarkConfig:
    """The first grid of a suite with all of them as its parts."""
    from dflash.suite import load_suite
    from dflash.suite_parts import grid_words

    names = {alias.lstrip("-"): flag.names[0].lstrip("-") for flag in _all_flags() for alias in flag.names}
    fields_typed = tuple(flag.field for flag in _all_flags() if flag.field in typed)
    values = {
        flag.names[0].lstrip("-"): list(value) if isinstance(value, tuple) else value
        for flag in _all_flags()
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


def _all_flags() -> Iterator[_Flag]:
    return (flag for flags in _GROUPS.values() for flag in flags)


def benchmark_command(config: BenchmarkConfig) -> str:
    """The shortest command line that means `config`."""
    words = ["python", "-m", "dflash.benchmark"]
    defaults = {item.name: item.default for item in fields(config) if item.default is not MISSING}
    for flag in _all_flags():
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
    return shlex.join(words)


def _add(group: argparse._ArgumentGroup, flag: _Flag) -> None:
    if flag.parse is None:
        action = "store_false" if flag.off or flag.names[0].startswith("--no-") else "store_true"
        group.add_argument(*flag.names, dest=flag.field, action=action, help=flag.help)
        return
    if flag.many:
        group.add_argument(
            *flag.names,
            dest=flag.field,
            type=flag.parse,
            help=flag.help,
            metavar=flag.metavar,
            action="append",
        )
        return
    metavar = flag.metavar or (None if flag.choices else flag.names[0].rsplit("-", 1)[-1].upper())
    group.add_argument(
        *flag.names, dest=flag.field, type=flag.parse, help=flag.help, metavar=metavar, choices=flag.choices
    )
