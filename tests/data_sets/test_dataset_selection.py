"""Which prompts are used: an order that nothing but data set and seed changes, and nothing is repeated unsaid."""

from __future__ import annotations

import pytest

from dflash.datasets.selection import Selection, select, select_prompts
from dflash.errors import UsageError
from dflash.prompts import Prompt

PROMPTS = tuple(
    Prompt(prompt_id=f"set/{n:04}", turns=("x" * (n + 1),), category="odd" if n % 2 else "even")
    for n in range(20)
)


def ids(prompts: tuple[Prompt, ...]) -> list[str]:
    return [prompt.prompt_id for prompt in prompts]


def test_golden_order() -> None:
    """Another order would make every stored result one of other prompts."""
    golden = ["set/0002", "set/0012", "set/0014", "set/0015", "set/0009"]
    assert ids(select_prompts(PROMPTS, 5, seed=0)) == golden
    assert ids(select_prompts(PROMPTS[::-1], 5, seed=0)) == golden, "the order of the rows is no matter"


def test_choosing_moves_no_prompt() -> None:
    order = ids(select_prompts(PROMPTS, None, seed=3))
    for selection in (
        Selection(seed=3, category="odd"),
        Selection(seed=3, min_prompt_chars=5, max_prompt_chars=12),
        Selection(seed=3, num_prompts=7),
    ):
        chosen = ids(select(PROMPTS, selection, "set").prompts)
        assert chosen == [prompt_id for prompt_id in order if prompt_id in chosen]


def test_lengths_are_of_all_that_is_sent() -> None:
    long = Prompt(prompt_id="set/long", turns=("ab", "cd"), context=(("system", "efg"),))
    assert select([long], Selection(min_prompt_chars=7, max_prompt_chars=7), "set").prompts == (long,)
    with pytest.raises(UsageError, match="the shortest there has 7 characters, the longest 7"):
        select([long], Selection(min_prompt_chars=8), "set")


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"min_prompt_chars": 50}, "no prompts of 50 characters or more"),
        (
            {"max_prompt_chars": 1, "category": "odd"},
            "no prompts of category odd and of 1 characters or less",
        ),
        ({"min_prompt_chars": 30, "max_prompt_chars": 40}, "no prompts of 30 to 40 characters"),
    ],
)
def test_no_prompt_of_that_length(bounds: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=f"the data set set has {words}") as raised:
        select(PROMPTS, Selection(**bounds), "set")  # type: ignore[arg-type]
    shortest = 2 if "category" in bounds else 1
    assert raised.value.mend == f"the shortest there has {shortest} characters, the longest 20"


def test_fewer_than_asked_names_the_reason() -> None:
    selection = Selection(num_prompts=12, category="even", min_prompt_chars=3, max_prompt_chars=9)
    selected = select(PROMPTS, selection, "set")
    assert selected.num_available == len(selected.prompts) == 4
    assert selected.num_requests is None
    assert selected.notes == (
        "asked for 12 prompts, the set has 4 of category even and of 3 to 9 characters",
    )


def test_repeating_is_stamped() -> None:
    selected = select(PROMPTS, Selection(num_prompts=50, repeat=True), "set")
    assert len(selected.prompts) == 20
    assert selected.num_requests == 50
    (note,) = selected.notes
    assert note.startswith("--repeat: 20 prompts are used up to 3 times for 50 requests an arm; ")
    assert note.endswith("a server may answer repeats from its prefix cache")


def test_repeating_where_there_are_enough() -> None:
    selected = select(PROMPTS, Selection(num_prompts=20, repeat=True), "set")
    assert (len(selected.prompts), selected.num_requests, selected.notes) == (20, 20, ())
    assert select(PROMPTS, Selection(repeat=True), "set").num_requests is None


def test_equal_texts_are_said_unless_their_context_differs() -> None:
    twins = [Prompt(prompt_id=f"set/{n}", turns=("same",)) for n in range(3)]
    assert select(twins, Selection(), "set").notes == (
        "2 of the 3 prompts of set repeat the text of another one",
    )
    other = Prompt(prompt_id="set/9", turns=("same",), context=(("system", "else"),))
    assert select([twins[0], other], Selection(), "set").notes == ()


def test_an_unknown_category() -> None:
    with pytest.raises(UsageError, match="choose one of even, odd"):
        select(PROMPTS, Selection(category="prime"), "set")
    with pytest.raises(UsageError, match="its prompts have no categories"):
        select([Prompt(prompt_id="a", turns=("a",))], Selection(category="prime"), "set")


@pytest.mark.parametrize("num_prompts", [0, -1])
def test_none_is_no_number_of_prompts(num_prompts: int) -> None:
    with pytest.raises(UsageError, match="ask for 1 or more"):
        select_prompts(PROMPTS, num_prompts, seed=0)
