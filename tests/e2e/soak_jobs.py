"""Authors whose jobs live at random, each job until its end is as it should be."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from onlooker import Onlooker
from watched_job import STEP_SECONDS, Steps, WatchedJob

_HASTY = 0.1
"""Share of the jobs that come to their end without having been waited for."""


class Author:
    """One who makes a job, does things to it, sees it end, and makes another.

    Args:
        cluster: where the jobs are.
        onlooker: shows them.
        chance: decides what happens.
        number: tells authors apart.
        kind: of the jobs: `train` for such with ranks, `idle` for such whose pods just wait, and `played` for
            such whose pods are on simulated nodes.

    Attributes:
        lived: how many jobs have ended in which way.
    """

    def __init__(
        self, cluster: Any, onlooker: Onlooker, chance: random.Random, number: int, kind: str
    ) -> None:
        self._cluster, self._onlooker = cluster, onlooker
        self._chance, self._number, self._kind = chance, number, kind
        self.lived: Counter[str] = Counter()
        self._made = 0
        self._steps: Steps = iter(())
        self._wait: tuple[str, Callable[[], bool]] | None = None
        self._since = 0.0

    @property
    def waits_for(self) -> str:
        """What the present job is to become, empty for none."""
        return f"{self._name}: {self._wait[0]}" if self._wait else ""

    def go_on(self, *, new_jobs: bool) -> None:
        """Do what is to be done now, which is mostly nothing.

        Raises:
            AssertionError: a job has not become in time what it was to become.
        """
        if self._wait is None:
            if not new_jobs:
                return
            self._made += 1
            self._steps = self._life()
        elif not self._wait[1]():
            late = time.monotonic() - self._since > STEP_SECONDS
            assert not late, f"not within {STEP_SECONDS:.0f} s: {self.waits_for}"
            return
        self._wait, self._since = next(self._steps, None), time.monotonic()

    @property
    def _name(self) -> str:
        return f"{self._kind}-{self._number}-{self._made}"

    def _life(self) -> Steps:
        """Live the life of one job."""
        chance = self._chance
        end = chance.choice(["well", "well", "badly", "early"])
        job = WatchedJob(
            self._cluster,
            self._onlooker,
            self._name,
            seconds=chance.uniform(8, 20) if self._kind == "train" else 0.0,
            status=3 if end == "badly" else 0,
            simulated=self._kind == "played",
        )
        workers = chance.randint(1, 2)
        yield from job.begin(workers, failures=0 if end == "badly" else 50)
        if chance.random() > _HASTY:
            yield from job.settle()
            # Whoever may fail once only is left alone.
            for _ in range(chance.randint(0, 2) if end != "badly" else 0):
                yield from self._doing(job, workers)
        if end != "early":
            yield from job.end()
        yield from job.delete()
        self.lived[end] += 1

    def _doing(self, job: WatchedJob, workers: int) -> Steps:
        """Do something or other to a job."""
        chance, pods = self._chance, job.living()
        what = chance.choice(["suspend", "lose", "copy", "scale"])
        if what == "scale" and self._kind != "train":
            # As far as its certificates go. Nobody plays coordinators, which would let workers go.
            return job.scale(2 * workers)
        if what == "lose" and pods:
            return job.lose(chance.choice(pods))
        if what == "copy" and pods:
            # Numbers that the operator does not come to.
            return job.copy(chance.choice(pods), 10**7 + chance.randrange(10**6))
        return job.suspend()
