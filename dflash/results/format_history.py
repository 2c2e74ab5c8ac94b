"""Run folders of earlier formats: what `run.json` said then -> what it says now. Pure.

| format | what changed |
| 1 | the first |
| 2 | cells may be `not_run` and `retired`, say how many requests were planned, and whether they were timed; a request \
names its round of `--repeats` and its server's start |

The lines of the other files have only gained fields with a default: every release reads all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dflash.results.records import FORMAT_VERSION

Values = dict[str, Any]


def upgrade(values: Any, version: Any) -> Any:
    """`values` of a `run.json` of format `version` as the present format has them.

    Raises:
        ValueError: there was never such a format.
    """
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= FORMAT_VERSION:
        raise ValueError(f"format_version is {version!r}")
    while version < FORMAT_VERSION:
        values = _UPGRADES[version](values)
        version += 1
    return values


def _from_format_1(values: Values) -> Values:
    """Every field of format 1 has the same meaning in 2; what is new has a default that says "not known"."""
    return values | {"format_version": 2}


_UPGRADES: dict[int, Callable[[Values], Values]] = {1: _from_format_1}
