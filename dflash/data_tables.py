"""Prompts as `python -m dflash.data show` prints and writes them: JSON documents and plain text. Pure.

Text of a data set goes to a terminal with every character that a terminal could obey written out; the JSON
documents hold it exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.datasets.listing import UNKNOWN, printable
from dflash.prompts import Prompt, PromptSet, prompts_digest

_GUTTER = "| "  # before every line of a prompt: where a text ends, and what is no text of it, can be seen


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """The first turn of a prompt as a model sees it."""

    text: str  # special tokens included
    num_tokens: int
    token_digest: str  # of the token ids, as requests record it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """In whose chat template prompts are shown, and what the template was told about reasoning."""

    model: str
    reasoning: str
    told: Mapping[str, Any] | None  # None: there is no template to tell
    prompts: Mapping[str, RenderedPrompt]  # by prompt id
    notes: tuple[str, ...] = ()


# --- JSON


def prompts_document(
    prompt_set: PromptSet, prompts: Sequence[Prompt], rendering: Rendering | None, sha256: str | None
) -> dict[str, Any]:
    """The prompts that are shown, and the set that they are of.

    `prompts_digest` is what a run of these prompts in this order has; `sha256` that of the file they were read from.
    """
    return {
        "name": prompt_set.dataset,
        "num_rows": prompt_set.num_available,
        "sha256": sha256,
        "source": prompt_set.source,
        "revision": prompt_set.revision,
        "licence": prompt_set.licence,
        "template_version": prompt_set.template_version,
        "prompts_digest": prompts_digest(prompt_set.template_version or "", prompts),
        "model": rendering.model if rendering else None,
        "reasoning": rendering.reasoning if rendering else None,
        "reasoning_arguments": dict(rendering.told) if rendering and rendering.told is not None else None,
        "notes": [*prompt_set.notes, *(rendering.notes if rendering else ())],
        "prompts": [_prompt_document(prompt_set, prompt, rendering) for prompt in prompts],
    }


def _prompt_document(prompt_set: PromptSet, prompt: Prompt, rendering: Rendering | None) -> dict[str, Any]:
    rendered = rendering.prompts[prompt.prompt_id] if rendering else None
    return {
        "prompt_id": prompt.prompt_id,
        "category": prompt.category,
        "num_chars": prompt.num_chars,
        "context": [{"role": role, "content": content} for role, content in prompt.context],
        "turns": list(prompt.turns),
        "answer": prompt.answer,
        "has_code_check": prompt.code_check is not None,
        "digest": prompts_digest(prompt_set.template_version or "", [prompt]),
        "rendered": rendered.text if rendered else None,
        "num_tokens": rendered.num_tokens if rendered else None,
        "token_digest": rendered.token_digest if rendered else None,
    }


# --- text


def prompts_text(prompt_set: PromptSet, prompts: Sequence[Prompt], rendering: Rendering | None) -> str:
    """Prompts for a person to read: every message apart, and the rendered text where there is a model."""
    revision = f" at {prompt_set.revision}" if prompt_set.revision else ""
    shown = f"{prompt_set.dataset}: {len(prompts)} of {prompt_set.num_available} prompts"
    lines = [
        f"{shown}, template {prompt_set.template_version or UNKNOWN}, from {prompt_set.source}{revision}"
    ]
    if rendering is not None:
        lines += [
            f"model {rendering.model}, reasoning {rendering.reasoning}: {format_told(rendering.told)}",
            *(f"note: {note}" for note in rendering.notes),
        ]
    lines += [f"note: {note}" for note in prompt_set.notes]
    lines = [printable(line).replace("\n", " ") for line in lines]
    for prompt in prompts:
        lines += ["", *_prompt_lines(prompt, rendering)]
    if any(len(prompt.turns) > 1 for prompt in prompts):
        lines += ["", "Turns are counted from 1 here, and from 0 in records and reports."]
    return "\n".join(lines)


def format_told(told: Mapping[str, Any] | None) -> str:
    """What a chat template was told about reasoning."""
    if told is None:
        return "the tokenizer has no chat template"
    if not told:
        return "its template has no reasoning switch"
    return f"its template is told {', '.join(f'{name}={value}' for name, value in told.items())}"


def _prompt_lines(prompt: Prompt, rendering: Rendering | None) -> list[str]:
    facts = [prompt.prompt_id, f"category {prompt.category or UNKNOWN}", f"{prompt.num_chars} characters"]
    lines = [printable(", ".join(facts)).replace("\n", " ")]
    for role, content in prompt.context:
        lines += _section(f"context, {role}", content)
    for number, turn in enumerate(prompt.turns, start=1):
        after = " (after the turns before it and their answers)" if number > 1 else ""
        lines += _section(f"turn {number} of {len(prompt.turns)}{after}", turn)
    if prompt.answer is not None:
        lines += _section("reference answer", prompt.answer)
    if rendering is not None:
        rendered = rendering.prompts[prompt.prompt_id]
        title = f"turn 1 as the model sees it, {rendered.num_tokens} tokens, digest {rendered.token_digest}"
        lines += _section(title, rendered.text)
        if len(prompt.turns) > 1:
            lines.append(
                "The later turns come after their history: the turns before them, each with its answer, "
                "without the reasoning in it."
            )
    return lines


def _section(title: str, text: str) -> list[str]:
    return [f"-- {printable(title)}", *(f"{_GUTTER}{line}" for line in printable(text).split("\n"))]
