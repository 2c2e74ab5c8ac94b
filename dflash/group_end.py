"""How a group ended in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GroupEnd:
    """Whether the time budget cut it short, and what ended the cells that failed."""

    is_cut: bool = False
    failures: Mapping[str, Exception] = field(default_factory=dict)  # by cell
