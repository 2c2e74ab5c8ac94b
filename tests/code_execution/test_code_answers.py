"""The code that is found in an answer, and the program that is made of it."""

from __future__ import annotations

import ast
import warnings

import pytest

from dflash.code_execution import answers
from dflash.code_execution.answers import find_code, find_entry_point, make_program
from dflash.prompts import CodeCheck

FUNCTION = "def add(a, b):\n    return a + b\n"
PREAMBLE = 'from typing import List\n\ndef add(a, b):\n    """Adds.\n    """\n'


def run(program: tuple[str, ...]) -> dict[str, object]:
    namespace: dict[str, object] = {}
    for part in program:
        exec(compile(part, "program", "exec", dont_inherit=True), namespace)
    return namespace


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"Sure:\n```python\n{FUNCTION}```\nDone.", FUNCTION),
        (f"```py\n{FUNCTION}```", FUNCTION),
        (f"```\n{FUNCTION}```", FUNCTION),
        (f"~~~\n{FUNCTION}~~~", FUNCTION),
        (f"````python\n{FUNCTION}````", FUNCTION),
        (f"``` Python title=x\n{FUNCTION}```", FUNCTION),
        (f"```{{.python}}\n{FUNCTION}```", FUNCTION),
        # the limit on new tokens came before the fence was closed
        (f"```python\n{FUNCTION}", FUNCTION),
        # a later block uses the function, or shows what it prints
        (f"```python\n{FUNCTION}```\nUse:\n```python\nprint(add(1, 2))\n```\n```\n3\n```", FUNCTION),
        # corrected further down
        (f"```python\ndef add(a, b): pass\n```\nNo:\n```python\n{FUNCTION}```", FUNCTION),
        # no parser takes it, the line does
        (
            "```python\ndef add(a, b):\n  return (\n```\n```python\nadd(1)\n```",
            "def add(a, b):\n  return (\n",
        ),
        ("```python\nadd = lambda a, b: a + b\n```\n```python\n1\n```", "add = lambda a, b: a + b\n"),
        # a shorter fence, or one of the other kind, closes nothing
        ("~~~~python\nx = '''\n~~~\n```\n'''\n~~~~", "x = '''\n~~~\n```\n'''\n"),
        # a block in a list
        (f"1. so:\n   ```python\n   {FUNCTION.replace('    ', '       ')}   ```", FUNCTION),
        # no fence
        (FUNCTION, FUNCTION),
        # thinking is no answer
        (f"<think>\n```python\ndef add(): 1\n```\n</think>\n```python\n{FUNCTION}```", FUNCTION),
        (f"```python\ndef add(): 1\n```</think>```x```\n```python\n{FUNCTION}```", FUNCTION),
    ],
)
def test_the_code_that_defines_the_entry_point_is_found(text, code):
    assert find_code(text, "add") == code


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot do that.",
        "The answer is `add(1, 2)` and ```` ```python ```` too.",
        "x",  # Python, but it defines nothing
        "def add(a, b) adds two numbers",
        "```python\n```",
        f"<think>\n```python\n{FUNCTION}```",  # cut off before the answer began
        f"```python\n{FUNCTION}```\n</think>\nI am done.",
    ],
)
def test_an_answer_without_code_has_none(text):
    assert find_code(text, "add") is None


def test_without_the_entry_point_the_last_python_block_is_taken_then_the_last():
    text = f"```python\n1\n```\n```python\n{FUNCTION}```\n```text\n3\n```"
    assert find_code(text, None) == FUNCTION
    assert find_code(text, "subtract") == FUNCTION
    assert find_code("```\n1\n```\n~~~\n2\n~~~", "add") == "2\n"


def test_line_ends_within_code_are_kept():
    code = "def add(a, b):\r\n    return 'a\u2028b'\r\n"
    assert find_code(f"```python\r\n{code}```\r\n", "add") == code


@pytest.mark.parametrize(
    "code",
    ["not " * 100_000, "-" * 100_000 + "1", "a" + ".b" * 100_000, "(" * 1000, "\0", "'\ud800'", "9" * 10_000],
)
def test_what_no_parser_takes_raises_nothing(code):
    code = f"{code}\ndef add(): pass\n"
    assert find_code(f"```python\n{code}```", "add") == code
    assert code in make_program(CodeCheck("", "add()", "add"), code)[0]


def test_a_long_answer_is_not_parsed():
    code = FUNCTION + "x = 1\n" * 100_000
    assert find_code(f"```python\n{code}```\n```python\n1\n```", "add") == code


def test_nothing_is_said_about_escapes_in_an_answer():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_code("```python\ndef add(): return '\\d'\n```", "add") is not None


@pytest.mark.parametrize(
    ("tests", "name"),
    [
        ("assert add(1, 2) == 3\nassert add(2, 2) == 4\n", "add"),
        ("import math\nassert math.isclose(add(1, 2), 3)\n", "add"),
        ("from math import isclose\nassert isclose(set(add(1, 2)), 3)\n", "add"),
        ("assert sum(1, 2) == 3\n", None),  # a built-in's name: not to be told from a call of the built-in
        ("assert add(1) == sub(2)\n", None),
        ("def check(f): pass\ncheck(add)\n", None),
        ("assert (", None),
    ],
)
def test_the_tested_function_is_read_from_plain_asserts(tests, name):
    assert find_entry_point(tests) == name


@pytest.mark.parametrize(
    "code",
    [
        FUNCTION,
        PREAMBLE + "    return a + b",  # the whole function with its imports once more
        "    return a + b",
        "    result = a + b\n    return result\n",
        "return a + b",
        "if a:\n    return a + b\nreturn b",
        "def helper(x):\n    return x\nreturn helper(a) + b",
    ],
)
def test_a_program_passes_with_a_function_or_with_its_body(code):
    program = make_program(CodeCheck(PREAMBLE, "assert add(1, 2) == 3", "add"), code)
    assert "add" in run(program)


def test_a_wrong_program_fails_its_tests():
    with pytest.raises(AssertionError):
        run(make_program(CodeCheck(PREAMBLE, "assert add(1, 2) == 3", "add"), "    return a - b"))


def test_helpers_of_the_preamble_are_there_for_the_tests():
    preamble = "def double(x):\n    return 2 * x\n\ndef add(a, b):\n    'Adds.'\n"
    run(make_program(CodeCheck(preamble, "assert add(1, 2) == 3 and double(2) == 4", "add"), FUNCTION))


@pytest.mark.parametrize(
    "code",
    [
        f"from __future__ import annotations\n{FUNCTION}",
        f"'''Words.'''\nfrom __future__ import annotations, division; import os\n{FUNCTION}os.name\n",
        f"from __future__ import (\n    annotations,\n)  # why\n{FUNCTION}",
        f"'ä'; from __future__ import annotations; x: int = 1\n{FUNCTION}",
    ],
)
def test_imports_from_the_future_stay_first(code):
    tests = "from __future__ import annotations\nassert add(1, 2) == 3"
    namespace = run(make_program(CodeCheck("import math\n", tests, "add"), f"{code}\ny: Unknown = 2"))
    assert namespace["__annotations__"]["y"] == "Unknown"  # type: ignore[index]


def test_a_program_without_them_is_the_texts_as_they_are():
    program = make_program(CodeCheck("import math", "assert add(1, 2) == 3", None), FUNCTION)
    assert program == (f"import math\n{FUNCTION}", "assert add(1, 2) == 3\n")


@pytest.mark.parametrize(
    "end", ["if False: \\", "if False: \\\n", "x = '''", "f'''", "x = (", "if False:", "x = [i for i in", "#"]
)
def test_what_the_code_leaves_open_swallows_no_test(end):
    """The function is wrong: whatever its end does to the tests, they must not pass."""
    tests = "assert add(1, 2) == 3\n'''Words of the tests.'''\n"
    program = make_program(CodeCheck("", tests, "add"), f"def add(a, b): return 0\n{end}")
    with pytest.raises((SyntaxError, AssertionError)):
        run(program)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nimport " + "a." * 95_000 + "a  # add\n```",
        "import " + "a." * 95_000 + "a  # add",
        ("```python\nimport " + "a." * 4_000 + "a  # add\n```\n") * 20,
        "```python\nadd=" + "[" * 95_000 + "]" * 95_000 + "\n```",
    ],
)
def test_the_parser_gets_short_texts_only(text, monkeypatch):
    """It takes the square of their length for some: ten seconds for an answer of 190 kB."""
    parsed: list[int] = []
    parse = ast.parse

    def count(code):
        parsed.append(len(code))
        return parse(code)

    monkeypatch.setattr(answers.ast, "parse", count)
    code = find_code(text, "add")
    if code is not None:
        make_program(CodeCheck("def add(a, b):\n", "assert add(1, 2) == 3", "add"), code)
    assert max(parsed, default=0) <= 20_000
    assert sum(parsed) <= 2 * len(text)


@pytest.mark.timeout(60)  # it took hours
@pytest.mark.parametrize("text", ["`" * 10**6 + "\rx", "~" * 10**6 + "\r" * 9, " " * 10**6 + "`"])
def test_a_long_line_of_marks_is_read_once(text):
    assert find_code(text, "add") is None
