"""How a run that was begun ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dflash.errors import TooManyFailuresError
from dflash.results.store import Run


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that was begun: what was measured, and what ended it early or must be said of it."""

    run: Run
    error: BaseException | None = None  # the first, where cells failed and the sweep went on
    cut: str = ""  # why not everything was run, where the time budget says so
    is_first: bool = True  # False: another process of the same run tells of it


def failure_of(run: Run, max_error_rate: float) -> TooManyFailuresError | None:
    """The error that stands for too many failed requests in any one cell, or None."""
    for cell in run.info.cells:
        records = [record for record in run.records if record.cell_id == cell.cell_id]
        failed = [record for record in records if record.finish_reason == "error"]
        if cell.is_retired or not failed or len(failed) <= max_error_rate * len(records):
            continue
        kinds = Counter(record.error_kind for record in failed)
        return TooManyFailuresError(
            f"{len(failed)} of {len(records)} requests failed: {cell.arm.label}, {cell.workload.dataset}: "
            + ", ".join(f"{kind} {count}" for kind, count in kinds.items())
            + f"; the first said {failed[0].error_message!r}",
            "mend the cause and resume the run, or allow more by --max-error-rate",
        )
    return None
