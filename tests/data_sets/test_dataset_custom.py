"""The data set `custom`: which column is the prompt, conversations, and rows that are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash.datasets.catalogue import make_prompts
from dflash.datasets.custom import CustomSource, custom_spec
from dflash.errors import UsageError
from dflash.prompts import Prompt

FILE = Path("rows.jsonl")


def prompts_of(*rows: dict[str, Any], **fields: str) -> tuple[Prompt, ...]:
    return make_prompts(custom_spec(CustomSource(file=FILE, **fields)), rows, "rows.jsonl")  # type: ignore[arg-type]


def prompt_of(row: dict[str, Any], **fields: str) -> Prompt:
    (prompt,) = prompts_of(row, **fields)
    return prompt


def message(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


# The column


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        ({"turns": ["Hi", "And?"]}, ("Hi", "And?")),
        ({"turns": "Hi"}, ("Hi",)),
        ({"prompt": "Hi\r\n"}, ("Hi\r\n",)),
        ({"prompt": ["Hi", "And?"]}, ("Hi", "And?")),
        ({"question": "Why?", "answer": "So."}, ("Why?",)),
        ({"instruction": "Sort."}, ("Sort.",)),
        ({"instruction": "Sort.", "input": "b a"}, ("Sort.\n\nInput:\nb a",)),
        ({"question": "Why?", "prompt": "Hi", "turns": ["a"]}, ("a",)),
        ({"messages": None, "prompt": "Hi"}, ("Hi",)),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}]}, ("Hi",)),
    ],
)
def test_the_first_known_column_is_the_prompt(row: dict[str, Any], turns: tuple[str, ...]) -> None:
    assert prompt_of(row) == Prompt("custom/0000", turns)


def test_a_named_column_is_the_prompt_though_a_known_one_is_there() -> None:
    row = {"prompt": "Hi", "text": "Ho", "said": ["Ha", "He"]}
    assert prompt_of(row, prompt_field="text").turns == ("Ho",)
    assert prompt_of(row, turns_field="said").turns == ("Ha", "He")
    assert prompt_of(row, turns_field="text").turns == ("Ho",)


def test_rows_without_a_known_column_name_theirs_and_the_flags() -> None:
    with pytest.raises(UsageError) as error:
        prompts_of({"prompt": "Hi"}, {"text": "Ho", "id": 3})
    assert (
        "row 2 of rows.jsonl: it has none of the columns messages, conversations, turns" in error.value.fault
    )
    assert error.value.fault.endswith("found text, id")
    assert "--prompt-field" in error.value.mend
    assert "--turns-field" in error.value.mend


@pytest.mark.parametrize(
    ("row", "fields", "fault"),
    [
        ({"text": ["Hi"]}, {"prompt_field": "text"}, "text is a list and no text"),
        ({"text": ""}, {"prompt_field": "text"}, "text is empty"),
        ({"text": 3}, {"turns_field": "text"}, "text is a number and no list of texts"),
        ({"text": []}, {"turns_field": "text"}, "text is empty"),
        ({"text": ["a", 3]}, {"turns_field": "text"}, "entry 2 of text is a number and no text"),
        ({"text": True}, {"prompt_field": "text"}, "text is true or false and no text"),
        ({"prompt": 5}, {}, "prompt is a number and no text"),
        ({"question": {"text": "Hi"}}, {}, "question is an object and no text"),
        ({"prompt": []}, {}, "prompt is empty"),
        ({"turns": []}, {}, "turns is empty"),
        ({"turns": 5}, {}, "turns is a number and no list of texts"),
        ({"prompt": [message("user", "Hi")]}, {}, "entry 1 of prompt is an object and no text"),
        (
            {"conversations": [{"from": "gpt", "value": "Hi"}]},
            {},
            "conversations holds no message of a human",
        ),
        ({"conversations": [{"from": "human", "value": ""}]}, {}, "conversations is empty"),
        ({"conversations": [{"from": "human"}]}, {}, "conversations is null and no text"),
    ],
)
def test_texts_that_are_none_are_refused(row: dict[str, Any], fields: dict[str, str], fault: str) -> None:
    with pytest.raises(UsageError, match=f"row 1 of rows.jsonl: {fault}: correct or remove the row, "):
        prompt_of(row, **fields)


@pytest.mark.parametrize(("category", "kept"), [("math", "math"), (" ", None), (3, None), (None, None)])
def test_the_category_is_taken_where_it_is_text(category: object, kept: str | None) -> None:
    assert prompt_of({"prompt": "Hi", "category": category}).category == kept


# Conversations


@pytest.mark.parametrize(
    ("messages", "context", "turns"),
    [
        ([("user", "Hi")], (), ("Hi",)),
        ([("user", "Hi"), ("user", "And?")], (), ("Hi", "And?")),
        ([("system", "Be brief."), ("user", "Hi")], (("system", "Be brief."),), ("Hi",)),
        (
            [("system", "Be brief."), ("user", "Hi"), ("user", "And?")],
            (("system", "Be brief."),),
            ("Hi", "And?"),
        ),
        (
            [("user", "Hi"), ("assistant", "Yes?"), ("user", "And?")],
            (("user", "Hi"), ("assistant", "Yes?")),
            ("And?",),
        ),
        (
            [("user", "Hi"), ("system", "Be brief."), ("user", "And?")],
            (("user", "Hi"), ("system", "Be brief.")),
            ("And?",),
        ),
    ],
)
def test_messages(
    messages: list[tuple[str, str]], context: tuple[tuple[str, str], ...], turns: tuple[str, ...]
) -> None:
    row = {"messages": [message(*pair) for pair in messages]}
    assert prompt_of(row) == Prompt("custom/0000", turns, context=context)


def test_contents_of_text_parts_are_their_texts() -> None:
    parts = [{"type": "text", "text": "Look:"}, {"type": "text", "text": " here "}]
    row = {"messages": [message("system", parts[:1]), message("user", parts)]}
    assert prompt_of(row) == Prompt("custom/0000", ("Look:\n here ",), context=(("system", "Look:"),))


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "messages does not end with a message of the user"),
        ([message("system", "a")], "messages does not end with a message of the user"),
        ([message("user", "a"), message("assistant", "b")], "does not end with a message of the user"),
        ([message("tool", "a"), message("user", "b")], "message of the role 'tool'"),
        ([{"content": "a"}], "message of the role None"),
        ([message("user", None)], "the content of a message in messages is null"),
        ([message("user", [])], "the content of a message in messages is empty"),
        (
            [message("user", [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "b"}])],
            "the content of a message in messages has a part of the type 'image_url', and only text can be sent",
        ),
        ([message("user", ["a"])], "in messages holds a text where a part such as"),
        (
            [message("user", [{"type": "text"}])],
            "the text of a part of the content of a message in messages is",
        ),
        ([message("assistant", ""), message("user", "a")], "the content of a message in messages is empty"),
        ("Hi", 'messages is no list of messages with "role" and "content"'),
        (["Hi"], 'messages is no list of messages with "role" and "content"'),
    ],
)
def test_conversations_that_are_refused(messages: object, fault: str) -> None:
    with pytest.raises(UsageError, match=f"row 2 of rows.jsonl: .*{fault}"):
        prompts_of({"messages": [message("user", "Hi")]}, {"messages": messages})


# The entry


def test_the_template_version_depends_on_the_column() -> None:
    fields: list[dict[str, str]] = [{}, {"prompt_field": "a"}, {"prompt_field": "b"}, {"turns_field": "a"}]
    versions = {custom_spec(CustomSource(file=FILE, **field)).template_version for field in fields}  # type: ignore[arg-type]
    assert len(versions) == len(fields)


def test_the_named_column_is_expected_of_every_row() -> None:
    assert custom_spec(CustomSource(file=FILE, prompt_field="text")).columns == ("text",)
    assert custom_spec(CustomSource(file=FILE)).columns == ()


def test_a_hub_source_is_passed_on() -> None:
    spec = custom_spec(
        CustomSource(hub_id="some-one/a.set", hub_config="main", hub_split="train", hub_revision="abc")
    )
    assert spec.hub is not None
    assert (spec.hub.dataset_id, spec.hub.config, spec.split, spec.hub.revision) == (
        "some-one/a.set",
        "main",
        "train",
        "abc",
    )
    assert spec.num_rows is None


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (CustomSource(), "takes its rows from one place"),
        (CustomSource(file=FILE, hub_id="a/b"), "takes its rows from one place"),
        (CustomSource(hub_id="gsm8k"), "'gsm8k' is no data set id"),
        (CustomSource(hub_id="../b"), "is no data set id"),
        (CustomSource(hub_id="a/..b"), "is no data set id"),
        (CustomSource(hub_id="a/b/c"), "is no data set id"),
        (
            CustomSource(file=FILE, prompt_field="a", turns_field="b"),
            "--prompt-field contradicts --turns-field",
        ),
    ],
)
def test_sources_that_are_refused(source: CustomSource, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        custom_spec(source)


def test_texts_come_through_unchanged() -> None:
    text = "a\r\nb\u2028c\x85 {x} \ufeff"
    assert prompt_of({"messages": [message("user", text)]}).turns == (text,)
    assert prompt_of({"x": text}, prompt_field="x").turns == (text,)
    long = "é" * (1 << 20)
    assert prompt_of({"prompt": long}).num_chars == 1 << 20
