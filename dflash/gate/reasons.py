"""Why cells are not compared, and what a reader of a comparison must know. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from dflash.gate.pairing import STATUS
from dflash.gate.quantities import Quantity
from dflash.gate.records import CellPair, Comparison, FieldDifference, Gate
from dflash.gate.sides import Side
from dflash.gate.words import count_of, value_of
from dflash.results.formats import UNKNOWN
from dflash.results.goodput import Slo
from dflash.results.records import RunInfo


def refusal_of(differences: Sequence[FieldDifference]) -> str:
    """The first field that stands in the way with both values, and the names of the others."""
    first, *others = differences
    if first.field == STATUS and first.base == first.new:
        return f"{STATUS} is {first.new!r} in both runs (--allow {STATUS} compares all the same)"
    also = f"; also: {', '.join(item.field for item in others)}" if others else ""
    return (
        f"{first.field} differs: {_shown(first.base)} in the base, {_shown(first.new)} in the new run{also} "
        f"(--allow {first.field} compares all the same)"
    )


def why_not_measured(quantity: Quantity, values: Sequence[float | None]) -> str:
    """Why there is no change.

    Args:
        values: of the base and of the new run, over everything that completed.
    """
    base, new = values
    if base is not None and new is not None:
        if quantity.is_latency and min(base, new) <= 0:
            name = "base" if base <= 0 else "new run"
            return f"{quantity.name} is {value_of(quantity.name, min(base, new))} in the {name}: no stamp tells a time"
        if base == 0:
            return f"{quantity.name} is 0 in the base: there is no relative change of it, gate it by a limit"
        return f"no prompt completed in every repeat of both runs with what {quantity.name} needs"
    where = [name for name, value in (("base", base), ("new run", new)) if value is None]
    shown = [value_of(quantity.name, value) for value in values if value is not None]
    other = f" (it is {shown[0]} in the other)" if shown else ""
    return f"{quantity.name} was not measured in the {' and the '.join(where)}{other}"


def has_no_meaning(quantity: Quantity, sides: Sequence[Side]) -> bool:
    """Whether neither run has what the quantity is told by: limits, or reference answers and tests."""
    if quantity.needs_slo:
        return all(side.facts.slo is None for side in sides)
    return quantity.needs_references and not any(side.facts.outcomes for side in sides)


def unlike_facts(quantity: Quantity, base: Side, new: Side) -> str | None:
    """Why the quantity is another one in the two runs; None: it is not."""
    if quantity.needs_slo and base.facts.slo != new.facts.slo:
        shown = [_limits(side.facts.slo) for side in (base, new)]
        return f"slo differs: {shown[0]} in the base, {shown[1]} in the new run: measure both with the same --slo"
    one, other = base.facts.references_digest, new.facts.references_digest
    if quantity.needs_references and one != other:
        return f"the reference answers differ: {_shown(one)} in the base, {_shown(other)} in the new run"
    return None


def same_run(bases: Sequence[RunInfo], new: RunInfo) -> tuple[str, ...]:
    """A word on a run that is compared with itself."""
    if (new.name, new.created_at) not in {(base.name, base.created_at) for base in bases}:
        return ()
    if len(bases) == 1:
        return ("base and new run are the same run: nothing can differ",)
    return ("the new run is one of those that the base is made of: it is compared with itself, too",)


def _limits(slo: Slo | None) -> str:
    if slo is None:
        return UNKNOWN
    known = ((item.name, getattr(slo, item.name)) for item in fields(slo))
    return ", ".join(f"{name} {value:g}" for name, value in known if value is not None)


def why_unused(gate: Gate, pairs: Sequence[CellPair]) -> str:
    """Why a gate gates nothing."""
    if gate.only and not any(gate.means(pair.cell) for pair in pairs):
        named = ", ".join(f"{name.replace('_', '-')} = {value!r}" for name, value in gate.only.items())
        return f"gate {gate.text} gates nothing: no cell has {named}"
    return f"gate {gate.text} gates nothing: no cell of both runs has this quantity"


def _shown(value: object) -> str:
    return UNKNOWN if value is None else repr(value) if isinstance(value, str) else str(value)


def notes_of(
    pairs: Sequence[CellPair], unused: Sequence[Gate], comparisons: Sequence[Comparison]
) -> tuple[str, ...]:
    """What was not gated, let pass, left out, and what the runs differ in beside."""
    notes = [why_unused(gate, pairs) for gate in unused]
    new_cells = [
        pair.cell.arm.label + " on " + pair.cell.workload.dataset for pair in pairs if pair.base is None
    ]
    if new_cells:
        notes.append(f"only in the new run, compared with nothing: {', '.join(new_cells)}")
    listed = {
        item.field: f"{item.field}: {_shown(item.base)} in the base, {_shown(item.new)} in the new run"
        for pair in pairs
        for item in pair.differences
        if item.scope == "listed"
    }
    allowed = {
        item.field: f"let pass by --allow: {item.field}: {_shown(item.base)} in the base, {_shown(item.new)} in the "
        "new run"
        for pair in pairs
        for item in pair.differences
        if item.is_allowed
    }
    left_out = {
        f"left out of {comparison.pair.cell.arm.label} on {comparison.pair.cell.workload.dataset}: "
        f"{count_of(comparison.num_left_out, 'turn')} that did not complete in every repeat of all runs, or followed "
        "other answers"
        for comparison in comparisons
        if comparison.num_left_out
    }
    return (*notes, *allowed.values(), *sorted(left_out), *listed.values())
