"""What the arm of a server is called where the server does not say how it drafts. Pure."""

from __future__ import annotations

from dflash.results.records import Arm

DRAFTING = "dflash"  # where neither the server nor the user says


def method_notes(arm: Arm, method: str | None) -> list[str]:
    """Whose word the name of an arm that drafts is, where it is not the server's.

    Args:
        method: in the server's own word; None: it does not say.
    """
    if method == arm.name:
        return []
    if method is not None:
        return [f"the server drafts by {method}, and is called {arm.name} by the user"]
    whose = "by the user, or for want of a name" if arm.name == DRAFTING else "by the user"
    unknown = "the server does not say how it drafts: its method is unknown"
    return [f"{unknown}, and it is called {arm.name} {whose} (--arm NAME=URL gives another)"]
