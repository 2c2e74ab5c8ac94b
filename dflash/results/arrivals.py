"""When the tokens of one cell came, from its chunks: inter-chunk latency, peak and steady-state throughput.

Only completed requests enter. A chunk is not a token: every chunk counts with the tokens that it holds, at the
moment of its arrival, and where those are not known of every request there is no peak and no steady state.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from dflash.results.columns import table_of
from dflash.results.in_flight import Stretch, Window, busy_spans, steady_windows
from dflash.results.records import Cell, ChunkRecord, RequestRecord
from dflash.results.request_metrics import NS_PER_S, Records, completed

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

PEAK_WINDOW_NS = NS_PER_S
MIN_STEADY_NS = NS_PER_S


@dataclass(slots=True)
class StretchArrivals:
    """The chunks of one stretch of load, in no order; one entry a chunk."""

    times_ns: array[int] = field(default_factory=lambda: array("q"))
    num_tokens: array[int] = field(default_factory=lambda: array("q"))
    num_decode_tokens: array[int] = field(default_factory=lambda: array("q"))  # 0 for a first chunk

    def add(
        self, times_ns: Iterable[int], num_tokens: Iterable[int], num_decode_tokens: Iterable[int]
    ) -> None:
        self.times_ns.extend(times_ns)
        self.num_tokens.extend(num_tokens)
        self.num_decode_tokens.extend(num_decode_tokens)


@dataclass(slots=True)
class Arrivals:
    """The chunks of one cell's completed requests."""

    gaps_ns: array[int] = field(default_factory=lambda: array("q"))  # between token-bearing chunks
    stretches: dict[Stretch, StretchArrivals] = field(default_factory=dict)
    num_sized: int = 0  # requests whose every chunk has a known number of tokens
    num_late_tokens: int = 0  # that the usage counts and no chunk held: they came with the end
    num_contradicted: int = 0  # requests whose chunks hold more tokens than their usage counts

    def add(self, record: RequestRecord, chunk: ChunkRecord) -> None:
        """Take the chunks of one completed request."""
        self.gaps_ns.extend(chunk.gaps_ns)
        total, first_ns, last_ns = record.num_output_tokens, record.first_ns, record.last_ns
        if total is None or first_ns is None or last_ns is None or not chunk.num_tokens:
            return
        num_late = total - sum(chunk.num_tokens)
        if num_late < 0 or len(chunk.num_tokens) != len(chunk.gaps_ns) + 1:
            self.num_contradicted += 1
            return
        stretch = self.stretches.setdefault((record.segment, record.block), StretchArrivals())
        stretch.add(accumulate(chunk.gaps_ns, initial=first_ns), chunk.num_tokens, (0, *chunk.num_tokens[1:]))
        if num_late:
            stretch.add((last_ns,), (num_late,), (num_late,))
        self.num_late_tokens += num_late
        self.num_sized += 1


def collect_arrivals(
    records: Mapping[str, Sequence[RequestRecord]], chunks: Iterable[ChunkRecord]
) -> dict[str, Arrivals]:
    """The chunks of every cell, each read once.

    Args:
        records: by cell id.
        chunks: of the same attempts.
    """
    known = {
        (record.cell_id, *record.unit): record
        for members in records.values()
        for record in completed(members)
    }
    arrivals = {cell_id: Arrivals() for cell_id in records}
    for chunk in chunks:
        record = known.get((chunk.cell_id, chunk.prompt_id, chunk.turn, chunk.repeat))
        if record is not None:
            arrivals[record.cell_id].add(record, chunk)
    return arrivals


def icl_s(arrivals: Arrivals) -> float | None:
    """Inter-chunk latency: mean gap between token-bearing chunks. A chunk may hold several tokens: this is no ITL."""
    gaps = arrivals.gaps_ns
    return sum(gaps) / len(gaps) / NS_PER_S if gaps else None


def icl_percentiles_s(arrivals: Arrivals, percents: Sequence[int]) -> list[float | None]:
    """Percentiles over all gaps between token-bearing chunks, of all requests together; linear between ranks."""
    import numpy

    if not arrivals.gaps_ns:
        return [None] * len(percents)
    values = numpy.percentile(numpy.asarray(arrivals.gaps_ns, dtype=numpy.int64), percents)
    return [float(value) / NS_PER_S for value in values]


def peak_output_tok_s(records: Records, arrivals: Arrivals) -> float | None:
    """Most tokens that arrived in any 1 s of busy time, [t, t + 1 s): every chunk counts with its tokens.

    Busy time: at least one request in flight, idle time between them cut out. None where no segment was busy for 1 s.
    """
    import numpy

    if not _is_complete(records, arrivals):
        return None
    peaks = []
    for segment, (starts, ends) in busy_spans(records).items():
        lengths = ends - starts
        if lengths.sum() < PEAK_WINDOW_NS:
            continue
        times, tokens = _of_segment(arrivals, segment)
        before = numpy.concatenate([[0], numpy.cumsum(lengths)[:-1]])  # busy time up to each interval
        place = numpy.searchsorted(starts, times, side="right") - 1
        busy = before[place] + numpy.minimum(times - starts[place], lengths[place])
        order = numpy.argsort(busy, kind="stable")
        peaks.append(_most_in_window(busy[order], tokens[order]))
    return max(peaks, default=0) * NS_PER_S / PEAK_WINDOW_NS or None


def least_peak_tok_s(records: Records) -> float | None:
    """Output tokens / number of 1 s windows that cover the busy time: a peak below this was not counted rightly."""
    busy_ns = [int((ends - starts).sum()) for starts, ends in busy_spans(records).values()]
    num_windows = sum(time_ns // PEAK_WINDOW_NS + 1 for time_ns in busy_ns)
    requests = table_of(records)
    tokens = requests.integers("num_output_tokens").where(requests.completed).total()
    return tokens / num_windows if num_windows else None


@dataclass(frozen=True, slots=True)
class SteadyState:
    """What came while the number of requests in flight was at the set level."""

    seconds: float
    output_tok_s: float | None
    decode_tok_s: float | None


def steady_state(cell: Cell, records: Records, arrivals: Arrivals) -> SteadyState | None:
    """Closed loop on a server: from the moment the concurrency is first reached to the moment it is last left.

    steady_output_tok_s: tokens that arrived in that time / that time. steady_decode_tok_s: decode tokens that arrived
    in it / the part of the requests' decode time that lies in it. Summed over the stretches of load.

    None where the level was never reached, or for less than 1 s.
    """
    if not cell.on_server or cell.workload.request_rate is not None:
        return None
    windows = steady_windows(records, cell.workload.concurrency)
    steady_ns = sum(end - start for start, end in windows.values())
    if steady_ns < MIN_STEADY_NS:
        return None
    seconds = steady_ns / NS_PER_S
    if not _is_complete(records, arrivals):
        return SteadyState(seconds, None, None)
    tokens = decode_tokens = 0
    for stretch, window in windows.items():
        arrived = _arrived_in(arrivals.stretches.get(stretch, StretchArrivals()), window)
        tokens, decode_tokens = tokens + arrived[0], decode_tokens + arrived[1]
    decode_ns = sum(_overlap_ns(records, stretch, window) for stretch, window in windows.items())
    decode = decode_tokens / (decode_ns / NS_PER_S) if decode_ns else None
    return SteadyState(seconds, tokens / seconds, decode)


def _is_complete(records: Records, arrivals: Arrivals) -> bool:
    """Whether the chunks of every completed request with a token have known sizes."""
    requests = table_of(records)
    tokens = requests.integers("num_output_tokens")
    num_with_tokens = int((requests.completed & ~(tokens.known & (tokens.values == 0))).sum())
    return 0 < num_with_tokens == arrivals.num_sized


def _of_segment(arrivals: Arrivals, segment: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Times and tokens of all chunks of one process."""
    import numpy

    members = [members for (found, _), members in arrivals.stretches.items() if found == segment]
    empty = numpy.zeros(0, dtype=numpy.int64)
    times = [numpy.asarray(item.times_ns, dtype=numpy.int64) for item in members]
    tokens = [numpy.asarray(item.num_tokens, dtype=numpy.int64) for item in members]
    return numpy.concatenate([empty, *times]), numpy.concatenate([empty, *tokens])


def _most_in_window(times_ns: NDArray[numpy.int64], tokens: NDArray[numpy.int64]) -> int:
    """Most tokens in any window that begins with an arrival; both arrays in the order of time."""
    import numpy

    if not times_ns.size:
        return 0
    total = numpy.concatenate([[0], numpy.cumsum(tokens)])
    ends = numpy.searchsorted(times_ns, times_ns + PEAK_WINDOW_NS, side="left")
    return int((total[ends] - total[:-1]).max())


def _arrived_in(stretch: StretchArrivals, window: Window) -> tuple[int, int]:
    """Tokens, and decode tokens among them, that arrived after the start and up to the end."""
    import numpy

    times = numpy.asarray(stretch.times_ns, dtype=numpy.int64)
    inside = (times > window[0]) & (times <= window[1])
    tokens = numpy.asarray(stretch.num_tokens, dtype=numpy.int64)[inside]
    return int(tokens.sum()), int(numpy.asarray(stretch.num_decode_tokens, dtype=numpy.int64)[inside].sum())


def _overlap_ns(records: Records, stretch: Stretch, window: Window) -> int:
    """How much of the decode time of a stretch's requests lies in the window."""
    requests = table_of(records)
    first, last = requests.integers("first_ns"), requests.integers("last_ns")
    rows = requests.completed & first.known & last.known
    for name, number in zip(("segment", "block"), stretch, strict=True):
        rows = rows & (requests.integers(name).values == number)
    overlaps = last.values[rows].clip(max=window[1]) - first.values[rows].clip(min=window[0])
    return int(overlaps.clip(min=0).sum())
