"""What happened to jobs while nobody led: these come first when a replica begins to lead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from gradsieve_operator.cluster.lease import DURATION_SECONDS
from gradsieve_operator.cluster.queue import Key

_SECONDS = 4.0 * DURATION_SECONDS
"""An earlier leader has seen to what was longer ago; whoever looks at all jobs finds the rest."""


class Missed:
    """Takes note of jobs whose pods change while this replica does not lead.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pods: dict[Key, float] = {}

    def pod_seen(self, job: Key) -> None:
        """Take note that a pod of ``job`` has changed."""
        now = self._clock()
        self._pods.pop(job, None)
        self._pods[job] = now
        # In the order in which they came.
        while (first := next(iter(self._pods))) and now - self._pods[first] > _SECONDS:
            del self._pods[first]

    def jobs(self, unanswered: Iterable[Key]) -> list[Key]:
        """Return the jobs that may wait for somebody: those whose specs nobody has looked at come first."""
        late = self._clock() - _SECONDS
        return [*unanswered, *(job for job, at in self._pods.items() if at >= late)]
