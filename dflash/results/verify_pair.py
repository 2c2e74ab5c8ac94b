"""Is this comparison believable? Findings about an arm beside its baseline."""

from __future__ import annotations

from dflash.results import paired_metrics
from dflash.results.paired_metrics import Pairing
from dflash.results.records import Cell
from dflash.results.verify import OUTPUT_LENGTH_RATIO_RANGE, Finding


def check_pair(cell: Cell, pairing: Pairing) -> tuple[Finding, ...]:
    """Refused pairing, requests left out, speedup below 1, unequal output lengths, agreement below 1."""
    if pairing.unlike_prompts:
        return (_unlike_prompts(pairing),)
    findings = [
        _slower(pairing),
        _end_to_end_slower(pairing),
        _left_out(pairing),
        _unequal_lengths(pairing),
    ]
    if cell.workload.temperature == 0:
        findings.append(_disagreement(pairing))
    return tuple(finding for finding in findings if finding is not None)


def _unlike_prompts(pairing: Pairing) -> Finding:
    prompt_id = pairing.unlike_prompts[0][0]
    sentence = (
        f"Comparison refused: the two arms did not see the same prompt tokens in "
        f"{len(pairing.unlike_prompts)} "
        f"{'request' if len(pairing.unlike_prompts) == 1 else 'requests'}, first in {prompt_id}."
    )
    return Finding("unlike_prompts", "error", sentence)


def _slower(pairing: Pairing) -> Finding | None:
    interval = paired_metrics.pooled_speedup(pairing).interval()
    if interval is None:
        return None
    if interval.value < 1:
        even = ""
        break_even = paired_metrics.break_even_acceptance_length(pairing)
        if break_even is not None:
            even = f" It would need an acceptance length above {break_even:.2f} to break even."
        slower = f"Drafting is slower than plain decoding: {interval.value:.2f}x the baseline's decode speed."
        sentence = slower + even
        return Finding("slower_than_baseline", "warning", sentence)
    if interval.low is not None and interval.low < 1:
        sentence = (
            f"The interval of the speedup, {interval.low:.2f}x to {interval.high:.2f}x, includes 1: "
            "on these prompts it cannot be told apart from no speedup."
        )
        return Finding("speedup_not_clear", "warning", sentence)
    return None


def _end_to_end_slower(pairing: Pairing) -> Finding | None:
    decode, end_to_end = paired_metrics.speedup(pairing), paired_metrics.e2el_speedup(pairing)
    if decode is None or end_to_end is None or decode < 1 or end_to_end >= 1:
        return None
    sentence = f"Decoding is faster, but whole requests take longer: end to end it is {end_to_end:.2f}x."
    return Finding("slower_end_to_end", "warning", sentence)


def _left_out(pairing: Pairing) -> Finding | None:
    count = sum(pairing.left_out.values())
    if not count:
        return None
    reasons = ", ".join(f"{reason}: {number}" for reason, number in pairing.left_out.items())
    total = count + len(pairing.pairs)
    return Finding(
        "pairs_left_out", "warning", f"{count} of {total} pairs are not in the speedup ({reasons})."
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


def _disagreement(pairing: Pairing) -> Finding | None:
    verdicts = paired_metrics.agreement_by_prompt(pairing)
    differing = sum(not equal for equal in verdicts.values())
    if not differing:
        return None
    sentence = (
        f"The output changed in {differing} of {len(verdicts)} prompts. The report's section on agreement "
        "lists where, "
        "and whether each is a near-tie or a fault."
    )
    return Finding("outputs_differ", "warning", sentence)
