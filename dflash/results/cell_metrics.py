"""Records of a cell -> every metric under its code name: of one arm alone, and beside its baseline. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dflash.results import acceptance_metrics, metrics, paired_metrics, request_metrics, task_scores
from dflash.results.columns import table_of
from dflash.results.measured import MetricValue
from dflash.results.paired_metrics import Pairing
from dflash.results.records import Cell, RequestRecord
from dflash.results.stats import Interval, Pooled, intervals, percentiles
from dflash.results.task_scores import NOT_SCORED, Outcomes

LATENCY_PERCENTILES = (50, 90, 99)


Intervals = Mapping[str, "Interval | None"]  # by code name


def pooled_main_metrics(
    cell: Cell, records: Sequence[RequestRecord], pairing: Pairing | None, outcomes: Outcomes
) -> dict[str, Pooled]:
    """Of the metrics that every part of a cell has, those with an interval; paired ones where there are pairs."""
    pooled = {
        "decode_tok_s": metrics.pooled_decode_tok_s(records),
        "acceptance_length": acceptance_metrics.pooled_acceptance_length(records),
        "task_score": task_scores.pooled_task_score(records, outcomes),
    }
    if pairing is not None and not pairing.is_refused:
        pooled["speedup"] = paired_metrics.pooled_speedup(pairing)
        if cell.workload.temperature == 0:
            pooled["agreement"] = paired_metrics.pooled_agreement(pairing)
    return pooled


def pooled_metrics(
    cell: Cell,
    records: Sequence[RequestRecord],
    pairing: Pairing | None,
    outcomes: Outcomes,
    baseline: Sequence[RequestRecord] = (),
) -> dict[str, Pooled]:
    """Every metric that has an interval; paired ones where there are pairs."""
    pooled = pooled_main_metrics(cell, records, pairing, outcomes)
    pooled["acceptance_length_untrimmed"] = acceptance_metrics.pooled_acceptance_length_untrimmed(records)
    if pairing is not None and not pairing.is_refused:
        pooled["e2el_speedup"] = paired_metrics.pooled_e2el_speedup(pairing)
        if cell.is_one_at_a_time:
            pooled["throughput_speedup"] = paired_metrics.pooled_throughput_speedup(baseline, records)
    return pooled


def intervals_of(pooled: Sequence[Mapping[str, Pooled]]) -> list[Intervals]:
    """The intervals of several cells or parts, drawn together."""
    found = iter(intervals([item for items in pooled for item in items.values()]))
    return [{name: next(found) for name in items} for items in pooled]


def main_metrics(
    records: Sequence[RequestRecord], pairing: Pairing | None, outcomes: Outcomes, known: Intervals
) -> dict[str, MetricValue]:
    """The metrics that every part of a cell has.

    Args:
        known: the intervals of `pooled_main_metrics`.
    """
    return {
        "num_requests": len(records),
        "num_completed": request_metrics.num_completed(records),
        "error_rate": metrics.error_rate(records),
        "decode_tok_s": known["decode_tok_s"],
        "ttft_s": metrics.ttft_s(records),
        "acceptance_length": known["acceptance_length"],
        "output_tokens_mean": metrics.output_tokens_mean(records),
        "task_score": known["task_score"],
        "num_scored": task_scores.num_scored(records, outcomes),
        "num_right": task_scores.num_right(records, outcomes),
        "speedup": known.get("speedup"),
        "agreement": known.get("agreement"),
        "num_pairs": None if pairing is None or pairing.is_refused else len(pairing.pairs),
    }


def arm_metrics(
    cell: Cell,
    records: Sequence[RequestRecord],
    outcomes: Outcomes = NOT_SCORED,
    known: Intervals | None = None,
) -> dict[str, MetricValue]:
    """Every metric of one arm alone, under its code name.

    Args:
        known: the intervals of `pooled_metrics`, where they are known already.
    """
    records = table_of(records)
    busy_s = _busy_s(cell, records)
    found = intervals_of([pooled_metrics(cell, records, None, outcomes)])[0] if known is None else known
    values: dict[str, MetricValue] = {
        "num_requests": len(records),
        "num_completed": request_metrics.num_completed(records),
        "error_rate": metrics.error_rate(records),
        "decode_tok_s": found["decode_tok_s"],
        "tpot_s": metrics.tpot_s(records),
        "tpot_s_request_mean": metrics.tpot_s_request_mean(records),
        "ttft_s": metrics.ttft_s(records),
        "e2el_s": metrics.e2el_s(records),
        "queue_s": metrics.queue_s(records),
        "ttft_from_due_s": metrics.ttft_from_due_s(records),
        "output_tok_s": metrics.output_tok_s(records, busy_s),
        "decode_step_s": metrics.decode_step_s(records),
        "draft_step_s": metrics.draft_step_s(records),
        "verify_step_s": metrics.verify_step_s(records),
        "acceptance_length": found["acceptance_length"],
        "acceptance_length_request_mean": acceptance_metrics.acceptance_length_request_mean(records),
        "acceptance_length_untrimmed": found["acceptance_length_untrimmed"],
        "acceptance_length_untrimmed_request_mean": acceptance_metrics.acceptance_length_untrimmed_request_mean(
            records
        ),
        "acceptance_rate": acceptance_metrics.acceptance_rate(records),
        "acceptance_rate_per_position": acceptance_metrics.acceptance_rate_per_position(records),
        "acceptance_rate_per_position_conditional": acceptance_metrics.acceptance_rate_per_position_conditional(
            records
        ),
        "acceptance_histogram": acceptance_metrics.acceptance_histogram(records),
        "acceptance_histogram_untrimmed": acceptance_metrics.acceptance_histogram_untrimmed(records),
        "output_tokens_mean": metrics.output_tokens_mean(records),
        "peak_memory_bytes": metrics.peak_memory_bytes(records),
        "peak_memory_with_weights_bytes": metrics.peak_memory_bytes(records, cell.weights_bytes),
        "task_score": found["task_score"],
        "num_scored": task_scores.num_scored(records, outcomes),
        "num_right": task_scores.num_right(records, outcomes),
        "num_unanswered": task_scores.num_unanswered(records, outcomes),
        "num_cut": task_scores.num_cut(records, outcomes),
    }
    for name, figure in (
        ("ttft_s", request_metrics.ttfts_s),
        ("tpot_s", request_metrics.tpots_s),
        ("e2el_s", request_metrics.e2els_s),
        ("queue_s", request_metrics.queue_times_s),
        ("ttft_from_due_s", request_metrics.ttfts_from_due_s),
    ):
        of_each = percentiles(request_metrics.figures(records, figure), LATENCY_PERCENTILES)
        values |= {
            f"{name}_p{percent}": value for percent, value in zip(LATENCY_PERCENTILES, of_each, strict=True)
        }
    return values


def pair_metrics(
    cell: Cell,
    pairing: Pairing | None,
    baseline: Sequence[RequestRecord],
    arm: Sequence[RequestRecord],
    outcomes: Outcomes = NOT_SCORED,
    known: Intervals | None = None,
) -> dict[str, MetricValue]:
    """Every metric of an arm beside its baseline; all None where there is no pairing or it was refused.

    Args:
        known: the intervals of `pooled_metrics`, where they are known already.
    """
    if pairing is None or pairing.is_refused:
        return dict.fromkeys(PAIRED_METRICS)
    greedy = cell.workload.temperature == 0
    changed = task_scores.changed_answers(pairing, outcomes)
    found = (
        intervals_of([pooled_metrics(cell, arm, pairing, outcomes, baseline)])[0] if known is None else known
    )
    return {
        "speedup": found["speedup"],
        "speedup_agreeing": paired_metrics.speedup_agreeing(pairing) if greedy else None,
        "e2el_speedup": found["e2el_speedup"],
        "throughput_speedup": _throughput_speedup(cell, baseline, arm, found),
        "speedup_mean_tpot": paired_metrics.speedup_mean_tpot(pairing),
        "break_even_acceptance_length": paired_metrics.break_even_acceptance_length(pairing),
        "output_length_ratio": paired_metrics.output_length_ratio(pairing),
        "agreement": found["agreement"] if greedy else None,
        "num_pairs": len(pairing.pairs),
        "task_score_only_baseline": None if changed is None else changed[0],
        "task_score_only_arm": None if changed is None else changed[1],
        "task_score_p_value": None if changed is None else task_scores.mcnemar_p_value(*changed),
    }


PAIRED_METRICS = (
    "speedup",
    "speedup_agreeing",
    "e2el_speedup",
    "throughput_speedup",
    "speedup_mean_tpot",
    "break_even_acceptance_length",
    "output_length_ratio",
    "agreement",
    "num_pairs",
    "task_score_only_baseline",
    "task_score_only_arm",
    "task_score_p_value",
)


def _busy_s(cell: Cell, records: Sequence[RequestRecord]) -> float | None:
    """None where requests run one at a time."""
    return None if cell.is_one_at_a_time else metrics.busy_time_s(records)


def _throughput_speedup(
    cell: Cell, baseline: Sequence[RequestRecord], arm: Sequence[RequestRecord], known: Intervals
) -> Interval | None:
    if cell.workload.request_rate is not None:  # open loop: the load decides the throughput
        return None
    if "throughput_speedup" in known:
        return known["throughput_speedup"]
    value = paired_metrics.throughput_speedup(baseline, arm, _busy_s(cell, baseline), _busy_s(cell, arm))
    return None if value is None else Interval(value, None, None)
