"""Records of two arms -> what the arm gives over the baseline: one function per metric, its docstring the
formula.

Both arms are first paired request by request (`pair_units`); a paired metric sees only requests that
completed in both arms with a decode token in each, and the others are counted with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy
from numpy.typing import NDArray

from dflash.results import metrics, request_metrics
from dflash.results.columns import Column, Mask, RequestTable, first_come, prompt_codes
from dflash.results.pairing import Pair, Pairs, pairs_of
from dflash.results.pairing import Pairing as Pairing
from dflash.results.pairing import pair_units as pair_units
from dflash.results.records import RequestRecord
from dflash.results.stats import Pooled, PromptSums, arithmetic_mean, ratio, ratio_of_ratios

PairColumns = Callable[[Pairs], "tuple[Column, ...]"]


def pooled_speedup(pairing: Pairing) -> Pooled:
    """Sums behind `speedup`."""
    return _pool(pairing.pairs, _decode_columns, ratio_of_ratios)


def speedup(pairing: Pairing) -> float | None:
    """baseline TPOT / arm TPOT, each pooled: (sum decode time / sum decode tokens) over the pairs."""
    return pooled_speedup(pairing).value()


def speedup_agreeing(pairing: Pairing) -> float | None:
    """`speedup` over the prompts whose outputs are all equal in both arms."""
    pairs, compared = pairs_of(pairing.pairs), pairs_of(pairing.completed_pairs)
    codes, compared_codes = prompt_codes(pairs.arm, compared.arm)
    known, is_equal = _equal_outputs(compared)
    num_codes = max(codes.max(initial=-1), compared_codes.max(initial=-1)) + 1
    num_equal, num_known = (
        numpy.bincount(compared_codes[mask], minlength=num_codes) for mask in (is_equal, known)
    )
    agrees = (num_known > 0) & (num_equal == num_known)
    return _pool(pairs.take(agrees[codes]), _decode_columns, ratio_of_ratios).value()


def pooled_e2el_speedup(pairing: Pairing) -> Pooled:
    """Sums behind `e2el_speedup`."""

    def columns(pairs: Pairs) -> tuple[Column, Column]:
        return request_metrics.e2els_s(pairs.baseline), request_metrics.e2els_s(pairs.arm)

    return _pool(pairing.pairs, columns, ratio)


def e2el_speedup(pairing: Pairing) -> float | None:
    """sum baseline E2EL / sum arm E2EL over the same pairs as `speedup`."""
    return pooled_e2el_speedup(pairing).value()


def pooled_throughput_speedup(baseline: Sequence[RequestRecord], arm: Sequence[RequestRecord]) -> Pooled:
    """Sums behind `throughput_speedup` of two in-process arms."""
    own, other = (
        request_metrics.pool_columns(records, request_metrics.output_columns, ratio).sums
        for records in (arm, baseline)
    )
    nothing = (0.0, 0.0)
    rows = {
        prompt_id: (*own.get(prompt_id, nothing), *other.get(prompt_id, nothing))
        for prompt_id in dict.fromkeys([*own, *other])
    }
    return Pooled(rows, ratio_of_ratios)


def throughput_speedup(
    baseline: Sequence[RequestRecord],
    arm: Sequence[RequestRecord],
    baseline_busy_s: float | None = None,
    arm_busy_s: float | None = None,
) -> float | None:
    """arm output_tok_s / baseline output_tok_s;

    Closed loop only. Give the busy times where requests overlap.
    """
    first = metrics.output_tok_s(baseline, baseline_busy_s)
    second = metrics.output_tok_s(arm, arm_busy_s)
    return second / first if first and second is not None else None


def speedup_mean_tpot(pairing: Pairing) -> float | None:
    """mean over responses of baseline decode time / num_output_tokens, over the same mean of the arm:

    The paper's form.
    """
    pairs = pairs_of(pairing.pairs)
    first, second = (
        arithmetic_mean(_times_per_output_token_s(arm).numbers()) for arm in (pairs.baseline, pairs.arm)
    )
    return first / second if first is not None and second else None


def break_even_acceptance_length(pairing: Pairing) -> float | None:
    """arm step time / baseline TPOT over the pairs:

    With a lower acceptance length the arm is slower than the baseline.
    """
    pairs = pairs_of(pairing.pairs)
    step, tpot = metrics.decode_step_s(pairs.arm), metrics.tpot_s(pairs.baseline)
    return step / tpot if step is not None and tpot else None


def output_length_ratio(pairing: Pairing) -> float | None:
    """sum arm output tokens / sum baseline output tokens over the requests completed in both arms."""

    def columns(pairs: Pairs) -> tuple[Column, Column]:
        return pairs.arm.integers("num_output_tokens"), pairs.baseline.integers("num_output_tokens")

    return _pool(pairing.completed_pairs, columns, ratio).value()


def pooled_agreement(pairing: Pairing) -> Pooled:
    """Sums behind `agreement`."""
    prompt_ids, numbers, equal = _agreement(pairing)
    rows = numpy.stack([equal, numpy.ones(len(equal))], axis=1)
    return Pooled(PromptSums(prompt_ids, numbers, rows), ratio)


def agreement(pairing: Pairing) -> float | None:
    """Share of prompts whose outputs (every turn and repeat completed in both arms) have equal digests.

    Greedy only.
    """
    return pooled_agreement(pairing).value()


def agreement_by_prompt(pairing: Pairing) -> dict[str, bool]:
    """Whether each prompt's outputs (every turn and repeat completed in both arms) have equal digests."""
    prompt_ids, numbers, equal = _agreement(pairing)
    return {
        prompt_ids[number]: is_equal
        for number, is_equal in zip(numbers.tolist(), equal.tolist(), strict=True)
    }


def _agreement(pairing: Pairing) -> tuple[Sequence[str], NDArray[numpy.int64], Mask]:
    """Ids of prompts by number; the prompts with digests in both arms, as they first come; of which all are equal."""
    pairs = pairs_of(pairing.completed_pairs)
    known, is_equal = _equal_outputs(pairs)
    all_codes, prompt_ids = pairs.arm.prompts
    codes = all_codes[known]
    order = first_come(codes)
    num_different = numpy.bincount(codes, ~is_equal[known])
    return prompt_ids, order, num_different[order] == 0


def _equal_outputs(pairs: Pairs) -> tuple[Mask, Mask]:
    """[pairs]: which have both digests, and of which the two are equal."""
    first, second = pairs.baseline.texts("output_digest"), pairs.arm.texts("output_digest")
    known = (first != None) & (second != None)  # noqa: E711 - of each element
    return known, known & (first == second)


def _pool(pairs: Sequence[Pair], columns: PairColumns, formula: Callable[..., float]) -> Pooled:
    """Sum by prompt over the pairs that have every column."""
    members = pairs_of(pairs)
    found = columns(members)
    rows = numpy.ones(len(members), dtype=bool)
    for column in found:
        rows &= column.known
    terms = [column.values[rows] for column in found]
    return request_metrics.sum_by_prompt(members.baseline, rows, terms, formula)


def _decode_columns(pairs: Pairs) -> tuple[Column, ...]:
    return (
        *request_metrics.decode_columns(pairs.baseline),
        *request_metrics.decode_columns(pairs.arm),
    )


def _times_per_output_token_s(requests: RequestTable) -> Column:
    time_ns = request_metrics.decode_times_ns(requests)
    return time_ns / request_metrics.NS_PER_S / requests.integers("num_output_tokens")
