"""The flags of `python -m dflash.benchmark`: one for each setting, in the groups that --help shows. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.cache_folder import parse_folder
from dflash.config import ARM_NAMES, DTYPES
from dflash.server_options import ARRIVALS, ROUTES
from dflash.time_budget import parse_duration


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting of `BenchmarkConfig` on the command line."""

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


GROUPS: dict[str, tuple[Flag, ...]] = {
    "what decodes": (
        Flag("backend", ("--backend",), str, "engine (default: transformers)"),
        Flag(
            "model", ("--model",), str, "target: model id or folder (default in process: the quickstart pair)"
        ),
        Flag("draft_model", ("--draft-model", "--draft"), str, "draft: model id or folder"),
        Flag("arms", ("--arms",), _list_of(str), f"of {', '.join(ARM_NAMES)} (default: both)", "LIST"),
        Flag(
            "block_sizes",
            ("--block-size",),
            _list_of(int),
            "B = 1 known token + B-1 draft tokens (default: the draft's own)",
            "LIST",
        ),
        Flag(
            "force_block_size",
            ("--force-block-size",),
            None,
            "allow a block larger than the draft was trained for",
        ),
        Flag("draft_bits", ("--draft-bits",), int, "mlx: quantise the draft to 4 or 8 bits", "4|8"),
        Flag("dtype", ("--dtype",), str, "default: float32 on CPU, the checkpoint's on GPU", choices=DTYPES),
        Flag(
            "device",
            ("--device",),
            str,
            "such as cpu or cuda:0; mlx: cpu or gpu (default: a GPU where there is one)",
        ),
        Flag(
            "attn_implementation", ("--attn-implementation",), str, "attention kernel of the target", "NAME"
        ),
        Flag("trust_remote_code", ("--trust-remote-code",), None, "run code that a model repository carries"),
        Flag("script", ("--script",), str, "scenario of the simulated backend (TOML or JSON)", "FILE"),
    ),
    "servers (vllm, sglang)": (
        Flag(
            "base_url", ("--base-url",), str, "the server (default: the engine's port on this machine)", "URL"
        ),
        Flag("baseline_url", ("--baseline-url",), str, "a second server, which decodes plainly", "URL"),
        Flag("arm_urls", ("--arm",), str, "a server for any arm; may be repeated", "NAME=URL", many=True),
        Flag(
            "metrics_urls",
            ("--metrics-url",),
            str,
            "its Prometheus counters (default: /metrics at the server); may be repeated",
            "[NAME=]URL",
            many=True,
        ),
        Flag("serve", ("--serve",), None, "start the engine's own server, one arm after the other"),
        Flag(
            "server_args",
            ("--server-arg",),
            str,
            "a word for the engine's command line, as --server-arg=WORD; after NAME: only for that arm",
            "[NAME:]WORD",
            many=True,
        ),
        Flag("engine_python", ("--engine-python",), str, "Python that the engine is installed for", "PATH"),
        Flag(
            "ready_timeout_s",
            ("--ready-timeout-s",),
            float,
            "for a server that is started until it is ready (default: 600)",
            "SECONDS",
        ),
        Flag("route", ("--route",), str, "how prompts are sent (default: chat)", choices=ROUTES),
        Flag("request_rate", ("--request-rate",), float, "open loop: requests a second", "RATE"),
        Flag("arrivals", ("--arrivals",), str, "of an open loop (default: poisson)", choices=ARRIVALS),
        Flag("slo", ("--slo",), str, "what counts as good, such as ttft:500ms,tpot:50ms", "LIMITS"),
        Flag("api_key", ("--api-key",), str, "key of the servers; never stored", "KEY"),
        Flag(
            "api_key_variable",
            ("--api-key-env",),
            str,
            "environment variable that holds it (default: OPENAI_API_KEY where it is set)",
            "NAME",
        ),
        Flag(
            "headers",
            ("--header",),
            str,
            "a further header; may be repeated; never stored",
            "'NAME: VALUE'",
            many=True,
        ),
        Flag("verify_tls", ("--insecure",), None, "accept any TLS certificate (stamped)", off=True),
        Flag("connect_timeout_s", ("--connect-timeout-s",), float, "default: 10", "SECONDS"),
        Flag("first_token_timeout_s", ("--first-token-timeout-s",), float, "default: 300", "SECONDS"),
        Flag(
            "chunk_timeout_s", ("--chunk-timeout-s",), float, "between two chunks (default: 120)", "SECONDS"
        ),
        Flag("timeout_s", ("--timeout-s",), float, "of a whole request (default: no limit)", "SECONDS"),
    ),
    "on what": (
        Flag(
            "suite",
            ("--suite",),
            str,
            "a whole sweep: a TOML file, or quick, paper, ci; flags beside it hold in every grid of it",
            "SUITE",
        ),
        Flag(
            "datasets",
            ("--dataset",),
            _list_of(str),
            "names (see `python -m dflash.data list`), math, code, chat, all, or custom "
            "(default: quickstart)",
            "LIST",
        ),
        Flag("dataset_file", ("--dataset-file",), Path, "file that holds the data set", "FILE"),
        Flag("dataset_id", ("--dataset-id",), str, "custom: data set on the model hub", "NAMESPACE/NAME"),
        Flag("dataset_config", ("--dataset-config",), str, "custom: its config", "NAME"),
        Flag(
            "dataset_split",
            ("--dataset-split",),
            str,
            "custom: its split (default: test, else train)",
            "NAME",
        ),
        Flag("dataset_revision", ("--dataset-revision",), str, "custom: its commit", "COMMIT"),
        Flag("prompt_field", ("--prompt-field",), str, "custom: column that holds the prompt", "COLUMN"),
        Flag("turns_field", ("--turns-field",), str, "custom: column that holds the list of turns", "COLUMN"),
        Flag("datasets_cache", ("--datasets-cache",), parse_folder, "folder of fetched data sets", "FOLDER"),
        Flag(
            "num_prompts",
            ("--num-prompts", "--max-samples"),
            int,
            "default: 128, or all of a smaller set",
            "N",
        ),
        Flag("category", ("--category",), str, "only prompts of this category"),
        Flag("min_prompt_chars", ("--min-prompt-chars",), int, "only prompts of this length or longer", "N"),
        Flag("max_prompt_chars", ("--max-prompt-chars",), int, "only prompts of this length or shorter", "N"),
        Flag(
            "repeat",
            ("--repeat",),
            None,
            "use prompts again where a set has fewer than --num-prompts (stamped)",
        ),
        Flag("max_new_tokens", ("--max-new-tokens",), int, "default: 2048; quickstart: 128", "N"),
        Flag("reasoning", ("--reasoning",), str, "off (default), on, or a level", "off|on|LEVEL"),
        Flag("concurrencies", ("--concurrency",), _list_of(int), "requests in flight (default: 1)", "LIST"),
    ),
    "how tokens are picked": (
        Flag("temperature", ("--temperature",), float, "0 (default) is greedy", "T"),
        Flag("top_p", ("--top-p",), float, "needs a temperature above 0", "P"),
        Flag("top_k", ("--top-k",), int, "needs a temperature above 0", "K"),
        Flag("seed", ("--seed",), int, "of prompt selection and sampling (default: 0)", "N"),
    ),
    "how it is measured": (
        Flag(
            "repeats",
            ("--repeats",),
            int,
            "rounds: every cell is run once in each, and servers that are started are started anew (default: 1)",
            "N",
        ),
        Flag("cooldown_s", ("--cooldown",), float, "rest between cells (default: 0)", "SECONDS"),
        Flag(
            "time_budget_s",
            ("--time-budget",),
            parse_duration,
            "begin nothing new after this time, such as 90m; what is left is recorded as not run (exit code 0)",
            "TIME",
        ),
        Flag(
            "num_warmup",
            ("--warmup",),
            int,
            "unmeasured requests per arm (default: max(2, concurrency); open loop: two seconds of it)",
            "N",
        ),
        Flag(
            "max_error_rate",
            ("--max-error-rate",),
            float,
            "share of an arm's requests that may fail (default: 0)",
            "SHARE",
        ),
        Flag(
            "execute_code",
            ("--execute-code",),
            None,
            "try out generated code (humaneval, mbpp) in a subprocess with limits, for pass@1",
        ),
        Flag("smoke", ("--smoke",), None, "one prompt per cell"),
    ),
    "what comes out": (
        Flag("output_dir", ("--output-dir",), Path, "parent of run folders (default: reports)", "FOLDER"),
        Flag(
            "run_name",
            ("--run",),
            str,
            "name of the run; an existing one is resumed (default: a time stamp)",
            "NAME",
        ),
        Flag(
            "resume",
            ("--no-resume",),
            None,
            "refuse a run of that name instead of going on with it",
            off=True,
        ),
        Flag("save_outputs", ("--no-save-outputs",), None, "do not keep what the models said"),
        Flag("json_file", ("--json",), str, "write every metric as JSON; - for standard output", "FILE"),
        Flag("quiet", ("--quiet",), None, "print errors only"),
        Flag("list_only", ("--list",), None, "print what would run, and stop; with --json as a document"),
    ),
}


def all_flags() -> Iterator[Flag]:
    return (flag for flags in GROUPS.values() for flag in flags)


def add_flag(group: argparse._ArgumentGroup, flag: Flag) -> None:
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
