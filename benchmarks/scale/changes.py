"""Jobs that are changed at a fixed rate, and how long each change takes to arrive where it has its effect."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scale.manifests import DENSITY, Manifest
from scale.sizes import WORKERS
from scale.witness import Seen, Witness

from gradsieve_operator import contract
from gradsieve_operator.cluster.api import Api, path

COUNTED = ("density", "grow", "suspend")
"""Whose latency counts: to the coordinator's PUT, the pod's creation, the last pod's deletion. What takes it
back is measured besides: `shrink`, to the pod's deletion, and `resume`, to the first pod's creation."""

_TURNS = ("density", "grow", "density", "suspend")
"""What is changed in turn. Every second time a grown job shrinks, and a suspended one resumes."""

_CHANGED = 0.1
"""This share of them stays grown, and suspended, before the first is changed back: from then on half of the
changes take one back. Jobs that all grow before the first one shrinks would be another load each minute, and
the last to be changed would wait for a job that only a further change sets free."""

_SHARES = {"density": 0.6, "grow": 0.2, "suspend": 0.2}
"""Of the jobs, each of which is changed in one way only."""

_AFTERWARDS_SECONDS = 60.0
_HIGHEST = 500


@dataclass
class Changer:
    """Changes jobs, each in one way, all in turn.

    Attributes:
        seconds: latencies by kind of change, from when it was due: a change that had to wait for a job whose
            last change has not arrived yet counts that time, too.
        lost: how many changes have not arrived, by kind; their latency is the time that was waited.
    """

    api: Api
    witness: Witness
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    lost: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    async def run(self, jobs: Sequence[Manifest], rate: float, minutes: float) -> None:
        """Make ``rate`` changes each second; returns when all have arrived, or a minute after the last."""
        parts = {part: Part(part, group) for part, group in _parted(jobs).items()}
        began, tasks = time.time(), []
        for number in range(round(rate * 60 * minutes)):
            due = began + number / rate
            await asyncio.sleep(due - time.time())
            tasks.append(asyncio.create_task(self._turn(parts[_TURNS[number % len(_TURNS)]], due)))
        await asyncio.wait(tasks, timeout=_AFTERWARDS_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _turn(self, part: Part, due: float) -> None:
        kind = part.name
        try:
            job = await part.take()
            kind, spec, state = job.next(part.name, self.witness.jobs[job.key])
            await self.api.merge(path(contract.API_VERSION, contract.JOB_PLURAL, *job.key), {"spec": spec})
            self.seconds[kind].append(await self.witness.wait(job.key, state) - due)
        except asyncio.CancelledError:
            self.lost[kind] += 1
            self.seconds[kind].append(time.time() - due)
            raise
        if kind == "resume":
            await self.witness.wait(job.key, lambda seen: seen.holds("Running"))
        part.put(job)


class Part:
    """The jobs that are changed in one way; those that wait for nothing, in the order in which they came."""

    def __init__(self, name: str, jobs: Sequence[Manifest]) -> None:
        self.name = name
        self._usual: asyncio.Queue[Job] = asyncio.Queue()
        self._changed: asyncio.Queue[Job] = asyncio.Queue()
        self._back = False
        self._enough = max(1, round(len(jobs) * _CHANGED))
        for manifest in jobs:
            self._usual.put_nowait(Job(manifest))

    async def take(self) -> Job:
        """Return a job to be changed, and every second time one to be changed back, once there are enough."""
        self._back = not self._back and self._changed.qsize() >= self._enough
        return await (self._changed if self._back else self._usual).get()

    def put(self, job: Job) -> None:
        """Take back a job whose change has arrived."""
        back = self.name != "density" and job.changed
        (self._changed if back else self._usual).put_nowait(job)


class Job:
    """A job and what was last done to it.

    Attributes:
        changed: whether the last change is to be taken back.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.key = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        self._groups = manifest["spec"]["workerGroups"]
        self._densities = itertools.cycle(range(DENSITY + 1, _HIGHEST))
        self.changed = False

    def next(self, part: str, seen: Seen) -> tuple[str, dict[str, Any], Callable[[Seen], bool]]:
        """Return the next change's kind, what it sets in the spec, and what tells that it has arrived."""
        self.changed = not self.changed
        made, pods, known = set(seen.made), set(seen.pods), len(seen.densities)
        if part == "density":
            density = next(self._densities)
            return (
                part,
                {"compression": {"densityPermille": density}},
                lambda now: density in now.densities[known:],
            )
        if part == "suspend" and self.changed:
            return part, {"suspend": True}, lambda now: not now.pods
        if part == "suspend":
            return "resume", {"suspend": False}, lambda now: not now.made <= made
        # A merge patch replaces lists as a whole.
        groups = {"workerGroups": [{**self._groups[0], "replicas": WORKERS + self.changed}]}
        if self.changed:
            return part, groups, lambda now: not now.made <= made
        return "shrink", groups, lambda now: not pods <= now.pods


def _parted(jobs: Sequence[Manifest]) -> dict[str, Sequence[Manifest]]:
    parts, first = {}, 0
    for part, share in _SHARES.items():
        last = first + math.floor(len(jobs) * share)
        parts[part], first = jobs[first:last], last
    return parts


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest of ``values`` that is not exceeded by ``percent`` of them."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
