"""The main numbers of a cell by part: by category, by length of the prompt, by turn. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
from numpy.typing import NDArray

from dflash.results import request_metrics
from dflash.results.cell_metrics import Intervals, intervals_of, main_metrics, pooled_main_metrics
from dflash.results.columns import RequestTable, table_of, unit_codes
from dflash.results.measured import Measured
from dflash.results.pairing import Pairing, pairs_of
from dflash.results.records import Cell, RequestRecord
from dflash.results.task_scores import Outcomes

# Where a bucket of prompt lengths begins, in tokens; each ends before the next begins.
PROMPT_LENGTH_STARTS = (0, 128, 512, 2048, 8192, 32768)


def prompt_length_bucket(num_tokens: int) -> str:
    """The name of the bucket that a prompt of so many tokens belongs to: `below 128`, `128-511` …."""
    place = bisect_right(PROMPT_LENGTH_STARTS, num_tokens) - 1
    start, *after = PROMPT_LENGTH_STARTS[place:]
    if not after:
        return f"{start} and more"
    return f"{start}-{after[0] - 1}" if start else f"below {after[0]}"


PROMPT_LENGTH_BUCKETS = tuple(map(prompt_length_bucket, PROMPT_LENGTH_STARTS))


# [requests] the part that each request of an arm belongs to, None: to none. Of the arm, and its baseline.
PartOf = Callable[[RequestTable, RequestTable], "NDArray[Any]"]


@dataclass(frozen=True, slots=True)
class PartSummary(Measured):
    """The main metrics over the requests of one part."""

    name: str
    num_completed: int


@dataclass(frozen=True, slots=True)
class Breakdowns:
    """One cell in parts; empty where there is nothing to tell apart."""

    categories: tuple[PartSummary, ...] = ()
    prompt_lengths: tuple[PartSummary, ...] = ()
    turns: tuple[PartSummary, ...] = ()
    num_unknown_lengths: int = 0  # completed requests in no bucket


@dataclass(frozen=True, slots=True)
class TwoArms:
    """What a breakdown is made from: a cell's records, and those of its baseline where there is one."""

    cell: Cell
    records: Sequence[RequestRecord]
    baseline: Sequence[RequestRecord]
    pairing: Pairing | None
    outcomes: Outcomes


def break_down(arms: TwoArms, known: Intervals) -> Breakdowns:
    """A cell by category, and by length and turn where its requests have several.

    Args:
        known: the intervals of the whole cell.
    """
    records = table_of(arms.records)
    lengths = _length_buckets(records, table_of(arms.baseline))
    found = {name for name in lengths.tolist() if name is not None}
    buckets = [name for name in PROMPT_LENGTH_BUCKETS if name in found]
    categories = sorted({name for name in records.texts("category").tolist() if name is not None})
    turns = sorted(set(records.integers("turn").values.tolist()))
    return Breakdowns(
        categories=_parts(arms, categories, lambda arm, _: arm.texts("category"), known),
        prompt_lengths=_parts(arms, buckets, _length_buckets, known) if len(buckets) > 1 else (),
        turns=_parts(arms, turns, lambda arm, _: arm.integers("turn").values, known)
        if len(turns) > 1
        else (),
        num_unknown_lengths=int((records.completed & (lengths == None)).sum()),  # noqa: E711 - of each element
    )


def _parts(
    arms: TwoArms, names: Sequence[str | int], part_of: PartOf, known: Intervals
) -> tuple[PartSummary, ...]:
    records = table_of(arms.records)
    belongs = part_of(records, table_of(arms.baseline))
    if len(names) == 1 and (belongs == names[0]).all():
        return (_part(names[0], arms, known),)
    pairings = _pairings(arms.pairing, names, part_of)
    parts = [
        replace(arms, records=records.take(belongs == name), pairing=pairing)
        for name, pairing in zip(names, pairings, strict=True)
    ]
    pooled = [pooled_main_metrics(part.cell, part.records, part.pairing, part.outcomes) for part in parts]
    return tuple(map(_part, names, parts, intervals_of(pooled)))


def _part(name: str | int, part: TwoArms, known: Intervals) -> PartSummary:
    values = main_metrics(part.records, part.pairing, part.outcomes, known)
    return PartSummary(values, str(name), request_metrics.num_completed(part.records))


def _pairings(pairing: Pairing | None, names: Sequence[str | int], part_of: PartOf) -> list[Pairing | None]:
    """The pairs of each part. Why others are left out is said of the whole alone."""
    if pairing is None or pairing.is_refused:
        return [None] * len(names)
    pairs, completed_pairs = pairs_of(pairing.pairs), pairs_of(pairing.completed_pairs)
    belongs, completed_belongs = (
        part_of(members.arm, members.baseline) for members in (pairs, completed_pairs)
    )
    return [
        Pairing(pairs.take(belongs == name), completed_pairs.take(completed_belongs == name), {})
        for name in names
    ]


def _length_buckets(arm: RequestTable, baseline: RequestTable) -> NDArray[Any]:
    """[requests of the arm]: the bucket of the prompt's length, where either arm knows it."""
    units, baseline_units = unit_codes(arm, baseline)
    num_units = max((int(codes.max()) + 1 for codes in (units, baseline_units) if len(codes)), default=0)
    buckets = numpy.full(num_units, None, dtype=object)
    names = numpy.array(PROMPT_LENGTH_BUCKETS, dtype=object)
    for codes, table in ((baseline_units, baseline), (units, arm)):
        lengths = table.integers("num_prompt_tokens")
        places = numpy.searchsorted(PROMPT_LENGTH_STARTS, lengths.numbers(), side="right") - 1
        buckets[codes[lengths.known]] = names[places]
    found: NDArray[Any] = buckets[units]
    return found
