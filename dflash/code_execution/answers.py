"""Finds the code in a model's answer, and makes a program of it and the tests. Pure; nothing is run.

Texts come from models: every step is linear in the length of the text but Python's own parser, which takes the
square for some of them. So it gets short ones only, and what it does not get or take is read line by line.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from dflash.prompts import CodeCheck
from dflash.reasoning import strip_reasoning

_PYTHON = frozenset({"python", "py", "python3", "py3"})
# The marks are taken whole: to try fewer of them would take the square of a long line.
_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<mark>`{3,}(?!`)|~{3,}(?!~))(?P<info>[^\r]*)\r?")
_MAX_PARSED_CHARS = 20_000  # above any answer's code, and at most a third of a second
_FUTURE = "__future__"

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class _Block:
    language: str
    code: str


def find_code(text: str, entry_point: str | None) -> str | None:
    """The code of an answer; None: there is none.

    Of the fenced blocks (an open last one counts to the end) the last that defines `entry_point`, else the last
    Python one, else the last. Without a fence the whole answer, if it is Python and defines something. Thinking
    is no part of the answer.
    """
    answer = strip_reasoning(text)
    blocks = _fenced_blocks(answer)
    if not blocks:
        tree = _parse(answer)
        return (
            answer if tree is not None and any(isinstance(node, _Definition) for node in tree.body) else None
        )
    blocks = [block for block in blocks if block.code.strip()]
    for block in reversed(blocks):
        if entry_point is not None and _defines(block.code, entry_point):
            return block.code
    python = [block for block in blocks if block.language in _PYTHON]
    return (python or blocks)[-1].code if blocks else None


def find_entry_point(tests: str) -> str | None:
    """The function that plain asserts test; None where they call several, or none, that they do not define."""
    tree = _parse(tests)
    if tree is None:
        return None
    called, known = set(), set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            known |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, _Definition):
            known.add(node.name)
    unknown = called - known
    return unknown.pop() if len(unknown) == 1 else None


def make_program(check: CodeCheck, code: str) -> tuple[str, str]:
    """A program of two parts: preamble with code, and tests. Imports from `__future__` of all come first in each.

    Each part is a program by itself: what is left open at the end of the code (a bracket, a text, a line that is
    to be continued) swallows no test.

    Where the code is the body of the function that the preamble began (indented, or a bare `return`), it is put
    there: at the preamble's end, indented where it is not.
    """
    names: list[str] = []
    preamble, body, tests = (
        _without_future(part, names) for part in (check.preamble, _as_body(check, code), check.tests)
    )
    future = f"from {_FUTURE} import {', '.join(dict.fromkeys(names))}\n" if names else ""
    return future + _with_line_end(preamble) + _with_line_end(body), future + _with_line_end(tests)


def _with_line_end(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"


def _fenced_blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    lines: list[str] = []
    opening: re.Match[str] | None = None
    for line in text.removesuffix("\n").split(
        "\n"
    ):  # not splitlines: U+2028 and the like end no line of a program
        match = _FENCE.fullmatch(line)
        if opening is None:
            # what follows backticks on their line holds no backtick: else it is code within a sentence
            if match is not None and not (match["mark"][0] == "`" and "`" in match["info"]):
                opening, lines = match, []
        elif match is not None and _closes(opening, match):
            blocks.append(_block(opening, lines))
            opening = None
        else:
            lines.append(line)
    if opening is not None:
        blocks.append(_block(opening, lines))
    return blocks


def _closes(opening: re.Match[str], match: re.Match[str]) -> bool:
    mark = match["mark"]
    return mark[0] == opening["mark"][0] and len(mark) >= len(opening["mark"]) and not match["info"].strip()


def _block(opening: re.Match[str], lines: Sequence[str]) -> _Block:
    """A block in a list is indented as its fence is: that much is not part of the code."""
    width = len(opening["indent"])
    kept = [line[min(width, len(line) - len(line.lstrip(" \t"))) :] for line in lines]
    words = opening["info"].split()
    return _Block(words[0].strip("{}.").lower() if words else "", "".join(f"{line}\n" for line in kept))


def _parse(code: str) -> ast.Module | None:
    if len(code) > _MAX_PARSED_CHARS:
        return None
    try:
        with warnings.catch_warnings():  # "\\d" in an answer is no business of the user's
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _defines(code: str, name: str) -> bool:
    if name not in code:
        return False
    tree = _parse(code)
    if tree is None:
        return (
            re.search(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(name)}\b", code, re.MULTILINE) is not None
        )
    for node in tree.body:
        if isinstance(node, _Definition) and node.name == name:
            return True
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            return True
    return False


def _as_body(check: CodeCheck, code: str) -> str:
    if not check.preamble or (check.entry_point is not None and _defines(code, check.entry_point)):
        return code
    tree = _parse(code)
    if tree is None:  # indented: it goes on where the preamble ends, if that makes sense
        return code
    has_return = any(
        isinstance(node, ast.Return)
        for statement in tree.body
        if not isinstance(statement, _Definition)
        for node in ast.walk(statement)
    )
    body = textwrap.indent(code, "    ")
    return body if has_return and _parse(check.preamble + body) is not None else code


def _without_future(part: str, names: list[str]) -> str:
    """`part` with `pass` where it imports from `__future__`; what it imports is added to `names`."""
    tree = _parse(part) if _FUTURE in part else None
    if tree is None:
        return part
    lines = [line.encode() for line in part.split("\n")]
    for node in reversed(tree.body):
        if isinstance(node, ast.ImportFrom) and node.module == _FUTURE and node.end_lineno is not None:
            first, last = node.lineno - 1, node.end_lineno - 1
            rest = lines[last][node.end_col_offset :]
            lines[first : last + 1] = [lines[first][: node.col_offset] + b"pass" + rest]
            names += [alias.name for alias in node.names]
    return b"\n".join(lines).decode()
