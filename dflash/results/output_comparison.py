"""Outputs of two arms on servers, or of two runs: by what they can be compared, and where they first differ.

Not every server tells token ids. Two outputs are compared by ids where both are known, else by text, and which it
was is counted: a digest of ids is never compared with a digest of text.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dflash.results.records import DifferenceRecord, OutputRecord, RequestRecord

OutputKey = tuple[str, str, int, int]  # cell, prompt, turn, repeat
Basis = Literal[
    "ids", "text", "unknown"
]  # unknown: outputs were not saved, so nobody knows what was digested
_EXCERPT_CHARS = 24


@dataclass(frozen=True, slots=True)
class SavedOutputs:
    """What is kept of the outputs of a run's servers."""

    has_ids: Mapping[OutputKey, bool] = field(default_factory=dict)
    differing: Mapping[OutputKey, OutputRecord] = field(default_factory=dict)  # in full

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


def differing_keys(baseline: Sequence[RequestRecord], arm: Sequence[RequestRecord]) -> set[OutputKey]:
    """Of requests completed in both arms, the outputs whose digests differ: the only ones that must be looked at."""
    keys: set[OutputKey] = set()
    for first, second in _completed_pairs(baseline, arm):
        if first.output_digest != second.output_digest:
            keys |= {_key(first), _key(second)}
    return keys


def read_outputs(
    outputs: Iterable[OutputRecord], cell_ids: set[str], differing: set[OutputKey]
) -> SavedOutputs:
    """Read the outputs of these cells once; only those in `differing` are kept in full."""
    has_ids: dict[OutputKey, bool] = {}
    kept: dict[OutputKey, OutputRecord] = {}
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
    basis: Counter[Basis] = Counter()
    digests: dict[OutputKey, str | None] = {}
    differences = list(known)
    text_differences = []
    recorded = {(item.prompt_id, item.turn, item.repeat) for item in known}
    for first, second in _completed_pairs(baseline, arm):
        pair_basis: Basis = (
            "ids" if all_have_ids else _basis(saved.has_ids.get(_key(first)), saved.has_ids.get(_key(second)))
        )
        basis[pair_basis] += 1
        one, other = saved.differing.get(_key(first)), saved.differing.get(_key(second))
        if one is None or other is None:
            continue
        if pair_basis == "text":
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
        dict(basis),
        tuple(differences),
        tuple(text_differences),
    )


def _completed_pairs(
    baseline: Sequence[RequestRecord], arm: Sequence[RequestRecord]
) -> Iterable[tuple[RequestRecord, RequestRecord]]:
    first_by_unit = {record.unit: record for record in baseline if record.completed and record.output_digest}
    for second in arm:
        first = first_by_unit.get(second.unit)
        if first is not None and second.completed and second.output_digest:
            yield first, second


def _basis(baseline_has_ids: bool | None, arm_has_ids: bool | None) -> Basis:
    if baseline_has_ids is None or arm_has_ids is None:
        return "unknown"
    return "ids" if baseline_has_ids and arm_has_ids else "text"


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
    records: Sequence[RequestRecord], digests: Mapping[OutputKey, str | None]
) -> Sequence[RequestRecord]:
    if not digests:
        return records
    return [
        replace(record, output_digest=digests[_key(record)]) if _key(record) in digests else record
        for record in records
    ]


def _key(record: RequestRecord | OutputRecord) -> OutputKey:
    return (record.cell_id, record.prompt_id, record.turn, record.repeat)
