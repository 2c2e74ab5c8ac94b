"""Which words of a command line, an environment or an address are secrets, and how they are kept out of what is shown.

Every command line that is printed or stored passes `hide_secrets`, ours and a server's. Pure; every room may use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "***"
MIN_SECRET_CHARS = 6  # in running text: shorter ones are words, and hiding them would garble it
SERVER_ARG = "--server-arg"  # its value is a word of another command line
_SECRET = re.compile(r"(key|token|pass(word|wd|phrase)|pwd|secret|credential|auth|authorization|header)s?$")
_COUNT = re.compile(r"tokens$")  # --max-num-batched-tokens
_ADDRESS = re.compile(r"(^|-)(ur[il]|endpoint|arm)$")
_NAMED = ("--arm", "--metrics-url")  # NAME=URL
_OF_ARM = re.compile(r"[A-Za-z][\w.+-]*:(?=-)")  # dflash:--flag
_JSON_TEXT = r'"(?:[^"\\]|\\.)*"'
_JSON_VALUE = re.compile(rf"({_JSON_TEXT})(\s*:\s*)({_JSON_TEXT})")
_QUERY_VALUE = re.compile(r"([?&])([\w.-]+)=([^&#\s]*)")
_OPTION_VALUE = re.compile(r"(--[\w-]+)( +|=)([^\s-]\S*)")  # inside one word or a line
_USER = re.compile(r"(?<=://)([^/\s]*)@")
_USER_WITHOUT_SCHEME = re.compile(r"(?<![\w/:@.-])([^\s/:@=?#\"'{]+:[^\s/@\"']+)@(?=[\w\[])")
_START_OF_ADDRESS = re.compile(r"^([^/\s?#]*)@")


def is_secret_name(name: str) -> bool:
    """Whether an option or a variable of this name holds a secret: `--api-key`, `--header`, `HF_TOKEN`."""
    name = name.lower().replace("_", "-")
    return _SECRET.search(name) is not None and _COUNT.search(name) is None


def hide_secrets(words: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line without keys, tokens, passwords, header values, and the users of addresses."""
    return tuple(shown for shown, _ in _marked(words))


def hide_server_args(words: Iterable[str]) -> tuple[str, ...]:
    """The same of the values of `--server-arg` alone."""
    return tuple(word.partition("=")[2] for word in hide_secrets(f"{SERVER_ARG}={word}" for word in words))


def hide_in_text(text: str) -> str:
    """Text without the users and passwords of addresses, and without values that their names say are secret."""
    return _mark_text(text)[0]


def hide_in_address(address: str, *, may_be_named: bool = False) -> str:
    """An address without user and password; it need not have a scheme.

    Args:
        may_be_named: whether NAME=ADDRESS is meant by it too.
    """
    return _mark_address(address, may_be_named=may_be_named)[0]


def secrets_in(words: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The secrets that are long enough to be looked for in text, the longest first: one may be part of another."""
    found = [secret for _, secrets in _marked(words) for secret in secrets]
    found += [value for name, value in environment.items() if is_secret_name(name)]
    long_enough = {secret for secret in found if len(secret) >= MIN_SECRET_CHARS}
    return tuple(sorted(long_enough, key=lambda secret: (-len(secret), secret)))


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret hidden."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text


Marked = tuple[str, list[str]]  # as it may be shown, and the secrets that it held


def _marked(words: Iterable[str]) -> list[Marked]:
    """A flag's values go on to the next flag."""
    marked: list[Marked] = []
    flag = ""
    server_args = _ServerArgs()
    for word in words:
        name, equals, value = word.partition("=")
        is_flag = word.startswith("--")
        if is_flag:
            flag = name
        if is_flag and not equals:
            marked.append((word, []))
            continue
        shown, secrets = _mark_value(value if is_flag else word, flag, server_args)
        marked.append((f"{flag}={shown}" if is_flag else shown, secrets))
        if is_flag:
            flag = ""
    return marked


def _mark_value(value: str, flag: str, server_args: _ServerArgs) -> Marked:
    if flag == SERVER_ARG:
        return server_args.mark(value)
    if is_secret_name(flag):
        return HIDDEN, [value]
    if _ADDRESS.search(flag.replace("_", "-")):
        return _mark_address(value, may_be_named=flag in _NAMED)
    return _mark_text(value)


class _ServerArgs:
    """The values of `--server-arg` in their order: words of a server's command line, some of them for one arm only."""

    def __init__(self) -> None:
        self._waiting: set[str] = set()  # arms whose last flag waits for a secret; "": all arms

    def mark(self, text: str) -> Marked:
        limited = _OF_ARM.match(text)
        arm = limited[0] if limited else ""
        body = text[len(arm) :]
        if not body.startswith("-"):
            # a value after `ARM:` is hidden with it: which arm's flag it belongs to is not worth a leak
            return (HIDDEN, [text, text.partition(":")[2]]) if self._waiting else _mark_text(text)
        words = body.split(" ")
        flag, equals, _ = words[0].partition("=")
        self._waiting = self._waiting - {arm} if arm else set()
        if len(words) == 1 and not equals and is_secret_name(flag):
            self._waiting.add(arm)
        body, of_json = _mark_text(body)
        marked = _marked(body.split(" "))
        secrets = [secret for _, found in marked for secret in found]
        return arm + " ".join(shown for shown, _ in marked), of_json + secrets


def _mark_address(address: str, *, may_be_named: bool) -> Marked:
    shown, secrets = _mark_text(address)
    name, equals, rest = shown.partition("=")
    is_named = may_be_named and equals and re.fullmatch(r"[A-Za-z][\w.+-]*", name)
    start, rest = (f"{name}=", rest) if is_named else ("", shown)
    found = _START_OF_ADDRESS.match(rest)
    if found is not None:
        secrets += [found[1], found[1].partition(":")[2]]
        rest = rest[found.end() :]
    return start + rest, secrets


def _mark_text(text: str) -> Marked:
    secrets: list[str] = []

    def hide_user(found: re.Match[str]) -> str:
        secrets.extend((found[1], found[1].partition(":")[2]))
        return ""

    def hide_query(found: re.Match[str]) -> str:
        if not is_secret_name(found[2]):
            return found[0]
        secrets.append(found[3])
        return f"{found[1]}{found[2]}={HIDDEN}"

    def hide_option(found: re.Match[str]) -> str:
        if not is_secret_name(found[1]):
            return found[0]
        secrets.append(found[3])
        return f"{found[1]}{found[2]}{HIDDEN}"

    def hide_json(found: re.Match[str]) -> str:
        if not is_secret_name(found[1].strip('"')):
            return found[0]
        secrets.append(found[3].strip('"'))
        return f'{found[1]}{found[2]}"{HIDDEN}"'

    for pattern, hide in (
        (_JSON_VALUE, hide_json),
        (_OPTION_VALUE, hide_option),
        (_QUERY_VALUE, hide_query),
        (_USER, hide_user),
        (_USER_WITHOUT_SCHEME, hide_user),
    ):
        text = pattern.sub(hide, text)
    return text, secrets
