"""Are the task scores believable, and are they the baseline's? Findings about one arm, and about two."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.results import task_scores
from dflash.results.formats import format_p_value
from dflash.results.paired_metrics import Pairing
from dflash.results.records import Cell, RequestRecord
from dflash.results.task_scores import UNSCORED_WORDS, Outcomes
from dflash.results.verify import Finding, Severity

MAX_SHARE_CUT = 0.1
SIGNIFICANT_P_VALUE = 0.05


def check_scores(cell: Cell, records: Sequence[RequestRecord], outcomes: Outcomes) -> tuple[Finding, ...]:
    """Answers cut at the limit, and requests that could have been scored and are not."""
    findings = (_cut(cell, records, outcomes), _partly_scored(records, outcomes))
    return tuple(finding for finding in findings if finding is not None)


def check_pair_scores(cell: Cell, pairing: Pairing, outcomes: Outcomes) -> tuple[Finding, ...]:
    """A task score that differs from the baseline's by more than chance explains."""
    changed = task_scores.changed_answers(pairing, outcomes)
    if changed is None:
        return ()
    p_value = task_scores.mcnemar_p_value(*changed)
    if p_value >= SIGNIFICANT_P_VALUE:
        return ()
    greedy = cell.workload.temperature == 0
    severity: Severity = "error" if greedy else "warning"
    direction = "below" if changed[0] > changed[1] else "above"
    p_words = format_p_value(p_value)
    sentence = (
        f"The task score is {direction} the baseline's by more than chance explains. Prompts right in the "
        f"baseline only: {changed[0]}; in this arm only: {changed[1]} (exact McNemar test, p "
        f"{'' if p_words.startswith('below') else '= '}{p_words})."
    )
    if greedy:
        sentence += " At temperature 0 drafting must not change what the target says."
    return (Finding("task_score_differs", severity, sentence),)


def _cut(cell: Cell, records: Sequence[RequestRecord], outcomes: Outcomes) -> Finding | None:
    cut, total = task_scores.num_cut(records, outcomes), task_scores.num_scored(records, outcomes)
    if not cut or not total or cut / total <= MAX_SHARE_CUT:
        return None
    sentence = (
        f"{cut} of {total} scored answers were cut at the limit of {cell.workload.max_new_tokens} new tokens, so "
        "the task score may be too low: raise --max-new-tokens."
    )
    return Finding("answers_cut", "warning", sentence)


def _partly_scored(records: Sequence[RequestRecord], outcomes: Outcomes) -> Finding | None:
    counts = task_scores.unscored_counts(records, outcomes)
    total = task_scores.num_scored(records, outcomes)
    if not counts or not total:
        return None
    listed = ", ".join(f"{UNSCORED_WORDS[outcome]} {count}" for outcome, count in counts.items())
    sentence = (
        f"The task score is over {total} of {total + sum(counts.values())} requests; not scored: {listed}."
    )
    return Finding("partly_scored", "warning", sentence)
