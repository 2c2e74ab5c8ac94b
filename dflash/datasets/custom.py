"""The data set `custom`: rows of any file, or of any data set on the model hub. Pure.

Which column is the prompt is named (`--prompt-field`: a text; `--turns-field`: a list of texts, or one text). Where
neither is named, it is the first of these that a row has (null is as good as absent):

- `messages`: a conversation of the OpenAI form, see `templates_chat.conversation_of`;
- `conversations`: a conversation of the ShareGPT form: what people said, each a turn, as in the set `sharegpt`;
- `turns`: a list of texts;
- `prompt` or `question`: one text, or a list of turns;
- `instruction`: with the block of `input`, as in the set `alpaca`.

A column `category` that holds text is the category.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash.datasets.files import Row
from dflash.datasets.spec import DatasetSpec, HubSource
from dflash.datasets.templates import check_text, text_of, texts_of
from dflash.datasets.templates_chat import conversation_of, human_turns, instruction_of
from dflash.errors import UsageError
from dflash.prompts import Prompt

Messages = tuple[tuple[str, str], ...]  # (role, content)
Conversation = tuple[Messages, tuple[str, ...]]  # context and turns of a prompt

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NAME_COLUMN = "name the column by --prompt-field (a text) or --turns-field (a list of texts)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSource:
    """Where the rows are, a file or a data set on the hub, and which column of them is the prompt."""

    file: Path | None = None
    hub_id: str | None = None  # "namespace/name"
    hub_config: str | None = None
    hub_split: str | None = None
    hub_revision: str | None = None
    prompt_field: str | None = None  # column with the prompt's text
    turns_field: str | None = None  # column with the list of turns, or one text


def custom_spec(source: CustomSource) -> DatasetSpec:
    """The entry that the catalogue would have for these rows.

    Raises:
        UsageError: no source or two, an id that the hub has not, or both columns named.
    """
    _check(source)
    field, template_version = source.prompt_field or source.turns_field, "custom-1"
    if source.prompt_field is not None:
        template_version += f" prompt={field}"
    elif source.turns_field is not None:
        template_version += f" turns={field}"
    return DatasetSpec(
        name="custom",
        title="rows of your own",
        group=None,
        licence="not known",
        template_version=template_version,
        columns=() if field is None else (field,),
        to_prompt=_template(source),
        num_rows=None,
        categories=(),
        split=source.hub_split,
        hub=_hub_source(source),
    )


def _check(source: CustomSource) -> None:
    if (source.file is None) == (source.hub_id is None):
        raise UsageError(
            "the data set custom takes its rows from one place",
            "give either --dataset-file FILE or --dataset-id NAMESPACE/NAME",
        )
    if source.hub_id is not None and (not _HUB_ID.fullmatch(source.hub_id) or ".." in source.hub_id):
        raise UsageError(f"{source.hub_id!r} is no data set id of the model hub", "give NAMESPACE/NAME")
    if source.prompt_field is not None and source.turns_field is not None:
        raise UsageError("--prompt-field contradicts --turns-field", "give the one that the rows have")


def _hub_source(source: CustomSource) -> HubSource | None:
    if source.hub_id is None:
        return None
    return HubSource(
        dataset_id=source.hub_id, config=source.hub_config, files=(), revision=source.hub_revision
    )


def _template(source: CustomSource) -> Callable[[Row, str], Prompt]:
    def to_prompt(row: Row, prompt_id: str) -> Prompt:
        if source.prompt_field is not None:
            conversation: Conversation = ((), (text_of(row, source.prompt_field),))
        elif source.turns_field is not None:
            conversation = _turns(row, source.turns_field)
        else:
            conversation = _first_known(row)
        context, turns = conversation
        category = row.get("category")
        return Prompt(
            prompt_id=prompt_id,
            turns=turns,
            category=category if isinstance(category, str) and category.strip() else None,
            context=context,
        )

    return to_prompt


def _first_known(row: Row) -> Conversation:
    # A table has every column in every row: null is as good as absent.
    column = next((column for column in _READERS if row.get(column) is not None), None)
    if column is None:
        raise UsageError(
            f"it has none of the columns {', '.join(_READERS)}; found {', '.join(map(str, row)) or 'none'}",
            _NAME_COLUMN,
        )
    return _READERS[column](row, column)


def _messages(row: Row, column: str) -> Conversation:
    return conversation_of(row[column], column)


def _human_turns(row: Row, column: str) -> Conversation:
    turns = tuple(check_text(turn, column) for turn in human_turns(row[column], column))
    if not turns:
        raise ValueError(f"{column} holds no message of a human")
    return (), turns


def _turns(row: Row, column: str) -> Conversation:
    if isinstance(row[column], str):
        return (), (text_of(row, column),)
    return (), texts_of(row, column)


def _text_or_turns(row: Row, column: str) -> Conversation:
    return _turns(row, column) if isinstance(row[column], list) else ((), (text_of(row, column),))


def _instruction(row: Row, column: str) -> Conversation:
    return (), (instruction_of(row),)


_READERS: Mapping[str, Callable[[Row, str], Conversation]] = {
    "messages": _messages,
    "conversations": _human_turns,
    "turns": _turns,
    "prompt": _text_or_turns,
    "question": _text_or_turns,
    "instruction": _instruction,
}
