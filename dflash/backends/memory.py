"""Peak memory of one request above the resting level, where the system tells."""

from __future__ import annotations

from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class PeakMemory:
    """Starts at construction. CUDA: the allocator's own peak; Linux CPU: the peak resident set, reset by the kernel."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._resting_bytes: int | None = None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._resting_bytes = torch.cuda.memory_allocated(device)
        elif _reset_peak_resident_set():
            self._resting_bytes = _status_bytes("VmRSS")

    def peak_bytes(self) -> int | None:
        """Bytes above the level at construction; None where it cannot be measured."""
        if self._resting_bytes is None:
            return None
        if self._device.type == "cuda":
            return max(0, torch.cuda.max_memory_allocated(self._device) - self._resting_bytes)
        peak_bytes = _status_bytes("VmHWM")
        return None if peak_bytes is None else max(0, peak_bytes - self._resting_bytes)


def _reset_peak_resident_set() -> bool:
    try:
        _CLEAR_REFS.write_text("5", encoding="ascii")  # 5: reset the peak to the present level
    except OSError:
        return False
    return True


def _status_bytes(key: str) -> int | None:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return None
