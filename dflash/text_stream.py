"""Token ids to text as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # what a decoder puts where the bytes of a character are not complete


class TextStream:
    """Token ids, step by step -> text without half a character.

    The ids so far are decoded together, for a character may be spread over several tokens and a token may
    change how the one before it is written. A replacement character at the end is held back: the bytes that
    complete it may still come.
    """

    def __init__(self, detokenise: Callable[[Sequence[int]], str], write: Callable[[str], None]) -> None:
        self._detokenise = detokenise
        self._write = write
        self._token_ids: list[int] = []
        self._num_written = 0  # characters

    def add(self, token_ids: Sequence[int]) -> None:
        self._token_ids.extend(token_ids)
        self._write_up_to(self._detokenise(self._token_ids).rstrip(REPLACEMENT))

    def end(self) -> None:
        """Write what was held back."""
        self._write_up_to(self._detokenise(self._token_ids))

    def _write_up_to(self, text: str) -> None:
        if len(text) > self._num_written:
            self._write(text[self._num_written :])
            self._num_written = len(text)
