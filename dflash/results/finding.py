"""What a reader must know before trusting a number, and how such sentences are put. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dflash.results.records import RequestRecord

Severity = Literal["error", "warning", "info"]

_NUM_NAMED = 3  # prompts named in a sentence


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a reader must know before trusting a number."""

    code: str  # stable word
    severity: Severity  # error: broken identity or refused comparison; warning: read with care; info: a fact
    sentence: str


def of(count: int, total: int) -> str:
    return f"{count} of {plural(total, 'request')}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def name_of(record: RequestRecord) -> str:
    return f"{record.prompt_id} (turn {record.turn}, repeat {record.repeat})"


def listed(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - _NUM_NAMED
    return ", ".join(names[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
