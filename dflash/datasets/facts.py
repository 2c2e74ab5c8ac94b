"""What the manifest of a fetched data set says besides its list of files, and whether it can be believed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash.datasets.spec import DatasetSpec
from dflash.folder_manifest import FACTS_DIGEST

ROWS_NAME = "rows.jsonl"
STORE_FORMAT = 2  # 1: without `doubt` and a digest of the facts; 0: before it was counted, fewer of them

_TEXT, _TEXT_OR_NONE, _COUNT = (str,), (str, type(None)), (int,)
FACTS: Mapping[str, tuple[type, ...]] = {
    "dataset": _TEXT,
    "source": _TEXT,
    "revision": _TEXT_OR_NONE,
    "pin": _TEXT_OR_NONE,
    "num_rows": _COUNT,
    "num_prompts": _COUNT,
    "licence": _TEXT,
    "template_version": _TEXT,
    "fetched_at": _TEXT,
    "doubt": _TEXT_OR_NONE,
}


def find_other_format(manifest: Mapping[str, Any]) -> str | None:
    """Which version of dflash wrote a manifest, to follow its folder in a sentence, or None if it is this one."""
    number = manifest.get("store_format", 0)
    if type(number) is not int:
        return "cannot be used (manifest.json has no readable store_format)"
    is_whole = manifest.keys() >= {*FACTS, FACTS_DIGEST} and ROWS_NAME in manifest["files"]
    if number == STORE_FORMAT and is_whole:
        return None
    age = "a newer" if number > STORE_FORMAT else "an older"
    return f"was written by {age} version of dflash (format {number}, this one writes {STORE_FORMAT})"


def find_facts_fault(spec: DatasetSpec, manifest: Mapping[str, Any]) -> str | None:
    """What in a manifest of this version cannot be true, in a few words, or None."""
    for name, kinds in FACTS.items():
        value = manifest[name]
        if type(value) not in kinds or (type(value) is int and value < 0):
            return f"manifest.json has no readable {name}"
    if manifest["dataset"] != spec.name:
        return f"manifest.json is of the data set {manifest['dataset']}"
    return None
