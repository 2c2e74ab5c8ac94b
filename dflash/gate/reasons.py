"""Why cells are not compared, and what a reader of a comparison must know. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.gate.quantities import Quantity
from dflash.gate.records import CellPair, Comparison, FieldDifference, Gate
from dflash.gate.words import value_of
from dflash.results.formats import UNKNOWN


def refusal_of(differences: Sequence[FieldDifference]) -> str:
    """The first field that stands in the way with both values, and the names of the others."""
    first, *others = differences
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
        if base == 0:
            return f"{quantity.name} is 0 in the base: there is no relative change of it, gate it by a limit"
        return f"no prompt completed in every repeat of both runs with what {quantity.name} needs"
    where = [name for name, value in (("base", base), ("new run", new)) if value is None]
    shown = [value_of(quantity.name, value) for value in values if value is not None]
    other = f" (it is {shown[0]} in the other)" if shown else ""
    return f"{quantity.name} was not measured in the {' and the '.join(where)}{other}"


def _shown(value: object) -> str:
    return UNKNOWN if value is None else repr(value) if isinstance(value, str) else str(value)


def notes_of(
    pairs: Sequence[CellPair], unused: Sequence[Gate], comparisons: Sequence[Comparison]
) -> tuple[str, ...]:
    """What was not gated, let pass, left out, and what the runs differ in beside."""
    notes = [f"gate {gate.text}: no cell has this quantity" for gate in unused]
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
        f"{comparison.num_left_out} turns of {comparison.pair.cell.arm.label} on "
        f"{comparison.pair.cell.workload.dataset} are left out: they did not complete in every repeat of both runs, or "
        "followed other answers"
        for comparison in comparisons
        if comparison.num_left_out
    }
    return (*notes, *allowed.values(), *sorted(left_out), *listed.values())
