r"""What an answer in LaTeX or plain text says, as a value that can be compared with `==`. Pure.

An answer of more than `MAX_CHARS` characters is compared as it stands, and a number of more than `MAX_DIGITS`
as text: nothing that a model writes may take long.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from fractions import Fraction

MAX_CHARS = 500
MAX_DIGITS = 100
MAX_EXPONENT = 300
_MAX_DEPTH = 8

# --- spelling

_DELIMITER = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle)(?![A-Za-z])|\\?\$|(?<!\\)\\[()\[\]]"
)
_SPELLING = re.compile(
    r"\\[dtc]frac(?![A-Za-z])|\\[lgn]eq(?![A-Za-z])|\\[lr]brac[ek](?![A-Za-z])|\\?%|\{,\}|[£€−–×π∞∪≤≥]"
)
_SPELLED = {
    r"\dfrac": r"\frac",
    r"\tfrac": r"\frac",
    r"\cfrac": r"\frac",
    r"\leq": r"\le",
    r"\geq": r"\ge",
    r"\neq": r"\ne",
    r"\lbrace": r"\{",
    r"\rbrace": r"\}",
    r"\lbrack": "[",
    r"\rbrack": "]",
    r"\%": "",
    "%": "",
    "{,}": ",",
    "£": "",
    "€": "",
    "−": "-",
    "–": "-",
    "×": r"\times ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "∪": r"\cup ",
    "≤": r"\le ",
    "≥": r"\ge ",
}
_NO_SPACE = re.compile(r"\\!\s*|(?<=[0-9])\\,(?=[0-9]{3})")
_SPACE = re.compile(r"(?<!\\)\\(?:[,;: >]|q?quad(?![A-Za-z]))|~|\s+")
_DEGREES = re.compile(r"\^ ?\{? ?\\circ(?![A-Za-z])(?: ?\})?|\\degree(?![A-Za-z])|°|\bdegrees?\b")
_STYLED = re.compile(
    r"\\(?:text(?:bf|it|rm|normal)?|mbox|math(?:rm|bf|it)|operatorname|boxed|f(?:rame)?box) ?\{([^{}]*)\}"
)
_SHORT_NUMERATOR = re.compile(r"\\frac ?([0-9A-Za-z]) ?(?=[0-9A-Za-z{\\])")  # `\frac34`, `\frac 3{4}`
_SHORT_DENOMINATOR = re.compile(r"(\\frac ?\{[^{}]*\}) ?([0-9A-Za-z])")  # `\frac{3}4`
_SHORT_ROOT = re.compile(r"\\sqrt ?([0-9A-Za-z])")
_BRACED_SCRIPT = re.compile(r"([_^]) ?\{ ?([0-9A-Za-z]) ?\}")
_IDLE_SPACE = re.compile(r"(?<![0-9]) | (?![0-9])")  # "1 2" is not 12
_WORD = re.compile(r"[A-Za-z]{3,}")

# --- numbers

_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.[0-9]*)?|\.[0-9]+)"
_PLAIN_NUMBER = re.compile(
    rf"(?P<sign>[-+]?) ?(?P<number>{_DECIMAL})"
    r"(?:(?:[eE]| ?(?:\\(?:times|cdot)|[*xX·]) ?10 ?(?:\^|\*\*) ?)\{? ?(?P<exponent>[-+]?[0-9]{1,4}) ?\}?)?"
)
_LEADING_GROUP = re.compile(r" ?[-+]? ?[1-9][0-9]{0,2}(?:,[0-9]{3})*")
_GROUP = re.compile(r"[0-9]{3}(?:\.[0-9]+)? ?$")
_FRACTION = re.compile(
    rf"(?P<sign>[-+]?) ?(?:(?P<whole>[0-9]+)(?: |(?=\\)))?"
    rf"(?:(?P<top>{_DECIMAL}) ?/ ?(?P<bottom>{_DECIMAL})"
    rf"|\\frac ?\{{ ?(?P<inner>[-+]?) ?(?P<latex_top>{_DECIMAL}) ?\}} ?\{{ ?(?P<latex_bottom>{_DECIMAL}) ?\}})"
)
# A unit is a text, or words, after a number; words that make it another number, or a formula, are none.
_TEXT_BEGIN, _TEXT_END = "\x00", "\x01"
_UNIT = re.compile(
    r"(?P<number>.*?[0-9}.]) ?(?P<unit>\x00[^\x00\x01]*\x01|(?<= )[A-Za-z][A-Za-z .,'/-]*)(?: ?\^ ?[0-9])?"
)
_SHORT_UNITS = frozenset(
    {"am", "cm", "ft", "hr", "in", "kg", "km", "lb", "mg", "mi", "ml", "mm", "ms", "oz", "pm", "sq"}
)
_NOT_UNITS = frozenset(
    {"hundred", "thousand", "million", "billion", "trillion", "dozen", "th", "st", "nd", "rd"}
    | {"half", "halves", "third", "thirds", "quarter", "quarters", "fifth", "fifths", "tenth", "tenths"}
    | {"and", "or", "to", "plus", "minus", "times", "over", "mod", "base"}
    | {"pi", "tau", "phi", "theta", "sqrt", "sin", "cos", "tan", "cot", "log", "ln", "exp"}
)

# --- structure

_NAME = re.compile(r"([A-Za-z](?:_[0-9A-Za-z])?(?:\([a-z]\))?|\\[a-z]+) ?(?:=|\\in(?![A-Za-z])) ?(?=[^ ])")
_MATRIX = re.compile(r"\\begin ?\{([pbvV]?matrix)\}(.*)\\end ?\{\1\}")
_TOKEN = re.compile(r"\\\\|\\[{}]|\\[A-Za-z]+|.", re.DOTALL)
_OPENING, _CLOSING = ("(", "[", r"\{", "{"), (")", "]", r"\}", "}")


def plain_latex(text: str) -> str:
    """The answer in one spelling: no delimiters, styles, percent signs or degrees, no unit after a number.

    Spaces are collapsed, not dropped: they part a whole number from a fraction.
    """
    text = " ".join(text.replace(_TEXT_BEGIN, "").replace(_TEXT_END, "").split())
    if len(text) > MAX_CHARS:
        return text
    text = _DELIMITER.sub("", text)
    text = _SPELLING.sub(lambda match: _SPELLED[match[0]], text)
    text = _SPACE.sub(" ", _NO_SPACE.sub("", text))
    text = _DEGREES.sub("", text)
    text = _STYLED.sub(rf"{_TEXT_BEGIN}\1{_TEXT_END}", text)
    text = _SHORT_NUMERATOR.sub(r"\\frac{\1}", text)
    text = _SHORT_DENOMINATOR.sub(r"\1{\2}", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    text = _BRACED_SCRIPT.sub(r"\1\2", text)
    text = _without_unit(" ".join(text.split()).rstrip(" .,;"))
    return " ".join(text.replace(_TEXT_BEGIN, "").replace(_TEXT_END, "").split()).rstrip(" .,;")


def without_name(text: str) -> tuple[str, str]:
    r"""The name and the rest of `x = 5`, `f(x) = 5` or `x \in [2,7]`; no name where there is none.

    Args:
        text: as `plain_latex` gives it.
    """
    match = _NAME.match(text)
    if match is None or any(sign in text[match.end() :] for sign in "=<>"):
        return "", text
    return match[1].replace(" ", ""), text[match.end() :]


def value_of(text: str, depth: int = 0) -> Hashable:
    r"""What a text says, as something that equals the value of every other text that says the same.

    Args:
        text: as `plain_latex` gives it.
        depth: of brackets around it.

    Returns:
        A `Fraction` for a number; a tuple for what has elements; else the text without idle spaces.
    """
    text = text.strip()
    if len(text) > MAX_CHARS or depth > _MAX_DEPTH:
        return text
    number = _number(text)
    if number is not None:
        return number
    matrix = _MATRIX.fullmatch(text)
    if matrix is not None:
        rows = (row.split("&") for row in re.split(r"\\\\", matrix[2]))
        return ("matrix", tuple(tuple(value_of(item, depth + 1) for item in row) for row in rows))
    pieces = _split(text, r"\cup")
    if len(pieces) > 1:
        return ("union", tuple(value_of(piece, depth + 1) for piece in pieces))
    brackets, inner = _brackets(text)
    items = _with_thousands(_split(inner if brackets else text, ","))
    values = tuple(value_of(item, depth + 1) for item in items) if brackets or len(items) > 1 else ()
    if brackets == r"\{\}":
        return ("set", frozenset(values))
    if brackets in ("()", "{}") and len(values) == 1:
        return values[0]
    if values:
        return ("list" if brackets in ("", "{}") else brackets, values)
    return _compact(text)


def _number(text: str) -> Fraction | None:
    """The exact value of a decimal, a fraction or a mixed number; None: it is none, or too long."""
    if len(text) > MAX_DIGITS:
        return None
    match = _PLAIN_NUMBER.fullmatch(text)
    if match is not None:
        exponent = int(match["exponent"] or 0)
        if abs(exponent) > MAX_EXPONENT:
            return None
        value = _decimal(match["number"]) * Fraction(10) ** exponent
        return -value if match["sign"] == "-" else value
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    bottom = _decimal(match["bottom"] or match["latex_bottom"])
    if bottom == 0:
        return None
    value = _decimal(match["top"] or match["latex_top"]) / bottom
    if match["inner"] == "-":
        value = -value
    value += int(match["whole"] or 0)
    return -value if match["sign"] == "-" else value


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").rstrip("."))


def _without_unit(text: str) -> str:
    match = _UNIT.fullmatch(text)
    if match is None or _number(match["number"].strip()) is None:
        return text
    words = re.findall(r"[a-z]+", match["unit"].lower())
    is_text = match["unit"].startswith(_TEXT_BEGIN)
    if not is_text and len(words[0]) < len("day") and words[0] not in _SHORT_UNITS:
        return text  # `5 x` is a product
    return text if _NOT_UNITS.intersection(words) else match["number"].strip()


def _brackets(text: str) -> tuple[str, str]:
    """The pair of brackets around the whole text, and what is between; "" where there is no such pair."""
    opening = next((bracket for bracket in _OPENING if text.startswith(bracket)), None)
    if opening is None:
        return "", text
    level, place = 0, 0
    for match in _TOKEN.finditer(text):
        level += (match[0] in _OPENING) - (match[0] in _CLOSING)
        place = match.end()
        if level <= 0:
            break
    closing = match[0]
    if level != 0 or place != len(text):
        return "", text
    return opening + closing, text[len(opening) : len(text) - len(closing)]


def _split(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that stand in no bracket."""
    parts, start, level = [], 0, 0
    for match in _TOKEN.finditer(text):
        level += (match[0] in _OPENING) - (match[0] in _CLOSING)
        if level == 0 and match[0] == separator:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _with_thousands(items: Sequence[str]) -> list[str]:
    """Elements of a list, where `1`, `000` is one of them: `(1,000)` is not `(1,0)`.

    Three digits belong to what is before them where they begin with 0, which no element does, or where the element
    before has been put together already; `(1,234)` stays a point.
    """
    joined: list[str] = []
    for item in items:
        before = joined[-1] if joined else ""
        belongs = item.startswith("0") or "," in before
        if belongs and _GROUP.match(item) and _LEADING_GROUP.fullmatch(before):
            joined[-1] = f"{before},{item}"
        else:
            joined.append(item)
    return joined


def _compact(text: str) -> str:
    text = _IDLE_SPACE.sub("", text)
    return text.lower() if _WORD.fullmatch(text) else text
