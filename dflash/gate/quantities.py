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
from dflash.results.goodput import goodput_req_s
from dflash.results.pairing import Pairing
from dflash.results.request_metrics import (
    Figure,
    e2els_s,
    figures,
    output_columns,
    pool_columns,
    tpots_s,
    ttfts_s,
)
from dflash.results.stats import Pooled, percentile, ratio
from dflash.results.task_scores import pooled_task_score

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
    over_all: bool = (
        False  # over every request, failed ones included: not cut to what all completed, if not pooled
    )
    greedy_only: bool = False  # has no meaning above temperature 0
    is_of_drafts: bool = False  # has no meaning for plain decoding
    limit_only: bool = False  # a relative change of it says nothing: gated by a limit
    needs_slo: bool = False  # has no meaning without limits, and another one with others
    needs_references: bool = False  # the same of reference answers

    def is_pooled(self, side: Side) -> bool:
        """Whether it is made from sums over prompts there."""
        return self.pooled is not None and len(self.pooled(side).sums) > 0

    @property
    def is_latency(self) -> bool:
        """A time of something that happened: never 0."""
        return self.is_time and self.worse == "higher"


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


def _pooled_output_tok_s(side: Side) -> Pooled:
    """In process, where arms take turns; where requests overlap, no prompt has a share of the busy time."""
    if side.facts.cell is not None and side.facts.cell.is_one_at_a_time:
        return pool_columns(side.records, output_columns, ratio)
    return Pooled({}, ratio)


def _output_tok_s(side: Side) -> float | None:
    if side.facts.cell is not None and side.facts.cell.is_one_at_a_time:
        return metrics.output_tok_s(side.records)
    busy_s = metrics.busy_time_s(side.records)
    return None if busy_s is None else metrics.output_tok_s(side.records, busy_s)


def _goodput_req_s(side: Side) -> float | None:
    return None if side.facts.cell is None else goodput_req_s(side.facts.cell, side.records, side.facts.slo)


def _pooled_task_score(side: Side) -> Pooled:
    return pooled_task_score(side.records, side.facts.outcomes)


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
            limit_only=True,
        ),
        Quantity("output_tok_s", "lower", True, _output_tok_s, _pooled_output_tok_s, over_all=True),
        Quantity("goodput_req_s", "lower", True, _goodput_req_s, over_all=True, needs_slo=True),
        Quantity(
            "task_score",
            "lower",
            False,
            lambda side: _pooled_task_score(side).value(),
            _pooled_task_score,
            is_share=True,
            needs_references=True,
        ),
        Quantity(
            OUTPUTS_UNCHANGED,
            "lower",
            False,
            lambda side: None,
            is_share=True,
            greedy_only=True,
            limit_only=True,
        ),
    )
}
