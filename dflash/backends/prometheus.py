"""An engine's Prometheus counters before and after a window: what was added in between, or why that is not known.

Counters are summed over their labels (engines, models, streaming or not), but compared series by series: a restart
of one engine must not hide behind the growth of another. A counter that is not there is None, never 0.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from prometheus_client.parser import text_string_to_metric_families

from dflash.backends.sse import one_line
from dflash.errors import RequestError

Labels = frozenset[tuple[str, str]]
Series = Mapping[Labels, float]

QUIET_S = 1.0
MAX_WAIT_S = 10.0
READ_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """One reading of `/metrics`. Names are without `_total`; a gauge and a counter of one name are kept apart."""

    counters: Mapping[str, Series] = field(default_factory=dict)
    gauges: Mapping[str, Series] = field(default_factory=dict)
    started: Mapping[str, Series] = field(
        default_factory=dict
    )  # when each series began, s since 1970 (`_created`)

    def counter(self, name: str) -> float | None:
        """Sum over all labels; None where there is no such counter. `name` may end in `_total`."""
        series = self.counters.get(name.removesuffix("_total"))
        return None if not series else sum(series.values())

    def counter_by(self, name: str, label: str) -> dict[str, float] | None:
        """Sums by the values of one label; series without it are left out."""
        series = self.counters.get(name.removesuffix("_total"))
        if not series:
            return None
        sums: dict[str, float] = {}
        for labels, value in series.items():
            for key in (text for found, text in labels if found == label):
                sums[key] = sums.get(key, 0) + value
        return sums

    def gauge(self, name: str) -> tuple[float, ...] | None:
        """The values of all series, which cannot be summed; None where there is no such gauge."""
        series = self.gauges.get(name)
        return None if not series else tuple(series.values())


@dataclass(frozen=True, slots=True)
class SpecDecodeCounters:
    """What an engine counts, since its start or between two readings. None: it has no such counter."""

    num_drafts: int | None = None  # vLLM: steps that had a draft
    num_draft_tokens: int | None = None  # vLLM
    num_accepted_tokens: int | None = None  # vLLM: tokens cut by a stop or the limit are counted
    num_accepted_tokens_per_position: tuple[int, ...] | None = (
        None  # vLLM: [i] = steps that accepted position i
    )
    num_verify_calls: int | None = None  # SGLang, from 0.5.13 on
    num_generation_tokens: int | None = None  # both
    num_prompt_tokens: int | None = None  # both
    num_requests: int | None = None  # both: finished ones


# field -> the names of its counter, one per engine
COUNTERS: dict[str, tuple[str, ...]] = {
    "num_drafts": ("vllm:spec_decode_num_drafts",),
    "num_draft_tokens": ("vllm:spec_decode_num_draft_tokens",),
    "num_accepted_tokens": ("vllm:spec_decode_num_accepted_tokens",),
    "num_accepted_tokens_per_position": ("vllm:spec_decode_num_accepted_tokens_per_pos",),
    "num_verify_calls": ("sglang:spec_verify_calls",),
    "num_generation_tokens": ("vllm:generation_tokens", "sglang:generation_tokens"),
    "num_prompt_tokens": ("vllm:prompt_tokens", "sglang:prompt_tokens"),
    "num_requests": ("vllm:request_success", "sglang:num_requests"),
}


@dataclass(frozen=True, slots=True)
class CountersDifference:
    """What was added between two readings. After a reset nothing is known."""

    added: SpecDecodeCounters
    reset: tuple[
        str, ...
    ] = ()  # counters that fell, vanished, or began anew: the server was restarted in between
    appeared: tuple[str, ...] = ()  # counters that only the second reading has: what was added is not known

    @property
    def was_reset(self) -> bool:
        return bool(self.reset)


@dataclass(frozen=True, slots=True)
class SettledReading:
    """A reading at which the counters had stood still, or the last one before patience ended."""

    snapshot: MetricsSnapshot
    is_settled: bool
    waited_s: float


def parse_metrics(text: str) -> MetricsSnapshot:
    """Read the Prometheus text format.

    A sample without a declared type is a counter where its name ends in `_total`.

    Raises:
        RequestError: `bad_metrics`: it is not that format, or a counter has no finite value.
    """
    counters: dict[str, dict[Labels, float]] = {}
    gauges: dict[str, dict[Labels, float]] = {}
    started: dict[str, dict[Labels, float]] = {}
    try:
        for kind, name, labels, value in _samples(text):
            if name.endswith("_created"):
                started.setdefault(name.removesuffix("_created"), {})[labels] = value
            elif kind == "gauge":
                gauges.setdefault(name, {})[labels] = value
            elif name.endswith("_total"):
                if not math.isfinite(value) or value < 0:
                    raise RequestError("bad_metrics", f"the counter {name} has the value {value}")
                counters.setdefault(name.removesuffix("_total"), {})[labels] = value
    except (ValueError, KeyError, IndexError) as error:
        raise RequestError("bad_metrics", f"the metrics cannot be read: {one_line(str(error))}") from None
    return MetricsSnapshot(counters, gauges, started)


def spec_decode_counters(snapshot: MetricsSnapshot) -> SpecDecodeCounters:
    """The counters that matter, each summed over its labels.

    Raises:
        RequestError: `bad_metrics`: one has a fraction, or the positions have a gap.
    """
    return _counters_of(snapshot.counters)


def difference(before: MetricsSnapshot, after: MetricsSnapshot) -> CountersDifference:
    """What was added from `before` to `after`.

    A counter that only one reading has gives None. A series that only the second one has began at 0.

    Raises:
        RequestError: as `spec_decode_counters`.
    """
    reset, appeared, added = [], [], {}
    for name in (name for names in COUNTERS.values() for name in names):
        old, new = before.counters.get(name), after.counters.get(name)
        if old is None:
            if new is not None:
                appeared.append(name)
            continue
        if new is None or _has_restarted(old, new) or _has_begun_anew(name, before, after):
            reset.append(name)
            continue
        added[name] = {labels: value - old.get(labels, 0) for labels, value in new.items()}
    counters = SpecDecodeCounters() if reset else _counters_of(added)
    return CountersDifference(counters, tuple(reset), tuple(appeared))


async def read_settled(
    read: Callable[[], Awaitable[MetricsSnapshot]],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    quiet_s: float = QUIET_S,
    max_wait_s: float = MAX_WAIT_S,
    every_s: float = READ_EVERY_S,
) -> SettledReading:
    """Read until the counters that matter have not changed for `quiet_s`, at most for `max_wait_s`.

    Engines publish late and not all counters at once; other metrics (this reading among them) always change.

    Raises:
        RequestError: what `read` raises.
    """
    begun = clock()
    snapshot = await read()
    counters, unchanged_since = spec_decode_counters(snapshot), clock()
    while True:
        now = clock()
        if now - unchanged_since >= quiet_s:
            return SettledReading(snapshot, True, now - begun)
        if now - begun >= max_wait_s:
            return SettledReading(snapshot, False, now - begun)
        await sleep(every_s)
        newer = await read()
        newer_counters = spec_decode_counters(newer)
        if newer_counters != counters:
            unchanged_since = clock()
        snapshot, counters = newer, newer_counters


def _samples(text: str) -> Iterator[tuple[str, str, Labels, float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield family.type, sample.name, frozenset(sample.labels.items()), float(sample.value)


def _counters_of(counters: Mapping[str, Series]) -> SpecDecodeCounters:
    snapshot = MetricsSnapshot(counters)
    found: dict[str, int | tuple[int, ...] | None] = {}
    for counter in fields(SpecDecodeCounters):
        names = [name for name in COUNTERS[counter.name] if name in counters]
        if not names:
            continue
        if counter.name == "num_accepted_tokens_per_position":
            found[counter.name] = _by_position(snapshot.counter_by(names[0], "position"))
        else:
            found[counter.name] = _whole(names[0], snapshot.counter(names[0]))
    return SpecDecodeCounters(**found)  # type: ignore[arg-type]


def _by_position(sums: Mapping[str, float] | None) -> tuple[int, ...] | None:
    if not sums:
        return None
    positions = sorted(sums, key=lambda text: (len(text), text))
    if positions != [str(index) for index in range(len(positions))]:
        raise RequestError("bad_metrics", f"the accepted tokens have the positions {', '.join(positions)}")
    return tuple(_whole("accepted tokens per position", sums[position]) or 0 for position in positions)


def _whole(name: str, value: float | None) -> int | None:
    if value is not None and value != int(value):
        raise RequestError("bad_metrics", f"the counter {name} has the value {value}")
    return None if value is None else int(value)


def _has_restarted(old: Series, new: Series) -> bool:
    return any(labels not in new or new[labels] < value for labels, value in old.items())


def _has_begun_anew(name: str, before: MetricsSnapshot, after: MetricsSnapshot) -> bool:
    """Whether a series has another beginning: a restarted server may have counted past its old value already."""
    old, new = before.started.get(name, {}), after.started.get(name, {})
    return any(new.get(labels, begun) != begun for labels, begun in old.items())
