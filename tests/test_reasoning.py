"""The history of a later turn holds answers, not the thinking before them."""

from __future__ import annotations

import pytest

from dflash.reasoning import strip_reasoning


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("plain\n answer\n", "plain\n answer\n"),
        ("\n\nplain", "\n\nplain"),  # no thinking: nothing is touched
        ("", ""),
        ("<think>\nfirst this\n</think>\n\nThe answer.\n", "The answer.\n"),
        ("opened by the template\n</think>\n\nThe answer.", "The answer."),
        ("<think>\n\n</think>\n\nno thoughts", "no thoughts"),
        ("<think>a</think>b<think>c</think>\n\nd", "d"),
        ("<think>a</think>\n \td", " \td"),  # line breaks only, as the templates do
        ("<think>a</think>", ""),
        ("<think>\nnever ended, the limit came", ""),
        ("Well. <think>never ended", "Well. "),
        ("<think>a</think>\nb <think>never ended", "b "),
        ("a < think > b </ think>", "a < think > b </ think>"),
        ("<think>a\r\n</think>\r\nb", "\r\nb"),
        ("a </THINK> b", "a </THINK> b"),
    ],
)
def test_the_thinking_is_left_out(text: str, answer: str) -> None:
    assert strip_reasoning(text) == answer


@pytest.mark.parametrize("text", ["<think>a</think>\n\nb", "a", "<think>a", "x</think><think>y</think>z"])
def test_what_is_stripped_stays_as_it_is(text: str) -> None:
    once = strip_reasoning(text)
    assert strip_reasoning(once) == once
