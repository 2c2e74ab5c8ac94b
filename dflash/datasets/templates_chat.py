"""Prompts of the data sets of instructions and conversations. Pure; see `dataset_templates`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dflash.datasets.files import Row
from dflash.datasets.templates import check_text, kind_of, one_of, text_of, text_or_empty, texts_of
from dflash.errors import UsageError
from dflash.prompts import Prompt

# As published with the method: z-lab/dflash, model/utils.py at its first commit bb48ef9.
_WITH_INPUT = "{instruction}\n\nInput:\n{text}"

MT_BENCH_CATEGORIES = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
# The six tasks that hemingkx/Spec-Bench reports (evaluation/speed.py at fd2c1cd): it takes the eight categories
# of MT-Bench together as `mt_bench`.
SPEC_BENCH_CATEGORIES = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")

SPEED_BENCH_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
SPEED_BENCH_QUALITATIVE_CATEGORIES = (
    "coding",
    "humanities",
    "math",
    "multilingual",
    "qa",
    "rag",
    "reasoning",
    "roleplay",
    "stem",
    "summarization",
    "writing",
)
SPEED_BENCH_THROUGHPUT_CATEGORIES = ("low_entropy", "mixed", "high_entropy")

_ROLES = ("system", "user", "assistant")
_HUMANS = ("human", "user")
_TEXT_PART = '{"type": "text", "text": …}'


def alpaca_prompt(row: Row, prompt_id: str) -> Prompt:
    """The instruction, and a block with its input where it has one."""
    return Prompt(prompt_id=prompt_id, turns=(instruction_of(row),), category="chat")


def mt_bench_prompt(row: Row, prompt_id: str) -> Prompt:
    """Both turns. The original file calls them `turns`, the hub's table `prompt`."""
    return Prompt(
        prompt_id=prompt_id,
        turns=texts_of(row, "turns" if "turns" in row else "prompt"),
        category=one_of(text_of(row, "category"), MT_BENCH_CATEGORIES, "category"),
    )


def sharegpt_prompt(row: Row, prompt_id: str) -> Prompt | None:
    """What people said, each a turn; what a model answered is left out.

    A conversation in which nobody said anything, or in which one of the human messages is blank, is no prompt.
    """
    turns = human_turns(row["conversations"], "conversations")
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        return None
    return Prompt(
        prompt_id=prompt_id,
        turns=tuple(check_text(turn, "conversations") for turn in turns),
        category="chat",
    )


def spec_bench_prompt(row: Row, prompt_id: str) -> Prompt:
    """All turns. `reference` is of another type in every task, or missing: it is not read."""
    category = text_of(row, "category")
    if category in MT_BENCH_CATEGORIES:
        category = SPEC_BENCH_CATEGORIES[0]
    return Prompt(
        prompt_id=prompt_id,
        turns=texts_of(row, "turns"),
        category=one_of(category, SPEC_BENCH_CATEGORIES, "category"),
    )


def speed_bench_prompt(config: str, categories: tuple[str, ...]) -> Callable[[Row, str], Prompt]:
    """The template of one SPEED-Bench config, for prepared rows of either schema: `turns`, or chat `messages`.

    It raises `UsageError` for a row whose text is the hub's placeholder, and says how rows are prepared.
    """

    def to_prompt(row: Row, prompt_id: str) -> Prompt:
        context: tuple[tuple[str, str], ...] = ()
        if "turns" in row:
            turns = texts_of(row, "turns")
        else:
            context, turns = conversation_of(row["messages"], "messages")
        if any(turn.startswith(SPEED_BENCH_PLACEHOLDER) for turn in turns):
            raise UsageError(
                "its text is the placeholder that the hub has in place of texts of other data sets",
                f"{speed_bench_preparation(config)}, and give the file that it writes by --dataset-file",
            )
        return Prompt(
            prompt_id=prompt_id,
            turns=turns,
            category=one_of(text_of(row, "category"), categories, "category"),
            context=context,
        )

    return to_prompt


def speed_bench_preparation(config: str) -> str:
    """How the rows of a SPEED-Bench config are prepared, for people."""
    return (
        "prepare it by examples/specdec_bench/prepare_data.py of github.com/NVIDIA/Model-Optimizer "
        f"(--dataset speed --config {config}; one of its sources, cais/hle, is gated) or by "
        f"nemo_skills/dataset/speed-bench/prepare.py of github.com/NVIDIA-NeMo/Skills (--config {config})"
    )


def instruction_of(row: Row) -> str:
    """The columns `instruction` and `input` as one text."""
    instruction, text = text_of(row, "instruction"), text_or_empty(row, "input")
    return _WITH_INPUT.format(instruction=instruction, text=text) if text else instruction


def human_turns(conversation: object, column: str) -> list[Any]:
    """What people said in a conversation of the ShareGPT form: [{"from": "human", "value": …}, …]; not checked.

    Raises:
        TypeError: it is not of that form.
    """
    if not isinstance(conversation, list) or not all(isinstance(item, Mapping) for item in conversation):
        raise TypeError(f'{column} is no list of messages with "from" and "value"')
    return [message.get("value") for message in conversation if message.get("from") in _HUMANS]


def conversation_of(messages: object, column: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """A conversation of the OpenAI form, [{"role": "user", "content": …}, …], as (context, turns) of a prompt.

    User messages alone are one turn each, after the system messages that precede them. With answers of an
    assistant among them, everything before the last user message is context, and that message is the one turn.
    A content that is a list of text parts, [{"type": "text", "text": …}, …], is these texts, a line each.

    Raises:
        TypeError: it is not of that form, or a content is no text.
        ValueError: it is empty or does not end with a user message, a role is unknown, or a text is empty.
    """
    if not isinstance(messages, list) or not all(isinstance(item, Mapping) for item in messages):
        raise TypeError(f'{column} is no list of messages with "role" and "content"')
    pairs = tuple(_role_and_text(message, column) for message in messages)
    if not pairs or pairs[-1][0] != "user":
        raise ValueError(f"{column} does not end with a message of the user")
    num_system = next(index for index, (role, _) in enumerate(pairs) if role != "system")
    said = pairs[num_system:]
    if all(role == "user" for role, _ in said):
        return pairs[:num_system], tuple(text for _, text in said)
    return pairs[:-1], (pairs[-1][1],)


def _role_and_text(message: Mapping[str, Any], column: str) -> tuple[str, str]:
    role = message.get("role")
    if role not in _ROLES:
        raise ValueError(f"{column} holds a message of the role {role!r}, and not of {', '.join(_ROLES)}")
    return str(role), _content_of(message.get("content"), f"the content of a message in {column}")


def _content_of(content: object, label: str) -> str:
    if not isinstance(content, list):
        return check_text(content, label)
    # Joined as vLLM joins them for a template that takes texts.
    return check_text("\n".join(_text_of_part(part, label) for part in content), label)


def _text_of_part(part: object, label: str) -> str:
    if not isinstance(part, Mapping):
        raise TypeError(f"{label} holds {kind_of(part)} where a part such as {_TEXT_PART} is expected")
    if part.get("type") != "text":
        raise ValueError(f"{label} has a part of the type {part.get('type')!r}, and only text can be sent")
    return check_text(part.get("text"), f"the text of a part of {label}")
