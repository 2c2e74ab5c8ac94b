"""The words that a server is started with: of `--server-arg`, which arm each is for and which option of a template it
takes the place of; of the whole command, what they say of the server. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from dflash.errors import UsageError

DTYPE_NAMES = {"half": "float16", "float": "float32"}  # the engines' other words
# What decides where a server listens and what it serves is said once, and not by --server-arg.
RESERVED = {
    "--host": "servers that are started listen on this machine only",
    "--port": "a free port is chosen",
    "--uds": "servers that are started listen on a port",
    "--ssl-certfile": "servers that are started speak http",
    "--model": "it is given by --model",
    "--model-path": "it is given by --model",
}
# `dflash:--flag=4`, `baseline:4`, `ngram:--flag=4`; of other names only before an option: `http://…` is a value.
_FOR_ONE_ARM = re.compile(r"(baseline|dflash|[A-Za-z][\w.+-]*(?=:-)):(.*)", re.DOTALL)


def server_words(server_args: Iterable[str], arm: str) -> tuple[str, ...]:
    """The words for the server of `arm`, in their order. `--flag VALUE` given as one word becomes two.

    Raises:
        UsageError: one says what is said elsewhere.
    """
    words: list[str] = []
    for word in server_args:
        only = arm_of_word(word)
        if only not in (None, arm):
            continue
        text = word if only is None else word.partition(":")[2]
        flag, blank, value = text.partition(" ")
        words += [flag, value.strip()] if text.startswith("-") and blank and "=" not in flag else [text]
    for word in words:
        reason = RESERVED.get(flag_of_word(word))
        if reason is not None:
            raise UsageError(f"--server-arg {flag_of_word(word)} cannot be given: {reason}", "leave it out")
    return tuple(words)


def arm_of_word(word: str) -> str | None:
    """The arm that a word is limited to; None: it is for all."""
    limited = _FOR_ONE_ARM.fullmatch(word)
    return None if limited is None else limited[1]


def flag_of_word(word: str) -> str:
    """`--max-num-seqs` of `--max_num_seqs=4`; nothing of a value."""
    return word.partition("=")[0].replace("_", "-") if word.startswith("--") else ""


def is_option_in(flag: str, words: Iterable[str]) -> bool:
    """Whether the words give this option, or the opposite of this switch."""
    bare = flag.removeprefix("--").removeprefix("no-")
    return any(flag_of_word(word) in (f"--{bare}", f"--no-{bare}") for word in words)


def stated_dtype(words: Sequence[str]) -> str | None:
    """What the server computes in; None: it is left to the engine."""
    told = value_of("--dtype", words)
    return None if told in (None, "auto") else DTYPE_NAMES.get(told, told)


def stated_method(words: Sequence[str]) -> str | None:
    """How the server drafts, in the engine's word in lower case; None: the words do not say that it does."""
    told: object = value_of("--speculative-algorithm", words)  # SGLang's
    if told is None:
        try:
            config = json.loads(value_of("--speculative-config", words) or "null")  # vLLM's
        except ValueError:
            return None
        told = config.get("method") if isinstance(config, dict) else None
    return told.lower() if isinstance(told, str) and told else None


def value_of(flag: str, words: Sequence[str]) -> str | None:
    """The value of an option; the last one holds."""
    found = None
    for place, word in enumerate(words):
        if flag_of_word(word) == flag:
            _, equals, value = word.partition("=")
            found = value if equals else next(iter(words[place + 1 : place + 2]), None)
    return found
