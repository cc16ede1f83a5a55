"""The invariants of the fault tests notice what they are there to notice, and nothing else."""

import copy
from datetime import UTC, datetime

import pytest
from history import Deleted, Disturbed, Look, Seen, Worked
from invariants import Judge, judge

START = 1_900_000_000.0
UID = "uid-of-digits"


def at(seconds: float) -> float:
    return START + seconds


def spelled(seconds: float) -> str:
    return datetime.fromtimestamp(at(seconds), UTC).isoformat(timespec="seconds")


def job(seconds: float = 0.0, *, gone: bool = False, spec: dict | None = None, **conditions: str) -> Seen:
    """A job of a coordinator and one worker."""
    said = {"Admitted": "True", "Suspended": "False", "Degraded": "False", **conditions}
    status = {
        "observedGeneration": 1,
        "ready": 1 if "Complete" not in conditions and "Failed" not in conditions else 0,
        "conditions": [{"type": kind, "status": value} for kind, value in said.items()],
    }
    metadata = {"namespace": "research", "name": "digits", "uid": UID, "generation": 1}
    body = {"kind": "HorovodJob", "metadata": metadata, "status": status}
    return Seen(at(seconds), {**body, "spec": {"workerGroups": [{"replicas": 1}], **(spec or {})}}, gone)


def pod(seconds: float = 0.0, host: str = "worker-0", number: int = 1, *, gone: bool = False, **how) -> Seen:
    name = f"digits-{host}-{number}"
    metadata = {
        "namespace": "research",
        "name": name,
        "uid": how.get("uid", name),
        "creationTimestamp": spelled(how.get("made", seconds)),
        "ownerReferences": [{"kind": "HorovodJob", "uid": how.get("owner", UID)}],
    }
    if "deleted" in how:
        metadata["deletionTimestamp"] = spelled(how["deleted"])
    spec = {"hostname": host, "nodeName": how.get("node", "n1")}
    status = {
        "phase": how.get("phase", "Running"),
        "conditions": [{"type": "Ready", "status": how.get("ready", "True")}],
    }
    return Seen(at(seconds), {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}, gone)


def worked(seconds: float, number: int = 1, **how) -> Worked:
    return Worked(at(seconds), UID, f"digits-worker-0-{number}", **{"generation": number, **how})


def looks(first: float, last: float) -> list[Look]:
    return [Look(at(second)) for second in range(round(first), round(last) + 1)]


RUNS = [job(), pod(host="coordinator"), pod()]
"""A job as it should be."""

ENDED = [worked(1, began=True), worked(5, status=0), job(6, Complete="True")]
OVER = [pod(6, gone=True), pod(6, host="coordinator", phase="Succeeded")]


def laws(*events) -> set[str]:
    return {violation.law for violation in judge(events)}


def test_a_job_that_runs_and_ends_breaks_none():
    gone = [Deleted(at(301), UID), job(302, gone=True, Complete="True"), pod(303, "coordinator", gone=True)]
    assert judge([*RUNS, *looks(0, 5), *ENDED, *OVER, *looks(7, 300), *gone, *looks(304, 400)]) == []


@pytest.mark.parametrize(
    "around",
    [
        pytest.param([pod(9, deleted=9.5), pod(10, number=2), pod(11, gone=True)], id="a pod is replaced"),
        pytest.param(
            [
                job(9, spec={"suspend": True}, Suspended="True", Admitted="False"),
                pod(9, gone=True),
                pod(9, host="coordinator", gone=True),
            ],
            id="it is suspended",
        ),
        pytest.param([worked(9, began=True), worked(12), worked(20, 2, began=True)], id="it is restarted"),
        pytest.param([pod(9, number=2), pod(13, number=2, gone=True)], id="a surplus pod goes in time"),
    ],
)
def test_what_happens_to_jobs_breaks_none(around):
    assert laws(*RUNS, *around, *looks(10, 25)) == set()


MOMENTS = [
    pytest.param("not_lost", [job(9, gone=True)], id="a job goes without having been deleted"),
    pytest.param(
        "not_lost",
        [job(9, gone=True, spec={"runPolicy": {"ttlSecondsAfterFinished": 1}})],
        id="a job goes before its end",
    ),
    pytest.param(
        "begun_once",
        [worked(1, began=True), worked(9, began=True)],
        id="ranks begin twice in one generation",
    ),
    pytest.param("begun_once", [*ENDED, worked(9, 2, began=True)], id="ranks begin after the end"),
    pytest.param("ends_once", [*ENDED, job(9)], id="an end is taken back"),
    pytest.param("ends_once", [*ENDED, job(9, Complete="False", Failed="True")], id="an end becomes another"),
    pytest.param("pods_are_new", [*ENDED, pod(9, number=2)], id="a pod is made after the end"),
    pytest.param(
        "pods_are_new",
        [pod(8, gone=True), pod(9, uid="another")],
        id="the name of a pod is used again",
    ),
    pytest.param(
        "one_incarnation",
        [worked(1, began=True), worked(9), worked(8, 2, began=True)],
        id="a rank works in two pods at once",
    ),
    pytest.param(
        "one_incarnation",
        [worked(8, 2, began=True), worked(12, 2), worked(1, began=True), worked(9)],
        id="a rank works in two pods at once, and the first is told of later",
    ),
    pytest.param(
        "one_incarnation",
        [pod(7, number=2), worked(1), worked(9), worked(8, 2, rank=1)],
        id="two pods of a place work at once, under different numbers",
    ),
    pytest.param(
        "surplus_not_admitted",
        [pod(7, number=2), worked(1), worked(9), pod(20, gone=True), worked(30, 2)],
        id="a pod works although it lived beside another that has",
    ),
]


@pytest.mark.parametrize(("law", "events"), MOMENTS)
def test_a_law_of_every_moment_notices(law, events):
    assert law in laws(*RUNS, *events)


def secret(owner: str) -> Seen:
    owners = [{"kind": "HorovodJob", "uid": owner}]
    metadata = {"namespace": "research", "name": "digits-tls", "uid": "s", "ownerReferences": owners}
    return Seen(at(1), {"kind": "Secret", "metadata": metadata})


def changed(event: Seen, **status) -> Seen:
    body = copy.deepcopy(dict(event.body))
    body["status"].update(status)
    return Seen(event.at, body)


LASTING = [
    pytest.param("surplus_goes", 5, [pod(0, number=2)], id="two pods live in one place"),
    pytest.param(
        "all_or_nothing", 30, [job(Admitted="False"), pod(gone=True)], id="half a gang holds a place"
    ),
    pytest.param("no_orphan", 45, [secret("earlier")], id="a child of a job that is not there"),
    pytest.param("no_orphan", 45, [pod(host="x", owner="earlier")], id="a pod of a job that is not there"),
    pytest.param("deletions_end", 45, [pod(0, host="coordinator", deleted=-1)], id="a deletion does not end"),
    pytest.param("status_is_true", 30, [pod(gone=True)], id="all is said to be well without a pod"),
    pytest.param("status_is_true", 30, [pod(ready="False")], id="more are said to be ready than are"),
    pytest.param("status_is_true", 30, [job(Running="True")], id="ranks are said to train and do not"),
    pytest.param("status_is_true", 30, [job(Suspended="True")], id="it is said to be suspended and is not"),
    pytest.param(
        "status_is_true", 30, [job(spec={"suspend": True})], id="it is not suspended as it should be"
    ),
    pytest.param(
        "status_is_true", 30, [changed(job(), observedGeneration=0)], id="a change is not looked at"
    ),
    pytest.param("status_is_true", 30, [worked(0, status=0)], id="a good end is not told of"),
    pytest.param(
        "status_is_true", 30, [job(Complete="True"), *OVER], id="a good end is told of, and was none"
    ),
    pytest.param(
        "status_is_true",
        30,
        [worked(0, status=0), job(Failed="True"), *OVER],
        id="a failure is told of, and was none",
    ),
    pytest.param(
        "status_is_true",
        30,
        [worked(0, status=3), changed(job(Failed="True"), exitCode=4), *OVER],
        id="another exit status is told of",
    ),
    pytest.param(
        "status_is_true",
        30,
        [
            worked(0, status=0),
            changed(job(Complete="True"), ready=1),
            pod(host="coordinator", phase="Succeeded"),
        ],
        id="pods live on after the end",
    ),
    pytest.param(
        "status_is_true",
        30,
        [
            worked(0, status=0),
            job(Complete="True", Suspended="True", spec={"suspend": True}),
            *OVER,
        ],
        id="what has ended is said to be suspended",
    ),
    pytest.param(
        "status_is_true",
        30,
        [changed(job(Admitted=""), ready=0), pod(gone=True), pod(host="coordinator", gone=True)],
        id="a job is forgotten",
    ),
]


@pytest.mark.parametrize(("law", "most", "events"), LASTING)
def test_a_law_of_what_may_be_for_a_while_notices_afterwards(law, most, events):
    judged = Judge()
    for event in [*RUNS, *events, *looks(1, most)]:
        judged.take(event)
    assert law not in {violation.law for violation in judged.violations}
    assert judged.wrong()
    for event in looks(most + 1, most + 3):
        judged.take(event)
    assert law in {violation.law for violation in judged.violations}


def test_what_lasts_is_told_once():
    told = judge([*RUNS, pod(0, number=2), *looks(0, 25)])
    assert [violation.law for violation in told] == ["surplus_goes"]


def test_seconds_in_which_something_disturbs_the_cluster_do_not_count():
    disturbed = [Disturbed(at(3), "etcd"), Disturbed(at(4), "clock"), *looks(5, 200)]
    calm = [Disturbed(at(201), "etcd", over=True), Disturbed(at(202), "clock", over=True)]
    surplus = [*RUNS, pod(0, number=2), Look(at(0)), *disturbed, *calm]
    assert judge([*surplus, *looks(203, 204)]) == []
    assert laws(*surplus, *looks(203, 206)) == {"surplus_goes"}


def test_what_was_put_right_begins_anew():
    assert laws(*RUNS, pod(0, number=2), *looks(0, 4), pod(4, number=2, gone=True), *looks(4, 5)) == set()
    again = [pod(6, number=3), *looks(6, 10)]
    assert (
        laws(*RUNS, pod(0, number=2), *looks(0, 4), pod(4, number=2, gone=True), Look(at(5)), *again) == set()
    )
