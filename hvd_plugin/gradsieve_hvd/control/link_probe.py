"""What the ranks' link is worth now, by a few exchanges that are made only to be timed."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_KEPT: Final = 3
_LEAST_PAUSE: Final = 5.0
_SHARE: Final = 0.01
_FIRST_BYTES: Final = 32 << 10
_LEAST_BYTES, _MOST_BYTES = 1 << 10, 1 << 20
_START_UPS, _LEAST_SECONDS = 10, 5e-3
"""A probe is to take ten start-ups or 5 ms, so that these hide nothing of the bandwidth."""

_SHORTEST: Final = 1e-6
_SURPRISE: Final = 2.0


class LinkProbe:
    """Says when to probe with how many bytes, and keeps what came of it.

    1. All ranks exchange nothing, so that they begin together; nothing again, which takes the start-up time;
       and then as many bytes each as rank 0 has said.
    2. What counts are medians of the last three.
    3. Probes take at most a hundredth of the time, and come every five seconds at most. One that surprises is
       followed by another one soon, of a size that suits what it has found.

    Args:
        ranks: that exchange.
        clock: seconds.
    """

    def __init__(self, ranks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._others, self._clock = max(ranks - 1, 0), clock
        self._start_ups: deque[float] = deque(maxlen=_KEPT)
        self._rates: deque[float] = deque(maxlen=_KEPT)
        self._next = 0.0

    def due(self) -> int:
        """Return how many bytes each rank is to send now; 0 for no probe."""
        if not self._others or self._clock() < self._next:
            return 0
        received: float = _FIRST_BYTES
        if self._rates:
            received = self._rates[-1] * max(_START_UPS * self.start_up, _LEAST_SECONDS)
        most = min(received, _MOST_BYTES)
        return max(round(most / self._others), _LEAST_BYTES // self._others, 1)

    def take(self, size: int, empty_seconds: float, seconds: float) -> None:
        """Take note of a probe with ``size`` bytes from each rank.

        Args:
            size: of each rank's message.
            empty_seconds: that an exchange of nothing took just before.
            seconds: that the probe took.
        """
        rate = self._others * size / max(seconds - empty_seconds, _SHORTEST)
        before = self.bytes_per_second or rate
        self._start_ups.append(empty_seconds)
        self._rates.append(rate)
        surprises = max(rate / before, before / rate) > _SURPRISE
        pause = 0.0 if surprises else (2 * empty_seconds + seconds) / _SHARE
        self._next = self._clock() + max(pause, _LEAST_PAUSE)

    @property
    def start_up(self) -> float:
        """Seconds of an exchange of nothing; 0 before the first probe."""
        return statistics.median(self._start_ups) if self._start_ups else 0.0

    @property
    def bytes_per_second(self) -> float:
        """That a rank receives when all send to all; 0 before the first probe."""
        return statistics.median(self._rates) if self._rates else 0.0
