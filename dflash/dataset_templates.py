"""How a row of a data set becomes a prompt, in the words that were published with it. Pure.

Each function takes a row and the id of the prompt, and returns None for a row that is no prompt of the set
(another split of the same file). It raises `TypeError` or `ValueError`, in words, for a row that is damaged.
"""

from __future__ import annotations

from dflash.dataset_files import Row
from dflash.prompts import Prompt

# The instructions as published with the method: with another wording the same rows give another speedup.
_BOXED_ANSWER = "{text}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
_SOLVE_IN_PYTHON = """\
Write a solution to the following problem and make sure that it passes the tests:
```python
{text}
```"""


def text_of(row: Row, column: str) -> str:
    """The text in a column.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty, or no tokenizer could take it.
    """
    return check_text(row[column], column)


def check_text(value: object, column: str) -> str:
    """`value` if it is a text that can be a message; `column` is named in the error.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty, or no tokenizer could take it.
    """
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


def quickstart_prompt(row: Row, prompt_id: str) -> Prompt:
    turns = row["turns"]
    if not isinstance(turns, list) or not turns:
        raise TypeError("turns is no list of texts")
    return Prompt(
        prompt_id=text_of(row, "prompt_id"),
        turns=tuple(check_text(turn, "turns") for turn in turns),
        category=text_of(row, "category"),
    )


def gsm8k_prompt(row: Row, prompt_id: str) -> Prompt:
    # The published solution ends in "#### <number>", thousands separated by commas.
    _, mark, number = text_of(row, "answer").rpartition("####")
    return Prompt(
        prompt_id=prompt_id,
        turns=(_BOXED_ANSWER.format(text=text_of(row, "question")),),
        category="math",
        answer=number.strip().replace(",", "") if mark else None,
    )


def humaneval_prompt(row: Row, prompt_id: str) -> Prompt:
    return Prompt(
        prompt_id=prompt_id,
        turns=(_SOLVE_IN_PYTHON.format(text=text_of(row, "prompt")),),
        category="code",
    )
