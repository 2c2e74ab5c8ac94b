"""How a row of a data set becomes a prompt: what every template needs, and the set that is shipped. Pure.

The templates of the data sets are in `dataset_templates_math`, `_code`, `_chat` and `_long`, in the words that
were published with the method or with the data set: with another wording the same rows give another speedup.
Each takes a row and the id of the prompt, and returns None for a row that is no prompt of the set (another
split of the same file). It raises `TypeError` or `ValueError`, in words, for a row that is damaged.
"""

from __future__ import annotations

from dflash.datasets.files import Row
from dflash.prompts import Prompt


def text_of(row: Row, column: str) -> str:
    """The text in a column.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty, or no tokenizer could take it.
    """
    return check_text(row[column], column)


def text_or_empty(row: Row, column: str) -> str:
    """The text in a column, which may be empty, null, or missing: then "".

    Raises:
        TypeError: it is something else than text.
        ValueError: no tokenizer could take it.
    """
    value = row.get(column)
    if value is None or (isinstance(value, str) and not value.strip()):
        return value or ""
    return check_text(value, column)


def texts_of(row: Row, column: str) -> tuple[str, ...]:
    """The list of texts in a column, at least one.

    Raises:
        TypeError: it is no list, or holds something else than text.
        ValueError: it or an entry of it is empty, or no tokenizer could take an entry.
    """
    values = row[column]
    if not isinstance(values, list):
        raise TypeError(f"{column} is {kind_of(values)} and no list of texts")
    if not values:
        raise ValueError(f"{column} is empty")
    return tuple(
        check_text(value, f"entry {number} of {column}") for number, value in enumerate(values, start=1)
    )


def check_text(value: object, column: str) -> str:
    """`value` if it is a text that can be a message; `column` is named in the error.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty, or no tokenizer could take it.
    """
    if not isinstance(value, str):
        raise TypeError(f"{column} is {kind_of(value)} and no text")
    if not value.strip():
        raise ValueError(f"{column} is empty")
    # Half of a surrogate pair can be written in JSON, but no tokenizer takes it.
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{column} holds half of a surrogate pair") from error
    return value


def kind_of(value: object) -> str:
    """What a value of JSON is, in a word for people."""
    if value is None:
        return "null"
    kinds = ((bool, "true or false"), (str, "a text"), (int | float, "a number"), (list, "a list"))
    return next((kind for types, kind in kinds if isinstance(value, types)), "an object")


def one_of(value: str, known: tuple[str, ...], column: str) -> str:
    """`value` if it is among the known ones.

    Raises:
        ValueError: it is not; the known ones are named.
    """
    if value not in known:
        raise ValueError(f"{column} is {value!r} and none of {', '.join(known)}")
    return value


def quickstart_prompt(row: Row, prompt_id: str) -> Prompt:
    """A row of the shipped file; it carries its own id."""
    return Prompt(
        prompt_id=text_of(row, "prompt_id"),
        turns=texts_of(row, "turns"),
        category=text_of(row, "category"),
    )
