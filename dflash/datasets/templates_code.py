"""Prompts of the data sets whose answers are code. Pure; see `dataset_templates`.

Each wording is the published one: z-lab/dflash, model/utils.py at its first commit bb48ef9.
"""

from __future__ import annotations

from dflash.datasets.files import Row
from dflash.datasets.templates import text_of, text_or_empty, texts_of
from dflash.prompts import CodeCheck, Prompt

_SOLVE_IN_PYTHON = """\
Write a solution to the following problem and make sure that it passes the tests:
```python
{text}
```"""

_CONTEST_PROBLEM = """\
You are an expert Python programmer. You will be given a question (problem specification) and will generate a \
correct Python program that matches the specification and passes all tests. You will NOT return anything \
except for the program

### Question:
{question}

### Format: {instruction}
```python
{code}
```

### Answer: (use the provided format with backticks)"""
_WITH_STARTER_CODE = "Use the following code structure:"
_WITHOUT_STARTER_CODE = "Write your code in the following format:"

_FIX_THE_ISSUE = "Problem Statement:\n{text}\nPlease fix the issue described above."

MBPP_TEST_TASKS = range(11, 511)  # google-research, mbpp/README.md: the task ids of the test split


def humaneval_prompt(row: Row, prompt_id: str) -> Prompt:
    """The test only defines `check`; the data set's own evaluator calls it with the function, and so do we."""
    prompt, entry_point, test = (
        text_of(row, "prompt"),
        text_of(row, "entry_point"),
        text_or_empty(row, "test"),
    )
    check = CodeCheck(preamble=prompt, tests=f"{test}\ncheck({entry_point})\n", entry_point=entry_point)
    return Prompt(
        prompt_id=prompt_id,
        turns=(_SOLVE_IN_PYTHON.format(text=prompt),),
        category="code",
        code_check=check if test else None,
    )


def mbpp_prompt(row: Row, prompt_id: str) -> Prompt | None:
    """Rows of the test split; the original file holds all splits, the hub's file the test split alone.

    The prompt is the bare sentence: no tests, no name of the function, as published.
    """
    task_id = row["task_id"]
    if not isinstance(task_id, int) or isinstance(task_id, bool):
        raise TypeError(f"task_id is {type(task_id).__name__} and no whole number")
    if task_id not in MBPP_TEST_TASKS:
        return None
    imports = texts_of(row, "test_imports") if row["test_imports"] else ()
    return Prompt(
        prompt_id=prompt_id,
        turns=(text_of(row, "prompt"),),
        category="code",
        code_check=CodeCheck(
            preamble="".join(f"{line}\n" for line in imports),
            tests="".join(f"{line}\n" for line in texts_of(row, "test_list")),
        ),
    )


def livecodebench_prompt(row: Row, prompt_id: str) -> Prompt:
    """Question and starter code. The private tests are a pickle: they are never decoded."""
    starter_code = text_or_empty(row, "starter_code")
    text = _CONTEST_PROBLEM.format(
        question=text_of(row, "question_content"),
        instruction=_WITH_STARTER_CODE if starter_code else _WITHOUT_STARTER_CODE,
        code=starter_code or "# YOUR CODE HERE",
    )
    return Prompt(prompt_id=prompt_id, turns=(text,), category="code")


def swe_bench_prompt(row: Row, prompt_id: str) -> Prompt:
    r"""The issue's text as it is: more than half of them hold "\r\n", which counts as tokens."""
    text = _FIX_THE_ISSUE.format(text=text_of(row, "problem_statement"))
    return Prompt(prompt_id=prompt_id, turns=(text,), category="code")
