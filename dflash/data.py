"""Verb: list, fetch and verify data sets, and show their prompts as they are sent."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.command_line import (
    STANDARD_OUTPUT,
    check_json_file,
    error_line,
    report_error,
    run_verb,
    write_json,
)
from dflash.data_arguments import PROGRAM, build_parser, show_config
from dflash.errors import EXIT_DONE, EXIT_UNAVAILABLE, DFlashError, RequestError, UsageError

if TYPE_CHECKING:
    from dflash.config import BenchmarkConfig
    from dflash.data_tables import Rendering
    from dflash.dataset_store import StoredDataset
    from dflash.datasets.custom import CustomSource
    from dflash.datasets.spec import DatasetSpec
    from dflash.prompts import Prompt, PromptSet

Work = Callable[["DatasetSpec", Callable[[str], None]], "StoredDataset | None"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb and return its exit code; what goes wrong is printed as one line."""
    return run_verb(_data, argv)


def _data(argv: Sequence[str]) -> int:
    options = build_parser().parse_args(list(argv))
    check_json_file(options.json_file)
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "fetch": _fetch,
        "verify": _verify,
        "show": _show,
    }
    return actions[options.action](options)


def _list(options: argparse.Namespace) -> int:
    from dflash.datasets.catalogue import ALL, CATALOGUE, expand_datasets
    from dflash.datasets.listing import catalogue_text

    specs = _specs(options.names) if options.names else list(CATALOGUE.values())
    notes = () if options.names else expand_datasets([ALL])[1]
    cache = _cache_folder(options)
    documents = [_listed(spec, cache) for spec in specs]
    if options.json_file != STANDARD_OUTPUT:
        in_full = options.long or bool(options.names)
        print(catalogue_text(documents, shutil.get_terminal_size().columns, in_full=in_full))
        more = notes if in_full else (f"In full: {PROGRAM} list NAME …, or {PROGRAM} list --long.",)
        print("\n".join(("", *more, f"The cache is {cache}.")))
    write_json(options.json_file, _document(documents, EXIT_DONE, notes))
    return EXIT_DONE


def _listed(spec: DatasetSpec, cache: Path) -> dict[str, Any]:
    from dflash.built_folder import is_there
    from dflash.dataset_store import read_stored
    from dflash.datasets.listing import dataset_document
    from dflash.datasets.published import find_published

    stored = read_stored(spec, cache)
    at_hand, fault = find_published(spec)
    is_damaged = stored is None and is_there(cache / spec.name)
    again = f"{cache / spec.name} cannot be used: python -m dflash.data verify {spec.name} says why"
    return dataset_document(
        spec, stored, again if is_damaged else None, file_at_hand=at_hand, file_at_hand_fault=fault
    )


def _fetch(options: argparse.Namespace) -> int:
    from dflash.dataset_store import fetch_dataset, read_stored
    from dflash.datasets.catalogue import expand_datasets
    from dflash.datasets.listing import stored_line

    notes = expand_datasets(options.names)[1]
    specs = _specs(options.names)
    if options.dataset_file is not None and len(specs) > 1:
        raise UsageError("--dataset-file goes with one data set", "name the one that the file holds")
    if not options.quiet:
        for note in notes:
            print(note, file=sys.stderr)
    cache = _cache_folder(options)

    def fetch(spec: DatasetSpec, announce: Callable[[str], None]) -> StoredDataset | None:
        if spec.shipped is not None:
            announce(f"the data set {spec.name} is shipped with dflash: there is nothing to fetch")
            return read_stored(spec, cache)
        fetch_dataset(
            spec, cache, announce=announce, replace=options.force, dataset_file=options.dataset_file
        )
        stored = read_stored(spec, cache)
        if stored is not None:
            _say(options, stored_line(stored))
        return stored

    return _each(options, specs, fetch, notes)


def _verify(options: argparse.Namespace) -> int:
    from dflash.built_folder import is_there
    from dflash.dataset_store import verify_stored
    from dflash.datasets.catalogue import CATALOGUE
    from dflash.datasets.listing import stored_line

    cache = _cache_folder(options)
    # By folder and not by what can be read: a damaged one must not pass for one that is not there.
    kept = [spec for spec in CATALOGUE.values() if is_there(cache / spec.name)]
    specs = _specs(options.names) if options.names else kept

    def verify(spec: DatasetSpec, announce: Callable[[str], None]) -> StoredDataset | None:
        stored = verify_stored(spec, cache)
        _say(options, f"whole: {stored_line(stored)}")
        return stored

    if not specs:
        _say(options, f"no data set is in the cache {cache}")
    return _each(options, specs, verify, ())


def _each(options: argparse.Namespace, specs: Sequence[DatasetSpec], work: Work, notes: Sequence[str]) -> int:
    """Do `work` for every data set; what fails is one line each and keeps none of the others from being done."""
    from dflash.datasets.listing import dataset_document

    documents, codes = [], set()
    for number, spec in enumerate(specs, start=1):
        announce = _announcer(options.quiet, f"[{number}/{len(specs)}] " if len(specs) > 1 else "")
        try:
            documents.append(dataset_document(spec, work(spec, announce)))
        except BrokenPipeError:  # of our own output: nobody is left to be told
            raise
        except (DFlashError, OSError) as error:
            codes.add(report_error(error))
            documents.append(dataset_document(spec, None, error_line(error).removeprefix("error: ")))
    exit_code = EXIT_UNAVAILABLE if EXIT_UNAVAILABLE in codes else max(codes, default=EXIT_DONE)
    write_json(options.json_file, _document(documents, exit_code, notes))
    return exit_code


def _show(options: argparse.Namespace) -> int:
    from dflash.data_tables import prompts_document, prompts_text
    from dflash.dataset_store import find_rows_sha256

    config = show_config(options)
    tokenizer = _tokenizer(config)  # what is missing is said before rows are read
    prompt_set, prompts = _find_prompts(config, options.prompt_id)
    rendering = None if tokenizer is None else _render(tokenizer, config, prompts)
    if options.json_file != STANDARD_OUTPUT:
        print(prompts_text(prompt_set, prompts, rendering))
    sha256 = find_rows_sha256(
        prompt_set, _custom(config), dataset_file=config.dataset_file, cache_folder=config.datasets_cache
    )
    document = prompts_document(prompt_set, prompts, rendering, sha256)
    write_json(options.json_file, _document([document], EXIT_DONE, ()))
    return EXIT_DONE


def _find_prompts(config: BenchmarkConfig, prompt_id: str | None) -> tuple[PromptSet, tuple[Prompt, ...]]:
    """The set that the prompts are of, and the prompts to show.

    Raises:
        UsageError: no prompt of that id; or what reading the rows raises.
    """
    from dflash.dataset_store import load_prompts

    (name,) = config.datasets
    prompt_set = load_prompts(
        name,
        num_prompts=config.num_prompts or 1 if prompt_id is None else None,
        seed=config.seed,
        category=config.category,
        min_prompt_chars=config.min_prompt_chars,
        max_prompt_chars=config.max_prompt_chars,
        custom=_custom(config),
        dataset_file=config.dataset_file,
        cache_folder=config.datasets_cache,
    )
    if prompt_id is None:
        return prompt_set, prompt_set.prompts
    found = tuple(prompt for prompt in prompt_set.prompts if prompt.prompt_id == prompt_id)
    if not found:
        first = min(prompt.prompt_id for prompt in prompt_set.prompts)
        raise UsageError(
            f"the data set {name} has no prompt {prompt_id!r} to choose", f"give an id such as {first}"
        )
    return prompt_set, found


def _custom(config: BenchmarkConfig) -> CustomSource | None:
    from dflash.datasets.catalogue import CUSTOM
    from dflash.prompt_sets import custom_source

    return custom_source(config) if config.datasets == (CUSTOM,) else None


def _tokenizer(config: BenchmarkConfig) -> Any:
    """The tokenizer of `--model`, or None where no model is named."""
    if config.model is None:
        return None
    from dflash.backends.chat_template import load_tokenizer
    from dflash.quickstart import QUICKSTART

    if config.model != QUICKSTART:
        return load_tokenizer(config.model, trust_remote_code=config.trust_remote_code)
    from dflash.quickstart.target import ensure_target

    return load_tokenizer(str(ensure_target()))


def _render(tokenizer: Any, config: BenchmarkConfig, prompts: Sequence[Prompt]) -> Rendering:
    """The first turn of every prompt, by the function that the engines in this process use.

    Raises:
        UsageError: the template knows no such reasoning setting, or refuses the messages.
    """
    from dflash.backends.base import Message
    from dflash.backends.chat_template import (
        DATE_FUNCTION,
        find_chat_template,
        reasoning_arguments,
        render,
        template_variables,
    )
    from dflash.data_tables import RenderedPrompt, Rendering
    from dflash.digests import digest_of_ids

    template = find_chat_template(tokenizer)
    rendered = {}
    for prompt in prompts:
        messages = [Message(role, content) for role, content in prompt.context]
        messages.append(Message("user", prompt.turns[0]))
        try:
            text, ids = render(tokenizer, messages, config.reasoning)
        except RequestError as error:  # in a run it fails one request; here it is all that was asked for
            raise UsageError(f"{prompt.prompt_id}: {error.fault}", error.mend) from error
        rendered[prompt.prompt_id] = RenderedPrompt(
            text=text, num_tokens=len(ids), token_digest=str(digest_of_ids(ids))
        )
    writes_date = template is not None and DATE_FUNCTION in template_variables(template)
    return Rendering(
        model=str(config.model),
        reasoning=config.reasoning,
        told=None if template is None else reasoning_arguments(template, config.reasoning),
        prompts=rendered,
        notes=("the template may write today's date: its tokens change from day to day",)
        if writes_date
        else (),
    )


def _specs(names: Sequence[str]) -> list[DatasetSpec]:
    """The entries that names and groups stand for, none twice."""
    from dflash.datasets.catalogue import CUSTOM, expand_datasets, find_dataset

    if CUSTOM in names:
        raise UsageError(
            f"the data set {CUSTOM} is read where its rows are, and is no entry of the catalogue",
            f"show it: python -m dflash.data show {CUSTOM} --dataset-file FILE",
        )
    return [find_dataset(name) for name in expand_datasets(names)[0]]


def _cache_folder(options: argparse.Namespace) -> Path:
    from dflash.dataset_store import datasets_cache_folder

    folder: Path | None = options.datasets_cache
    return datasets_cache_folder() if folder is None else folder.absolute()


def _announcer(quiet: bool, place: str) -> Callable[[str], None]:
    def announce(line: str) -> None:
        if not quiet:
            print(f"{place}{line}", file=sys.stderr, flush=True)

    return announce


def _say(options: argparse.Namespace, line: str) -> None:
    if not options.quiet and options.json_file != STANDARD_OUTPUT:
        print(line, flush=True)


def _document(documents: Sequence[dict[str, Any]], exit_code: int, notes: Sequence[str]) -> dict[str, Any]:
    return {"exit_code": exit_code, "notes": list(notes), "datasets": documents}


if __name__ == "__main__":
    sys.exit(main())
