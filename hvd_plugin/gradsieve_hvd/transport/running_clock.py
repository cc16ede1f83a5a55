"""The clock of deadlines: it stands still while this process does.

A laptop's lid, a virtual machine that is moved or a debugger stops a whole job, for minutes perhaps. When it
goes on, an exchange that needed a few more milliseconds would look overdue to all ranks, and end the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_LONGEST_SECONDS = 2.0


class RunningClock:
    """Seconds during which this process ran, for whoever waits and looks at it again and again.

    From one look to the next no more than two seconds are counted: the watchdog looks every second, so that
    more have passed only if the process was stopped, or if there is no watchdog and nobody waited either.

    Args:
        clock: that goes on always, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._looked = clock()

    def seconds(self) -> float:
        """Return the seconds counted so far. Callable from any thread."""
        with self._lock:
            now = self._clock()
            self._seconds += min(now - self._looked, _LONGEST_SECONDS)
            self._looked = now
            return self._seconds


RUNNING = RunningClock()
"""This process's."""
