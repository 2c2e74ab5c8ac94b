"""Several comparisons judged together: what their spreads share, and the correction for their number. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from dflash.gate.judge import LEVEL, Judged, holm_levels, judge_change, p_value
from dflash.gate.moderation import moderated
from dflash.gate.quantities import QUANTITIES
from dflash.gate.records import Change, Gate, RunSpread


@dataclass(frozen=True, slots=True)
class Member:
    """One change that is judged."""

    gate: Gate
    change: Change
    cell: Hashable  # what tells cells apart


@dataclass(frozen=True, slots=True)
class JudgedChange:
    """A change with its verdict, and the confidence at which it was tested."""

    judged: Judged
    change: Change  # its spread as it was judged
    confidence: float
    p_value: float | None  # None: not tested, for there is nothing to test


def judge_family(members: Sequence[Member]) -> list[JudgedChange]:
    """Judge all changes of one comparison of two runs."""
    changes = _moderated(members)
    p_values = [p_value(change) for change in changes]
    # several gates of one quantity at one cell ask one thing
    asked = {
        (member.gate.quantity, member.cell): value
        for member, value in zip(members, p_values, strict=True)
        if value is not None
    }
    level_of = dict(zip(asked, holm_levels(list(asked.values())), strict=True))
    found = []
    for place, (member, change) in enumerate(zip(members, changes, strict=True)):
        confidence = 1 - level_of.get((member.gate.quantity, member.cell), LEVEL)
        judged = judge_change(member.gate, QUANTITIES[member.gate.quantity], change, confidence)
        found.append(JudgedChange(judged, change, confidence, p_values[place]))
    return found


def _moderated(members: Sequence[Member]) -> list[Change]:
    """The changes, with the spreads between repeats of each quantity moderated over its cells."""
    families: dict[tuple[object, ...], dict[Hashable, RunSpread]] = {}
    for member in members:
        runs = member.change.spread.runs
        if runs is not None and member.change.basis != "calibration":
            families.setdefault(_family_of(member, runs), {})[member.cell] = runs
    found = {
        family: dict(zip(spreads, moderated(list(spreads.values())), strict=True))
        for family, spreads in families.items()
    }
    return [_with_runs(member, found) for member in members]


def _with_runs(member: Member, found: Mapping[tuple[object, ...], Mapping[Hashable, RunSpread]]) -> Change:
    change, runs = member.change, member.change.spread.runs
    if runs is None or change.basis == "calibration":
        return change
    return replace(change, spread=replace(change.spread, runs=found[_family_of(member, runs)][member.cell]))


def _family_of(member: Member, runs: RunSpread) -> tuple[object, ...]:
    """The same quantity, over as many repeats or runs."""
    return (member.gate.quantity, runs.num_base, runs.num_new, runs.of_whole_runs)
