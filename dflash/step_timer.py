"""Where a step's time goes, drafting or verifying, without disturbing the loop that is timed."""

from __future__ import annotations

import time
from typing import Any

import torch


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class StepTimer:
    """Sums draft and verify times over steps.

    On a CPU work is done when a call returns, so a clock reading is enough. On CUDA events are put into the stream and
    read once, after the loop's own clock has stopped. Elsewhere the split is not known.
    """

    def __init__(self, device: torch.device) -> None:
        self._kind = device.type
        self._marks: list[Any] = []  # three a step: start, after the draft, after the verify forward

    def start(self) -> None:
        self._mark()

    def end_draft(self) -> None:
        self._mark()

    def end_verify(self) -> None:
        self._mark()

    def _mark(self) -> None:
        if self._kind == "cpu":
            self._marks.append(time.perf_counter_ns())
        elif self._kind == "cuda":
            new_event: Any = torch.cuda.Event  # untyped in torch
            event = new_event(enable_timing=True)
            event.record()
            self._marks.append(event)

    def totals_ns(self) -> tuple[int | None, int | None]:
        """(draft, verify) in ns over all steps; None where the device does not tell."""
        if self._kind not in ("cpu", "cuda"):
            return None, None
        steps = [self._marks[index : index + 3] for index in range(0, len(self._marks), 3)]
        draft_ns = sum(self._between_ns(start, drafted) for start, drafted, _ in steps)
        verify_ns = sum(self._between_ns(drafted, verified) for _, drafted, verified in steps)
        return draft_ns, verify_ns

    def _between_ns(self, start: Any, end: Any) -> int:
        if self._kind == "cpu":
            return int(end - start)
        end.synchronize()
        return int(start.elapsed_time(end) * 1e6)
