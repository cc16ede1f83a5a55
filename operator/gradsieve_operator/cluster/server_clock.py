"""What time it is by the API server, whose clock dates the cluster's objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

_AGREE_SECONDS = 2.0
"""The server tells whole seconds, and its answers take a while: clocks that are so near each other agree."""

_PROMPT_SECONDS = 1.0
"""An answer that took longer is too old to set a clock by; or this process stood still when it came."""


class ServerClock:
    """Seconds since the epoch, as the API server counts them.

    The age of a pod, or the time since a node fell silent, is a difference between its clock and this one: by
    a clock of our own that is minutes ahead, every pod would be late for its node as soon as it is made.
    While our own clock agrees with the server's it is taken as it is, since it tells fractions of a second.

    Args:
        wall: our own clock, which may be wrong and may be set.
        steady: seconds that only grow.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall, self._steady = wall, steady
        self._then, self._at = wall(), steady()

    def now(self) -> float:
        """Return the time; by our own clock, as it was at first, until the server has told its own."""
        return self._then + self._steady() - self._at

    def told(self, date: str | None, seconds: float) -> None:
        """Take note of the ``Date`` of an answer.

        Args:
            date: as the header spells it; None where a proxy has left it out.
            seconds: how long the answer took.
        """
        if date is None or seconds > _PROMPT_SECONDS:
            return
        try:
            theirs = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        if abs(self.now() - theirs) > _AGREE_SECONDS:
            ours = self._wall()
            self._then = ours if abs(ours - theirs) <= _AGREE_SECONDS else theirs
            self._at = self._steady()
