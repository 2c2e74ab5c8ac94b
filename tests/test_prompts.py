"""The catalogue: templates as published, digests that hold only what an engine sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dflash.dataset_catalogue import CATALOGUE, find_dataset, make_prompts
from dflash.errors import UsageError
from dflash.prompts import Prompt, prompts_digest

GSM8K_ROW = {"question": "How many {eggs}?", "answer": "16 + 1,234\n#### 1,250"}
HUMANEVAL_ROW = {
    "task_id": "HumanEval/0",
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "canonical_solution": "",
    "test": "",
}


def prompts_of(name: str, *rows: dict[str, Any]) -> tuple[Prompt, ...]:
    return make_prompts(find_dataset(name), rows, "file")


def test_golden_gsm8k() -> None:
    assert prompts_of("gsm8k", GSM8K_ROW) == (
        Prompt(
            "gsm8k/0000",
            ("How many {eggs}?\nPlease reason step by step, and put your final answer within \\boxed{}.",),
            "math",
            "1250",
        ),
    )


def test_golden_humaneval() -> None:
    text = (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        "```python\ndef f(x):\n\n```"
    )
    assert prompts_of("humaneval", HUMANEVAL_ROW, HUMANEVAL_ROW)[1] == Prompt(
        "humaneval/0001", (text,), "code"
    )


def test_golden_quickstart() -> None:
    row = {"prompt_id": "quickstart/0007", "category": "chat", "turns": ["Hi\r\n", "And?"]}
    assert prompts_of("quickstart", row) == (Prompt("quickstart/0007", ("Hi\r\n", "And?"), "chat"),)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (None, "question is NoneType and no text"),
        (["a"], "question is list and no text"),
        (" \n", "question is empty"),
        ("a\ud800", "question holds half of a surrogate pair"),
    ],
)
def test_a_row_without_text_is_named(value: object, fault: str) -> None:
    with pytest.raises(UsageError, match=f"row 2 of file: {fault}"):
        prompts_of("gsm8k", GSM8K_ROW, {**GSM8K_ROW, "question": value})


@pytest.mark.parametrize("turns", [[], "text", ["a", ""], ["a", 3]])
def test_turns_that_are_no_texts(turns: object) -> None:
    with pytest.raises(UsageError, match="row 1 of file: turns"):
        prompts_of("quickstart", {"prompt_id": "quickstart/0000", "category": "math", "turns": turns})


def test_unknown_data_set_names_the_known() -> None:
    with pytest.raises(UsageError, match="choose one of quickstart, gsm8k, humaneval"):
        find_dataset("../gsm8k")


@pytest.mark.parametrize("name", CATALOGUE)
def test_entries_are_whole(name: str) -> None:
    spec = CATALOGUE[name]
    assert spec.name == name
    assert spec.num_rows > 0
    assert spec.licence
    assert spec.template_version.startswith(name)
    assert (spec.source is None) == (spec.shipped is not None)
    if spec.source is not None:
        assert "/" in spec.source, "bare ids are refused by current hub clients"
        assert spec.revision is not None
        assert len(spec.revision) == 40
        assert spec.split is not None
        assert spec.split in (spec.hub_file or "")


PROMPTS = (Prompt("s/0", ("ab", "c"), "math", "1"), Prompt("s/1", ("d",)))


def test_the_digest_is_stable() -> None:
    assert (
        prompts_digest("t-1", PROMPTS) == "bcfc687611f1dffbe89934232f963018bd7173bec7b17a86fb45cc00a772d822"
    )


@pytest.mark.parametrize(
    ("template_version", "prompts"),
    [
        ("t-2", PROMPTS),
        ("t-1", PROMPTS[::-1]),
        ("t-1", PROMPTS[:1]),
        ("t-1", (replace(PROMPTS[0], turns=("a", "bc")), PROMPTS[1])),
        ("t-1", (replace(PROMPTS[0], turns=("abc",)), PROMPTS[1])),
        ("t-1", (replace(PROMPTS[0], turns=("ab",)), Prompt("s/1", ("c", "d")))),
        ("t-1", (replace(PROMPTS[0], turns=("ab", "c ")), PROMPTS[1])),
    ],
)
def test_the_digest_tells_messages_apart(template_version: str, prompts: tuple[Prompt, ...]) -> None:
    assert prompts_digest(template_version, prompts) != prompts_digest("t-1", PROMPTS)


def test_the_digest_holds_messages_only() -> None:
    others = tuple(replace(prompt, prompt_id="x", category=None, answer=None) for prompt in PROMPTS)
    assert prompts_digest("t-1", others) == prompts_digest("t-1", PROMPTS)
