"""Two arms, request by request: which requests are compared, and why others are not. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy
from numpy.typing import NDArray

from dflash.results.columns import Mask, RequestTable, Rows, counted, first_come, table_of, unit_codes
from dflash.results.records import RequestRecord
from dflash.results.request_metrics import decode_columns

Pair = tuple[RequestRecord, RequestRecord]  # baseline, arm
Unit = tuple[str, int, int]  # prompt, turn, repeat

_UNLIKE = "the prompts differ between the arms"


class Pairs(Sequence[Pair]):
    """Pairs of requests as two tables: row i of both is a pair."""

    def __init__(self, baseline: RequestTable, arm: RequestTable) -> None:
        self.baseline, self.arm = baseline, arm

    def __len__(self) -> int:
        return len(self.arm)

    def __iter__(self) -> Iterator[Pair]:
        return zip(self.baseline, self.arm, strict=True)

    @overload
    def __getitem__(self, place: int) -> Pair: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Pair]: ...
    def __getitem__(self, place: int | slice) -> Pair | Sequence[Pair]:
        if isinstance(place, slice):
            return list(zip(self.baseline[place], self.arm[place], strict=True))
        return self.baseline[place], self.arm[place]

    def take(self, rows: Rows) -> Pairs:
        """Some of the pairs: those of a mask, or those at these places."""
        return Pairs(self.baseline.take(rows), self.arm.take(rows))


def pairs_of(pairs: Sequence[Pair]) -> Pairs:
    """The pairs as tables; such pairs are themselves."""
    if isinstance(pairs, Pairs):
        return pairs
    return Pairs(RequestTable([first for first, _ in pairs]), RequestTable([second for _, second in pairs]))


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two arms, request by request."""

    pairs: Sequence[Pair]  # completed in both arms, a decode token in each
    completed_pairs: Sequence[Pair]  # completed in both arms, one-token outputs included
    left_out: Mapping[str, int]  # why a request is not in `pairs` -> how many
    unlike_prompts: tuple[Unit, ...] = ()  # units whose prompt tokens differ: then nothing is paired
    baseline_fault: str = ""  # why the other arm is no baseline: then nothing is paired

    @property
    def is_refused(self) -> bool:
        return bool(self.unlike_prompts or self.baseline_fault)


def refused_pairing(arm: Sequence[RequestRecord], baseline_fault: str) -> Pairing:
    """Of an arm whose baseline is none.

    Args:
        baseline_fault: why it is none, after "the baseline".
    """
    num_units = len({record.unit for record in arm})
    return Pairing((), (), {f"the baseline {baseline_fault}": num_units}, baseline_fault=baseline_fault)


def pair_units(baseline: Sequence[RequestRecord], arm: Sequence[RequestRecord]) -> Pairing:
    """Pair by prompt, turn and repeat; of a unit that was recorded twice the last record counts.

    Where one unit's prompt digests differ, or its counts of prompt tokens, the two arms did not see the same prompts:
    the whole pairing is refused (`unlike_prompts` is not empty and there are no pairs).
    """
    first, second = table_of(baseline), table_of(arm)
    rows, other_rows = _rows_by_unit(first, second)  # [units]: the place in each arm, -1: it has no such unit
    in_both = (rows >= 0) & (other_rows >= 0)
    both = Pairs(first.take(rows[in_both]), second.take(other_rows[in_both]))
    unlike = both.take(_both_known_and_unlike(both, "prompt_digest") | _unlike_prompt_lengths(both))
    if len(unlike):
        units = tuple((record if record is not None else other).unit for record, other in unlike)
        return Pairing((), (), {_UNLIKE: len(rows)}, units)
    reasons = _reasons_left_out(first, second, rows, other_rows)
    is_completed = both.baseline.completed & both.arm.completed
    is_paired = reasons[in_both] == ""
    return Pairing(
        both.take(is_completed & is_paired), both.take(is_completed), counted(reasons[reasons != ""])
    )


def _rows_by_unit(
    baseline: RequestTable, arm: RequestTable
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Where each unit's last record is in both arms; units in the order of the baseline, then the arm's own."""
    units, other_units = unit_codes(baseline, arm)
    both = numpy.concatenate([units, other_units])
    rows = numpy.full((2, int(both.max(initial=-1)) + 1), -1, dtype=numpy.int64)
    rows[0, units] = numpy.arange(len(units))  # the last of equal units stays
    rows[1, other_units] = numpy.arange(len(other_units))
    order = first_come(both)
    return rows[0, order], rows[1, order]


def _both_known_and_unlike(pairs: Pairs, field: str) -> Mask:
    first, second = pairs.baseline.texts(field), pairs.arm.texts(field)
    unlike: Mask = (first != None) & (second != None) & (first != second)  # noqa: E711 - of each element
    return unlike


def _unlike_prompt_lengths(pairs: Pairs) -> Mask:
    first, second = (arm.integers("num_prompt_tokens") for arm in (pairs.baseline, pairs.arm))
    unlike: Mask = first.known & second.known & (first.values != second.values)
    return unlike


def _reasons_left_out(
    baseline: RequestTable, arm: RequestTable, rows: NDArray[Any], other_rows: NDArray[Any]
) -> NDArray[Any]:
    """[units]: the first reason that applies; empty where the unit is paired."""
    reasons = numpy.full(len(rows), "", dtype=object)
    sides = (("baseline", baseline, rows), ("arm", arm, other_rows))
    for side, table, own in sides:
        _add_reason(reasons, own < 0, f"not run in the {side}")
        failed = table.texts("finish_reason") == "error"
        _add_reason(reasons, _at(failed, own), f"failed in the {side}")
        _add_reason(reasons, _at(~table.completed, own), f"cancelled in the {side}")
    for side, table, own in sides:
        has_token = decode_columns(table)[1].known
        _add_reason(reasons, _at(~has_token, own), f"no decode token in the {side}")
    return reasons


def _at(mask: Mask, rows: NDArray[Any]) -> Mask:
    """The mask at these places; not where there is no place (-1)."""
    found: Mask = numpy.append(mask, False)[rows]
    return found


def _add_reason(reasons: NDArray[Any], mask: Mask, reason: str) -> None:
    reasons[mask & (reasons == "")] = reason
