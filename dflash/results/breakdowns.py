"""The main numbers of a cell by part: by category, by length of the prompt, by turn. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
from numpy.typing import NDArray

from dflash.results import request_metrics
from dflash.results.cell_metrics import (
    Intervals,
    arm_metrics,
    intervals_of,
    pair_metrics,
    pooled_arm_metrics,
    pooled_pair_metrics,
)
from dflash.results.columns import RequestTable, table_of, unit_codes
from dflash.results.measured import Measured
from dflash.results.paired_metrics import Pairing, pair_units
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


@dataclass(frozen=True, slots=True)
class PartSummary(Measured):
    """The metrics over the requests of one part."""

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


def break_down(arms: TwoArms) -> Breakdowns:
    """A cell by category, and by length and turn where its requests have several."""
    records, baseline = table_of(arms.records), table_of(arms.baseline)
    lengths, baseline_lengths = _length_buckets(records, baseline)
    categories = records.texts("category"), baseline.texts("category")
    turns = records.integers("turn").values, baseline.integers("turn").values
    arms = replace(arms, records=records, baseline=baseline)
    found = {name for name in lengths.tolist() if name is not None}
    buckets = [name for name in PROMPT_LENGTH_BUCKETS if name in found]
    numbers = sorted(set(turns[0].tolist()))
    return Breakdowns(
        categories=_parts(
            arms, sorted({name for name in categories[0].tolist() if name is not None}), *categories
        ),
        prompt_lengths=_parts(arms, buckets, lengths, baseline_lengths) if len(buckets) > 1 else (),
        turns=_parts(arms, numbers, *turns) if len(numbers) > 1 else (),
        num_unknown_lengths=int((records.completed & (lengths == None)).sum()),  # noqa: E711 - of each element
    )


def _parts(
    arms: TwoArms, names: Sequence[str | int], part_of: NDArray[Any], part_of_baseline: NDArray[Any]
) -> tuple[PartSummary, ...]:
    """Args: `part_of` [requests], the part each belongs to, in either arm; None: to none."""
    records, baseline = table_of(arms.records), table_of(arms.baseline)
    refused = arms.pairing is None or arms.pairing.is_refused
    parts = []
    for name in names:
        own, other = records.take(part_of == name), baseline.take(part_of_baseline == name)
        pairing = None if refused else pair_units(other, own)
        parts.append((str(name), replace(arms, records=own, baseline=other, pairing=pairing)))
    pooled = [
        pooled_arm_metrics(part.records, part.outcomes) | pooled_pair_metrics(part.cell, part.pairing)
        for _, part in parts
    ]
    return tuple(
        _part(name, part, known) for (name, part), known in zip(parts, intervals_of(pooled), strict=True)
    )


def _part(name: str, arms: TwoArms, known: Intervals) -> PartSummary:
    values = arm_metrics(arms.cell, arms.records, arms.outcomes, known)
    values |= pair_metrics(arms.cell, arms.pairing, arms.baseline, arms.records, arms.outcomes, known)
    return PartSummary(values, name, request_metrics.num_completed(arms.records))


def _length_buckets(records: RequestTable, baseline: RequestTable) -> tuple[NDArray[Any], NDArray[Any]]:
    """[requests] of each arm: the bucket of the prompt's length, where either arm knows it: both arms of a request are
    in one bucket.
    """
    units = unit_codes(records, baseline)
    num_units = max((int(codes.max()) + 1 for codes in units if len(codes)), default=0)
    buckets = numpy.full(num_units, None, dtype=object)
    names = numpy.array(PROMPT_LENGTH_BUCKETS, dtype=object)
    for codes, table in ((units[1], baseline), (units[0], records)):
        lengths = table.integers("num_prompt_tokens")
        places = numpy.searchsorted(PROMPT_LENGTH_STARTS, lengths.numbers(), side="right") - 1
        buckets[codes[lengths.known]] = names[places]
    return buckets[units[0]], buckets[units[1]]
