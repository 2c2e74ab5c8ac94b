"""Requests under way, from their stamps: when a server was busy, and when its load was at the set level. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from dflash.results.columns import table_of
from dflash.results.records import RequestRecord

Times = NDArray[numpy.int64]
Spans = tuple[Times, Times]  # starts and ends, ns on the clock of one segment
Window = tuple[int, int]  # ns on the clock of one segment
Stretch = tuple[int, int]  # segment, block


def busy_spans(records: Sequence[RequestRecord]) -> dict[int, Spans]:
    """By segment, the times with at least one request in flight (failed ones included), in order and apart.

    From sending the first to the last answer: what a client does before, between and after is not in it.
    """
    segments, starts, ends, _ = _in_flight(records)
    order = numpy.lexsort((ends, starts, segments))
    spans = {}
    for segment in numpy.unique(segments).tolist():
        own = order[segments[order] == segment]
        start, latest_end = starts[own], numpy.maximum.accumulate(ends[own])
        begins = numpy.flatnonzero(numpy.concatenate([[True], start[1:] > latest_end[:-1]]))
        spans[segment] = (start[begins], latest_end[numpy.append(begins[1:], len(own)) - 1])
    return spans


def busy_intervals(records: Sequence[RequestRecord]) -> dict[int, list[Window]]:
    """`busy_spans` as pairs of start and end."""
    return {
        segment: list(zip(starts.tolist(), ends.tolist(), strict=True))
        for segment, (starts, ends) in busy_spans(records).items()
    }


def load_spans(records: Sequence[RequestRecord]) -> dict[Stretch, Window]:
    """Of every stretch of load, from when its first request was due (sent, where none was due) to the last answer."""
    requests = table_of(records)
    sent, due = requests.integers("sent_ns"), requests.integers("due_ns")
    begun = numpy.where(due.known, due.values, sent.values)[sent.known & requests.integers("last_ns").known]
    segments, _, ends, blocks = _in_flight(requests)
    return {
        (segment, block): (int(begun[own].min()), int(ends[own].max()))
        for segment, block in dict.fromkeys(zip(segments.tolist(), blocks.tolist(), strict=True))
        if (own := (segments == segment) & (blocks == block)).any()
    }


def steady_windows(records: Sequence[RequestRecord], concurrency: int) -> dict[Stretch, Window]:
    """Of every stretch of load in which so many requests were in flight at once: from the moment that was first so
    to the moment it was last so.

    A request that ends as another is sent makes way for it: the level is reached only by requests that overlap.
    """
    segments, starts, ends, blocks = _in_flight(records)
    found = {}
    for segment, block in dict.fromkeys(zip(segments.tolist(), blocks.tolist(), strict=True)):
        own = (segments == segment) & (blocks == block)
        window = _time_at_level(starts[own], ends[own], concurrency)
        if window is not None:
            found[(segment, block)] = window
    return found


def most_in_block(records: Sequence[RequestRecord]) -> int:
    """Requests with both stamps of the stretch of load that has most of them."""
    segments, _, _, blocks = _in_flight(records)
    counts = Counter(zip(segments.tolist(), blocks.tolist(), strict=True))
    return max(counts.values(), default=0)


def _in_flight(records: Sequence[RequestRecord]) -> tuple[Times, Times, Times, Times]:
    """Segment, start, end and block of the requests that have both stamps."""
    requests = table_of(records)
    start, end = requests.integers("sent_ns"), requests.integers("last_ns")
    known = start.known & end.known
    segment, block = requests.integers("segment"), requests.integers("block")
    return segment.values[known], start.values[known], end.values[known], block.values[known]


def _time_at_level(starts: Times, ends: Times, level: int) -> Window | None:
    moments = numpy.concatenate([starts, ends])
    changes = numpy.concatenate([numpy.ones(len(starts), dtype=int), numpy.full(len(ends), -1)])
    order = numpy.lexsort((changes, moments))  # of the same moment, ends before beginnings
    moments, changes = moments[order], changes[order]
    in_flight = numpy.cumsum(changes)
    reached = numpy.flatnonzero((changes > 0) & (in_flight == level))
    left = numpy.flatnonzero((changes < 0) & (in_flight == level - 1))
    if not len(reached) or not len(left):
        return None
    return int(moments[reached[0]]), int(moments[left[-1]])
