"""Whether the answers were right: scores of one arm, and a paired test of two.

A request is scored where its prompt has a reference answer, or its code was tried out, and only the last turn
of a prompt counts. A request that was cut at its limit is scored as it reads. Scores are computed when a run
is read, from its saved outputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy
from numpy.typing import NDArray

from dflash.results.answers import find_answer, is_correct
from dflash.results.columns import Mask, RequestKey, RequestTable, table_of
from dflash.results.pairing import Pairing, pairs_of
from dflash.results.records import CodeRecord, OutputRecord, RequestRecord
from dflash.results.request_metrics import sum_by_prompt
from dflash.results.stats import Pooled, ratio
from dflash.results.store import Run

Outcome = Literal[
    "right",
    "wrong",
    "unanswered",  # no answer was found in the output: not right
    "failed",  # the last three are not scored: failed or cancelled,
    "no_output",  # no output was saved,
    "not_executed",  # or the code was not, or could not be, tried out
]
SCORED: frozenset[Outcome] = frozenset(("right", "wrong", "unanswered"))
UNSCORED_WORDS: Mapping[Outcome, str] = MappingProxyType(
    {
        "failed": "failed or cancelled",
        "no_output": "output not saved",
        "not_executed": "code not executed",
    }
)
Outcomes = Mapping[RequestKey, Outcome]  # of the requests that have something to be scored by

NOT_SCORED: Outcomes = MappingProxyType({})


def score_run(run: Run) -> dict[RequestKey, Outcome]:
    """Score every request that has something to be scored by; reads the run's answers, code and outputs.

    Raises:
        UsageError: one of these files is damaged.
    """
    references = run.answers()
    code = {_key(result): result for result in run.code_results()}
    records = _last_turns(run.records, {*references, *(key[1] for key in code)})
    outcomes: dict[RequestKey, Outcome] = {}
    waiting: set[RequestKey] = set()
    for record in records:
        key = _key(record)
        if not record.completed:
            outcomes[key] = "failed"
        elif record.prompt_id not in references:
            outcomes[key] = code_outcome(code.get(key))
        else:
            outcomes[key] = "no_output"
            waiting.add(key)
    if waiting:
        for output in run.outputs():
            if _key(output) in waiting and output.text is not None:
                outcomes[_key(output)] = answer_outcome(output.text, references[output.prompt_id])
    return outcomes


def answer_outcome(text: str, reference: str) -> Outcome:
    """How an output compares with the reference answer."""
    answer = find_answer(text)
    if answer is None:
        return "unanswered"
    return "right" if is_correct(answer, reference) else "wrong"


def code_outcome(result: CodeRecord | None) -> Outcome:
    """What a trial of the code says; an output without code is unanswered."""
    if result is not None and result.reason == "no_code":
        return "unanswered"
    if result is None or result.passed is None:
        return "not_executed"
    return "right" if result.passed else "wrong"


def pooled_task_score(records: Sequence[RequestRecord], outcomes: Outcomes) -> Pooled:
    """Sums behind `task_score`."""
    requests = table_of(records)
    found, is_scored = _outcomes(requests, outcomes)
    right = (found[is_scored] == "right").astype(numpy.float64)
    return sum_by_prompt(requests, is_scored, [right, numpy.ones(len(right))], ratio)


def task_score(records: Sequence[RequestRecord], outcomes: Outcomes) -> float | None:
    """right / scored requests. For code this is pass@1."""
    return pooled_task_score(records, outcomes).value()


def num_scored(records: Sequence[RequestRecord], outcomes: Outcomes) -> int | None:
    """Completed requests that were compared with a reference answer, or whose code was tried out."""
    return int(_outcomes(table_of(records), outcomes)[1].sum()) or None


def num_right(records: Sequence[RequestRecord], outcomes: Outcomes) -> int | None:
    """Scored requests whose answer is right."""
    return _count(records, outcomes, "right")


def num_unanswered(records: Sequence[RequestRecord], outcomes: Outcomes) -> int | None:
    """Scored requests in which no answer was found; they are not right."""
    return _count(records, outcomes, "unanswered")


def num_cut(records: Sequence[RequestRecord], outcomes: Outcomes) -> int | None:
    """Scored requests that ended at the limit of new tokens."""
    requests = table_of(records)
    _, is_scored = _outcomes(requests, outcomes)
    is_cut = is_scored & (requests.texts("finish_reason") == "length")
    return int(is_cut.sum()) if is_scored.any() else None


def unscored_counts(records: Sequence[RequestRecord], outcomes: Outcomes) -> dict[Outcome, int]:
    """Requests that have something to be scored by and are not scored, by why."""
    found, is_scored = _outcomes(table_of(records), outcomes)
    counts = Counter(outcome for outcome in found[~is_scored].tolist() if outcome is not None)
    return dict(sorted(counts.items()))


def changed_answers(pairing: Pairing, outcomes: Outcomes) -> tuple[int, int] | None:
    """Prompts that the baseline alone, and that the arm alone, has right; None: nothing is scored in both.

    With repeats a prompt counts once, for the arm that has it right more often: its repeats are not
    independent of each other.
    """
    pairs = pairs_of(pairing.completed_pairs)
    first, first_scored = _outcomes(pairs.baseline, outcomes)
    second, second_scored = _outcomes(pairs.arm, outcomes)
    rows = first_scored & second_scored
    if not rows.any():
        return None
    change = (second[rows] == "right").astype(int) - (first[rows] == "right")
    balance = numpy.bincount(pairs.arm.prompts[0][rows], weights=change)
    return int((balance < 0).sum()), int((balance > 0).sum())


def mcnemar_p_value(only_baseline: int, only_arm: int) -> float:
    """Exact two-sided McNemar test: how likely a split at least this uneven is, if both are equally good.

    min(1, 2 * sum over i <= min(b, c) of binomial(b + c, i) / 2^(b + c)); 1 where b + c = 0.
    """
    total = only_baseline + only_arm
    tail = sum(math.comb(total, i) for i in range(min(only_baseline, only_arm) + 1))
    return min(1.0, 2 * tail / (1 << total))


def _outcomes(requests: RequestTable, outcomes: Outcomes) -> tuple[NDArray[Any], Mask]:
    """[requests]: the outcome of each, None where it has nothing to be scored by; and which are scored."""
    found = requests.look_up(outcomes)
    is_scored = numpy.zeros(len(found), dtype=bool)
    if outcomes:
        for outcome in SCORED:
            is_scored |= found == outcome
    return found, is_scored


def _count(records: Sequence[RequestRecord], outcomes: Outcomes, wanted: Outcome) -> int | None:
    found, is_scored = _outcomes(table_of(records), outcomes)
    return int((found == wanted).sum()) if is_scored.any() else None


def _last_turns(records: Sequence[RequestRecord], prompt_ids: Collection[str]) -> list[RequestRecord]:
    """Of these prompts, the last turn that any arm has a record of."""
    if not prompt_ids:
        return []
    last: dict[str, int] = {}
    for record in records:
        if record.prompt_id in prompt_ids:
            last[record.prompt_id] = max(record.turn, last.get(record.prompt_id, 0))
    return [record for record in records if last.get(record.prompt_id) == record.turn]


def _key(record: RequestRecord | OutputRecord | CodeRecord) -> RequestKey:
    return (record.cell_id, record.prompt_id, record.turn, record.repeat)
