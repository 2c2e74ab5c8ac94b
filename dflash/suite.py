"""Suites: whole sweeps in a TOML file, read and taken apart into grids. No setting is interpreted here.

about = "in one sentence"
include = "shared.toml"              # or several; beside this file, or the name of a shipped suite

[settings]                           # hold in every grid; the names are those of the flags
num-prompts = 64
[[grid]]                             # any number; with none, the settings are the one grid
dataset = ["gsm8k", "humaneval"]
concurrency = [1, 8, 32]
[[override]]                         # of the cells that `where` names
where = { dataset = "humaneval", concurrency = 32 }
set = { max-new-tokens = 512 }       # or: drop = true
[gate]                               # for `python -m dflash.compare --gates FILE`; not read here
fail-if = ["speedup:-5%"]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash.errors import UsageError

SUITES_FOLDER = Path(__file__).parent / "suites"
WHERE = ("dataset", "concurrency")  # what a cell is named by
_TABLES = ("about", "include", "settings", "grid", "override", "gate")
_FILES = ("script", "dataset-file", "datasets-cache")  # of a suite: beside it

Settings = Mapping[str, Any]  # by the name of the flag without its dashes


@dataclass(frozen=True, slots=True)
class Override:
    """Other settings for the cells that it names, or none of them."""

    where: Mapping[str, tuple[Any, ...]]  # of `WHERE`; what is not named matches every value
    changes: Settings
    drops: bool
    label: str  # for messages


@dataclass(frozen=True, slots=True)
class Suite:
    """What a suite says, its includes merged."""

    name: str
    about: str
    settings: Settings
    grids: tuple[Settings, ...]  # beside `settings`; one that is empty where none was given
    overrides: tuple[Override, ...]


def shipped_suites() -> dict[str, Path]:
    """The suites of this package by name."""
    return {path.stem: path for path in sorted(SUITES_FOLDER.glob("*.toml"))}


def load_suite(name: str) -> Suite:
    """A shipped suite by its name, or the one in a file.

    Raises:
        UsageError: no such suite, no TOML, a table that is unknown, an include that comes back to itself.
    """
    return _load(_find(name, Path(), "--suite"), name, ())


def _find(name: str, folder: Path, asked_by: str) -> Path:
    shipped = shipped_suites()
    if name in shipped:
        return shipped[name]
    path = folder / Path(name).expanduser()
    if path.is_file():
        return path
    raise UsageError(
        f"{asked_by} names {name!r}, which is no suite and no file",
        f"name a TOML file, or one of {', '.join(shipped)}",
    )


def _load(path: Path, name: str, opened: tuple[Path, ...]) -> Suite:
    path = path.resolve()
    if path in opened:
        raise UsageError(f"suite {path.name} includes itself", "remove the include that comes back to it")
    content = _read(path)
    unknown = sorted(set(content) - set(_TABLES))
    if unknown:
        raise UsageError(f"suite {path.name}: unknown entry {unknown[0]!r}", f"it takes {', '.join(_TABLES)}")
    includes = content.get("include", [])
    included = [
        _load(_find(item, path.parent, f"suite {path.name}"), item, (*opened, path))
        for item in ([includes] if isinstance(includes, str) else _list_of(str, includes, path, "include"))
    ]
    settings: dict[str, Any] = {}
    for base in included:
        settings |= base.settings
    settings |= _settings(content.get("settings", {}), path, "settings")
    own = [_settings(grid, path, "grid") for grid in _list_of(dict, content.get("grid", []), path, "grid")]
    grids = [grid for base in included for grid in base.grids if grid] + own
    overrides = [override for base in included for override in base.overrides]
    tables = _list_of(dict, content.get("override", []), path, "override")
    overrides += [_override(table, path, number) for number, table in enumerate(tables, start=1)]
    about = content.get("about", "")
    return Suite(name, str(about), settings, tuple(grids) or ({},), tuple(overrides))


def _read(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"suite {path.name} cannot be read ({error})", "mend the TOML file") from error
    return values


def _list_of(kind: type, value: Any, path: Path, name: str) -> Sequence[Any]:
    if isinstance(value, list) and all(isinstance(item, kind) for item in value):
        return value
    form = f"[[{name}]]" if kind is dict else "a text or a list of texts"
    raise UsageError(f"suite {path.name}: {name} has the wrong form", f"write it as {form}")


def _settings(values: Any, path: Path, name: str) -> Settings:
    """Settings as they stand, files named from the suite's folder."""
    if not isinstance(values, dict):
        raise UsageError(f"suite {path.name}: {name} has the wrong form", "write it as a table")
    return {
        key: str(path.parent / value) if key in _FILES and isinstance(value, str) else value
        for key, value in values.items()
    }


def _override(table: dict[str, Any], path: Path, number: int) -> Override:
    label = f"override {number} of suite {path.name}"
    unknown = sorted(set(table) - {"where", "set", "drop"})
    if unknown:
        raise UsageError(f"{label}: unknown entry {unknown[0]!r}", "it takes where, set and drop")
    where = _settings(table.get("where", {}), path, "where")
    wrong = sorted(set(where) - set(WHERE))
    if wrong or not where:
        named = f"names cells by {wrong[0]!r}" if wrong else "names no cell"
        raise UsageError(f"{label} {named}", f"name cells by {' and '.join(WHERE)} under where")
    changes = _settings(table.get("set", {}), path, "set")
    drops = table.get("drop", False)
    if drops not in (True, False) or bool(changes) == drops:
        raise UsageError(f"{label} must say what holds for its cells", "give either set or drop = true")
    lists = {key: tuple(value) if isinstance(value, list) else (value,) for key, value in where.items()}
    return Override(lists, changes, drops, label)
