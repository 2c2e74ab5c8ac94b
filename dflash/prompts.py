"""The data set catalogue: where each set comes from, and how a row becomes a prompt. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: what the user says, turn by turn."""

    prompt_id: str  # "<data set>/<row>"
    turns: tuple[str, ...]
    category: str | None = None
    answer: str | None = None  # the reference answer, where the set has one


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
