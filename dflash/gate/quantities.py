"""What can be gated: one entry per quantity, whose formulas are those of the reports. Pure.

`outputs_unchanged` alone needs both runs: the share of prompts whose outputs are the base run's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy

from dflash.gate.sides import Side
from dflash.results import acceptance_metrics, metrics, paired_metrics
from dflash.results.cell_metrics import LATENCY_PERCENTILES
from dflash.results.columns import Column, RequestTable
from dflash.results.pairing import Pairing
from dflash.results.request_metrics import Figure, e2els_s, figures, pool_columns, tpots_s, ttfts_s
from dflash.results.stats import Pooled, percentile, ratio

OUTPUTS_UNCHANGED = "outputs_unchanged"
Worse = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Quantity:
    """How a quantity is computed, and which way it gets worse."""

    name: str
    worse: Worse
    is_time: bool  # depends on the machine's speed: compared on one fingerprint, never exactly
    value: Callable[[Side], float | None]
    pooled: Callable[[Side], Pooled] | None = None  # None: no sums over prompts; only repeats tell its spread
    is_paired: bool = False  # needs the run's own baseline
    is_share: bool = False  # of counted things, 0 to 1: limits are exact
    over_all: bool = False  # over every request, failed ones included: not cut to what both completed
    greedy_only: bool = False  # has no meaning above temperature 0
    is_of_drafts: bool = False  # has no meaning for plain decoding


def _of_sums(
    name: str,
    worse: Worse,
    is_time: bool,
    pooled: Callable[[RequestTable], Pooled],
    *,
    is_of_drafts: bool = False,
) -> Quantity:
    def sums(side: Side) -> Pooled:
        return pooled(side.records)

    return Quantity(name, worse, is_time, lambda side: sums(side).value(), sums, is_of_drafts=is_of_drafts)


def _of_requests(name: str, percent: int, figure: Figure) -> Quantity:
    def value(side: Side) -> float | None:
        return percentile(figures(side.records, figure).tolist(), percent)

    return Quantity(f"{name}_p{percent}", "higher", True, value)


def _mean_of(figure: Figure) -> Callable[[RequestTable], Pooled]:
    """Sums behind a mean over requests."""

    def columns(requests: RequestTable) -> tuple[Column, Column]:
        values = figure(requests)
        return values, Column(numpy.ones(len(values)), values.known)

    return lambda requests: pool_columns(requests, columns, ratio)


def _tpot(requests: RequestTable) -> Pooled:
    """The sums of the decode speed, the other way up."""
    return replace(metrics.pooled_decode_tok_s(requests), formula=lambda tokens, time_s: time_s / tokens)


def _output_tokens(requests: RequestTable) -> Column:
    return requests.integers("num_output_tokens")


def _decode_steps(requests: RequestTable) -> Column:
    return requests.integers("num_decode_steps")


def _of_pairs(
    name: str, is_time: bool, pooled: Callable[[Pairing], Pooled], *, is_share: bool = False
) -> Quantity:
    def sums(side: Side) -> Pooled:
        return Pooled({}, ratio) if side.pairing is None else pooled(side.pairing)

    return Quantity(
        name,
        "lower",
        is_time,
        lambda side: sums(side).value(),
        sums,
        is_paired=True,
        is_share=is_share,
        greedy_only=is_share,  # agreement
    )


_LATENCIES: tuple[tuple[str, Figure], ...] = (("ttft_s", ttfts_s), ("tpot_s", tpots_s), ("e2el_s", e2els_s))

QUANTITIES: dict[str, Quantity] = {
    quantity.name: quantity
    for quantity in (
        _of_pairs("speedup", True, paired_metrics.pooled_speedup),
        _of_pairs("e2el_speedup", True, paired_metrics.pooled_e2el_speedup),
        _of_sums("decode_tok_s", "lower", True, metrics.pooled_decode_tok_s),
        _of_sums("tpot_s", "higher", True, _tpot),
        _of_sums("ttft_s", "higher", True, _mean_of(ttfts_s)),
        _of_sums("e2el_s", "higher", True, _mean_of(e2els_s)),
        _of_sums("decode_step_s", "higher", True, metrics.pooled_decode_step_s),
        *(_of_requests(name, percent, each) for name, each in _LATENCIES for percent in LATENCY_PERCENTILES),
        _of_sums(
            "acceptance_length",
            "lower",
            False,
            acceptance_metrics.pooled_acceptance_length,
            is_of_drafts=True,
        ),
        _of_sums(
            "acceptance_length_untrimmed",
            "lower",
            False,
            acceptance_metrics.pooled_acceptance_length_untrimmed,
            is_of_drafts=True,
        ),
        _of_sums("num_decode_steps", "higher", False, _mean_of(_decode_steps)),
        _of_sums("output_tokens_mean", "lower", False, _mean_of(_output_tokens)),
        _of_pairs("agreement", False, paired_metrics.pooled_agreement, is_share=True),
        Quantity(
            "error_rate",
            "higher",
            False,
            lambda side: metrics.error_rate(side.records),
            is_share=True,
            over_all=True,
        ),
        Quantity(OUTPUTS_UNCHANGED, "lower", False, lambda side: None, is_share=True, greedy_only=True),
    )
}
