"""The catalogue for people and programs: a table of one line for each data set, and JSON documents.

Text of a data set goes to a terminal with every character that a terminal could obey written out.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import TextWrapper
from typing import Any

from dflash.datasets.published import FILES_VARIABLE
from dflash.datasets.spec import DatasetSpec
from dflash.datasets.stored import StoredDataset

UNKNOWN = "n/a"
_INDENT = "    "


def dataset_document(
    spec: DatasetSpec,
    stored: StoredDataset | None,
    error: str | None = None,
    *,
    file_at_hand: Path | None = None,
    file_at_hand_fault: str | None = None,
) -> dict[str, Any]:
    """One data set: what the catalogue says, what is in the cache, and its file in `DFLASH_DATASETS_DIR`.

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
        "caution": spec.caution,
        "in_cache": stored is not None and not shipped,
        "is_current": None,
        "num_rows": spec.num_rows if stored is None else stored.num_rows,
        "num_prompts": None,
        "num_bytes": None,
        "sha256": None,
        "source": None,
        "revision": None,
        "fetched_at": None,
        "doubt": None,
        "folder": None,
        "file_at_hand": None if file_at_hand is None else str(file_at_hand),
        "file_at_hand_num_rows": _rows_at_hand(spec, file_at_hand),
        "file_at_hand_fault": file_at_hand_fault,
        "error": error,
    }
    if stored is not None:
        for name in ("num_prompts", "num_bytes", "sha256", "source", "revision"):
            document[name] = getattr(stored, name)
        document["fetched_at"] = stored.fetched_at or None
        document["doubt"] = stored.doubt
        document["folder"] = str(stored.folder)
        current = (spec.revision, spec.template_version)
        document["is_current"] = shipped or (stored.pin, stored.template_version) == current
    return document


def _rows_at_hand(spec: DatasetSpec, path: Path | None) -> int | None:
    """As the catalogue knows the file by its size, which with its digest was looked at to find it."""
    num_bytes = None if path is None else path.stat().st_size
    return next((file.num_rows for file in spec.files if num_bytes and file.num_bytes == num_bytes), None)


def catalogue_text(documents: Sequence[Mapping[str, Any]], width: int, *, in_full: bool) -> str:
    """A table of one line for each data set.

    Args:
        documents: of the data sets, as `dataset_document` gives them.
        width: in characters; the table needs up to 80, the rest is wrapped to it.
        in_full: below each line what does not fit in columns, and at the end how sets are prepared.
    """
    rows = [("name", "group", "prompts", "size", "state")]
    rows += [
        (
            str(document["name"]),
            str(document["group"] or "-"),
            _or_unknown(document["expected_num_prompts"]),
            _format_size(document["num_bytes"] or document["num_download_bytes"]),
            _format_presence(document),
        )
        for document in documents
    ]
    head, *lines = _aligned(rows, right=(2, 3))
    if not in_full:
        return "\n".join((head, *lines))
    wrap = TextWrapper(
        max(width, 40),
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_on_hyphens=False,
        break_long_words=False,  # a path can be copied
    )
    text = [head]
    for line, document in zip(lines, documents, strict=True):
        text += [line, *wrap.wrap("; ".join(_facts(document)))]
    for preparation in _preparations(documents):
        text += ["", *wrap.wrap(f"To be prepared: {preparation}")]
    return "\n".join(text)


def _preparations(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why and how sets are prepared, once for all sets of which only the config differs."""
    found: dict[str, str] = {}  # by the words without the config
    for document in documents:
        words = document["needs_preparation"]
        if words:
            common = words.replace(f"--config {document['config']}", "--config CONFIG")
            found[common] = common if common in found else words
    return [printable(words) for words in found.values()]


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
        facts.append("to be prepared: see below")
    if document["file_at_hand"]:
        facts.append(f"{FILES_VARIABLE} has its file {document['file_at_hand']}")
    facts += [
        document[name] for name in ("file_at_hand_fault", "caution", "doubt", "error") if document[name]
    ]
    return [printable(fact).replace("\n", " ") for fact in facts]


def _format_presence(document: Mapping[str, Any]) -> str:
    if document["shipped"]:
        return "shipped"
    if document["error"]:
        return "damaged in the cache"
    if document["in_cache"] and document["is_current"]:
        doubt = ", not known to be as published" if document["doubt"] else ""
        return f"in the cache, {document['num_rows']} rows{doubt}"
    if document["file_at_hand"]:
        num_rows, expected = document["file_at_hand_num_rows"], document["expected_num_prompts"]
        is_part = num_rows is not None and num_rows < expected
        return f"in {FILES_VARIABLE}" + (f", {num_rows} rows" if is_part else "")
    if document["in_cache"]:
        return "outdated in the cache: fetch it anew"
    if document["needs_preparation"]:
        return "not in the cache, to be prepared"
    return "not in the cache, gated" if document["gated"] else "not in the cache"


def stored_line(stored: StoredDataset) -> str:
    """One line: what is in the cache, how much, and where it came from."""
    revision = f", {stored.revision}" if stored.revision else ""
    rows = f"{stored.num_rows} rows"
    if stored.num_prompts != stored.num_rows:
        rows += f", {stored.num_prompts} prompts"
    doubt = f"; {stored.doubt}" if stored.doubt else ""
    return printable(
        f"{stored.name}: {rows}, {_format_size(stored.num_bytes)}, from {stored.source}{revision}{doubt}"
    )


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
