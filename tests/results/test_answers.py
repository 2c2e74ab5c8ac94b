from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash.results.answers import find_answer, is_correct


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So it is $\boxed{18}$.", "18"),
        (r"First \boxed{1}, no: \boxed{\frac{3}{4}} cups of 250 ml", r"\frac{3}{4}"),
        (r"\boxed{\frac{\sqrt{3}}{\left(2\right)}}", r"\frac{\sqrt{3}}{\left(2\right)}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{ 7 }", "7"),
        (r"an odd brace } and { then \boxed{7}", "7"),
        (r"\boxed 7", "7"),
        (r"\fbox{7}", "7"),
        (r"put it within \boxed{}. It is 12", "12"),
        (r"\boxed{12} and cut: \boxed{34", "12"),
        (r"only cut: \boxed{34", "34"),
        (r"\boxed{x = \boxed{5}}", "x = 5"),
        (r"\boxed{\text{\boxed{5}}}", r"\text{5}"),
        (r"\boxed{\boxed{\boxed{ 5 }}}", "5"),
        (r"\boxed{\boxed 5}", r"\boxed 5"),
        (r"\boxed{\boxed{}5}", "5"),
        (r"\boxed{4} then \boxed{\frac{\fbox{3}}{\boxed{\{1\}}}}", r"\frac{3}{\{1\}}"),
        ("It is 1e5", "1e5"),
        ("It is -2.5E-3.", "-2.5E-3"),
        (r"so 2 \times 10^{3} of them", r"2 \times 10^{3}"),
        ("about 3 × 10^4", "3 × 10^4"),
        ("that is 2^{10}", "2^{10}"),
        ("an area of 12 cm^2", "12"),
        ("twice, 2**10", "2**10"),
        ("2 * 10 is 20", "20"),
        ("#### 1,250", "1,250"),
        ("He has 3 eggs and earns $18.50.", "18.50"),
        ("the change is -3", "-3"),
        ("from 5-3", "3"),
        ("it falls by -$4", "-$4"),
        ("The odds are 3/4.", "3/4"),
        (r"which is \frac{3}{4}, as said", r"\frac{3}{4}"),
        ("about .5", ".5"),
        ("1,2", "2"),
        ("no number at all", None),
        ("", None),
        (r"<think>\boxed{1}</think> It is \boxed{2}", "2"),
        (r"\boxed{1}</think>I cannot say.", None),
        (r"a</think>\boxed{1}</think>It is 3", "3"),
        ("<think>maybe 5, maybe 6", None),
        (r"\boxed{1}<think>maybe 5", "1"),
    ],
)
def test_the_last_box_else_the_last_number_is_the_answer(text, answer):
    assert find_answer(text) == answer


SAME = [
    ("1,250", "1250"),
    ("$18", "18"),
    (r"\$18", "18"),
    ("3/4", "0.75"),
    ("0.5", "1/2"),
    (r"\frac{3}{4}", "3/4"),
    (r"\dfrac34", r"\frac{3}{4}"),
    (r"\frac 59", r"\tfrac{5}{9}"),
    (r"\frac9{19}", "9/19"),
    ("025", "25"),
    ("-3", "−3"),
    (r"-\frac{1}{3}", r"\frac{-1}{3}"),
    ("18.0", "18"),
    ("18.", "18"),
    (".35625", "0.35625"),
    (r"50\%", "50"),
    ("50%", "50"),
    ("18 dollars", "18"),
    ("18 dollars per day", "18"),
    (r"18\text{ dollars}", "18"),
    (r"15 \mbox{ cm}^2", "15 cm^2"),
    (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}"),
    (r"90^\circ", "90"),
    (r"90^{\circ}", "90°"),
    ("x = 5", "5"),
    ("5", "x=5"),
    ("f(x) = 2x + 3", "2x+3"),
    (r"x \in [-2,7]", "[-2, 7]"),
    (r"1\frac{4}{5}", "9/5"),
    ("137 1/2", r"\frac{275}{2}"),
    (r"\$32,\!348", "32348"),
    (r"11,\! 111,\! 111", "11111111"),
    ("10{,}080", r"10\,080"),
    (r"2 \times 10^{3}", "2000"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
    ("(0.5, 1)", r"(\frac12, 1)"),
    (r"(-\infty, 0.5]", r"\left(-\infty, \frac{1}{2}\right]"),
    (r"(0,9)\cup(9,36)", r"(0,9) \cup (9,36)"),
    (r"\{2, 1\}", r"\{1,2\}"),
    ("1, -2", "1,-2"),
    (r"\text{(C)}", "C"),
    (r"\text{even}", "Even"),
    (r"3 \sqrt{13}", r"3\sqrt{13}"),
    (r"11\sqrt2", r"11 \sqrt{2}"),
    ("52_{8}", "52_8"),
    (r"x \leq 2", "x≤2"),
    (
        r"\begin{pmatrix} -\frac13 \\ \frac{2}{3} \end{pmatrix}",
        r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}",
    ),
    (r"\boxed{5}", "5"),
    ("{18}", "18"),
    ("1e5", "100,000"),
    ("3 × 10^4", "30000"),
    ("2 x 10^3", "2000"),
    ("(1,000)", "1000"),
    ("(1,000, 2)", "(1000,2)"),
    (r"\{1,000,000\}", r"\{1000000\}"),
    ("1,000, 2,000.5", "1000, 2000.5"),
]


@pytest.mark.parametrize(("answer", "reference"), SAME)
def test_one_value_in_two_spellings_is_right_either_way(answer, reference):
    assert is_correct(answer, reference)
    assert is_correct(reference, answer)


DIFFERENT = [
    ("18", "19"),
    ("0.333", "1/3"),
    ("0.1000000000000000055511151231257827", "0.1"),
    ("5x", "5"),
    ("5 x", "5"),
    ("5 million", "5"),
    (r"5\text{ million}", "5"),
    ("5 and a half", "5"),
    ("2 pi", "2"),
    ("y = 5", "x = 5"),
    ("x = 5, y = 3", "5"),
    ("1 2", "12"),
    ("1 2/3", "12/3"),
    ("(1,2)", "(2,1)"),
    ("[1,2)", "(1,2)"),
    ("(1,2)", r"\{1,2\}"),
    ("1,2", "2,1"),
    ("(1,000)", "(1,0)"),
    ("[1,050]", "[1,50]"),
    (r"\{2,000\}", r"\{2,0\}"),
    ("(1, 234)", "1234"),
    ("(1,234)", "1234"),
    ("1e5", "5"),
    ("1e5", "1"),
    ("2^{10}", "10"),
    (r"\frac{1}{2}x", r"\frac{1}{2x}"),
    ("3/0", "3"),
    ("A", "a"),
    ("5", ""),
    ("1e999", "1e998"),
    ("1" * 400, "1" * 399 + "2"),
    ("__import__('os').getpid()", "5"),
]


@pytest.mark.parametrize(("answer", "reference"), DIFFERENT)
def test_unlike_values_are_wrong_either_way(answer, reference):
    assert not is_correct(answer, reference)
    assert not is_correct(reference, answer)


def test_no_answer_is_wrong():
    assert not is_correct(None, "5")
    assert not is_correct("", "")


LONG = [
    r"\boxed{" * 15_000,
    "{" * 100_000,
    "1" * 1_000_000,
    "1," * 50_000,
    "1,111" * 20_000,
    "-" * 100_000,
    r"\frac{" * 16_000,
    r"\boxed " * 14_000,
    " " * 100_000 + "5",
    r"\boxed{" + "9" * 1_000_000 + "}",
    r"\boxed{1e" + "9" * 100 + "}",
    r"\boxed{10^{" + "9" * 100 + "}}",
    r"\boxed{" + "(" * 490 + "}",
    r"\boxed{" + "(" * 240 + ")" * 240 + "}",
    r"\boxed{" + "1 000 " * 80 + "}",
    r"\boxed{" + "1 a" * 150 + "}",
    r"\boxed{" + "1 a.," * 90 + "!}",
    "1/" * 50_000,
    "1e" * 50_000,
    "1e" + "9" * 100_000,
    "2^{" * 30_000,
    "^ " * 50_000,
    r"\boxed{" * 15_000 + "5" + "}" * 15_000,
    "\\" * 100_001,
]


@pytest.mark.timeout(5)
@pytest.mark.parametrize("text", LONG, ids=lambda text: f"{text[:9]!r}{len(text)}")
def test_no_text_takes_long(text):
    """Milliseconds each; what is quadratic in the length, or evaluates a power, would not end in time."""
    answer = find_answer(text)
    assert answer is None or answer in text
    assert not is_correct(answer, "5") or answer == "5"
    assert is_correct(answer, answer or "") == bool(answer)


def rows_of(shared: Path, name: str) -> list[tuple[str, str]]:
    """(solution, reference) of every row."""
    lines = (shared / "datasets" / name / "test.jsonl").read_bytes().split(b"\n")
    rows = [json.loads(line) for line in lines if line]
    if name == "gsm8k":
        return [(row["answer"], row["answer"].rpartition("####")[2].strip()) for row in rows]
    return [(row["solution"], row["answer"]) for row in rows]


@pytest.mark.parametrize(("name", "num_rows"), [("gsm8k", 1319), ("math500", 500), ("aime24", 30)])
def test_published_solutions_are_right_by_their_own_reference_alone(shared_folder, name, num_rows):
    rows = rows_of(shared_folder, name)
    found = [find_answer(solution) for solution, _ in rows]
    wrong = [
        (answer, reference)
        for answer, (_, reference) in zip(found, rows, strict=True)
        if not is_correct(answer, reference)
    ]
    assert len(rows) == num_rows
    assert wrong == []
    following = [reference for _, reference in rows[1:]]
    equal = {
        (reference, other)
        for (_, reference), other in zip(rows, following, strict=False)
        if is_correct(reference, other)
    }
    taken = {
        (reference, other)
        for answer, (_, reference), other in zip(found, rows, following, strict=False)
        if is_correct(answer, other)
    }
    assert taken == equal
    assert all(first.removeprefix("x=") == second.removeprefix("x=") for first, second in equal)
