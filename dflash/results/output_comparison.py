"""Outputs of two arms on servers, or of two runs: by what they can be compared, and where they first differ.

Not every server tells token ids. Two outputs are compared by ids where both are known, else by text, and which it
was is counted: a digest of ids is never compared with a digest of text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy
from numpy.typing import NDArray

from dflash.results.columns import RequestKey, counted, table_of, unit_codes
from dflash.results.pairing import Pairs
from dflash.results.records import DifferenceRecord, OutputRecord, RequestRecord

Basis = Literal[
    "ids", "text", "unknown"
]  # unknown: outputs were not saved, so nobody knows what was digested
_EXCERPT_CHARS = 24


@dataclass(frozen=True, slots=True)
class SavedOutputs:
    """What is kept of the outputs of a run's servers."""

    has_ids: Mapping[RequestKey, bool] = field(default_factory=dict)
    differing: Mapping[RequestKey, OutputRecord] = field(default_factory=dict)  # in full

    def joined(self, other: SavedOutputs) -> SavedOutputs:
        """Those of two runs. Where both hold a cell, `other` counts."""
        return SavedOutputs({**self.has_ids, **other.has_ids}, {**self.differing, **other.differing})


@dataclass(frozen=True, slots=True)
class TextDifference:
    """Where the text of an arm leaves the baseline's; ids are not known of both."""

    prompt_id: str
    turn: int
    repeat: int
    position: int  # index of the first character that differs
    baseline_text: str  # from there on, cut short; empty: it had ended
    arm_text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """An arm beside its baseline, made comparable."""

    baseline: Sequence[RequestRecord]
    arm: Sequence[RequestRecord]
    basis: Mapping[Basis, int] = field(
        default_factory=dict
    )  # pairs with both digests, by what they are compared
    differences: tuple[DifferenceRecord, ...] = ()
    text_differences: tuple[TextDifference, ...] = ()


def differing_keys(baseline: Sequence[RequestRecord], arm: Sequence[RequestRecord]) -> set[RequestKey]:
    """Of requests completed in both arms, the outputs whose digests differ: the only ones that must be looked at."""
    pairs = _completed_pairs(baseline, arm)
    differs = pairs.baseline.texts("output_digest") != pairs.arm.texts("output_digest")
    unlike = pairs.take(differs)
    return {*unlike.baseline.keys, *unlike.arm.keys}


def read_outputs(
    outputs: Iterable[OutputRecord], cell_ids: set[str], differing: set[RequestKey]
) -> SavedOutputs:
    """Read the outputs of these cells once; only those in `differing` are kept in full."""
    has_ids: dict[RequestKey, bool] = {}
    kept: dict[RequestKey, OutputRecord] = {}
    for output in outputs:
        if output.cell_id in cell_ids:
            has_ids[_key(output)] = output.output_ids is not None
            if _key(output) in differing:
                kept[_key(output)] = output
    return SavedOutputs(has_ids, kept)


def compare_outputs(
    baseline: Sequence[RequestRecord],
    arm: Sequence[RequestRecord],
    saved: SavedOutputs,
    known: Sequence[DifferenceRecord] = (),
    *,
    all_have_ids: bool = False,
) -> Comparison:
    """Say by what each pair is compared; where only one side has ids, digest both texts anew.

    Args:
        known: differences that were recorded; others are found in the outputs.
        all_have_ids: every output has ids, whether it was saved or not: those of engines in process.
    """
    pairs = _completed_pairs(baseline, arm)
    basis = _basis(pairs, saved, all_have_ids)
    digests: dict[RequestKey, str | None] = {}
    differences = list(known)
    text_differences = []
    recorded = {(item.prompt_id, item.turn, item.repeat) for item in known}
    outputs, other_outputs = pairs.baseline.look_up(saved.differing), pairs.arm.look_up(saved.differing)
    for row in numpy.flatnonzero((outputs != None) & (other_outputs != None)).tolist():  # noqa: E711
        first, second = pairs[row]
        one, other = outputs[row], other_outputs[row]
        if basis[row] == "text":
            digests[_key(first)], digests[_key(second)] = _text_digest(one), _text_digest(other)
            if one.text is not None and other.text is not None and one.text != other.text:
                text_differences.append(_text_difference(one.text, other))
        elif (
            second.unit not in recorded and one.output_ids is not None and one.output_ids != other.output_ids
        ):
            differences.append(_id_difference(one.output_ids, other))
    return Comparison(
        _with_digests(baseline, digests),
        _with_digests(arm, digests),
        counted(basis),
        tuple(differences),
        tuple(text_differences),
    )


def _completed_pairs(baseline: Sequence[RequestRecord], arm: Sequence[RequestRecord]) -> Pairs:
    """Requests with an output digest that completed in both arms, in the order of the arm."""
    first, second = table_of(baseline), table_of(arm)
    units, other_units = unit_codes(first, second)
    digested, other_digested = (
        table.completed & table.texts("output_digest").astype(bool) for table in (first, second)
    )
    rows = numpy.full(max(units.max(initial=-1), other_units.max(initial=-1)) + 1, -1)
    rows[units[digested]] = numpy.flatnonzero(digested)
    paired = other_digested & (rows[other_units] >= 0)
    return Pairs(first.take(rows[other_units[paired]]), second.take(paired))


def _basis(pairs: Pairs, saved: SavedOutputs, all_have_ids: bool) -> NDArray[Any]:
    """[pairs]: by what each is compared."""
    basis = numpy.full(len(pairs), "text", dtype=object)
    if all_have_ids:
        basis[:] = "ids"
        return basis
    first, second = pairs.baseline.look_up(saved.has_ids), pairs.arm.look_up(saved.has_ids)
    basis[(first == True) & (second == True)] = "ids"  # noqa: E712 - of each element
    basis[(first == None) | (second == None)] = "unknown"  # noqa: E711
    return basis


def _first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _id_difference(expected: Sequence[int], given: OutputRecord) -> DifferenceRecord:
    ids = given.output_ids or ()
    position = _first_difference(expected, ids)
    return DifferenceRecord(
        given.cell_id,
        given.prompt_id,
        given.turn,
        given.repeat,
        given.segment,
        position,
        expected[position] if position < len(expected) else None,
        ids[position] if position < len(ids) else None,
    )


def _text_difference(expected: str, given: OutputRecord) -> TextDifference:
    text = given.text or ""
    position = _first_difference(expected, text)
    return TextDifference(
        given.prompt_id,
        given.turn,
        given.repeat,
        position,
        _excerpt(expected, position),
        _excerpt(text, position),
    )


def _excerpt(text: str, position: int) -> str:
    return text[position : position + _EXCERPT_CHARS]


def _text_digest(output: OutputRecord) -> str | None:
    """As a text is digested in a record; None: not known, and then nothing is compared."""
    return None if output.text is None else hashlib.sha256(output.text.encode()).hexdigest()[:16]


def _with_digests(
    records: Sequence[RequestRecord], digests: Mapping[RequestKey, str | None]
) -> Sequence[RequestRecord]:
    if not digests:
        return records
    return [
        replace(record, output_digest=digests[_key(record)]) if _key(record) in digests else record
        for record in records
    ]


def _key(record: RequestRecord | OutputRecord) -> RequestKey:
    return (record.cell_id, record.prompt_id, record.turn, record.repeat)
