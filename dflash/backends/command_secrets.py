"""Which words of a server's command line and environment are keys, and how they are kept out of what is shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "***"
MIN_SECRET_CHARS = 6  # in running text: shorter ones are words, and hiding them would garble it
_SECRET = re.compile(r"(^|[-_])(api-?key|key|token|password|passwd|secret|credentials?)$")


def is_secret_name(name: str) -> bool:
    """Whether an option or a variable of this name holds a secret: `--api-key`, `HF_TOKEN`."""
    return _SECRET.search(name.lower().replace("_", "-")) is not None


def hide_secrets(words: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line with the values of keys, tokens and passwords hidden."""
    return tuple(shown for shown, _ in _marked(words))


def secrets_in(words: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The secrets that are long enough to be looked for in text, the longest first: one may be part of another."""
    found = [secret for _, secret in _marked(words)]
    found += [value for name, value in environment.items() if is_secret_name(name)]
    return tuple(
        sorted({secret for secret in found if len(secret) >= MIN_SECRET_CHARS}, key=len, reverse=True)
    )


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret hidden."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text


def _marked(words: Iterable[str]) -> list[tuple[str, str]]:
    """Each word as it may be shown, and the secret in it (empty: none). A flag's values go on to the next flag."""
    marked = []
    hiding = False
    for word in words:
        flag, equals, value = word.partition("=")
        if hiding and not word.startswith("--"):
            marked.append((HIDDEN, word))
            continue
        is_secret = word.startswith("--") and is_secret_name(flag)
        hiding = is_secret and not equals
        marked.append((f"{flag}={HIDDEN}", value) if is_secret and equals else (word, ""))
    return marked
