r"""Finds the final answer in what a model wrote, and compares it with the reference. Pure.

Numbers are compared as exact rationals, everything else as normalised LaTeX (`answer_values.py`). Nothing is
evaluated. Texts come from models: every step is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dflash.results.answer_values import plain_latex, value_of, without_name

_THINKING_BEGIN, _THINKING_END = "<think>", "</think>"
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s{0,20}")
_UNBRACED = re.compile(r"-?[0-9\\][^\s$,;{}]{0,100}")  # `\boxed 5`
_ESCAPED_OR_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
# `1e5`, `2 \times 10^{3}`, `2^{10}`, `cm^2`: the digits of an exponent are no number of their own.
_EXPONENT = r"\s?(?:\^|\*\*)\s?(?:\{\s?[-+−]?[0-9]+\s?\}|[-+−]?[0-9]+)"
_SCALE = rf"(?:[eE][-+−]?[0-9]+|(?:\s?(?:\\times|\\cdot|[×·*xX])\s?10)?{_EXPONENT})"
_NUMBER = re.compile(
    rf"(?P<exponent>{_EXPONENT})"
    r"|(?:(?<![\w.)\]}])[-−](?:\\?\$)?)?"  # a minus after one of these is a difference or a range
    r"(?:\\[dtc]?frac\{-?[0-9]{1,100}\}\{[0-9]{1,100}\}"
    rf"|(?:{_DIGITS}|(?<![\w.])\.[0-9]+)(?:{_SCALE}|/[0-9]+)?)"
)


def find_answer(text: str) -> str | None:
    r"""The answer that a text ends in: its last `\boxed{...}`, else its last number; None: neither is there.

    Thinking is not read: all up to the last `</think>`, and what follows a `<think>` that never ends.
    A box that is empty, or cut off before it closes, is passed over.
    """
    text = text.rpartition(_THINKING_END)[2].partition(_THINKING_BEGIN)[0]
    boxed = _last_box(text)
    if boxed is not None:
        return boxed
    last = None
    for match in _NUMBER.finditer(text):
        if match["exponent"] is None:
            last = match
    return None if last is None else last[0]


def is_correct(answer: str | None, reference: str) -> bool:
    r"""Whether an answer says the same as the reference.

    Numbers of every spelling (`1,250`, `\frac{3}{4}`, `0.5`, `025`, `18 dollars`, `50\%`) are equal where
    their exact rational values are; a percent sign and a unit are passed over. Tuples, intervals, lists and
    matrices are compared element by element, sets (`\{...\}`) in any order, and other LaTeX by its text,
    whatever its spacing and spelling. `x = 5` is 5, but not `y = 5`.
    """
    if answer is None:
        return False
    given_name, given = without_name(plain_latex(answer))
    wanted_name, wanted = without_name(plain_latex(reference))
    if not given or not wanted or (given_name and wanted_name and given_name != wanted_name):
        return False
    return value_of(given) == value_of(wanted)


def _last_box(text: str) -> str | None:
    """The content of the last box that is closed and not empty; of boxes within a box, the outer one without them."""
    boxes = [(match.start(), match.end()) for match in _BOX.finditer(text)]
    ends = _closing_braces(text) if boxes else {}
    found, found_start, found_end = None, 0, 0
    for _, start in boxes:
        if start < found_end:
            continue
        if text[start : start + 1] == "{":
            end = ends.get(start)
            content = "" if end is None else text[start + 1 : end].strip()
        else:
            match = _UNBRACED.match(text, start)
            end, content = (None, "") if match is None else (match.end(), match[0])
        if end is not None and content:
            found, found_start, found_end = content, start, end
    inner = [
        (place, start)
        for place, start in boxes
        if found_start < place and start in ends and start < found_end
    ]
    return found if not inner else _without(text, found_start + 1, found_end, inner, ends)


def _without(
    text: str, start: int, end: int, boxes: Sequence[tuple[int, int]], ends: Mapping[int, int]
) -> str:
    """A part of a text without the commands and the braces of the boxes in it."""
    cuts = [cut for place, brace in boxes for cut in ((place, brace + 1), (ends[brace], ends[brace] + 1))]
    kept = []
    for first, after in sorted(cuts):
        kept.append(text[start:first])
        start = after
    return "".join([*kept, text[start:end]]).strip()


def _closing_braces(text: str) -> dict[int, int]:
    """Place of every opening brace that is closed -> place of its closing one; escaped braces are text."""
    pairs: dict[int, int] = {}
    waiting: list[int] = []
    for match in _ESCAPED_OR_BRACE.finditer(text):
        if match[0] == "{":
            waiting.append(match.start())
        elif match[0] == "}" and waiting:
            pairs[waiting.pop()] = match.start()
    return pairs
