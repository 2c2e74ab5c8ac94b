"""Which prompts of a data set are used, and in which order: by data set and seed, and nothing else. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dflash.errors import UsageError
from dflash.prompts import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was asked for. Lengths are characters of all turns and the given context (`Prompt.num_chars`)."""

    num_prompts: int | None = None  # None: all
    seed: int = 0
    category: str | None = None
    min_prompt_chars: int | None = None
    max_prompt_chars: int | None = None
    repeat: bool = False  # use prompts again where there are fewer than asked

    @property
    def reason(self) -> str:
        """Why the prompts to choose from may be fewer than the set's, to follow the word "prompts" or a number."""
        low, high = self.min_prompt_chars, self.max_prompt_chars
        reasons = [f"of category {self.category}"] if self.category else []
        if low is not None and high is not None:
            reasons.append(f"of {low} to {high} characters")
        elif low is not None:
            reasons.append(f"of {low} characters or more")
        elif high is not None:
            reasons.append(f"of {high} characters or less")
        return " and ".join(reasons)


@dataclass(frozen=True, slots=True)
class Selected:
    """The prompts that were chosen, in their order, and what is to be said about it."""

    prompts: tuple[Prompt, ...]
    num_available: int  # to choose from
    num_requests: int | None  # per arm and repeat, where prompts may be used again
    notes: tuple[str, ...]


def select(prompts: Sequence[Prompt], selection: Selection, dataset: str) -> Selected:
    """Choose by category and length, then take the first ones of the fixed order. None is taken twice.

    Raises:
        UsageError: no prompt is of that category or length; what there is, is named.
    """
    available = _of_length(_of_category(prompts, selection.category, dataset), selection, dataset)
    chosen = select_prompts(available, selection.num_prompts, selection.seed)
    return Selected(
        prompts=chosen,
        num_available=len(available),
        num_requests=selection.num_prompts if selection.repeat else None,
        notes=(*_fewer_note(len(available), selection), *_equal_texts_note(chosen, dataset)),
    )


def select_prompts(prompts: Sequence[Prompt], num_prompts: int | None, seed: int) -> tuple[Prompt, ...]:
    """The first `num_prompts` by SHA-256 of "<seed>:<prompt id>"; None takes all, in that order.

    A smaller selection is the beginning of a larger one, and leaving some prompts out moves no other.

    Raises:
        UsageError: `num_prompts` is below 1.
    """
    if num_prompts is not None and num_prompts < 1:
        raise UsageError(f"{num_prompts} prompts cannot be chosen", "ask for 1 or more")

    def place(prompt: Prompt) -> bytes:
        return hashlib.sha256(f"{seed}:{prompt.prompt_id}".encode()).digest()

    return tuple(sorted(prompts, key=place)[:num_prompts])


def _of_category(prompts: Sequence[Prompt], category: str | None, dataset: str) -> Sequence[Prompt]:
    if category is None:
        return prompts
    chosen = [prompt for prompt in prompts if prompt.category == category]
    if not chosen:
        known = sorted({prompt.category for prompt in prompts if prompt.category})
        raise UsageError(
            f"the data set {dataset} has no prompts of category {category!r}",
            f"choose one of {', '.join(known)}" if known else "its prompts have no categories",
        )
    return chosen


def _of_length(prompts: Sequence[Prompt], selection: Selection, dataset: str) -> Sequence[Prompt]:
    low, high = selection.min_prompt_chars or 0, selection.max_prompt_chars
    chosen = [prompt for prompt in prompts if low <= prompt.num_chars <= (math.inf if high is None else high)]
    if prompts and not chosen:
        lengths = [prompt.num_chars for prompt in prompts]
        raise UsageError(
            f"the data set {dataset} has no prompts {selection.reason}",
            f"the shortest there has {min(lengths)} characters, the longest {max(lengths)}",
        )
    return chosen


def _fewer_note(num_available: int, selection: Selection) -> tuple[str, ...]:
    wanted = selection.num_prompts
    if wanted is None or wanted <= num_available:
        return ()
    reason = f" {selection.reason}" if selection.reason else ""
    if selection.repeat:
        num_times = math.ceil(wanted / num_available)
        used = (
            f"{num_available} prompts{reason} are used up to {num_times} times for {wanted} requests an arm"
        )
        return (f"--repeat: {used}; a server may answer repeats from its prefix cache",)
    return (f"asked for {wanted} prompts, the set has {num_available}{reason}",)


def _equal_texts_note(chosen: Sequence[Prompt], dataset: str) -> tuple[str, ...]:
    num_repeated = len(chosen) - len({(prompt.context, prompt.turns) for prompt in chosen})
    if not num_repeated:
        return ()
    return (f"{num_repeated} of the {len(chosen)} prompts of {dataset} repeat the text of another one",)
