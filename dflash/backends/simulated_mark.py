"""How a simulated server says that it is none of the engine's own, and how that is told in a run."""

from __future__ import annotations

MARK = "+simulated"  # a local part of the version, which no release has


def simulated_notes(version: str | None) -> list[str]:
    """What a reader must know of a server with this version before any number."""
    if version is None or not version.endswith(MARK):
        return []
    return [
        "simulated server: tokens, acceptance and times are made up by a scenario, and say nothing of the engine"
    ]
