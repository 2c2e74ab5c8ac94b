"""The log of an engine's server, and the few lines of it that a person wants to see. What it says is never trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from dflash.command_secrets import HIDDEN
from dflash.errors import UsageError

TAIL_BYTES = 256 * 1024  # a traceback of each of a server's processes fits
NUM_LINES = 20
MAX_LINE_CHARS = 200
_CONTROL_SEQUENCE = re.compile(r"\x1b(\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
# How vLLM's processes begin a line: (EngineCore pid=7) ERROR 01-31 12:00:00 [core.py:99]
# and SGLang's: [2026-01-31 12:00:00 TP0]
_PREFIX = re.compile(
    r"\[\d{4}-\d\d-\d\d [\d:]+( [^\]]*)?\] ?|(\([\w ]+ pid=\d+\) )?([A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\] ?)?"
)
_FRAME = re.compile(r'\s*(File "|[\^~]+\s*$|Traceback \(most recent call last\))|\s{4}')
_FAULT = re.compile(r"((\w+\.)*[A-Z]\w*(Error|Exception|Failure|Interrupt)\b|[\w./: -]*\berror:).*")
# vLLM: dtype=torch.bfloat16, among what else the engine is made with. That of a cache has another name.
_DTYPE = re.compile(rb"\bdtype=torch\.(\w{1,20})\b")
_CONSEQUENCE = re.compile(
    r"root cause|Engine core initialization failed|engine process failed", re.IGNORECASE
)


def begin_log(log_file: Path, line: str) -> int:
    """Append a line; returns the byte where what follows begins.

    Raises:
        UsageError: the log cannot be written.
    """
    try:
        # Engines print their settings, keys included: a new file is for its owner only.
        log_file.touch(mode=0o600)
        with log_file.open("ab") as file:
            file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
            return file.tell()
    except OSError as error:
        raise UsageError(
            f"the server's log {log_file} cannot be written ({error.strerror or error})",
            "free space, or choose another --output-dir",
        ) from None


def clean_log(log_file: Path, secrets: Sequence[str]) -> None:
    """Take out the keys that an engine has printed."""
    with suppress(OSError):
        content = log_file.read_bytes() if secrets else b""
        clean = content
        for secret in secrets:
            clean = clean.replace(secret.encode(), HIDDEN.encode())
        if clean != content:
            log_file.write_bytes(clean)


def read_tail(log_file: Path, start: int = 0) -> list[str]:
    """The last lines of a log, harmless to print; nothing where it cannot be read.

    Args:
        start: byte from which on the log is of interest.
    """
    try:
        with log_file.open("rb") as file:
            size = file.seek(0, 2)
            begin = max(start, size - TAIL_BYTES)
            file.seek(begin)
            content = file.read(TAIL_BYTES)
    except OSError:
        return []
    lines = content.decode("utf-8", errors="replace").split("\n")
    if begin > start:
        lines = lines[1:]  # the first one is cut
    return [line for line in map(_shown, lines) if line]


def read_dtype(log_file: Path, start: int = 0) -> str | None:
    """The dtype that an engine has printed for its target, before any for its draft; None: none was printed."""
    try:
        with log_file.open("rb") as file:
            file.seek(start)
            found = _DTYPE.search(file.read(TAIL_BYTES))
    except OSError:
        return None
    return None if found is None else found[1].decode()


def last_lines(lines: Iterable[str]) -> list[str]:
    """The last lines of interest: those of a traceback that only say where in the code it was are left out."""
    return [line for line in lines if not _FRAME.match(_bare(line))][-NUM_LINES:]


def find_fault(lines: Iterable[str]) -> str | None:
    """The last error that is named, where it is not the consequence of another one; None: no error is named."""
    texts = [text for text in map(_bare, lines) if not _FRAME.match(text)]
    found = [place for place, text in enumerate(texts) if _FAULT.match(text)]
    first_hand = [place for place in found if not _CONSEQUENCE.search(texts[place])] or found
    if not first_hand:
        return None
    place = first_hand[-1]
    detail = texts[place + 1] if place + 1 < len(texts) and texts[place + 1].startswith("  ") else ""
    return _cut(" ".join(f"{texts[place]} {detail}".split()))


def last_words(lines: Sequence[str]) -> str:
    """What a log says last, without when and where in the engine; empty: nothing. Lines of code say nothing."""
    words = (_bare(line) for line in reversed(lines))
    return next((text for text in words if not text.startswith(" ") and not _FRAME.match(text)), "")


def _bare(line: str) -> str:
    return _PREFIX.sub("", line, count=1)


def _shown(line: str) -> str:
    """What a terminal would show in the end: of a progress bar its last state, without control characters."""
    line = _CONTROL_SEQUENCE.sub(
        "", line[-16 * MAX_LINE_CHARS :] if "\r" in line else line[: 16 * MAX_LINE_CHARS]
    )
    line = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return _cut("".join(c if c.isprintable() else " " for c in line).rstrip())


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[: MAX_LINE_CHARS - 1]}…"
