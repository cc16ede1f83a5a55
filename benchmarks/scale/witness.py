"""Sees what becomes of jobs and their pods, by watches of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from scale.client import follow

from gradsieve_operator import contract
from gradsieve_operator.cluster.api import Api, path

Key = tuple[str, str]


@dataclass
class Seen:
    """One job as it was last seen.

    Attributes:
        conditions: type -> (status, reason).
        pods: names of its pods whose deletion has not begun.
        made: names of all pods that it has ever had.
        coordinator: name of its newest coordinator's pod.
        densities: those of all plans that its coordinators were given.
    """

    conditions: dict[str, tuple[str, str]] = field(default_factory=dict)
    pods: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    coordinator: str = ""
    densities: list[int] = field(default_factory=list)

    def holds(self, condition: str, status: str = "True", reason: str | None = None) -> bool:
        """Whether a condition was last seen so."""
        found = self.conditions.get(condition, ("", ""))
        return found[0] == status and reason in (None, found[1])


class Witness:
    """Knows all jobs.

    Args:
        api: of an administrator.

    Attributes:
        jobs: as they were last seen.
        modes: plans that coordinators were told, by their mode.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self.modes: Counter[str] = Counter()
        self.jobs: defaultdict[Key, Seen] = defaultdict(Seen)
        self._waits: defaultdict[Key, list[tuple[Callable[[Seen], bool], asyncio.Future[float]]]]
        self._waits = defaultdict(list)

    async def watch_jobs(self) -> None:
        """Follow the jobs."""
        where = path(contract.API_VERSION, contract.JOB_PLURAL)
        async for event in follow(self._api, where):
            job = event["object"]
            key = job["metadata"]["namespace"], job["metadata"]["name"]
            found = (job.get("status") or {}).get("conditions") or ()
            self.jobs[key].conditions = {each["type"]: (each["status"], each["reason"]) for each in found}
            self._tell(key, time.time())

    async def watch_pods(self) -> None:
        """Follow the jobs' pods."""
        async for event in follow(self._api, path("v1", "pods"), labelSelector=contract.LABEL_JOB):
            metadata = event["object"]["metadata"]
            key, name = (metadata["namespace"], metadata["labels"][contract.LABEL_JOB]), metadata["name"]
            job = self.jobs[key]
            if event["type"] == "DELETED" or "deletionTimestamp" in metadata:
                job.pods.discard(name)
            else:
                job.pods.add(name)
                job.made.add(name)
                if metadata["labels"][contract.LABEL_ROLE] == contract.ROLE_COORDINATOR:
                    job.coordinator = name
            self._tell(key, time.time())

    async def hear(self, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        """Take what coordinators tell of plans, as they came."""
        # It comes until the end of the benchmark.
        with suppress(asyncio.CancelledError):
            async for line in reader:
                told: dict[str, Any] = json.loads(line)
                key = told["namespace"], told["job"]
                self.jobs[key].densities.append(told["density"])
                self.modes[told["mode"] or "none"] += 1
                self._tell(key, told["at"])

    async def wait(self, key: Key, state: Callable[[Seen], bool]) -> float:
        """Return when a job was first seen in ``state``, in seconds since the epoch."""
        if state(self.jobs[key]):
            return time.time()
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waits[key].append((state, future))
        return await future

    def _tell(self, key: Key, now: float) -> None:
        job, left = self.jobs[key], []
        for state, future in self._waits.pop(key, ()):
            if not future.done() and state(job):
                future.set_result(now)
            elif not future.done():
                left.append((state, future))
        if left:
            self._waits[key] = left
