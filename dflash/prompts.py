"""What a prompt is, and the digest that makes a list of prompts an identity. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CodeCheck:
    """How an answer in Python is tried out: `preamble`, the answer's code, then `tests`, as one program."""

    preamble: str  # imports and the signature that the prompt gave; may be empty
    tests: str  # raises where the answer is wrong
    entry_point: str | None = None  # the function that the tests call, where the data set names it


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: what the user says, turn by turn."""

    prompt_id: str  # "<data set>/<row>"
    turns: tuple[str, ...]
    category: str | None = None
    answer: str | None = None  # the reference answer, where the set has one
    context: tuple[tuple[str, str], ...] = ()  # (role, content) of messages that precede the first turn
    code_check: CodeCheck | None = None

    @property
    def num_chars(self) -> int:
        """Characters of the given context and of every turn; what the models answer is not in it."""
        return sum(map(len, self.turns)) + sum(len(content) for _, content in self.context)


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of one run in their order: an identity that every result names."""

    dataset: str
    prompts: tuple[Prompt, ...]
    digest: str  # of the messages (turns and template version) and their order
    revision: str | None  # of the source, or the digest of the file
    source: str  # where the rows came from, for people
    num_available: int  # rows to choose from
    notes: tuple[str, ...] = ()  # e.g. "asked for 128 prompts, the set has 68"
    template_version: str | None = None
    licence: str | None = None
    num_requests: int | None = None  # per arm and repeat; more than prompts: repeating was asked for


def prompts_digest(template_version: str, prompts: Sequence[Prompt]) -> str:
    """SHA-256 over the template version and every message of every prompt, in order, each after its length.

    The lengths keep ("ab", "c") and ("a", "bc") apart. Ids, categories and answers are not part of it: the
    messages are what an engine sees.
    """
    digest = hashlib.sha256()
    for part in (template_version, str(len(prompts))):
        _add(digest.update, part)
    for prompt in prompts:
        if prompt.context:
            for part in (
                "context",
                str(len(prompt.context)),
                *(part for pair in prompt.context for part in pair),
            ):
                _add(digest.update, part)
        _add(digest.update, str(len(prompt.turns)))
        for turn in prompt.turns:
            _add(digest.update, turn)
    return digest.hexdigest()


def references_digest(prompts: Sequence[Prompt]) -> str | None:
    """SHA-256 over what answers are scored by: reference answers and tests, by prompt; None where there are none."""
    digest = hashlib.sha256()
    is_empty = True
    for prompt in prompts:
        check = prompt.code_check
        parts = [prompt.answer, *((check.preamble, check.tests, check.entry_point) if check else ())]
        for part in parts:
            is_empty = is_empty and part is None
            _add(digest.update, "none" if part is None else f"some {part}")
    return None if is_empty else digest.hexdigest()


def _add(update: Callable[[bytes], object], text: str) -> None:
    data = text.encode()
    update(f"{len(data)}:".encode())
    update(data)
