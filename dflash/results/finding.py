"""What a reader must know before trusting a number, and how such sentences are put. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dflash.results.records import Cell, RequestRecord

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


def requests_of(num_requests: int, num_prompts: int, noun: str = "request") -> str:
    """`8 prompts`; where a prompt has several turns or repeats `8 requests of 4 prompts`."""
    prompts = plural(num_prompts, "prompt")
    return prompts if num_requests == num_prompts else f"{plural(num_requests, noun)} of {prompts}"


def cell_end(cell: Cell, progress: str) -> str:
    """How a cell that is not completed ended: `Interrupted by SIGINT after 105 of 400 prompts`.

    Args:
        progress: how far it came, `105 of 400 prompts`.
    """
    reason = cell.reason or ""
    if cell.status == "failed":
        return f"Failed after {progress}{f' ({reason})' if reason else ''}"
    if cell.status == "interrupted":
        why = (
            reason
            if reason.startswith("interrupted")
            else f"interrupted ({reason})"
            if reason
            else "interrupted"
        )
        return f"{why[0].upper()}{why[1:]} after {progress}"
    if cell.status == "not_run":
        return f"Not run{f' ({reason})' if reason else ''}, so there are {progress}"
    return f"Not ended after {progress} (its process was killed, or is still at work)"


def name_of(record: RequestRecord) -> str:
    return f"{record.prompt_id} (turn {record.turn}, repeat {record.repeat})"


def listed(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - _NUM_NAMED
    return ", ".join(names[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
