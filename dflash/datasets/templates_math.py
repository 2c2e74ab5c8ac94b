"""Prompts of the data sets whose answers are a number, a formula, or a letter. Pure; see `dataset_templates`."""

from __future__ import annotations

import hashlib

from dflash.datasets.files import Row
from dflash.datasets.templates import one_of, text_of
from dflash.prompts import Prompt

# As published with the method: z-lab/dflash, model/utils.py at its first commit bb48ef9.
_BOXED_ANSWER = "{text}\nPlease reason step by step, and put your final answer within \\boxed{{}}."

# The boxed form of the multiple choice prompt of NVIDIA/NeMo-Skills (prompt/config/eval/aai/
# mcq-4choices-boxed.yaml at 0b012df), question and choices laid out as its dataset/utils.py does. z-lab/dflash
# publishes no wording for this set.
_BOXED_LETTER = """\
Answer the following multiple choice question. The last line of your response should be in the following \
format: 'Answer: \\boxed{{A/B/C/D}}' (e.g. 'Answer: \\boxed{{A}}').

{question}

A) {choices[0]}
B) {choices[1]}
C) {choices[2]}
D) {choices[3]}"""

GPQA_COLUMNS = (
    "Question",
    "Correct Answer",
    "Incorrect Answer 1",
    "Incorrect Answer 2",
    "Incorrect Answer 3",
    "High-level domain",
)
GPQA_CATEGORIES = ("biology", "chemistry", "physics")


def gsm8k_prompt(row: Row, prompt_id: str) -> Prompt:
    """The published solution ends in "#### <number>", thousands separated by commas: the answer without them."""
    _, mark, number = text_of(row, "answer").rpartition("####")
    return _boxed(row, "question", prompt_id, number.strip().replace(",", "") if mark else None)


def problem_prompt(row: Row, prompt_id: str) -> Prompt:
    """math500, aime24, aime25: the columns `problem` and `answer`.

    An answer is kept as it is given: AIME writes "025", math500 writes LaTeX. One file has whole numbers.
    """
    answer = row["answer"]
    if isinstance(answer, int) and not isinstance(answer, bool):
        answer = str(answer)
    elif not isinstance(answer, str):
        raise TypeError(f"answer is {type(answer).__name__} and neither a text nor a whole number")
    return _boxed(row, "problem", prompt_id, answer)


def gpqa_prompt(row: Row, prompt_id: str) -> Prompt:
    """Four choices in an order that depends on the row alone: by SHA-256 of question and choice."""
    question = text_of(row, "Question").strip("\n")
    correct, *wrong = (text_of(row, column).strip() for column in GPQA_COLUMNS[1:5])

    def place(choice: str) -> bytes:
        return hashlib.sha256(f"{question}\n{choice}".encode()).digest()

    choices = sorted((correct, *wrong), key=place)
    return Prompt(
        prompt_id=prompt_id,
        turns=(_BOXED_LETTER.format(question=question, choices=choices),),
        category=one_of(text_of(row, "High-level domain").lower(), GPQA_CATEGORIES, "High-level domain"),
        answer="ABCD"[choices.index(correct)],
    )


def _boxed(row: Row, column: str, prompt_id: str, answer: str | None) -> Prompt:
    text = _BOXED_ANSWER.format(text=text_of(row, column))
    return Prompt(prompt_id=prompt_id, turns=(text,), category="math", answer=answer)
