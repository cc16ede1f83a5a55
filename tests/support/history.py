"""What an onlooker has seen of jobs, pods and ranks: the events, and what they add up to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations
from typing import Any

Body = Mapping[str, Any]
JOB = "HorovodJob"
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Seen:
    """An object is like this now, or was when it went."""

    at: float
    body: Body
    gone: bool = False


@dataclass(frozen=True)
class Deleted:
    """The author of a job, by its UID, is about to delete it."""

    at: float
    job: str


@dataclass(frozen=True)
class Worked:
    """A rank of a job has worked in a pod, both by their UIDs: it began, went on, or ended with a status."""

    at: float
    job: str
    pod: str
    rank: int = 0
    ranks: int = 1
    generation: int = 1
    began: bool = False
    status: int | None = None


@dataclass(frozen=True)
class Disturbed:
    """Something begins to disturb the cluster, or has been over for long enough to be made up for."""

    at: float
    what: str
    over: bool = False


@dataclass(frozen=True)
class Look:
    """Time has passed."""

    at: float


Event = Seen | Deleted | Worked | Disturbed | Look


@dataclass
class Life:
    """When one rank worked in one pod."""

    pod: str
    generation: int
    first: float
    last: float
    begun: int = 0


@dataclass
class Record:
    """What the history has told so far.

    Attributes:
        now: when that was last looked at.
        jobs: UID -> job that is there.
        pods: UID -> pod that is there.
        others: UID -> other child of a job that is there.
        pods_of: UID of a job -> its pods.
        names: job and name of a pod -> UID of the first that had it.
        hosts: UID of a pod, be it there or not -> its place: job and host name.
        ended: job -> when it was first seen to have ended, and how.
        deleted: jobs whose authors have deleted them.
        rivals: pairs of pods that have lived in one place at the same time.
        lives: job and rank -> when it worked where.
        started: job -> number and ranks of the last start of its program.
        succeeded: job and number of a start -> ranks that have ended with status 0.
        statuses: job -> all that its ranks have ended with.
    """

    now: float = 0.0
    jobs: dict[str, Body] = field(default_factory=dict)
    pods: dict[str, Body] = field(default_factory=dict)
    others: dict[str, Body] = field(default_factory=dict)
    pods_of: dict[str, dict[str, Body]] = field(default_factory=lambda: defaultdict(dict))
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    hosts: dict[str, tuple[str, str]] = field(default_factory=dict)
    ended: dict[str, tuple[float, str]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    rivals: set[tuple[str, str]] = field(default_factory=set)
    lives: dict[tuple[str, int], list[Life]] = field(default_factory=lambda: defaultdict(list))
    started: dict[str, tuple[int, int]] = field(default_factory=dict)
    succeeded: dict[tuple[str, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    statuses: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def worked_in(self, pod: str) -> bool:
        """Whether a rank has ever worked in a pod."""
        return any(life.pod == pod for lives in self.lives.values() for life in lives)

    def went_well(self, job: str) -> bool:
        """Whether all ranks of the last start of the job's program have ended with status 0."""
        generation, ranks = self.started.get(job, (0, 0))
        return ranks > 0 and len(self.succeeded[job, generation]) == ranks


def owner(body: Body) -> str:
    """Return the UID of the job that an object belongs to, empty for none."""
    owners = body["metadata"].get("ownerReferences") or ()
    return next((str(each["uid"]) for each in owners if each["kind"] == JOB), "")


def condition(job: Body, kind: str) -> str:
    """Return the status of a condition of a job."""
    found = (job.get("status") or {}).get("conditions") or ()
    return next((str(each["status"]) for each in found if each["type"] == kind), "")


def finished(job: Body) -> str:
    """Return how a job has ended, empty while it has not."""
    return next((kind for kind in ("Complete", "Failed") if condition(job, kind) == "True"), "")


def living(pod: Body) -> bool:
    """Whether a pod may run and shall."""
    return "deletionTimestamp" not in pod["metadata"] and pod.get("status", {}).get("phase") not in _OVER


def bound(pod: Body) -> bool:
    """Whether a pod has its node."""
    return bool(pod["spec"].get("nodeName"))


def places(job: Body) -> int:
    """Return how many pods a job has: its workers and its coordinator."""
    return 1 + sum(int(group["replicas"]) for group in job["spec"]["workerGroups"])


def called(body: Body) -> str:
    """Return the name of an object in messages."""
    return f"{body['kind']} {body['metadata']['namespace']}/{body['metadata']['name']}"


def seconds(text: str) -> float:
    """Return a time of the API server's in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def note(record: Record, event: Seen) -> None:
    """Take an object into the record, or out of it."""
    body, metadata = event.body, event.body["metadata"]
    known, uid = {JOB: record.jobs, "Pod": record.pods}.get(body["kind"], record.others), metadata["uid"]
    if event.gone:
        known.pop(uid, None)
        record.pods_of[owner(body)].pop(uid, None)
        return
    known[uid] = body
    if body["kind"] == JOB and finished(body):
        record.ended.setdefault(uid, (event.at, finished(body)))
    if body["kind"] == "Pod":
        host = (owner(body), body["spec"].get("hostname") or metadata["name"])
        record.hosts[uid] = host
        record.pods_of[owner(body)][uid] = body
        record.names.setdefault((owner(body), metadata["name"]), uid)
        mates = record.pods_of[owner(body)].items()
        rivals = [each for each, pod in mates if record.hosts[each] == host and living(pod)]
        record.rivals |= {(min(pair), max(pair)) for pair in combinations(rivals, 2)}


def note_work(record: Record, event: Worked) -> None:
    """Take the work of a rank into the record."""
    lives = record.lives[event.job, event.rank]
    life = next((it for it in lives if (it.pod, it.generation) == (event.pod, event.generation)), None)
    if life is None:
        life = Life(event.pod, event.generation, event.at, event.at)
        lives.append(life)
    life.first, life.last = min(life.first, event.at), max(life.last, event.at)
    life.begun += event.began
    record.started[event.job] = max(record.started.get(event.job, (0, 0)), (event.generation, event.ranks))
    if event.status is not None:
        record.statuses[event.job].add(event.status)
        if event.status == 0:
            record.succeeded[event.job, event.generation].add(event.rank)
