"""Is this comparison believable? Findings about an arm beside its baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dflash.results import paired_metrics
from dflash.results.baselines import PlacedCell, told_differences
from dflash.results.formats import format_bounds, format_percent, format_speedup
from dflash.results.pairing import Pairing, pairs_of
from dflash.results.records import Cell, DifferenceRecord, RunInfo
from dflash.results.server_counters import cached_prompt_share
from dflash.results.stats import Interval, intervals
from dflash.results.verify import OUTPUT_LENGTH_RATIO_RANGE, Finding, Severity

# A gap between the target's two best logits up to which rounding (another order of summation, another number
# of rows in a product) can turn the choice. Logits are of the order of 10 to 30.
_NEAR_TIE_LOGIT_GAPS = {"float32": 1e-3, "float16": 0.0625, "bfloat16": 0.25}


MAX_CACHED_SHARE_DIFFERENCE = 0.05


def near_tie_logit_gap(dtype: str | None) -> float:
    """The widest gap that is called a near-tie; an unknown dtype is taken as coarse as bfloat16."""
    return _NEAR_TIE_LOGIT_GAPS.get(dtype or "bfloat16", _NEAR_TIE_LOGIT_GAPS["bfloat16"])


def is_near_tie(difference: DifferenceRecord, dtype: str | None) -> bool | None:
    """True: rounding can explain the difference. False: a fault. None: the gap is not known."""
    gap = difference.logit_gap
    return None if gap is None or not math.isfinite(gap) else gap <= near_tie_logit_gap(dtype)


def check_pair(
    cell: Cell,
    pairing: Pairing,
    differences: Sequence[DifferenceRecord] = (),
    num_text_differences: int = 0,
    known: Mapping[str, Interval | None] | None = None,
) -> tuple[Finding, ...]:
    """Prompts unlike or not compared, requests left out, speedup below 1, unequal lengths, agreement below 1, prefix
    caches that served one arm more than the other.

    Args:
        known: intervals by code name, where they are known already.
    """
    if pairing.unlike_prompts:
        return (_unlike_prompts(pairing),)
    if pairing.baseline_fault:
        sentence = f"Comparison refused: the baseline {pairing.baseline_fault}."
        return (Finding("no_baseline", "error", sentence),)
    if known is None:
        pooled = [paired_metrics.pooled_speedup(pairing), paired_metrics.pooled_e2el_speedup(pairing)]
        known = dict(zip(("speedup", "e2el_speedup"), intervals(pooled), strict=True))
    findings = [
        _prompts_not_compared(pairing),
        _slower(pairing, known["speedup"]),
        _end_to_end_slower(known["speedup"], known["e2el_speedup"]),
        _left_out(pairing) if cell.is_timed else None,  # without times nothing is in the speedup
        _unequal_lengths(pairing),
        _unequal_cached_shares(pairing),
    ]
    if cell.workload.temperature == 0:
        findings.append(_disagreement(cell, pairing, differences, num_text_differences))
    return tuple(finding for finding in findings if finding is not None)


def check_runs(placed: PlacedCell, baseline: PlacedCell, infos: Sequence[RunInfo]) -> tuple[Finding, ...]:
    """Where the baseline is of another run: that the arms did not take turns, and in what the runs differ."""
    if placed.run == baseline.run:
        return ()
    own, other = infos[placed.run], infos[baseline.run]
    sentence = (
        f"The baseline is of run {other.name}, begun {other.created_at}; this arm is of run {own.name}, begun "
        f"{own.created_at}. The two did not take turns: what the machine did differently between them is in the "
        "ratio and not in its interval."
    )
    findings = [Finding("baseline_of_other_run", "info", sentence)]
    told = told_differences(own, other)
    if told:
        listed = ", ".join(f"{name} {before} (baseline: {now})" for name, before, now in told)
        findings.append(Finding("runs_differ", "warning", f"The runs that are compared differ in: {listed}."))
    return tuple(findings)


def _unlike_prompts(pairing: Pairing) -> Finding:
    prompt_id, turn, _ = pairing.unlike_prompts[0]
    sentence = (
        "Comparison refused: the two arms did not see the same prompt tokens in "
        f"{len(pairing.unlike_prompts)} "
        f"{'request' if len(pairing.unlike_prompts) == 1 else 'requests'}, first in {prompt_id}"
        f"{f' (turn {turn})' if turn else ''}."
    )
    return Finding("unlike_prompts", "error", sentence)


def _prompts_not_compared(pairing: Pairing) -> Finding | None:
    """Equal messages are planned, equal tokens are seen: where an arm does not tell them, nothing shows it."""
    pairs = pairs_of(pairing.completed_pairs)
    first, second = (arm.texts("prompt_digest") == None for arm in (pairs.baseline, pairs.arm))  # noqa: E711
    num_unknown = int((first | second).sum())
    if not num_unknown:
        return None
    sides = {
        "the baseline": int((first & ~second).sum()),
        "this arm": int((second & ~first).sum()),
        "both arms": int((first & second).sum()),
    }
    listed = ", ".join(f"of {side} in {count}" for side, count in sides.items() if count)
    sentence = (
        f"Prompt tokens could not be compared in {num_unknown} of {len(pairing.completed_pairs)} pairs of requests: "
        "they are "
        f"not known {listed}. That both arms saw the same prompts is taken from the messages alone."
    )
    one_sided = sides["the baseline"] + sides["this arm"]
    return Finding("prompts_not_compared", "warning" if one_sided else "info", sentence)


def _slower(pairing: Pairing, interval: Interval | None) -> Finding | None:
    """Only what an interval shows: without one there is no finding either way (`few_prompts` says why)."""
    if interval is None or interval.low is None or interval.high is None or interval.low >= 1:
        return None
    if interval.high >= 1:
        sentence = (
            f"The interval of the speedup, {interval.low:.2f}x to {interval.high:.2f}x, includes 1: "
            "on these prompts it cannot be told apart from no speedup."
        )
        return Finding("speedup_not_clear", "warning", sentence)
    break_even = paired_metrics.break_even_acceptance_length(pairing)
    even = (
        ""
        if break_even is None
        else f" It would need an acceptance length above {break_even:.2f} to break even."
    )
    sentence = (
        f"Drafting is slower than plain decoding: {interval.value:.2f}x the baseline's decode speed "
        f"{format_bounds(interval)}.{even}"
    )
    return Finding("slower_than_baseline", "warning", sentence)


def _end_to_end_slower(decode: Interval | None, end_to_end: Interval | None) -> Finding | None:
    if decode is None or end_to_end is None or decode.value < 1 or end_to_end.value >= 1:
        return None
    if end_to_end.high is None or end_to_end.high >= 1:  # nothing that could be concluded
        return None
    sentence = (
        "Decoding is not slower, but whole requests take longer: end to end it is "
        f"{format_speedup(end_to_end)}."
    )
    return Finding("slower_end_to_end", "warning", sentence)


def _left_out(pairing: Pairing) -> Finding | None:
    count = sum(pairing.left_out.values())
    if not count:
        return None
    reasons = ", ".join(f"{reason}: {number}" for reason, number in pairing.left_out.items())
    total = count + len(pairing.pairs)
    return Finding(
        "pairs_left_out",
        "warning",
        f"{count} of {total} pairs of requests are not in the speedup ({reasons}).",
    )


def _unequal_lengths(pairing: Pairing) -> Finding | None:
    value = paired_metrics.output_length_ratio(pairing)
    low, high = OUTPUT_LENGTH_RATIO_RANGE
    if value is None or low <= value <= high:
        return None
    sentence = (
        f"The arm's outputs are {value:.2f} times as long as the baseline's: read the speedup over "
        f"prompts with equal "
        "outputs as well."
    )
    return Finding("unequal_output_lengths", "warning", sentence)


def _unequal_cached_shares(pairing: Pairing) -> Finding | None:
    """A warm cache in one arm makes its prefill look fast: the pair of end-to-end times is no comparison then."""
    pairs = pairs_of(pairing.pairs)
    baseline, arm = cached_prompt_share(pairs.baseline), cached_prompt_share(pairs.arm)
    if baseline is None or arm is None or abs(baseline - arm) <= MAX_CACHED_SHARE_DIFFERENCE:
        return None
    sentence = (
        f"The prefix cache served {format_percent(baseline)} of the baseline's prompt tokens and "
        f"{format_percent(arm)} of this arm's: TTFT and end-to-end figures do not compare the two."
    )
    return Finding("unequal_cached_shares", "warning", sentence)


def _disagreement(
    cell: Cell, pairing: Pairing, differences: Sequence[DifferenceRecord], num_text_differences: int
) -> Finding | None:
    verdicts = paired_metrics.agreement_by_prompt(pairing)
    differing = sum(not equal for equal in verdicts.values())
    if not differing:
        return None
    kinds = [is_near_tie(difference, cell.workload.dtype) for difference in differences]
    severity: Severity = "error" if False in kinds else "warning"
    unknown = max(0, differing - len(kinds)) + kinds.count(None)
    by_text = f", {num_text_differences} of them by their text" if num_text_differences else ""
    sentence = (
        f"The output changed in {differing} of {len(verdicts)} prompts{by_text}: near-ties {kinds.count(True)}, "
        f"faults {kinds.count(False)}, not known {unknown} (the report's section on agreement lists them)."
    )
    return Finding("outputs_differ", severity, sentence)
