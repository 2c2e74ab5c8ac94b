"""What a prompt is, and the digest that holds only what an engine sees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash.prompts import CodeCheck, Prompt, prompts_digest

PROMPTS = (Prompt("s/0", ("ab", "c"), "math", "1"), Prompt("s/1", ("d",)))


def test_the_digest_is_stable() -> None:
    assert (
        prompts_digest("t-1", PROMPTS) == "bcfc687611f1dffbe89934232f963018bd7173bec7b17a86fb45cc00a772d822"
    )


@pytest.mark.parametrize(
    ("template_version", "prompts"),
    [
        ("t-2", PROMPTS),
        ("t-1", PROMPTS[::-1]),
        ("t-1", PROMPTS[:1]),
        ("t-1", (replace(PROMPTS[0], turns=("a", "bc")), PROMPTS[1])),
        ("t-1", (replace(PROMPTS[0], turns=("abc",)), PROMPTS[1])),
        ("t-1", (replace(PROMPTS[0], turns=("ab",)), Prompt("s/1", ("c", "d")))),
        ("t-1", (replace(PROMPTS[0], turns=("ab", "c ")), PROMPTS[1])),
        ("t-1", (replace(PROMPTS[0], context=(("system", "a"),)), PROMPTS[1])),
    ],
)
def test_the_digest_tells_messages_apart(template_version: str, prompts: tuple[Prompt, ...]) -> None:
    assert prompts_digest(template_version, prompts) != prompts_digest("t-1", PROMPTS)


def test_the_digest_tells_the_role_and_the_place_of_a_given_message() -> None:
    given = [
        (("system", "a"), ("user", "b")),
        (("user", "a"), ("system", "b")),
        (("system", "ab"),),
        (("user", "ab"),),
        (),
    ]
    digests = {prompts_digest("t-1", (Prompt("s/0", ("c",), context=context),)) for context in given}
    assert len(digests) == len(given)


def test_the_digest_holds_messages_only() -> None:
    others = tuple(
        replace(prompt, prompt_id="x", category=None, answer=None, code_check=CodeCheck("", "assert True"))
        for prompt in PROMPTS
    )
    assert prompts_digest("t-1", others) == prompts_digest("t-1", PROMPTS)


def test_the_length_of_a_prompt_counts_context_and_turns() -> None:
    assert Prompt("s/0", ("ab", "c"), answer="1234", context=(("system", "defg"),)).num_chars == 7
