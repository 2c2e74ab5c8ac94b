"""When the tokens of one cell came, from its chunks: inter-chunk latency, peak and steady-state throughput.

Only completed requests enter. A chunk is not a token: every chunk counts with the tokens that it holds, at the
moment of its arrival, and where those are not known of every request there is no peak and no steady state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy
from numpy.typing import NDArray

from dflash.results.columns import Mask, RequestTable, table_of
from dflash.results.in_flight import Stretch, Window, busy_spans, most_in_block, steady_windows
from dflash.results.records import Cell, ChunkRecord, RequestRecord
from dflash.results.request_metrics import NS_PER_S, Records

Integers = NDArray[numpy.int64]

PEAK_WINDOW_NS = NS_PER_S
MIN_STEADY_NS = NS_PER_S
_CHUNKS_AT_ONCE = 1_000  # lines whose numbers become one array


@dataclass(frozen=True, slots=True, eq=False)
class StretchArrivals:
    """The chunks of one stretch of load, in no order; one entry a chunk."""

    times_ns: Integers
    num_tokens: NDArray[numpy.integer[Any]]
    is_first: Mask  # of its request: its tokens are no decode tokens


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """The chunks of one cell's completed requests."""

    gaps_ns: Integers = field(
        default_factory=lambda: numpy.zeros(0, dtype=numpy.int64)
    )  # between such chunks
    stretches: Mapping[Stretch, StretchArrivals] = field(default_factory=dict)
    num_sized: int = 0  # requests whose every chunk has a known number of tokens
    num_late_tokens: int = 0  # that the usage counts and no chunk held: they came with the end
    num_decode_chunks: int = 0  # those after the first of their request
    num_several: int = 0  # of them: those that hold several tokens
    num_several_unexplained: int = 0  # of these: those of requests whose decode steps are not known
    num_contradicted: int = 0  # requests whose chunks hold more tokens than their usage counts


def collect_arrivals(
    records: Mapping[str, Sequence[RequestRecord]], chunks: Iterable[ChunkRecord]
) -> dict[str, Arrivals]:
    """The chunks of every cell, each read once.

    Args:
        records: by cell id.
        chunks: of the same attempts.
    """
    collected = {cell_id: _Chunks(table_of(members)) for cell_id, members in records.items()}
    for chunk in chunks:
        if chunk.cell_id in collected:
            collected[chunk.cell_id].add(chunk)
    return {cell_id: collected.pop(cell_id).arrivals() for cell_id in tuple(collected)}


class _Chunks:
    """The chunks of one cell while they are read: those of all its requests, end to end."""

    def __init__(self, requests: RequestTable) -> None:
        self._requests = requests
        self._places: dict[tuple[str, int, int], int] | None = None  # of the completed requests
        self._rows: list[int] = []  # whose chunks they are
        self._num_gaps: list[int] = []
        self._num_sizes: list[int] = []
        self._waiting: list[ChunkRecord] = []
        self._gaps_ns: list[Integers] = []
        self._sizes: list[Integers] = []

    def add(self, chunk: ChunkRecord) -> None:
        if self._places is None:
            completed = self._requests.completed.tolist()
            self._places = {key[1:]: row for row, key in enumerate(self._requests.keys) if completed[row]}
        row = self._places.get((chunk.prompt_id, chunk.turn, chunk.repeat))
        if row is not None:
            self._rows.append(row)
            self._num_gaps.append(len(chunk.gaps_ns))
            self._num_sizes.append(len(chunk.num_tokens))
            self._waiting.append(chunk)
            if len(self._waiting) >= _CHUNKS_AT_ONCE:
                self._join()

    def _join(self) -> None:
        """Numbers of many requests are made into an array at once: they are small as that."""
        waiting, self._waiting = self._waiting, []
        gaps_ns = chain.from_iterable(chunk.gaps_ns for chunk in waiting)
        sizes = chain.from_iterable(chunk.num_tokens for chunk in waiting)
        self._gaps_ns.append(numpy.fromiter(gaps_ns, dtype=numpy.int64))
        self._sizes.append(numpy.fromiter(sizes, dtype=numpy.int64))

    def arrivals(self) -> Arrivals:
        """What the chunks of all requests say."""
        if not self._rows:
            return Arrivals()
        self._join()
        rows = numpy.array(self._rows)
        num_gaps, num_sizes = numpy.array(self._num_gaps), numpy.array(self._num_sizes)
        gaps_ns, sizes = numpy.concatenate(self._gaps_ns), numpy.concatenate(self._sizes)
        total, first, last = (
            self._requests.integers(name).take(rows) for name in ("num_output_tokens", "first_ns", "last_ns")
        )
        num_late = total.values - _sums(sizes, num_sizes)
        known = total.known & first.known & last.known & (num_sizes > 0)
        sized = known & (num_late >= 0) & (num_sizes == num_gaps + 1)
        is_late = sized & (num_late > 0)
        times_ns = _chunk_times_ns(
            first.values[sized], gaps_ns[numpy.repeat(sized, num_gaps)], num_sizes[sized]
        )
        late = num_late[is_late]
        num_tokens = numpy.concatenate([sizes[numpy.repeat(sized, num_sizes)], late])
        is_first = numpy.zeros(len(num_tokens), dtype=bool)
        is_first[numpy.cumsum(num_sizes[sized]) - num_sizes[sized]] = True
        chunks = StretchArrivals(
            numpy.concatenate([times_ns, last.values[is_late]]),
            num_tokens.astype(numpy.min_scalar_type(num_tokens.max(initial=0))),
            is_first,
        )
        owners = numpy.concatenate([numpy.repeat(rows[sized], num_sizes[sized]), rows[is_late]])
        is_several = ~is_first & (num_tokens > 1)
        has_steps = self._requests.integers("num_decode_steps").known
        # Without sizes the chunks of a request count as such that hold several where they do so on average.
        is_unsized = total.known & (num_sizes == 0)
        holds_two = is_unsized & (total.values - 1 > 2 * num_gaps)
        return Arrivals(
            gaps_ns=gaps_ns,
            stretches=_by_stretch(self._requests, chunks, owners),
            num_sized=int(sized.sum()),
            num_late_tokens=int(late.sum()),
            num_decode_chunks=int((~is_first).sum() + num_gaps[is_unsized].sum()),
            num_several=int(is_several.sum() + num_gaps[holds_two].sum()),
            num_several_unexplained=int(
                (is_several & ~has_steps[owners]).sum() + num_gaps[holds_two & ~has_steps[rows]].sum()
            ),
            num_contradicted=int((known & ~sized).sum()),
        )


def _sums(values: Integers, lengths: Integers) -> Integers:
    """Sums of parts of so many values that lie end to end."""
    before = numpy.concatenate([[0], numpy.cumsum(values)])
    ends = numpy.cumsum(lengths)
    sums: Integers = before[ends] - before[ends - lengths]
    return sums


def _chunk_times_ns(first_ns: Integers, gaps_ns: Integers, num_chunks: Integers) -> Integers:
    """When each chunk came: the first of a request at `first_ns` [requests], each other a gap after the one before."""
    starts = numpy.cumsum(num_chunks) - num_chunks
    steps_ns = numpy.zeros(int(num_chunks.sum()), dtype=numpy.int64)
    is_first = numpy.zeros(len(steps_ns), dtype=bool)
    is_first[starts] = True
    steps_ns[~is_first] = gaps_ns
    times_ns: Integers = numpy.cumsum(steps_ns)
    times_ns += numpy.repeat(first_ns - times_ns[starts], num_chunks)
    return times_ns


def _by_stretch(
    requests: RequestTable, chunks: StretchArrivals, owners: Integers
) -> dict[Stretch, StretchArrivals]:
    """Args: `owners` [chunks], the row of the request that each belongs to."""
    segments, blocks = (requests.integers(name).values[owners] for name in ("segment", "block"))
    stretches = {}
    for segment in numpy.unique(segments).tolist():
        for block in numpy.unique(blocks[segments == segment]).tolist():
            own = (segments == segment) & (blocks == block)
            stretches[(segment, block)] = StretchArrivals(
                chunks.times_ns[own], chunks.num_tokens[own], chunks.is_first[own]
            )
    return stretches


def icl_s(arrivals: Arrivals) -> float | None:
    """Inter-chunk latency: mean gap between token-bearing chunks. A chunk may hold several tokens: this is no ITL."""
    gaps = arrivals.gaps_ns
    return int(gaps.sum()) / len(gaps) / NS_PER_S if len(gaps) else None


def icl_percentiles_s(arrivals: Arrivals, percents: Sequence[int]) -> list[float | None]:
    """Percentiles over all gaps between token-bearing chunks, of all requests together; linear between ranks."""
    if not len(arrivals.gaps_ns):
        return [None] * len(percents)
    values = numpy.percentile(arrivals.gaps_ns, percents)
    return [float(value) / NS_PER_S for value in values]


def peak_output_tok_s(records: Records, arrivals: Arrivals) -> float | None:
    """Most tokens that arrived in any 1 s of busy time, [t, t + 1 s): every chunk counts with its tokens.

    Busy time: at least one request in flight, idle time between them cut out. None where no segment was busy for 1 s.
    """
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


def why_no_peak(records: Records, arrivals: Arrivals) -> str:
    """Why peak_output_tok_s is None."""
    if not _is_complete(records, arrivals):
        return _UNKNOWN_CHUNKS
    return "no process was busy for 1 s"


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
        if stretch in arrivals.stretches:
            arrived = _arrived_in(arrivals.stretches[stretch], window)
            tokens, decode_tokens = tokens + arrived[0], decode_tokens + arrived[1]
    decode_ns = sum(_overlap_ns(records, stretch, window) for stretch, window in windows.items())
    decode = decode_tokens / (decode_ns / NS_PER_S) if decode_ns else None
    return SteadyState(seconds, tokens / seconds, decode)


def why_no_steady_state(cell: Cell, records: Records, arrivals: Arrivals) -> str:
    """Why steady_output_tok_s is None."""
    if not cell.on_server:
        return "in process one request runs after the other"
    if cell.workload.request_rate is not None:
        return "an open loop has no set number of requests in flight"
    level = cell.workload.concurrency
    windows = steady_windows(records, level).values()
    if not windows:
        in_block = most_in_block(records)
        fewer = f": a block of load held at most {in_block}" if in_block < level else ""
        return f"never were {level} requests in flight at once{fewer}"
    steady_ns = sum(end - start for start, end in windows)
    if steady_ns < MIN_STEADY_NS:
        return f"the load was at its level for {steady_ns / NS_PER_S:.2f} s, below 1 s: it takes more prompts"
    return _UNKNOWN_CHUNKS


_UNKNOWN_CHUNKS = "not every chunk's tokens are known"


def _is_complete(records: Records, arrivals: Arrivals) -> bool:
    """Whether the chunks of every completed request with a token have known sizes."""
    requests = table_of(records)
    tokens = requests.integers("num_output_tokens")
    num_with_tokens = int((requests.completed & ~(tokens.known & (tokens.values == 0))).sum())
    return 0 < num_with_tokens == arrivals.num_sized


def _of_segment(arrivals: Arrivals, segment: int) -> tuple[Integers, Integers]:
    """Times and tokens of all chunks of one process."""
    members = [members for (found, _), members in arrivals.stretches.items() if found == segment]
    empty = numpy.zeros(0, dtype=numpy.int64)
    times, tokens = ([getattr(item, name) for item in members] for name in ("times_ns", "num_tokens"))
    return numpy.concatenate([empty, *times]), numpy.concatenate([empty, *tokens])


def _most_in_window(times_ns: Integers, tokens: Integers) -> int:
    """Most tokens in any window that begins with an arrival; both arrays in the order of time."""
    if not times_ns.size:
        return 0
    total = numpy.concatenate([[0], numpy.cumsum(tokens, dtype=numpy.int64)])
    ends = numpy.searchsorted(times_ns, times_ns + PEAK_WINDOW_NS, side="left")
    return int((total[ends] - total[:-1]).max())


def _arrived_in(stretch: StretchArrivals, window: Window) -> tuple[int, int]:
    """Tokens, and decode tokens among them, that arrived after the start and up to the end."""
    inside = (stretch.times_ns > window[0]) & (stretch.times_ns <= window[1])
    num_tokens = stretch.num_tokens[inside]
    return int(num_tokens.sum()), int(num_tokens[~stretch.is_first[inside]].sum())


def _overlap_ns(records: Records, stretch: Stretch, window: Window) -> int:
    """How much of the decode time of a stretch's requests lies in the window."""
    requests = table_of(records)
    first, last = requests.integers("first_ns"), requests.integers("last_ns")
    rows = requests.completed & first.known & last.known
    for name, number in zip(("segment", "block"), stretch, strict=True):
        rows = rows & (requests.integers(name).values == number)
    overlaps = last.values[rows].clip(max=window[1]) - first.values[rows].clip(min=window[0])
    return int(overlaps.clip(min=0).sum())
