"""What the memory allows, and how much of it is taken."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

from torch import Tensor

_RESET_PEAK = "5"


def floor_seconds(numbers: Tensor) -> float:
    """Return how long one pass that reads and writes every element takes, with torch's threads; mutates."""
    begin = time.perf_counter()
    numbers.add_(1.0)
    return time.perf_counter() - begin


class PeakMemory:
    """How much resident memory grows at its highest, from a mark on (Linux)."""

    def __init__(self) -> None:
        ctypes.CDLL(None).malloc_trim(0)  # what is free but not given back would hide what is taken
        self._before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)

    def grown(self) -> int:
        """Return the bytes by which the peak since the mark exceeds what was resident then."""
        return max(0, _status("VmHWM") - self._before)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")
