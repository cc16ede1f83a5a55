"""The state of the network, as a policy sees it (method B, step 3; Meng Yugong 2025)."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

DELAY_RATE = 1 / 8  # of the smoothed delay


@dataclass(slots=True)
class Network:
    """The smoothed delay per byte of an exchange, and what it was at first (step 3).

    The delay of an exchange depends on how much was sent. So the delay of an empty one is taken off, and the
    rest divided by the bytes **(r)**. Until ``window`` exchanges have been seen the reference is unknown.
    """

    window: int
    empty: float | None = None  # seconds
    smoothed: float | None = None  # seconds per byte
    reference: float | None = None  # seconds per byte
    first: tuple[float, ...] = ()

    def observe(self, seconds: float, size: int) -> None:
        """Note an exchange of ``size`` bytes; of 0 bytes: of nothing, of which the fastest counts."""
        if size == 0:
            self.empty = seconds if self.empty is None else min(seconds, self.empty)
            return
        delay = max(seconds - (self.empty or 0.0), 0.0) / size
        if self.smoothed is not None:
            self.smoothed += DELAY_RATE * (delay - self.smoothed)
            return
        self.first = (*self.first, delay)
        if len(self.first) >= self.window:  # more: saved with a longer window
            self.smoothed = self.reference = statistics.median(self.first)
            self.first = ()

    def speed(self) -> float:
        """Return D_ref / D: 1 at first, above 1 when the network has become faster, below 1 when slower."""
        return self.reference / self.smoothed if self.reference and self.smoothed else 1.0
