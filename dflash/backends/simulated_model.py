"""What a simulated engine generates and how long it takes: one pure model for the engine in process and the servers.

Tokens are a function of the conversation alone (and of the seed where the target samples), so every arm and
every protocol gives the same ones; acceptance and times are functions of conversation, arm and step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from dflash.backends.scenario import Scenario

STOP_ID = 0
NS_PER_MS = 1_000_000
WORDS = (
    "we",
    "add",
    "the",
    "next",
    "two",
    "then",
    "count",
    "what",
    "is",
    "left",
    "so",
    "it",
    "must",
    "be",
    "one",
    "more",
)
UNICODE_WORDS = (
    "café",
    "naïve",
    "Öl",
    "два",
    "λόγος",
    "数",
    "素数",
    "🙂",
    "is",
    "∑x²",
    "→",
    "한글",
    "ñ",
    "𝔸",
    "one",
    "👩‍💻",
)
_KEPT_WORDS = 65_536


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step. `num_accepted` is untrimmed; None: the step had no draft."""

    num_tokens: int  # delivered
    num_accepted: int | None
    draft_ns: int
    target_ns: int


@dataclass(frozen=True, slots=True)
class Script:
    """All that one request gives, before load and faults: `1 + sum(step.num_tokens)` output ids."""

    output_ids: tuple[int, ...]
    finish_reason: Literal["stop", "length"]
    prefill_ns: int
    steps: tuple[Step, ...]
    num_step_draft_tokens: int  # proposed in a step that has a draft: B-1; 0 in plain decoding


class Chance:
    """Numbers in [0, 1) that depend on a key and on what each is drawn for, and on nothing else."""

    def __init__(self, *key: object) -> None:
        # The digest of repr((*key, *parts)), with the key, which may hold a whole conversation, read only once.
        self._prefix = hashlib.sha256(("(" + ", ".join(map(repr, key))).encode())

    def __call__(self, *parts: object) -> float:
        digest = self._prefix.copy()
        digest.update(("".join(f", {part!r}" for part in parts) + ")").encode())
        return _share(digest.digest())


def uniform(*parts: object) -> float:
    """A number in [0, 1) that depends on `parts` only."""
    return _share(hashlib.sha256(repr(parts).encode()).digest())


def make_script(
    scenario: Scenario,
    key: Sequence[object],
    *,
    arm: str,
    block_size: int | None,
    max_new_tokens: int,
    ignore_stop: bool = False,
    draft_share: float = 1.0,
    verifies_every_step: bool = False,
) -> Script:
    """The tokens, steps and times of one request.

    Args:
        key: the conversation, and whatever else the tokens depend on; two entries or more.
        block_size: B; None: plain decoding.
        ignore_stop: go on to the limit.
        draft_share: of the steps that find a draft (n-gram look-up finds none in the others).
        verifies_every_step: whether the others verify something all the same, and accept nothing of it.
    """
    chance = Chance(*key)
    output_ids, finish_reason = _output(scenario, chance, max_new_tokens, ignore_stop)
    steps = _steps(scenario, chance, arm, block_size, len(output_ids) - 1, draft_share, verifies_every_step)
    prefill_ns = _duration_ns(scenario.prefill_ms, _spread(scenario, chance, arm, "prefill"))
    return Script(output_ids, finish_reason, prefill_ns, tuple(steps), (block_size or 1) - 1)


def prompt_ids(text: str) -> tuple[int, ...]:
    """One id per word: a count of prompt tokens that needs no tokenizer."""
    return tuple(_word_id(word) for word in text.split())


def output_text(output_ids: Sequence[int]) -> str:
    """The text of an answer: a word per token, none for the stop token."""
    return " ".join(WORDS[token % len(WORDS)] for token in output_ids if token != STOP_ID)


def differing(output_ids: tuple[int, ...], position: int) -> tuple[int, ...]:
    """Another token at `position`, where there is one."""
    return tuple(token + (place == position) for place, token in enumerate(output_ids))


def histogram(lengths: Sequence[int], block_size: int) -> tuple[int, ...]:
    """How many steps gave 1, 2, .. `block_size` tokens."""
    return tuple(lengths.count(length) for length in range(1, block_size + 1))


def _output(
    scenario: Scenario, chance: Chance, max_new_tokens: int, ignore_stop: bool
) -> tuple[tuple[int, ...], Literal["stop", "length"]]:
    low, high = scenario.output_tokens
    length = max_new_tokens + 1 if ignore_stop else low + int(chance("length") * (high - low + 1))
    num_tokens = min(length, max_new_tokens)
    ids = [1 + int(chance(position) * (scenario.vocabulary_size - 1)) for position in range(num_tokens)]
    if length > max_new_tokens:
        return tuple(ids), "length"
    ids[-1] = STOP_ID
    return tuple(ids), "stop"


def _steps(
    scenario: Scenario,
    chance: Chance,
    arm: str,
    block_size: int | None,
    num_tokens: int,
    draft_share: float,
    verifies_every_step: bool,
) -> list[Step]:
    """Decode steps that deliver `num_tokens` tokens after the prefill's."""
    num_draft_tokens = (block_size or 1) - 1
    verify_ms = scenario.verify_step_ms + scenario.verify_ms_per_draft_token * num_draft_tokens
    steps: list[Step] = []
    while num_tokens > 0:
        number = len(steps)
        spread = _spread(scenario, chance, arm, number)
        finds_draft = draft_share >= 1 or chance("draft", number) < draft_share
        if block_size is None or not (finds_draft or verifies_every_step):
            step = Step(1, None, 0, _duration_ns(scenario.baseline_step_ms, spread))
        else:
            accepted = _num_accepted(scenario, chance, number, num_draft_tokens) if finds_draft else 0
            step = Step(
                min(accepted + 1, num_tokens),
                accepted,
                _duration_ns(scenario.draft_step_ms, spread),
                _duration_ns(verify_ms, spread),
            )
        num_tokens -= step.num_tokens
        steps.append(step)
    return steps


def _num_accepted(scenario: Scenario, chance: Chance, step: int, num_draft_tokens: int) -> int:
    rates = scenario.acceptance
    for position in range(num_draft_tokens):
        if chance("accept", step, position) >= rates[min(position, len(rates) - 1)]:
            return position
    return num_draft_tokens


def _spread(scenario: Scenario, chance: Chance, arm: str, step: int | str) -> float:
    return scenario.jitter * (2 * chance(arm, "time", step) - 1)


def _duration_ns(mean_ms: float, spread: float) -> int:
    return round(mean_ms * NS_PER_MS * (1 + spread))


@lru_cache(maxsize=_KEPT_WORDS)
def _word_id(word: str) -> int:
    return 1 + int(uniform(word) * 1000)


def _share(digest: bytes) -> float:
    return int.from_bytes(digest[:6], "big") / 2**48
