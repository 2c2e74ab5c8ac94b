"""How much a figure moves from one repeat of a run to the next: an interval beside that over prompts. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dflash.results import metrics, paired_metrics
from dflash.results.pairing import Pair, Pairing
from dflash.results.records import RequestRecord, RunInfo
from dflash.results.stats import CONFIDENCE, Interval, arithmetic_mean
from dflash.results.student_t import two_sided_quantile

MIN_REPEATS = 3


@dataclass(frozen=True, slots=True)
class RepeatSpread:
    """One metric of every repeat, all prompts in each, and the 95 % interval of their mean."""

    values: tuple[float, ...]
    interval: Interval


def spread_of(values: Sequence[float | None]) -> RepeatSpread | None:
    """mean ± t(0.975, n - 1) * standard deviation / sqrt(n) over repeats.

    None with fewer than 3, or where the metric is not known of each.
    """
    known = tuple(value for value in values if value is not None)
    mean = arithmetic_mean(known)
    if mean is None or len(known) < MIN_REPEATS or len(known) < len(values):
        return None
    count = len(known)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (count - 1))
    half = two_sided_quantile(CONFIDENCE, count - 1) * deviation / math.sqrt(count)
    return RepeatSpread(known, Interval(mean, mean - half, mean + half))


def between_repeats(
    info: RunInfo, records: Sequence[RequestRecord], pairing: Pairing | None
) -> Mapping[str, RepeatSpread]:
    """Speedup, decode speed and acceptance length from round to round; nothing with fewer than 3 rounds."""
    repeats = info.config.get("repeats")
    if not isinstance(repeats, int) or repeats < MIN_REPEATS:
        return {}
    by_round: list[list[RequestRecord]] = [[] for _ in range(repeats)]
    for record in records:
        if record.round < repeats:
            by_round[record.round].append(record)
    found = {
        "speedup": [] if pairing is None else _speedups(pairing, repeats),
        "decode_tok_s": [metrics.decode_tok_s(members) for members in by_round],
        "acceptance_length": [metrics.acceptance_length(members) for members in by_round],
    }
    spreads = {name: spread_of(values) for name, values in found.items()}
    return {name: spread for name, spread in spreads.items() if spread is not None}


def _speedups(pairing: Pairing, repeats: int) -> list[float | None]:
    pairs: list[list[Pair]] = [[] for _ in range(repeats)]
    for pair in pairing.pairs:
        if pair[1].round < repeats:
            pairs[pair[1].round].append(pair)
    return [paired_metrics.speedup(replace(pairing, pairs=tuple(members))) for members in pairs]
