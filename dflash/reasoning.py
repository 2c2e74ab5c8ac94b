"""What of a reasoning model's answer goes into the history of a later turn. Pure.

Reasoning models are trained on histories without their thinking: their chat templates drop it. It is done
here, once, for every engine, so that all of them see the same history.
"""

from __future__ import annotations

THINKING_BEGIN = "<think>"
THINKING_END = "</think>"


def strip_reasoning(text: str) -> str:
    """The answer without the thinking before it.

    What follows the last `</think>` stays, without the line breaks at its beginning. Thinking that was begun
    and never ended (the limit on new tokens came first) goes, and what stood before it stays. A text with
    neither mark is returned as it is.
    """
    _, end, answer = text.rpartition(THINKING_END)
    if end:
        answer = answer.lstrip("\n")
    before, _, _ = answer.partition(THINKING_BEGIN)
    return before
