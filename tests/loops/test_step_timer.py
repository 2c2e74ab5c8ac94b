"""The split of a step's time, with a clock that is handed the readings."""

from __future__ import annotations

import pytest
import torch

from dflash import step_timer
from dflash.step_timer import StepTimer


def take_steps(timer: StepTimer, num_steps: int) -> None:
    for _ in range(num_steps):
        timer.start()
        timer.end_draft()
        timer.end_verify()


def test_draft_and_verify_times_are_summed_over_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([100, 103, 110, 200, 205, 250])  # 3 and 5 of drafting, 7 and 45 of verifying
    monkeypatch.setattr(step_timer.time, "perf_counter_ns", lambda: next(readings))
    timer = StepTimer(torch.device("cpu"))
    assert timer.totals_ns() == (0, 0)
    take_steps(timer, 2)
    assert timer.totals_ns() == (8, 52)


def test_a_device_that_does_not_tell_gives_none() -> None:
    timer = StepTimer(torch.device("meta"))
    take_steps(timer, 2)
    assert timer.totals_ns() == (None, None)
