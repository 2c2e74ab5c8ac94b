"""What a server counted for one cell, beside the sum of what our own requests say of themselves.

One formula, one place: acceptance from counters is computed here, acceptance from requests in
`acceptance_metrics.py`. Neither stands for the other, and both are shown with their source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy
from numpy.typing import NDArray

from dflash.results.columns import RequestTable, table_of
from dflash.results.in_flight import Stretch
from dflash.results.records import PrefixCacheState, RequestRecord, WindowRecord
from dflash.results.request_metrics import num_completed

CountersVerdict = Literal[
    "reconciled",  # equal to what our own requests make
    "contaminated",  # more than ours: someone else used the server
    "too_low",  # fewer than ours: counted anew in between, or wrongly
    "unlike",  # tokens and requests are ours, drafts are not what the requests say
    "not_checkable",  # some requests did not complete, or nothing can be compared
    "unsettled",
    "reset",
    "unreadable",
    "missing",
]
# What a reader must know first stands first; of several stretches of load the first that applies is the cell's.
_WORST_FIRST: tuple[CountersVerdict, ...] = (
    "reset",
    "contaminated",
    "too_low",
    "unlike",
    "unreadable",
    "unsettled",
    "not_checkable",
    "missing",
    "reconciled",
)
_KNOWN = ("settled", "unsettled")
# Somebody else's counts may be in them, or some of ours are missing: they are shown with this word, and nothing is
# concluded from them.
_DISTRUSTED: tuple[CountersVerdict, ...] = ("contaminated", "too_low", "unlike", "unsettled", "reset")

# Counter -> the field of a request that sums to it; None: requests are counted.
COMPARED: Mapping[str, str | None] = {
    "num_generation_tokens": "num_output_tokens",
    "num_requests": None,
    "num_drafts": "num_verify_steps",
    "num_draft_tokens": "num_draft_tokens",
    "num_accepted_tokens": "num_accepted_tokens",
}
COUNTER_WORDS = {
    "num_generation_tokens": "generation tokens",
    "num_requests": "requests",
    "num_drafts": "drafts",
    "num_draft_tokens": "draft tokens",
    "num_accepted_tokens": "accepted tokens",
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One counter that is not the sum over our own requests, in the stretches where it is not."""

    name: str
    server: int
    own: int


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """One cell's stretches of load."""

    windows: tuple[WindowRecord, ...]  # those that the cell's records belong to
    verdict: CountersVerdict
    reasons: tuple[str, ...] = ()  # of the engine or the client, where counters are not to be had
    mismatches: tuple[Mismatch, ...] = ()
    own: Mapping[str, int] = field(default_factory=dict)  # counter -> sum over our own requests there
    num_not_completed: int = 0  # requests in those stretches that failed or were cancelled
    num_covered: int = 0  # completed requests in stretches whose counters are known
    num_completed: int = 0

    @property
    def known(self) -> tuple[WindowRecord, ...]:
        """The stretches whose counters were read."""
        return tuple(window for window in self.windows if window.counters in _KNOWN)

    @property
    def is_distrusted(self) -> bool:
        """Whether nothing may be concluded from what was counted."""
        return self.verdict in _DISTRUSTED

    def total(self, name: str) -> int | None:
        """Sum of one counter over the stretches that have it."""
        sums = self._sums(name)
        return None if sums is None else sums[0]

    def trusted_total(self, name: str) -> int | None:
        """The same where something may be concluded from it."""
        return None if self.is_distrusted else self.total(name)

    def acceptance_length_untrimmed(self) -> float | None:
        """1 + accepted / drafts, cut tokens included; None without drafts."""
        sums = self._sums("num_accepted_tokens", "num_drafts")
        return 1 + sums[0] / sums[1] if sums is not None and sums[1] else None

    def acceptance_length(self) -> float | None:
        """(generation tokens - requests) / drafts, of engines that count verify calls and no accepted tokens:

        Delivered. Such engines (SGLang) verify in every step; where accepted tokens are counted too it is left out.
        """
        if self.total("num_accepted_tokens") is not None:
            return None
        sums = self._sums("num_generation_tokens", "num_requests", "num_drafts")
        return (sums[0] - sums[1]) / sums[2] if sums is not None and sums[2] else None

    def acceptance_rate(self) -> float | None:
        """accepted / draft tokens."""
        sums = self._sums("num_accepted_tokens", "num_draft_tokens")
        return sums[0] / sums[1] if sums is not None and sums[1] else None

    def acceptance_rate_per_position(self) -> tuple[float, ...] | None:
        """Joint: [i-1] = drafts that had position i accepted / drafts."""
        known = [
            (window.num_accepted_tokens_per_position, window.num_drafts)
            for window in self.known
            if window.num_accepted_tokens_per_position is not None and window.num_drafts is not None
        ]
        num_drafts = sum(drafts for _, drafts in known)
        if not num_drafts:
            return None
        width = max(len(counts) for counts, _ in known)
        sums = [sum(counts[i] for counts, _ in known if i < len(counts)) for i in range(width)]
        return tuple(count / num_drafts for count in sums)

    @property
    def prefix_cache(self) -> PrefixCacheState:
        """Of the server's prefix cache before the stretches; not known where one of them is not."""
        states = {window.prefix_cache for window in self.windows}
        return "unknown" if "unknown" in states or not states else "reset" if "reset" in states else "off"

    def loop_lag_ns(self) -> tuple[int | None, int | None]:
        """How late this process's event loop woke up: 99th percentile of the worst stretch, and the most."""
        p99s = [window.loop_lag_p99_ns for window in self.windows if window.loop_lag_p99_ns is not None]
        most = [window.loop_lag_max_ns for window in self.windows if window.loop_lag_max_ns is not None]
        return max(p99s, default=None), max(most, default=None)

    def _sums(self, *names: str) -> tuple[int, ...] | None:
        """Sums of counters over the stretches that have all of them."""
        rows = [[getattr(window, name) for name in names] for window in self.known]
        whole = [row for row in rows if None not in row]
        return tuple(map(sum, zip(*whole, strict=True))) if whole else None


def count_server(records: Sequence[RequestRecord], windows: Iterable[WindowRecord]) -> ServerCounts:
    """Sum what a server counted for one cell, and compare it stretch by stretch with the cell's own requests.

    Args:
        records: of the last attempts. A stretch that has none left is not looked at.
        windows: of this cell.
    """
    requests = table_of(records)
    members = _by_stretch(requests)
    latest = {(window.segment, window.block): window for window in windows}
    used = tuple(window for stretch, window in sorted(latest.items()) if stretch in members)
    last_segment = max((segment for segment, _ in members), default=0)
    checks = []
    for window in used:
        seen = members[(window.segment, window.block)][1]
        own = window.num_own_requests
        is_superseded = window.segment < last_segment if own is None else len(seen) < own
        checks.append(_check(window, seen, is_superseded))
    counted = [members[(window.segment, window.block)] for window in used if window.counters in _KNOWN]
    known = requests.take(numpy.concatenate([numpy.zeros(0, dtype=int), *(places for places, _ in counted)]))
    verdicts = {verdict for verdict, _ in checks} or {"missing"}
    return ServerCounts(
        windows=used,
        verdict=next(verdict for verdict in _WORST_FIRST if verdict in verdicts),
        reasons=tuple(dict.fromkeys(window.counters_reason for window in used if window.counters_reason)),
        mismatches=_summed([mismatch for _, mismatches in checks for mismatch in mismatches]),
        own={
            name: total for name in COMPARED if len(known) and (total := own_total(known, name)) is not None
        },
        num_not_completed=len(known) - num_completed(known),
        num_covered=num_completed(known),
        num_completed=num_completed(requests),
    )


def own_total(records: Sequence[RequestRecord], name: str) -> int | None:
    """What our own completed requests say a counter should be; None where one of them does not tell."""
    field, requests = COMPARED[name], table_of(records)
    if field is None:
        return num_completed(requests)
    column = requests.integers(field).take(requests.completed)
    return column.total() if column.known.all() else None


def cached_prompt_share(records: Sequence[RequestRecord]) -> float | None:
    """sum(cached prompt tokens) / sum(prompt tokens) over completed requests; None where an engine does not tell it
    of every one of them, or tells of more than the prompt holds.
    """
    requests = table_of(records)
    cached, prompt = (
        requests.integers(name).take(requests.completed)
        for name in ("num_cached_tokens", "num_prompt_tokens")
    )
    if not len(prompt) or not (cached.known & prompt.known & (cached.values <= prompt.values)).all():
        return None
    return cached.total() / prompt.total() if prompt.total() else None


CacheMark = Literal["cached", "cache_unknown"]


def cache_mark(share: float | None, prefix_cache: PrefixCacheState | None) -> CacheMark | None:
    """What must stand beside a TTFT: prompts came from the prefix cache, or nobody knows whether they did.

    Args:
        share: `cached_prompt_share`.
        prefix_cache: None in process, where there is none.
    """
    if share:
        return "cached"
    return "cache_unknown" if share is None and prefix_cache == "unknown" else None


def _by_stretch(requests: RequestTable) -> dict[Stretch, tuple[NDArray[numpy.int64], RequestTable]]:
    """The places of the requests of every stretch of load, and those requests."""
    segments, blocks = requests.integers("segment").values, requests.integers("block").values
    members = {}
    for segment, block in dict.fromkeys(zip(segments.tolist(), blocks.tolist(), strict=True)):
        places = numpy.flatnonzero((segments == segment) & (blocks == block))
        members[(segment, block)] = (places, requests.take(places))
    return members


def _check(
    window: WindowRecord, members: Sequence[RequestRecord], superseded: bool
) -> tuple[CountersVerdict, list[Mismatch]]:
    """Identity 6 for one stretch of load.

    Args:
        superseded: a later process ran some of its requests again, which are no longer seen; or went on with the
            cell and may have done so, where it is not known how many requests the stretch had.
    """
    if window.counters == "reset" or window.counters == "missing" or window.counters == "unreadable":
        return window.counters, []
    pairs = [
        (name, server, own)
        for name in COMPARED
        if (server := getattr(window, name)) is not None and (own := own_total(members, name)) is not None
    ]
    mismatches = [Mismatch(name, server, own) for name, server, own in pairs if server != own]
    if any(mismatch.server < mismatch.own for mismatch in mismatches):
        return "too_low", mismatches
    if not pairs or num_completed(members) < len(members):
        return "not_checkable", mismatches
    if not mismatches:
        return ("reconciled" if window.counters == "settled" else "unsettled"), []
    if superseded:
        return "not_checkable", mismatches
    wrong = {mismatch.name for mismatch in mismatches}
    ours = {name for name, _, _ in pairs} - wrong
    is_ours = {"num_generation_tokens", "num_requests"} & ours and not wrong & {
        "num_generation_tokens",
        "num_requests",
    }
    return ("unlike" if is_ours else "contaminated"), mismatches


def _summed(mismatches: Sequence[Mismatch]) -> tuple[Mismatch, ...]:
    return tuple(
        Mismatch(
            name,
            sum(item.server for item in mismatches if item.name == name),
            sum(item.own for item in mismatches if item.name == name),
        )
        for name in dict.fromkeys(item.name for item in mismatches)
    )
