"""Requests under way, from their stamps: when a server was busy, and when its load was at the set level. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.results.records import RequestRecord

Window = tuple[int, int]  # ns on the clock of one segment
Stretch = tuple[int, int]  # segment, block


def busy_intervals(records: Sequence[RequestRecord]) -> dict[int, list[Window]]:
    """By segment, the times with at least one request in flight (failed ones included), in order and apart.

    From sending the first to the last answer: what a client does before, between and after is not in it.
    """
    spans = sorted(
        (record.segment, record.sent_ns, record.last_ns)
        for record in records
        if record.sent_ns is not None and record.last_ns is not None
    )
    busy: dict[int, list[Window]] = {}
    for segment, start, end in spans:
        intervals = busy.setdefault(segment, [])
        if intervals and start <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(end, intervals[-1][1]))
        else:
            intervals.append((start, end))
    return busy


def steady_windows(records: Sequence[RequestRecord], concurrency: int) -> dict[Stretch, Window]:
    """Of every stretch of load in which so many requests were in flight at once: from the moment that was first so
    to the moment it was last so.

    A request that ends as another is sent makes way for it: the level is reached only by requests that overlap.
    """
    changes: dict[Stretch, list[tuple[int, int]]] = {}
    for record in records:
        if record.sent_ns is not None and record.last_ns is not None:
            stretch = changes.setdefault((record.segment, record.block), [])
            stretch += [(record.sent_ns, 1), (record.last_ns, -1)]
    found = {stretch: _time_at_level(sorted(moments), concurrency) for stretch, moments in changes.items()}
    return {stretch: window for stretch, window in found.items() if window is not None}


def _time_at_level(changes: Sequence[tuple[int, int]], level: int) -> Window | None:
    """Args: (moment, +1 or -1) in order, ends before beginnings of the same moment."""
    reached = left = None
    in_flight = 0
    for moment, change in changes:
        if change < 0 and in_flight == level:
            left = moment
        in_flight += change
        if change > 0 and in_flight == level and reached is None:
            reached = moment
    return None if reached is None or left is None else (reached, left)
