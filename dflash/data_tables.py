"""What `python -m dflash.data` prints and writes: JSON documents and plain aligned text. Pure.

Text of a data set goes to a terminal with every character that a terminal could obey written out; the JSON
documents hold it exactly.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

from dflash.datasets.catalogue import DatasetSpec
from dflash.prompts import Prompt, PromptSet, prompts_digest

if TYPE_CHECKING:
    from dflash.dataset_store import StoredDataset

UNKNOWN = "n/a"
_INDENT = "    "
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


def dataset_document(
    spec: DatasetSpec, stored: StoredDataset | None, error: str | None = None
) -> dict[str, Any]:
    """One data set: what the catalogue says, and what is in the cache.

    `num_rows` is what is here; where nothing is, the prompts that the catalogue expects. `in_cache` tells which,
    `is_current` whether the cache holds the pin and template of this version.
    """
    shipped = spec.shipped is not None
    document: dict[str, Any] = {
        "name": spec.name,
        "title": spec.title,
        "group": spec.group,
        "split": spec.split,
        "licence": spec.licence,
        "categories": list(spec.categories),
        "template_version": spec.template_version,
        "expected_num_prompts": spec.num_rows,
        "origin": origin_of(spec),
        "config": spec.hub.config if spec.hub is not None else None,
        "pin": spec.revision,
        "num_download_bytes": download_bytes_of(spec),
        "shipped": shipped,
        "gated": spec.hub is not None and spec.hub.gated,
        "needs_preparation": spec.needs_preparation,
        "in_cache": stored is not None and not shipped,
        "is_current": None,
        "num_rows": spec.num_rows if stored is None else stored.num_rows,
        "num_prompts": None,
        "num_bytes": None,
        "sha256": None,
        "source": None,
        "revision": None,
        "fetched_at": None,
        "folder": None,
        "error": error,
    }
    if stored is not None:
        for name in ("num_prompts", "num_bytes", "sha256", "source", "revision"):
            document[name] = getattr(stored, name)
        document["fetched_at"] = stored.fetched_at or None
        document["folder"] = str(stored.folder)
        current = (spec.revision, spec.template_version)
        document["is_current"] = shipped or (stored.pin, stored.template_version) == current
    return document


def prompts_document(
    prompt_set: PromptSet, prompts: Sequence[Prompt], rendering: Rendering | None
) -> dict[str, Any]:
    """The prompts that are shown, and the set that they are of."""
    return {
        "name": prompt_set.dataset,
        "num_rows": prompt_set.num_available,
        "sha256": None,
        "source": prompt_set.source,
        "revision": prompt_set.revision,
        "licence": prompt_set.licence,
        "template_version": prompt_set.template_version,
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


def catalogue_text(documents: Sequence[Mapping[str, Any]], width: int) -> str:
    """One aligned line for each data set, and below it what does not fit in columns, wrapped to `width`."""
    rows = [
        (
            str(document["name"]),
            str(document["group"] or "-"),
            f"{_or_unknown(document['expected_num_prompts'])} prompts",
            _format_size(document["num_download_bytes"]) if not document["shipped"] else "-",
            _format_presence(document),
        )
        for document in documents
    ]
    wrap = TextWrapper(
        max(width, 40), initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
    )
    lines = []
    for line, document in zip(_aligned(rows, right=(2, 3)), documents, strict=True):
        lines += [line, *wrap.wrap("; ".join(_facts(document)))]
    return "\n".join(lines)


def _facts(document: Mapping[str, Any]) -> list[str]:
    config = f", config {document['config']}" if document["config"] else ""
    pin = f" at {document['pin']}" if document["pin"] else ", not pinned"
    facts = [
        document["title"],
        *([f"split {document['split']}"] if document["split"] else []),
        f"licence {document['licence']}",
        f"template {document['template_version']}",
        f"categories {', '.join(document['categories']) or UNKNOWN}",
        "shipped with dflash"
        if document["shipped"]
        else f"from {document['origin'] or UNKNOWN}{config}{pin}",
    ]
    if document["gated"]:
        facts.append("gated: the hub gives it to accounts that accepted its terms")
    if document["needs_preparation"]:
        facts.append(f"needs preparation: {document['needs_preparation']}")
    return [printable(fact).replace("\n", " ") for fact in facts]


def _format_presence(document: Mapping[str, Any]) -> str:
    if document["error"]:
        return "damaged in the cache"
    if not document["in_cache"]:
        return "here, shipped" if document["shipped"] else "not in the cache"
    other = "" if document["is_current"] else " of another version: fetch it anew"
    return f"in the cache, {document['num_rows']} rows{other}"


def stored_line(stored: StoredDataset) -> str:
    """One line: what is in the cache, how much, and where it came from."""
    revision = f", {stored.revision}" if stored.revision else ""
    rows = f"{stored.num_rows} rows"
    if stored.num_prompts != stored.num_rows:
        rows += f", {stored.num_prompts} prompts"
    return printable(
        f"{stored.name}: {rows}, {_format_size(stored.num_bytes)}, from {stored.source}{revision}"
    )


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
    return "\n".join(lines)


def format_told(told: Mapping[str, Any] | None) -> str:
    """What a chat template was told about reasoning."""
    if told is None:
        return "the tokenizer has no chat template"
    if not told:
        return "its template is told nothing, for it knows no such setting"
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


def printable(text: str) -> str:
    """`text` with every character written out that a terminal would obey or not show; line ends stay."""
    return "".join(
        c if c in "\n " or c.isprintable() or unicodedata.category(c) == "Zs" else _written_out(c)
        for c in text
    )


def _written_out(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def origin_of(spec: DatasetSpec) -> str | None:
    """Where a data set is published: its id on the model hub, else its repository, else its wheel."""
    if spec.hub is not None:
        return spec.hub.dataset_id
    github = next((file.github for file in spec.files if file.github), None)
    return github.partition("@")[0] if github else spec.wheel


def download_bytes_of(spec: DatasetSpec) -> int | None:
    """How much is downloaded, about; None: not known, or nothing is."""
    if spec.hub is not None and spec.hub.num_bytes is not None:
        return spec.hub.num_bytes
    return next((file.num_bytes for file in spec.files if file.github), None)


def _or_unknown(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def _format_size(num_bytes: int | None) -> str:
    if num_bytes is None:
        return UNKNOWN
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
