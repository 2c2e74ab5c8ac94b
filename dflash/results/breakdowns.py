"""The main numbers of a cell by part: by category, by length of the prompt, by turn. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from dflash.results import request_metrics
from dflash.results.cell_metrics import Intervals, main_metrics, pooled_main_metrics
from dflash.results.columns import RequestTable, table_of, unit_codes
from dflash.results.measured import Measured
from dflash.results.pairing import Pairing, pairs_of
from dflash.results.records import Cell, RequestRecord
from dflash.results.stats import Pooled
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
class Part:
    """The requests of one part of a cell, and its pairs."""

    name: str
    records: RequestTable
    pairing: Pairing | None
    is_whole: bool = False  # all requests of the cell


@dataclass(frozen=True, slots=True)
class Parts:
    """One cell in parts, of which no figure is known yet."""

    categories: tuple[Part, ...]
    prompt_lengths: tuple[Part, ...]
    turns: tuple[Part, ...]
    num_unknown_lengths: int


def split(
    records: Sequence[RequestRecord], baseline: Sequence[RequestRecord], pairing: Pairing | None
) -> Parts:
    """A cell by category, and by length and turn where its requests have several.

    Args:
        baseline: empty where there is none.
    """
    arm, other = table_of(records), table_of(baseline)
    lengths = _length_buckets(arm, other)
    found = {name for name in lengths.tolist() if name is not None}
    buckets = [name for name in PROMPT_LENGTH_BUCKETS if name in found]
    categories = sorted({name for name in arm.texts("category").tolist() if name is not None})
    turns = sorted(set(arm.integers("turn").values.tolist()))

    def parts(names: Sequence[str | int], part_of: PartOf) -> tuple[Part, ...]:
        belongs = part_of(arm, other)
        if len(names) == 1 and (belongs == names[0]).all():
            return (Part(str(names[0]), arm, pairing, is_whole=True),)
        pairings = _pairings(pairing, names, part_of)
        return tuple(
            Part(str(name), arm.take(belongs == name), own) for name, own in zip(names, pairings, strict=True)
        )

    return Parts(
        categories=parts(categories, lambda arm, _: arm.texts("category")),
        prompt_lengths=parts(buckets, _length_buckets) if len(buckets) > 1 else (),
        turns=parts(turns, lambda arm, _: arm.integers("turn").values) if len(turns) > 1 else (),
        num_unknown_lengths=int((arm.completed & (lengths == None)).sum()),  # noqa: E711 - of each element
    )


def pooled_of_parts(cell: Cell, parts: Parts, outcomes: Outcomes) -> list[dict[str, Pooled]]:
    """What the intervals of each part are drawn from; a part that is the whole has those of the whole."""
    return [
        pooled_main_metrics(cell, part.records, part.pairing, outcomes)
        for part in (*parts.categories, *parts.prompt_lengths, *parts.turns)
        if not part.is_whole
    ]


def break_down(parts: Parts, outcomes: Outcomes, whole: Intervals, known: Sequence[Intervals]) -> Breakdowns:
    """The figures of all parts.

    Args:
        whole: the intervals of the whole cell.
        known: those of `pooled_of_parts`.
    """
    of_parts = iter(known)

    def summed_up(members: Sequence[Part]) -> tuple[PartSummary, ...]:
        return tuple(_part(part, outcomes, whole if part.is_whole else next(of_parts)) for part in members)

    return Breakdowns(
        categories=summed_up(parts.categories),
        prompt_lengths=summed_up(parts.prompt_lengths),
        turns=summed_up(parts.turns),
        num_unknown_lengths=parts.num_unknown_lengths,
    )


def _part(part: Part, outcomes: Outcomes, known: Intervals) -> PartSummary:
    values = main_metrics(part.records, part.pairing, outcomes, known)
    return PartSummary(values, part.name, request_metrics.num_completed(part.records))


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
