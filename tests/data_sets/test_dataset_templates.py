"""Every template's exact text, from made-up rows of the columns that the data set has."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from dflash.datasets.catalogue import find_dataset, make_prompts
from dflash.datasets.templates import text_or_empty
from dflash.datasets.templates_long import LONGBENCH_TASKS
from dflash.errors import UsageError
from dflash.prompts import CodeCheck, Prompt

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
GSM8K_ROW = {"question": "How many {eggs}?", "answer": "16 + 1,234\n#### 1,250"}
HUMANEVAL_ROW = {
    "task_id": "HumanEval/0",
    "prompt": "def f(x):\n",
    "entry_point": "f",
    "canonical_solution": "    return x\n",
    "test": "def check(candidate):\n    assert candidate(1) == 1\n",
}
MBPP_ROW = {
    "source_file": "some.ipynb",
    "task_id": 11,
    "prompt": "Write a function to add {one}.",
    "code": "def f(x): return x + 1",
    "test_imports": ["import math"],
    "test_list": ["assert f(1) == 2", "assert f(2) == 3"],
}
GPQA_ROW = {
    "Question": "\nWhich {colour}?\n",
    "Correct Answer": "red\n",
    "Incorrect Answer 1": "green",
    "Incorrect Answer 2": " blue",
    "Incorrect Answer 3": "grey",
    "High-level domain": "Physics",
}
QUESTION_ROW = {"question_id": 7, "category": "writing", "turns": ["Hi", "And?"]}


def prompts_of(name: str, *rows: dict[str, Any]) -> tuple[Prompt, ...]:
    return make_prompts(find_dataset(name), rows, "file")


def prompt_of(name: str, row: dict[str, Any]) -> Prompt:
    (prompt,) = prompts_of(name, row)
    return prompt


# Golden prompts


def test_golden_quickstart() -> None:
    row = {"prompt_id": "quickstart/0007", "category": "chat", "turns": ["Hi\r\n", "And?"]}
    assert prompt_of("quickstart", row) == Prompt("quickstart/0007", ("Hi\r\n", "And?"), "chat")


def test_golden_gsm8k() -> None:
    assert prompt_of("gsm8k", GSM8K_ROW) == Prompt(
        "gsm8k/0000", (f"How many {{eggs}}?{BOXED}",), "math", "1250"
    )


@pytest.mark.parametrize("name", ["math500", "aime24", "aime25"])
def test_golden_problem(name: str) -> None:
    row = {"problem": "Find $\\frac{a}{b}$.", "solution": "s", "answer": "\\frac{3}{2}"}
    assert prompt_of(name, row) == Prompt(
        f"{name}/0000", (f"Find $\\frac{{a}}{{b}}$.{BOXED}",), "math", "\\frac{3}{2}"
    )


def test_golden_gpqa() -> None:
    text = (
        "Answer the following multiple choice question. The last line of your response should be in the "
        "following format: 'Answer: \\boxed{A/B/C/D}' (e.g. 'Answer: \\boxed{A}').\n"
        "\n"
        "Which {colour}?\n"
        "\n"
        "A) red\n"
        "B) blue\n"
        "C) grey\n"
        "D) green"
    )
    assert prompt_of("gpqa", GPQA_ROW) == Prompt("gpqa/0000", (text,), "physics", "A")


def test_golden_humaneval() -> None:
    text = (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        "```python\ndef f(x):\n\n```"
    )
    check = CodeCheck(
        preamble="def f(x):\n",
        tests="def check(candidate):\n    assert candidate(1) == 1\n\ncheck(f)\n",
        entry_point="f",
    )
    assert prompts_of("humaneval", HUMANEVAL_ROW, HUMANEVAL_ROW)[1] == Prompt(
        "humaneval/0001", (text,), "code", code_check=check
    )


def test_golden_mbpp() -> None:
    check = CodeCheck(preamble="import math\n", tests="assert f(1) == 2\nassert f(2) == 3\n")
    assert prompt_of("mbpp", MBPP_ROW) == Prompt(
        "mbpp/0000", ("Write a function to add {one}.",), "code", code_check=check
    )


@pytest.mark.parametrize(
    ("starter_code", "block"),
    [
        (
            "class Solution:\n    pass",
            "### Format: Use the following code structure:\n```python\nclass Solution:\n    pass\n```",
        ),
        (
            "",
            "### Format: Write your code in the following format:\n```python\n# YOUR CODE HERE\n```",
        ),
    ],
)
def test_golden_livecodebench(starter_code: str, block: str) -> None:
    row = {
        "question_content": "Add {two} numbers.",
        "starter_code": starter_code,
        "private_test_cases": "never read",
    }
    text = (
        "You are an expert Python programmer. You will be given a question (problem specification) and will "
        "generate a correct Python program that matches the specification and passes all tests. You will NOT "
        "return anything except for the program\n"
        "\n"
        "### Question:\n"
        "Add {two} numbers.\n"
        "\n"
        f"{block}\n"
        "\n"
        "### Answer: (use the provided format with backticks)"
    )
    assert prompt_of("livecodebench", row) == Prompt("livecodebench/0000", (text,), "code")


def test_golden_swe_bench() -> None:
    row = {"instance_id": "a__b-1", "problem_statement": "It {fails}.\r\nSee below.\r\n"}
    text = "Problem Statement:\nIt {fails}.\r\nSee below.\r\n\nPlease fix the issue described above."
    assert prompt_of("swe-bench", row) == Prompt("swe-bench/0000", (text,), "code")


@pytest.mark.parametrize("column", ["turns", "prompt"])
def test_golden_mt_bench(column: str) -> None:
    row = {"question_id": 81, "category": "stem", column: ["What is {x}?", "Why?"]}
    assert prompt_of("mt-bench", row) == Prompt("mt-bench/0000", ("What is {x}?", "Why?"), "stem")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("a {b}", "Sort these.\n\nInput:\na {b}"),
        ("", "Sort these."),
        (None, "Sort these."),
    ],
)
def test_golden_alpaca(given: str | None, text: str) -> None:
    row = {"instruction": "Sort these.", "input": given, "output": "o", "text": "t"}
    assert prompt_of("alpaca", row) == Prompt("alpaca/0000", (text,), "chat")


def test_golden_sharegpt() -> None:
    def row(*messages: tuple[str, str]) -> dict[str, Any]:
        return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in messages]}

    prompts = prompts_of(
        "sharegpt",
        row(("gpt", "How can I help?")),
        row(("human", "Hi"), ("gpt", "Hello"), ("human", "Bye\r\n"), ("gpt", "Good bye")),
        row(),
        row(("human", " "), ("gpt", "Hello")),
        row(("system", "Be brief."), ("user", "Why?")),
    )
    assert prompts == (
        Prompt("sharegpt/0000", ("Hi", "Bye\r\n"), "chat"),
        Prompt("sharegpt/0001", ("Why?",), "chat"),
    )


@pytest.mark.parametrize(
    ("category", "task"),
    [
        ("humanities", "mt_bench"),
        ("coding", "mt_bench"),
        ("rag", "rag"),
        ("math_reasoning", "math_reasoning"),
    ],
)
@pytest.mark.parametrize(
    "reference", [{}, {"reference": ["a"]}, {"reference": [["a"], ["b"]]}, {"reference": 3}]
)
def test_golden_spec_bench(category: str, task: str, reference: dict[str, Any]) -> None:
    row = {**QUESTION_ROW, "category": category, **reference}
    assert prompt_of("spec-bench", row) == Prompt("spec-bench/0000", ("Hi", "And?"), task)


SPEED_ROW = {"question_id": "0" * 32, "category": "coding"}


@pytest.mark.parametrize(
    "texts",
    [
        {"turns": ["Hi", "And?"]},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": "And?"}]},
    ],
)
def test_golden_speed_bench_of_both_schemas(texts: dict[str, Any]) -> None:
    expected = Prompt("speed-bench/0000", ("Hi", "And?"), "coding")
    assert prompt_of("speed-bench", {**SPEED_ROW, **texts}) == expected


LONGBENCH_TEMPLATES_SHA256 = "e7d865d712fe45e2455f5e864ac474001d7758d68d349e76ffbcdd382483358f"


def test_golden_longbench() -> None:
    """All templates are those of the published file: its digest with its keys sorted."""
    texts = {
        task: prompt_of(
            "longbench", {"dataset": task, "context": "{context}", "input": "{input}", "answers": ["a"]}
        ).turns[0]
        for task in LONGBENCH_TASKS
    }
    document = json.dumps(texts, ensure_ascii=False, sort_keys=True)
    assert hashlib.sha256(document.encode()).hexdigest() == LONGBENCH_TEMPLATES_SHA256
    text = (
        "You are given a report by a government agency. Write a one-page summary of the report.\n\nReport:\n"
        "It {is}.\n\nNow, write a one-page summary of the report.\n\nSummary:"
    )
    row = {"dataset": "gov_report", "context": "It {is}.", "input": ""}
    assert prompt_of("longbench", row) == Prompt("longbench/0000", (text,), "gov_report")


# Answers


@pytest.mark.parametrize(("answer", "kept"), [("025", "025"), (" 7 ", " 7 "), (70, "70"), (0, "0")])
def test_answers_are_kept_as_they_are_given(answer: object, kept: str) -> None:
    assert prompt_of("aime25", {"problem": "p", "answer": answer}).answer == kept


@pytest.mark.parametrize("answer", [None, ["7"], 7.0, True])
def test_an_answer_of_another_kind_is_refused(answer: object) -> None:
    with pytest.raises(UsageError, match=r"answer is .* and neither a text nor a whole number"):
        prompt_of("aime24", {"problem": "p", "answer": answer})


def test_a_solution_without_its_mark_has_no_answer() -> None:
    assert prompt_of("gsm8k", {**GSM8K_ROW, "answer": "It is 3."}).answer is None


def test_choices_depend_on_the_row_alone() -> None:
    names = [name for name in GPQA_ROW if name.endswith(("Answer", "1", "2", "3"))]
    texts = [GPQA_ROW[name] for name in names]
    swapped = {**GPQA_ROW, **dict(zip(names, [texts[0], *texts[:0:-1]], strict=True))}
    assert prompt_of("gpqa", swapped) == prompt_of("gpqa", GPQA_ROW)
    orders = {
        prompt_of("gpqa", {**GPQA_ROW, "Question": f"Which of {number}?"}).answer for number in range(30)
    }
    assert orders == {"A", "B", "C", "D"}


# Splits, code


def test_mbpp_takes_the_test_split_and_counts_prompts() -> None:
    rows = [{**MBPP_ROW, "task_id": task_id} for task_id in (2, 10, 11, 510, 511, 974)]
    assert [prompt.prompt_id for prompt in prompts_of("mbpp", *rows)] == ["mbpp/0000", "mbpp/0001"]


@pytest.mark.parametrize("task_id", ["11", 11.0, None, True])
def test_mbpp_refuses_a_task_id_of_another_kind(task_id: object) -> None:
    with pytest.raises(UsageError, match=r"task_id is .* and no whole number"):
        prompt_of("mbpp", {**MBPP_ROW, "task_id": task_id})


def test_no_imports_no_preamble() -> None:
    check = prompt_of("mbpp", {**MBPP_ROW, "test_imports": []}).code_check
    assert check is not None
    assert check.preamble == ""


@pytest.mark.parametrize(("name", "row"), [("humaneval", HUMANEVAL_ROW), ("mbpp", MBPP_ROW)])
def test_a_code_check_is_a_program_that_tells_right_from_wrong(name: str, row: dict[str, Any]) -> None:
    check = prompt_of(name, row).code_check
    assert check is not None
    right = {"humaneval": "    return x\n", "mbpp": "def f(x):\n    return x + 1\n"}[name]
    exec(check.preamble + right + check.tests, {})
    with pytest.raises(AssertionError):
        exec(check.preamble + right.replace("return", "return -") + check.tests, {})


def test_without_a_test_there_is_no_code_check() -> None:
    assert prompt_of("humaneval", {**HUMANEVAL_ROW, "test": ""}).code_check is None


# SPEED-Bench


@pytest.mark.parametrize(
    "texts",
    [
        {"turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"]},
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {
                    "role": "user",
                    "content": "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH\n\n{article}",
                },
            ]
        },
    ],
)
def test_a_placeholder_is_refused_with_the_way_to_prepare(texts: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as error:
        prompts_of("speed-bench", {**SPEED_ROW, "turns": ["Hi"]}, {**SPEED_ROW, **texts})
    assert error.value.fault.startswith("row 2 of file: its text is the placeholder")
    assert "prepare_data.py" in error.value.mend
    assert "--config qualitative" in error.value.mend
    assert "--dataset-file" in error.value.mend


def test_rows_of_another_speed_bench_config_are_refused() -> None:
    with pytest.raises(UsageError, match="category is 'coding' and none of low_entropy, mixed, high_entropy"):
        prompt_of("speed-bench-1k", {**SPEED_ROW, "turns": ["Hi"]})


# Damaged rows


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (None, "question is null and no text"),
        (["a"], "question is a list and no text"),
        (" \n", "question is empty"),
        ("a\ud800", "question holds half of a surrogate pair"),
    ],
)
def test_a_row_without_text_is_named(value: object, fault: str) -> None:
    with pytest.raises(UsageError, match=f"row 2 of file: {fault}: is it the data set gsm8k?"):
        prompts_of("gsm8k", GSM8K_ROW, {**GSM8K_ROW, "question": value})


@pytest.mark.parametrize("turns", [[], "text", None, ["a", ""], ["a", 3]])
@pytest.mark.parametrize("name", ["quickstart", "mt-bench", "spec-bench", "speed-bench"])
def test_turns_that_are_no_texts(name: str, turns: object) -> None:
    row = {"prompt_id": "quickstart/0000", "category": "math", "turns": turns}
    with pytest.raises(UsageError, match=r"row 1 of file: (entry 2 of )?turns is"):
        prompt_of(name, row)


@pytest.mark.parametrize(
    ("name", "row", "fault"),
    [
        ("mt-bench", {**QUESTION_ROW, "category": "sport"}, "category is 'sport' and none of writing"),
        ("spec-bench", {**QUESTION_ROW, "category": "sport"}, "category is 'sport' and none of mt_bench"),
        ("gpqa", {**GPQA_ROW, "High-level domain": "Law"}, "domain is 'law' and none of biology"),
        (
            "longbench",
            {"dataset": "x", "context": "c", "input": ""},
            "dataset is 'x' and none of narrativeqa",
        ),
        ("longbench", {"dataset": "lcc", "context": "", "input": "i"}, "context is empty"),
        ("longbench", {"dataset": "lcc", "context": "c", "input": 3}, "input is a number and no text"),
        ("alpaca", {"instruction": "i", "input": ["a"]}, "input is a list and no text"),
        ("sharegpt", {"conversations": "Hi"}, "conversations is no list of messages"),
        ("sharegpt", {"conversations": ["Hi"]}, "conversations is no list of messages"),
        ("mbpp", {**MBPP_ROW, "test_list": []}, "test_list is empty"),
        ("mbpp", {**MBPP_ROW, "test_imports": "import os"}, "test_imports is a text and no list of texts"),
    ],
)
def test_a_damaged_row_says_what_is_wrong(name: str, row: dict[str, Any], fault: str) -> None:
    with pytest.raises(UsageError, match=f"row 1 of file: .*{fault}"):
        prompt_of(name, row)


def test_rows_of_another_split_alone_are_no_data_set() -> None:
    with pytest.raises(UsageError, match="file holds no prompt of the data set mbpp"):
        prompt_of("mbpp", {**MBPP_ROW, "task_id": 2})


# Texts that must come through unchanged


@pytest.mark.parametrize("text", ["a\r\nb", "a\u2028b\u2029c\x85d", " a\t\n", "\ufeffa", "é {x} {} %s \\n"])
def test_texts_come_through_unchanged(text: str) -> None:
    assert prompt_of("gsm8k", {**GSM8K_ROW, "question": text}).turns == (text + BOXED,)
    assert prompt_of("swe-bench", {"instance_id": "i", "problem_statement": text}).turns == (
        f"Problem Statement:\n{text}\nPlease fix the issue described above.",
    )
    assert prompt_of("mt-bench", {**QUESTION_ROW, "turns": [text, text]}).turns == (text, text)


def test_a_prompt_of_two_megabytes_is_accepted() -> None:
    text = "Read this. " * 190_651
    assert len(text) > 2 * 1024 * 1024 - 20
    assert prompt_of("longbench", {"dataset": "lcc", "context": text, "input": ""}).num_chars > len(text)


def test_text_that_may_be_missing() -> None:
    assert text_or_empty({}, "input") == ""
    assert text_or_empty({"input": " \n"}, "input") == " \n"
    with pytest.raises(ValueError, match="input holds half of a surrogate pair"):
        text_or_empty({"input": "a\udfff"}, "input")
