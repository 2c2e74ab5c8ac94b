"""Short digests by which prompts and outputs are compared. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

_DIGEST_LENGTH = 16


def digest_of_ids(ids: Sequence[int] | None) -> str | None:
    """First 16 hexadecimal digits of the SHA-256 of the ids, comma-separated."""
    return None if ids is None else digest_of_text(",".join(map(str, ids)))


def digest_of_text(text: str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]
