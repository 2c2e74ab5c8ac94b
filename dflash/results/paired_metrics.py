"""Records of two arms -> what the arm gives over the baseline: one function per metric, its docstring the
formula.

Both arms are first paired request by request (`pair_units`); a paired metric sees only requests that
completed in both arms with a decode token in each, and the others are counted with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dflash.results import metrics, request_metrics
from dflash.results.records import RequestRecord
from dflash.results.stats import Pooled, arithmetic_mean, ratio, ratio_of_ratios

Pair = tuple[RequestRecord, RequestRecord]  # baseline, arm
PairTerms = Callable[[RequestRecord, RequestRecord], "tuple[float, ...] | None"]


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two arms, request by request."""

    pairs: tuple[Pair, ...]  # completed in both arms, a decode token in each
    completed_pairs: tuple[Pair, ...]  # completed in both arms, one-token outputs included
    left_out: Mapping[str, int]  # why a request is not in `pairs` -> how many
    unlike_prompts: tuple[
        tuple[str, int, int], ...
    ] = ()  # units whose prompt tokens differ: then nothing is paired


def pair_units(baseline: Sequence[RequestRecord], arm: Sequence[RequestRecord]) -> Pairing:
    """Pair by prompt, turn and repeat.

    Where one unit's prompt digests differ the two arms did not see the same prompts: the whole pairing is
    refused (`unlike_prompts` is not empty and there are no pairs).
    """
    by_unit = {record.unit: record for record in baseline}
    arm_by_unit = {record.unit: record for record in arm}
    units = dict.fromkeys([*by_unit, *arm_by_unit])
    unlike = tuple(unit for unit in units if _unlike_prompts(by_unit.get(unit), arm_by_unit.get(unit)))
    if unlike:
        return Pairing((), (), {"the prompts differ between the arms": len(units)}, unlike)
    pairs: list[Pair] = []
    completed_pairs: list[Pair] = []
    left_out: Counter[str] = Counter()
    for unit in units:
        first, second = by_unit.get(unit), arm_by_unit.get(unit)
        reason = _reason_left_out(first, second)
        if first is not None and second is not None and first.completed and second.completed:
            completed_pairs.append((first, second))
            if reason is None:
                pairs.append((first, second))
        if reason is not None:
            left_out[reason] += 1
    return Pairing(tuple(pairs), tuple(completed_pairs), dict(left_out))


def pooled_speedup(pairing: Pairing) -> Pooled:
    """Sums behind `speedup`."""
    return _pool(pairing.pairs, _decode_terms, ratio_of_ratios)


def speedup(pairing: Pairing) -> float | None:
    """baseline TPOT / arm TPOT, each pooled: (sum decode time / sum decode tokens) over the pairs."""
    return pooled_speedup(pairing).value()


def speedup_agreeing(pairing: Pairing) -> float | None:
    """`speedup` over the prompts whose outputs are all equal in both arms."""
    verdicts = agreement_by_prompt(pairing)
    pairs = [pair for pair in pairing.pairs if verdicts.get(pair[0].prompt_id) is True]
    return _pool(pairs, _decode_terms, ratio_of_ratios).value()


def pooled_e2el_speedup(pairing: Pairing) -> Pooled:
    """Sums behind `e2el_speedup`."""

    def terms(baseline: RequestRecord, arm: RequestRecord) -> tuple[float, float] | None:
        first, second = request_metrics.request_e2el_s(baseline), request_metrics.request_e2el_s(arm)
        return None if first is None or second is None else (first, second)

    return _pool(pairing.pairs, terms, ratio)


def e2el_speedup(pairing: Pairing) -> float | None:
    """sum baseline E2EL / sum arm E2EL over the same pairs as `speedup`."""
    return pooled_e2el_speedup(pairing).value()


def pooled_throughput_speedup(baseline: Sequence[RequestRecord], arm: Sequence[RequestRecord]) -> Pooled:
    """Sums behind `throughput_speedup` of two in-process arms."""
    rows: list[tuple[str, tuple[float, ...]]] = []
    for records, place in ((arm, 0), (baseline, 2)):
        for record in request_metrics.completed(records):
            terms = request_metrics.output_terms(record)
            if terms is not None:
                rows.append((record.prompt_id, (*(0.0,) * place, *terms, *(0.0,) * (2 - place))))
    return Pooled.of(rows, ratio_of_ratios)


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
    first = arithmetic_mean(
        [value for pair in pairing.pairs if (value := _time_per_output_token(pair[0])) is not None]
    )
    second = arithmetic_mean(
        [value for pair in pairing.pairs if (value := _time_per_output_token(pair[1])) is not None]
    )
    return first / second if first is not None and second else None


def break_even_acceptance_length(pairing: Pairing) -> float | None:
    """arm step time / baseline TPOT over the pairs:

    With a lower acceptance length the arm is slower than the baseline.
    """
    step = metrics.decode_step_s([pair[1] for pair in pairing.pairs])
    tpot = metrics.tpot_s([pair[0] for pair in pairing.pairs])
    return step / tpot if step is not None and tpot else None


def output_length_ratio(pairing: Pairing) -> float | None:
    """sum arm output tokens / sum baseline output tokens over the requests completed in both arms."""

    def terms(baseline: RequestRecord, arm: RequestRecord) -> tuple[float, float] | None:
        first, second = arm.num_output_tokens, baseline.num_output_tokens
        return None if first is None or second is None else (first, second)

    return _pool(pairing.completed_pairs, terms, ratio).value()


def pooled_agreement(pairing: Pairing) -> Pooled:
    """Sums behind `agreement`."""
    rows = ((prompt_id, (float(equal), 1.0)) for prompt_id, equal in agreement_by_prompt(pairing).items())
    return Pooled.of(rows, ratio)


def agreement(pairing: Pairing) -> float | None:
    """Share of prompts whose outputs (every turn and repeat completed in both arms) have equal digests.

    Greedy only.
    """
    return pooled_agreement(pairing).value()


def _pool(pairs: Sequence[Pair], terms: PairTerms, formula: Callable[..., float]) -> Pooled:
    rows = ((baseline.prompt_id, terms(baseline, arm)) for baseline, arm in pairs)
    return Pooled.of(((prompt_id, row) for prompt_id, row in rows if row is not None), formula)


def _decode_terms(baseline: RequestRecord, arm: RequestRecord) -> tuple[float, ...] | None:
    first, second = request_metrics.decode_terms(baseline), request_metrics.decode_terms(arm)
    return None if first is None or second is None else (*first, *second)


def _time_per_output_token(record: RequestRecord) -> float | None:
    time_ns, tokens = request_metrics.decode_time_ns(record), record.num_output_tokens
    return None if time_ns is None or not tokens else time_ns / request_metrics.NS_PER_S / tokens


def agreement_by_prompt(pairing: Pairing) -> dict[str, bool]:
    """Whether each prompt's outputs (every turn and repeat completed in both arms) have equal digests."""
    verdicts: dict[str, bool] = {}
    for baseline, arm in pairing.completed_pairs:
        if baseline.output_digest is not None and arm.output_digest is not None:
            equal = baseline.output_digest == arm.output_digest
            verdicts[arm.prompt_id] = verdicts.get(arm.prompt_id, True) and equal
    return verdicts


def _unlike_prompts(baseline: RequestRecord | None, arm: RequestRecord | None) -> bool:
    if baseline is None or arm is None or baseline.prompt_digest is None or arm.prompt_digest is None:
        return False
    return baseline.prompt_digest != arm.prompt_digest


def _reason_left_out(baseline: RequestRecord | None, arm: RequestRecord | None) -> str | None:
    for side, record in (("baseline", baseline), ("arm", arm)):
        if record is None:
            return f"not run in the {side}"
        if record.finish_reason == "error":
            return f"failed in the {side}"
        if not record.completed:
            return f"cancelled in the {side}"
    for side, record in (("baseline", baseline), ("arm", arm)):
        if record is not None and request_metrics.decode_terms(record) is None:
            return f"no decode token in the {side}"
    return None
