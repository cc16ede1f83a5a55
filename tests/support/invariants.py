"""What must hold of HorovodJobs whatever happens to the cluster, judged by what an onlooker has recorded.

Nothing of this is the operator's own code. `judge` goes through a history once; some laws hold at every
moment, others may be broken for some seconds, of which only those count in which nothing disturbs the
cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from history import (
    JOB,
    Body,
    Deleted,
    Disturbed,
    Event,
    Look,
    Record,
    Seen,
    Worked,
    bound,
    called,
    condition,
    finished,
    living,
    note,
    note_work,
    owner,
    places,
    seconds,
)

_AT_REST = 15.0
"""Ranks write down that they work many times a second; silent for so long, they do not."""


@dataclass(frozen=True)
class Violation:
    """A law that was broken, by whom, and how."""

    law: str
    at: float
    message: str


# Laws of every moment: what an event says against the record before it.


def not_lost(record: Record, event: Event) -> Iterator[str]:
    """A job goes when its author deletes it, or, if it says so, some time after its end."""
    if isinstance(event, Seen) and event.gone and event.body["kind"] == JOB:
        uid, policy = event.body["metadata"]["uid"], event.body["spec"].get("runPolicy") or {}
        expired = uid in record.ended and "ttlSecondsAfterFinished" in policy
        if uid not in record.deleted and not expired:
            yield f"{called(event.body)} is gone, and nobody has deleted it"


def begun_once(record: Record, event: Event) -> Iterator[str]:
    """No start of a program is made twice, and none after its job has ended."""
    if not (isinstance(event, Worked) and event.began):
        return
    lives = record.lives[event.job, event.rank]
    if any(life.begun and life.generation == event.generation for life in lives):
        yield f"rank {event.rank} of job {event.job} began twice in generation {event.generation}"
    if event.at > record.ended.get(event.job, (event.at, ""))[0]:
        yield f"rank {event.rank} of job {event.job} began after the end of the job"


def ends_once(record: Record, event: Event) -> Iterator[str]:
    """A job that has ended stays ended as it has."""
    if isinstance(event, Seen) and event.body["kind"] == JOB:
        _, how = record.ended.get(event.body["metadata"]["uid"], (0.0, ""))
        if how and finished(event.body) != how:
            yield f"{called(event.body)} was {how} and is {finished(event.body) or 'not'} any more"


def pods_are_new(record: Record, event: Event) -> Iterator[str]:
    """A pod is not made for a job that has ended, nor under a name that another pod of the job had."""
    if not isinstance(event, Seen) or event.gone or event.body["kind"] != "Pod":
        return
    metadata, job = event.body["metadata"], owner(event.body)
    made, (since, _) = seconds(metadata["creationTimestamp"]), record.ended.get(job, (event.at, ""))
    if metadata["uid"] not in record.hosts and made > since:
        yield f"{called(event.body)} was made after the end of its job"
    if record.names.get((job, metadata["name"]), metadata["uid"]) != metadata["uid"]:
        yield f"{called(event.body)} has a name that an earlier pod of its job had"


def one_incarnation(record: Record, event: Event) -> Iterator[str]:
    """Of what bears one number, or has one place, never two work at the same time."""
    if not isinstance(event, Worked):
        return
    place = record.hosts.get(event.pod, ("", event.pod))
    for (job, rank), lives in record.lives.items():
        if job != event.job:
            continue
        for life in lives:
            same = rank == event.rank or record.hosts.get(life.pod) == place
            other = life.pod != event.pod or (life.generation != event.generation and rank == event.rank)
            if same and other and life.first <= event.at <= life.last:
                mine = f"rank {event.rank} of job {job} works in {event.pod}, generation {event.generation}"
                yield f"{mine}, while rank {rank} works in {life.pod}, generation {life.generation}"


def surplus_not_admitted(record: Record, event: Event) -> Iterator[str]:
    """Of two pods that live in one place, one at most is ever let in."""
    if isinstance(event, Worked):
        for pair in record.rivals:
            if event.pod in pair and all(pod == event.pod or record.worked_in(pod) for pod in pair):
                yield f"ranks have worked in both of two rival pods: {' and '.join(pair)}"


# Laws of what may be for a while: what is wrong now, by what it is wrong with.


def surplus_goes(record: Record) -> Iterator[tuple[str, str]]:
    """Two pods do not live in one place for long."""
    counted = Counter(record.hosts[uid] for uid, pod in record.pods.items() if living(pod))
    for (job, host), number in counted.items():
        if number > 1:
            yield f"{job}/{host}", f"{number} pods live in place {host} of job {job}"


def all_or_nothing(record: Record) -> Iterator[tuple[str, str]]:
    """A job that has not started has nodes for all of its pods, or for none."""
    for uid, job in record.jobs.items():
        if condition(job, "Admitted") == "True" or finished(job):
            continue
        hosts = {
            record.hosts[pod["metadata"]["uid"]]
            for pod in record.pods_of[uid].values()
            if living(pod) and bound(pod)
        }
        if 0 < len(hosts) < places(job):
            yield uid, f"{called(job)} is not admitted and holds {len(hosts)} of {places(job)} places"


def no_orphan(record: Record) -> Iterator[tuple[str, str]]:
    """What was made for a job goes with it."""
    for uid, child in (record.pods | record.others).items():
        if owner(child) not in record.jobs:
            yield uid, f"{called(child)} belongs to no job that is there"


def deletions_end(record: Record) -> Iterator[tuple[str, str]]:
    """What is being deleted goes, once its node can tell of it."""
    for uid, each in (record.jobs | record.pods | record.others).items():
        metadata = each["metadata"]
        if "deletionTimestamp" in metadata and record.now > seconds(metadata["deletionTimestamp"]):
            yield uid, f"{called(each)} should have gone; finalizers: {metadata.get('finalizers') or 'none'}"


def status_is_true(record: Record) -> Iterator[tuple[str, str]]:
    """What a job says of itself is so."""
    for uid, job in record.jobs.items():
        for name, wrong in _untruths(uid, job, record).items():
            if wrong:
                yield f"{uid} {name}", f"{called(job)}: {wrong}"


def _untruths(uid: str, job: Body, record: Record) -> dict[str, str]:
    status, pods = job.get("status") or {}, [pod for pod in record.pods_of[uid].values() if living(pod)]
    ended, suspended = finished(job), bool(job["spec"].get("suspend"))
    generation, observed = job["metadata"]["generation"], status.get("observedGeneration")
    said = {kind: condition(job, kind) for kind in ("Suspended", "Admitted", "Running", "Degraded")}
    kept = (job["spec"].get("runPolicy") or {}).get("cleanPodPolicy") == "None"
    ready = sum(_ready(pod) and "coordinator" not in pod["spec"]["hostname"] for pod in pods)
    filled = len({pod["spec"]["hostname"] for pod in pods if bound(pod)})
    works = [life.last for (of, _), lives in record.lives.items() if of == uid for life in lives]
    well = record.went_well(uid)
    wrong = {
        "generation": observed != generation and f"generation {generation} and observed {observed}",
        "ready": (status.get("ready") or 0) != ready and f"says {status.get('ready')} ready, and {ready} are",
        "complete": ended == "Complete" and not well and "is Complete, and its program did not end well",
        "failed": ended == "Failed" and well and "has Failed, and its program ended well",
        "over": well
        and not (ended or suspended)
        and "its program has ended well, and it says nothing of that",
        "pods": bool(ended) and bool(pods) and not kept and f"is {ended} and has {len(pods)} living pods",
        "suspended": bool(ended) and said["Suspended"] == "True" and f"is {ended}, and suspended as well",
        "code": bool(ended)
        and status.get("exitCode") not in {None, *record.statuses[uid]}
        and f"ended with {record.statuses[uid]} and says {status.get('exitCode')}",
    }
    if not ended:
        wrong |= {
            "suspended": suspended
            and (bool(pods) or said["Suspended"] != "True")
            and f"is to be suspended, has {len(pods)} pods and says {said['Suspended']}",
            "resumed": not suspended and said["Suspended"] == "True" and "is not suspended and says so",
            "admitted": not suspended
            and (said["Admitted"], said["Degraded"]) == ("True", "False")
            and filled != places(job)
            and f"says that all is well and has {filled} of {places(job)} pods",
            "running": said["Running"] == "True"
            and record.now - max(works, default=0.0) > _AT_REST
            and "says that ranks train, and none does",
            "forgotten": not suspended
            and not pods
            and said["Admitted"] != "False"
            and "has no pod, and does not say why",
        }
    return {name: str(text) if text else "" for name, text in wrong.items()}


def _ready(pod: Body) -> bool:
    found = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in found)


AT_EVERY_MOMENT: tuple[Callable[[Record, Event], Iterator[str]], ...] = (
    not_lost,
    begun_once,
    ends_once,
    pods_are_new,
    one_incarnation,
    surplus_not_admitted,
)
IN_THE_END: Mapping[Callable[[Record], Iterator[tuple[str, str]]], float] = {
    surplus_goes: 5.0,
    all_or_nothing: 30.0,
    no_orphan: 45.0,
    deletions_end: 45.0,
    status_is_true: 30.0,
}
"""For how many undisturbed seconds something may be wrong."""


class Judge:
    """Takes a history event by event.

    Attributes:
        violations: of all laws, in the order in which they were noticed.
    """

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._record = Record()
        self._disturbances: Counter[str] = Counter()
        self._wrong: dict[tuple[str, str], float] = {}
        self._looked: float | None = None

    def take(self, event: Event) -> None:
        """Judge one event, which is not earlier than those before; of ranks, whenever it is told."""
        for law in AT_EVERY_MOMENT:
            for message in law(self._record, event):
                self.violations.append(Violation(law.__name__, event.at, message))
        match event:
            case Seen():
                note(self._record, event)
            case Worked():
                note_work(self._record, event)
            case Deleted():
                self._record.deleted.add(event.job)
            case Disturbed():
                self._look(event.at)
                self._disturbances[event.what] += -1 if event.over else 1
            case Look():
                self._look(event.at)

    def wrong(self) -> list[str]:
        """Return what is not as it should be in the end, however long it has not been."""
        return [message for law in IN_THE_END for _, message in law(self._record)]

    def _look(self, now: float) -> None:
        """Count the seconds since the last look against what was wrong then and is wrong now."""
        calm = not any(self._disturbances.values())
        passed = now - self._looked if self._looked is not None and calm else 0.0
        self._looked = self._record.now = now
        before, self._wrong = self._wrong, {}
        for law, most in IN_THE_END.items():
            for subject, message in law(self._record):
                key = (law.__name__, subject)
                self._wrong[key] = before[key] + passed if key in before else 0.0
                if self._wrong[key] > most >= before.get(key, 0.0):
                    lasted = f"{message}, for {self._wrong[key]:.0f} s"
                    self.violations.append(Violation(law.__name__, now, lasted))


def judge(history: Iterable[Event]) -> list[Violation]:
    """Return all that a history shows to be against the laws."""
    found = Judge()
    for event in history:
        found.take(event)
    return found.violations
