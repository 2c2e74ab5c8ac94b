"""Why a number is missing, in words: the reason stands where the number would be. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dflash.results import metrics, request_metrics
from dflash.results.columns import table_of
from dflash.results.paired_metrics import Pairing
from dflash.results.records import Cell, RequestRecord
from dflash.results.task_scores import UNSCORED_WORDS, Outcomes, unscored_counts

CODE = "code"  # the category of prompts whose answer is a program


def why_no_speed(cell: Cell, records: Sequence[RequestRecord]) -> str:
    """Why decode_tok_s is None."""
    if not records:
        return cell.reason or "no request was run"
    done = request_metrics.completed(records)
    if not done:
        return _nothing_completed(records)
    if all(
        record.num_output_tokens is not None and request_metrics.num_decode_tokens(record) == 0
        for record in done
    ):
        return "every output ended with its first chunk: there is no decode token"
    if not cell.is_timed:
        return "processes shared a device, so no time was kept"
    return "token counts or time stamps were not measured"


def why_no_speedup(cell: Cell, pairing: Pairing | None, refused: str = "") -> str:
    """Why speedup is None.

    Args:
        refused: of the baseline of another run: why it is not compared.
    """
    if cell.arm.is_baseline:
        return "this is the baseline"
    if not cell.is_timed:
        return "processes shared a device, so no time was kept"
    if pairing is None and refused:
        return f"no baseline arm in its run, and {refused}"
    if pairing is None:
        add = "--baseline-url" if cell.on_server else f"--arms baseline,{cell.arm.name}"
        return f"no baseline arm in this run; add it with {add}"
    if pairing.unlike_prompts:
        return "comparison refused: the prompts differ between the arms"
    if pairing.baseline_fault:
        return f"comparison refused: the baseline {pairing.baseline_fault}"
    reasons = ", ".join(f"{reason}: {count}" for reason, count in pairing.left_out.items())
    return f"no request completed in both arms with a decode token in each ({reasons or 'no requests'})"


def why_no_agreement(cell: Cell, pairing: Pairing | None, no_speedup: str) -> str:
    """Why agreement is None.

    Args:
        no_speedup: what would be said of the speedup.
    """
    if cell.workload.temperature > 0 and not cell.arm.is_baseline:
        return "outputs are sampled (temperature above 0): equality is not expected"
    if pairing is not None and pairing.completed_pairs:
        return "no output digests"
    return no_speedup


def why_no_task_score(cell: Cell, records: Sequence[RequestRecord], outcomes: Outcomes) -> str:
    """Why task_score is None."""
    if not records:
        return cell.reason or "no request was run"
    if not request_metrics.num_completed(records):
        return _nothing_completed(records)
    unscored = unscored_counts(records, outcomes)
    if not unscored and set(table_of(records).texts("category")) == {CODE}:
        return "code is executed only with --execute-code, and where the data set has tests"
    if not unscored:
        return "the prompts have no reference answers"
    if set(unscored) == {"no_output"}:
        return "outputs were not saved (--no-save-outputs), and scores are read from them"
    listed = ", ".join(f"{UNSCORED_WORDS[outcome]} {count}" for outcome, count in unscored.items())
    return f"no request could be scored ({listed})"


def _nothing_completed(records: Sequence[RequestRecord]) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in metrics.error_kind_counts(records).items())
    return f"no request completed ({kinds})" if kinds else "no request completed"
