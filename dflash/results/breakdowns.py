"""The main numbers of a cell by part: by category, by length of the prompt, by turn. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash.results import request_metrics
from dflash.results.cell_metrics import arm_metrics, pair_metrics
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

PartOf = Callable[[RequestRecord], "str | None"]  # the part a request belongs to; None: to none


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
    records = arms.records
    lengths = _lengths(arms)

    def bucket(record: RequestRecord) -> str | None:
        length = lengths.get(record.unit)
        return None if length is None else prompt_length_bucket(length)

    def turn(record: RequestRecord) -> str:
        return str(record.turn)

    categories = sorted({record.category for record in records if record.category is not None})
    found = {bucket(record) for record in records}
    buckets = [name for name in PROMPT_LENGTH_BUCKETS if name in found]
    turns = [str(number) for number in sorted({record.turn for record in records})]
    return Breakdowns(
        categories=_parts(arms, categories, lambda record: record.category),
        prompt_lengths=_parts(arms, buckets, bucket) if len(buckets) > 1 else (),
        turns=_parts(arms, turns, turn) if len(turns) > 1 else (),
        num_unknown_lengths=sum(bucket(record) is None for record in request_metrics.completed(records)),
    )


def _parts(arms: TwoArms, names: Sequence[str], part_of: PartOf) -> tuple[PartSummary, ...]:
    return tuple(_part(arms, name, part_of) for name in names)


def _part(arms: TwoArms, name: str, part_of: PartOf) -> PartSummary:
    records = [record for record in arms.records if part_of(record) == name]
    baseline = [record for record in arms.baseline if part_of(record) == name]
    refused = arms.pairing is None or bool(arms.pairing.unlike_prompts)
    pairing = None if refused else pair_units(baseline, records)
    values = arm_metrics(arms.cell, records, arms.outcomes)
    values |= pair_metrics(arms.cell, pairing, baseline, records, arms.outcomes)
    return PartSummary(values, name, len(request_metrics.completed(records)))


def _lengths(arms: TwoArms) -> dict[tuple[str, int, int], int]:
    """Tokens of every prompt that either arm knows: both arms of a request are in one bucket."""
    return {
        record.unit: record.num_prompt_tokens
        for record in (*arms.baseline, *arms.records)
        if record.num_prompt_tokens is not None
    }
