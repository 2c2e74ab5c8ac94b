"""Requests as columns: one array per field instead of one object per request, so that a formula is one pass in C.

A number that is not known stays unknown in every sum, difference and ratio that it enters, as None does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from operator import attrgetter
from typing import Any, overload

import numpy
from numpy.typing import NDArray

from dflash.errors import UsageError
from dflash.results.records import RequestRecord

Mask = NDArray[numpy.bool_]
Rows = NDArray[Any]  # a mask, or the places to take
RequestKey = tuple[str, str, int, int]  # cell, prompt, turn, repeat


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One number of each request."""

    values: NDArray[Any]  # [requests], int64 or float64; means nothing where it is not known
    known: Mask  # [requests]

    def __len__(self) -> int:
        return len(self.values)

    def __add__(self, other: Column) -> Column:
        return Column(self.values + other.values, self.known & other.known)

    def __sub__(self, other: Column) -> Column:
        return Column(self.values - other.values, self.known & other.known)

    def __truediv__(self, other: Column | float) -> Column:
        """Not known where the divisor is zero."""
        if not isinstance(other, Column):
            return Column(self.values / other, self.known)
        known = self.known & other.known & (other.values != 0)
        return Column(self.values / numpy.where(known, other.values, 1), known)

    def plus(self, number: int) -> Column:
        return Column(self.values + number, self.known)

    def where(self, mask: Mask) -> Column:
        """Known of these requests only."""
        return Column(self.values, self.known & mask)

    def times(self, number: int) -> Column:
        return Column(self.values * number, self.known)

    def or_else(self, other: Column) -> Column:
        """With the other's number where it is not known."""
        return Column(numpy.where(self.known, self.values, other.values), self.known | other.known)

    def where_not_zero(self) -> Column:
        return self.where(self.values != 0)

    def filled(self, number: int) -> Column:
        """With `number` where it is not known."""
        return Column(numpy.where(self.known, self.values, number), numpy.ones(len(self), dtype=bool))

    def take(self, rows: Rows) -> Column:
        return Column(self.values[rows], self.known[rows])

    def numbers(self) -> NDArray[Any]:
        """The known ones, in order."""
        return self.values if self.known.all() else self.values[self.known]

    def total(self) -> int:
        """Sum of the known ones, of a column of integers."""
        return int(self.numbers().sum())

    def only(self) -> Any:
        """The number of a single request; None where it is not known."""
        return self.values[0].item() if self.known[0] else None


@dataclass(frozen=True, slots=True, eq=False)
class HistogramColumn:
    """One histogram of each request, end to end."""

    counts: NDArray[numpy.int64]  # [bars of all requests]
    num_bars: NDArray[numpy.int64]  # [requests]; 0 where it is not known
    known: Mask  # [requests]

    @property
    def bars(self) -> NDArray[numpy.int64]:
        """[bars of all requests]: which bar of its request each count is, from 0."""
        ends = numpy.cumsum(self.num_bars)
        return numpy.arange(len(self.counts)) - numpy.repeat(ends - self.num_bars, self.num_bars)

    def total(self, mask: Mask) -> NDArray[numpy.int64]:
        """[longest histogram]: the sum over the requests of a mask, bar by bar."""
        bars = numpy.repeat(mask, self.num_bars)
        width = int(self.num_bars[mask].max(initial=0))
        total = numpy.bincount(self.bars[bars], weights=self.counts[bars], minlength=width)
        return total.astype(numpy.int64)

    def sums(self, weights: NDArray[numpy.int64] | int = 1) -> Column:
        """Of each request, the sum of its counts, each times `weights` [bars of all requests]."""
        before = numpy.concatenate([[0], numpy.cumsum(self.counts * weights)])
        ends = numpy.cumsum(self.num_bars)
        return Column(before[ends] - before[ends - self.num_bars], self.known)

    def take(self, rows: Rows) -> HistogramColumn:
        num_bars, known = self.num_bars[rows], self.known[rows]
        starts = (numpy.cumsum(self.num_bars) - self.num_bars)[rows]
        shifts = starts - (numpy.cumsum(num_bars) - num_bars)
        places = numpy.arange(int(num_bars.sum())) + numpy.repeat(shifts, num_bars)
        return HistogramColumn(self.counts[places], num_bars, known)


_NUM_LOOKED_UP = 4  # mappings of which a table keeps what it found
_ALL_FIELDS = attrgetter(*(item.name for item in fields(RequestRecord)))


class RequestTable(Sequence[RequestRecord]):
    """Requests of which every field can be had as a column. A column is read when it is first asked for, and kept."""

    def __init__(self, records: Sequence[RequestRecord]) -> None:
        self._records: Sequence[RequestRecord] | None = records
        self._lines: Sequence[Any] = records  # what columns are read from: they have the fields of a record
        self._whole: tuple[RequestTable, Rows] | None = None  # what this one was taken from
        self._num_records = len(records)
        self._columns: dict[str, Any] = {}
        self._looked_up: dict[int, tuple[Mapping[RequestKey, Any], NDArray[Any]]] = {}  # the last ones

    def __len__(self) -> int:
        return self._num_records

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(self.records)

    @overload
    def __getitem__(self, place: int) -> RequestRecord: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[RequestRecord]: ...
    def __getitem__(self, place: int | slice) -> RequestRecord | Sequence[RequestRecord]:
        if self._records is not None or isinstance(place, slice):
            return self.records[place]
        if self._whole is None:
            return RequestRecord(*_ALL_FIELDS(self._lines[place]))
        whole, rows = self._whole
        return whole[int(rows[place])]

    @classmethod
    def of_lines(cls, lines: Sequence[Any]) -> RequestTable:
        """Requests of which the fields are known; the records are made when one is first looked at."""
        table = cls(())
        table._records, table._lines, table._num_records = None, lines, len(lines)
        return table

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def records(self) -> Sequence[RequestRecord]:
        """The requests one by one."""
        if self._records is None:
            if self._whole is None:
                self._records = tuple(RequestRecord(*_ALL_FIELDS(line)) for line in self._lines)
            else:
                whole, rows = self._whole
                self._records = tuple(whole[row] for row in rows.tolist())
        return self._records

    def take(self, rows: Rows) -> RequestTable:
        """Some of the requests: those of a mask, or those at these places."""
        places = numpy.flatnonzero(rows) if rows.dtype == bool else rows
        table = RequestTable(())
        table._records, table._num_records = None, len(places)
        # columns are taken from where they are read
        table._whole = (self, places) if self._whole is None else (self._whole[0], self._whole[1][places])
        return table

    def integers(self, name: str) -> Column:
        """A field that holds an integer or None."""
        column: Column = self._column(name, _integers)
        return column

    def texts(self, name: str) -> NDArray[Any]:
        """[requests]: a field that holds a text or None."""
        texts: NDArray[Any] = self._column(name, _objects)
        return texts

    def histograms(self, name: str) -> HistogramColumn:
        """A field that holds a tuple of counts or None."""
        column: HistogramColumn = self._column(name, _histograms)
        return column

    def histogram_of_completed(self, name: str) -> NDArray[numpy.int64]:
        """[longest histogram]: the sum over the completed requests, bar by bar."""
        key = f"{name} of completed"
        if key not in self._columns:
            self._columns[key] = self.histograms(name).total(self.completed)
        total: NDArray[numpy.int64] = self._columns[key]
        return total

    @property
    def completed(self) -> Mask:
        """[requests]: which ended by a stop token or at their limit."""
        if "completed" not in self._columns:
            if self._whole is None:
                reasons = self.texts("finish_reason")
                self._columns["completed"] = (reasons == "stop") | (reasons == "length")
            else:
                whole, rows = self._whole
                self._columns["completed"] = whole.completed[rows]
        mask: Mask = self._columns["completed"]
        return mask

    @property
    def prompts(self) -> tuple[NDArray[numpy.int64], Sequence[str]]:
        """[requests]: the number of each one's prompt; and the ids of prompts by number, which a table shares with
        what it was taken from.
        """
        if "prompts" not in self._columns:
            if self._whole is None:
                numbers: defaultdict[str, int] = defaultdict()
                numbers.default_factory = numbers.__len__  # the next number
                codes = list(map(numbers.__getitem__, self.texts("prompt_id").tolist()))
                self._columns["prompts"] = (numpy.array(codes, dtype=numpy.int64), tuple(numbers))
            else:
                whole, rows = self._whole
                all_codes, prompt_ids = whole.prompts
                self._columns["prompts"] = (all_codes[rows], prompt_ids)
        found: tuple[NDArray[numpy.int64], Sequence[str]] = self._columns["prompts"]
        return found

    @property
    def num_prompts(self) -> int:
        """How many different prompts the requests have."""
        return len(numpy.unique(self.prompts[0]))

    @property
    def keys(self) -> list[RequestKey]:
        """Cell, prompt, turn and repeat of each."""
        if "keys" not in self._columns:
            fields = [self.texts(name).tolist() for name in ("cell_id", "prompt_id")]
            fields += [self.integers(name).values.tolist() for name in ("turn", "repeat")]
            self._columns["keys"] = list(zip(*fields, strict=True))
        keys: list[RequestKey] = self._columns["keys"]
        return keys

    def look_up(self, known: Mapping[RequestKey, Any]) -> NDArray[Any]:
        """[requests]: what is known of each by its key; None: nothing."""
        if not known:
            return numpy.full(len(self), None, dtype=object)
        mapping, found = self._looked_up.pop(id(known), (None, None))
        if found is None or mapping is not known:
            if self._whole is None:
                found = _objects([known.get(key) for key in self.keys])
            else:
                whole, rows = self._whole
                found = whole.look_up(known)[rows]
        self._looked_up[id(known)] = (known, found)
        if len(self._looked_up) > _NUM_LOOKED_UP:
            del self._looked_up[next(iter(self._looked_up))]
        return found

    def _column(self, name: str, read: Any) -> Any:
        if name not in self._columns:
            if self._whole is None:
                self._columns[name] = read(list(map(attrgetter(name), self._lines)), name)
            else:
                whole, rows = self._whole
                column = whole._column(name, read)
                self._columns[name] = column[rows] if isinstance(column, numpy.ndarray) else column.take(rows)
        return self._columns[name]


def first_come(codes: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """The different codes, in the order in which they first come.

    Args:
        codes: 0 and above, and not far above the number of codes.
    """
    first = numpy.full(int(codes.max(initial=-1)) + 1, len(codes))
    first[codes[::-1]] = numpy.arange(len(codes))[::-1]  # the first of equal codes is written last
    different = numpy.flatnonzero(first < len(codes))
    order: NDArray[numpy.int64] = different[numpy.argsort(first[different], kind="stable")]
    return order


def counted(values: NDArray[Any]) -> dict[Any, int]:
    """How often each value comes, in the order in which they first come."""
    return dict(Counter(values.tolist()))


def prompt_codes(
    first: RequestTable, second: RequestTable
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """[requests] of each: equal numbers, from 0, for equal prompts, in one table or in both."""
    (codes, names), (other_codes, other_names) = first.prompts, second.prompts
    if names is not other_names:
        numbers = {name: number for number, name in enumerate(names)}
        shared = [numbers.setdefault(name, len(numbers)) for name in other_names]
        other_codes = numpy.array(shared, dtype=numpy.int64)[other_codes]
    return codes, other_codes


def unit_codes(
    first: RequestTable, second: RequestTable
) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """[requests] of each: equal numbers, from 0, for an equal prompt, turn and repeat, in one table or in both."""
    units = numpy.concatenate(prompt_codes(first, second))
    for field in ("turn", "repeat"):
        values = numpy.concatenate([table.integers(field).values for table in (first, second)])
        units = _dense(units)
        places = _dense(values)
        units = units * (int(places.max(initial=0)) + 1) + places
    units = _dense(units)
    return units[: len(first)], units[len(first) :]


def _dense(codes: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """Other numbers for the same codes: from 0, and not far above how many there are."""
    if not len(codes):
        return codes
    lowest, highest = int(codes.min()), int(codes.max())
    if highest - lowest <= 4 * len(codes):
        return codes - lowest
    dense: NDArray[numpy.int64] = numpy.unique(codes, return_inverse=True)[1]
    return dense


def table_of(records: Sequence[RequestRecord]) -> RequestTable:
    """The requests as a table; a table is itself."""
    return records if isinstance(records, RequestTable) else RequestTable(records)


def _integers(values: Sequence[int | None], name: str) -> Column:
    known = numpy.ones(len(values), dtype=bool)
    if None in values:
        known = numpy.array([value is not None for value in values], dtype=bool)
        values = [0 if value is None else value for value in values]
    try:
        return Column(numpy.array(values, dtype=numpy.int64), known)
    except OverflowError:
        largest = max(values, key=lambda value: abs(value or 0))
        raise UsageError(
            f"{name} of a request is {largest}, which no clock and no counter gives",
            "the file was damaged or edited: restore it, or delete that line",
        ) from None


def _objects(values: Sequence[Any], _: str = "") -> NDArray[Any]:
    array = numpy.empty(len(values), dtype=object)
    array[:] = values
    return array


def _histograms(values: Sequence[tuple[int, ...] | None], _: str) -> HistogramColumn:
    known = numpy.array([value is not None for value in values], dtype=bool)
    histograms = [value for value in values if value is not None]
    num_bars = numpy.zeros(len(values), dtype=numpy.int64)
    num_bars[known] = list(map(len, histograms))
    counts = numpy.array(list(chain.from_iterable(histograms)), dtype=numpy.int64)
    return HistogramColumn(counts, num_bars, known)
