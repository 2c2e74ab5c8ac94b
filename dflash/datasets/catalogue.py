"""The data set catalogue: which sets there are, the names that stand for several, and rows to prompts. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from dflash.datasets.entries_chat import CHAT_ENTRIES, LONG_ENTRIES, QUICKSTART
from dflash.datasets.entries_tasks import CODE_ENTRIES, MATH_ENTRIES
from dflash.datasets.files import Row
from dflash.datasets.spec import DatasetSpec, HubSource, PublishedFile
from dflash.errors import UsageError
from dflash.prompts import Prompt

__all__ = [
    "ALL",
    "CATALOGUE",
    "CUSTOM",
    "GROUPS",
    "LARGE_BYTES",
    "DatasetSpec",
    "HubSource",
    "PublishedFile",
    "expand_datasets",
    "find_dataset",
    "make_prompts",
]

GROUPS = ("math", "code", "chat")  # names that stand for several data sets
ALL = "all"  # the name that stands for every one
CUSTOM = "custom"  # the data set of the user's own rows; see `dataset_custom`
LARGE_BYTES = 100_000_000  # a download above this is made only for a data set that is named itself

CATALOGUE: dict[str, DatasetSpec] = {
    spec.name: spec for spec in (QUICKSTART, *MATH_ENTRIES, *CODE_ENTRIES, *CHAT_ENTRIES, *LONG_ENTRIES)
}


def find_dataset(name: str) -> DatasetSpec:
    """The catalogue's entry.

    Raises:
        UsageError: no data set of that name; the one meant is named, or all. `custom` has no entry: what it is
            depends on its source (`dataset_custom.custom_spec`).
    """
    if name == CUSTOM:
        raise UsageError(
            f"the data set {CUSTOM} is not in the catalogue",
            "give its rows by --dataset-file or --dataset-id",
        )
    if name not in CATALOGUE:
        raise UsageError(f"unknown data set {name!r}", _known_names(name))
    return CATALOGUE[name]


def expand_datasets(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names with the groups and `all` spelled out, in the order given and none twice.

    A name that stands for several never starts a download above `LARGE_BYTES`, nor asks for what this machine
    may not have: such sets are left out unless they are named themselves.

    Returns:
        The names, and one note for each set that was left out: which and why.

    Raises:
        UsageError: a name is unknown.
    """
    chosen: dict[str, None] = {}  # in order
    left_out: dict[str, str] = {}
    for name in names:
        if name not in (ALL, *GROUPS):
            chosen[name if name == CUSTOM else find_dataset(name).name] = None
            continue
        reasons = {CUSTOM: "it holds rows of your own"} if name == ALL else {}
        for spec in CATALOGUE.values():
            if name not in (ALL, spec.group):
                continue
            reason = _why_left_out(spec)
            if reason is None:
                chosen[spec.name] = None
            else:
                reasons[spec.name] = reason
        for member, reason in reasons.items():
            left_out.setdefault(member, f"{name!r} leaves out {member}: {reason}; name it to have it")
    return tuple(chosen), tuple(note for member, note in left_out.items() if member not in chosen)


def make_prompts(spec: DatasetSpec, rows: Iterable[Row], label: str) -> tuple[Prompt, ...]:
    """Every row that is a prompt of the set, in the order of the rows; ids count prompts, not rows.

    Raises:
        UsageError: a row whose texts are empty or no text, which is named; or no row is a prompt.
    """
    prompts: list[Prompt] = []
    number = 0
    for number, row in enumerate(rows, start=1):
        try:
            prompt = spec.to_prompt(row, f"{spec.name}/{len(prompts):04}")
        except UsageError as error:  # a fault with a mend of its own
            raise UsageError(f"row {number} of {label}: {error.fault}", error.mend) from error
        except (TypeError, ValueError) as error:
            raise UsageError(f"row {number} of {label}: {error}", _mend_of_row(spec)) from error
        if prompt is not None:
            prompts.append(prompt)
    if not prompts:
        raise UsageError(f"{label} holds no prompt of the data set {spec.name}", "name another file")
    return tuple(prompts)


def _mend_of_row(spec: DatasetSpec) -> str:
    if spec.name == CUSTOM:
        return "correct or remove the row, or name another column by --prompt-field or --turns-field"
    return f"is it the data set {spec.name}?"


def _known_names(name: str) -> str:
    names = (*CATALOGUE, CUSTOM)
    close = difflib.get_close_matches(name.lower(), (*names, *GROUPS, ALL), n=1)
    if close:
        return f"did you mean {close[0]!r}? python -m dflash.data list names every one"
    return f"choose one of {', '.join(names)}, or a group: {', '.join((*GROUPS, ALL))}"


def _why_left_out(spec: DatasetSpec) -> str | None:
    if spec.shipped is not None:
        return "it is for a first run with a small model"
    if spec.needs_preparation is not None:
        return "it must be prepared first"
    if spec.hub is not None and spec.hub.gated:
        return "the hub gives it only to accounts that accepted its terms"
    num_bytes = spec.hub.num_bytes if spec.hub is not None else None
    if num_bytes is not None and num_bytes > LARGE_BYTES:
        return f"a download of {num_bytes / 1e6:,.0f} MB"
    return None
