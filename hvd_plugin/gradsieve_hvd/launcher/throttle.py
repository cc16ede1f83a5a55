"""Keeps each rank to a quota of processor time, by stopping and continuing its processes.

A quota rather than less of what is free: how fast a rank computes then does not depend on whether others
compute or wait, which is what makes one machine's ranks a model of nodes.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from gradsieve_hvd.launcher.processes import descendants, rank_of, send

_TICK_SECONDS = 0.004
_LOOK_SECONDS = 0.5  # from one look at who belongs to which rank to the next
_SAVED_SECONDS = 0.02
_PROCESS_CLOCK = 2  # CPUCLOCK_SCHED: what the scheduler has counted, of all threads


class Budget:
    """What a rank may still use: a bucket that fills at the rate of its quota.

    It holds no more than 20 ms' worth, so that a rank that has waited is no faster afterwards; what was used
    beyond it is owed.
    """

    def __init__(self) -> None:
        self._left = 0.0

    def allows(self, used: float, elapsed: float, quota: float) -> bool:
        """Return whether the rank may run on.

        used, elapsed: seconds of processor and of wall clock since the last call. quota: cores.
        """
        self._left = min(self._left + quota * elapsed, quota * _SAVED_SECONDS) - used
        return self._left > 0


def processor_seconds(pid: int) -> float:
    """Return what a process has used so far, user and system, with all its threads.

    Raises:
        OSError: it is gone.
    """
    return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)


class _Rank:
    """A rank's processes, of which all run or none."""

    def __init__(self) -> None:
        self._budget = Budget()
        self._used: dict[int, float] = {}
        self._stopped = False

    def take(self, pids: set[int]) -> None:
        """Take note of the processes that there are; of new ones, what they have used before is free."""
        for pid in pids - self._used.keys():
            with suppress(OSError):
                self._used[pid] = processor_seconds(pid)
                if self._stopped:
                    send(pid, signal.SIGSTOP)

    def tick(self, elapsed: float, quota: float) -> None:
        """Stop or continue."""
        used = 0.0
        for pid, before in list(self._used.items()):
            try:
                now = processor_seconds(pid)
            except OSError:
                del self._used[pid]
                continue
            used += now - before
            self._used[pid] = now
        stop = not self._budget.allows(used, elapsed, quota)
        if stop != self._stopped:
            self._stopped = stop
            for pid in self._used:
                send(pid, signal.SIGSTOP if stop else signal.SIGCONT)


class Throttle:
    """A thread of the supervisor that holds ranks to their quotas.

    Args:
        ranks: how many.
        quota: of a rank, in cores, by the seconds since the start.
    """

    def __init__(self, ranks: int, quota: Callable[[int, float], float]) -> None:
        self._ranks = [_Rank() for _ in range(ranks)]
        self._quota = quota
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="throttle", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop holding them: what is stopped may go on, so that it can end."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        began = last = time.monotonic()
        looked = float("-inf")
        while not self._closing.wait(_TICK_SECONDS):
            now = time.monotonic()
            if now >= looked + _LOOK_SECONDS:
                self._look()
                looked = now
            for number, rank in enumerate(self._ranks):
                rank.tick(now - last, self._quota(number, now - began))
            last = now
        for rank in self._ranks:
            rank.tick(1.0, float("inf"))

    def _look(self) -> None:
        found: dict[int, set[int]] = {}
        for pid in descendants(os.getpid()):
            number = rank_of(pid)
            if number is not None:
                found.setdefault(number, set()).add(pid)
        for number, pids in found.items():
            if number < len(self._ranks):
                self._ranks[number].take(pids)
