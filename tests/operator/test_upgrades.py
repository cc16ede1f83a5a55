"""Running jobs keep their pods when operator and CustomResourceDefinitions are replaced by other versions.

``jobs_of_VERSION`` holds running jobs and their pods as that version's operator has written them, to be taken
through every later one.
"""

import copy
import json
from pathlib import Path

import pytest
from virtual_cluster import decided

from gradsieve_operator import contract, resources
from gradsieve_operator import decide as d
from gradsieve_operator.resources import Neighbours, metadata, workers
from gradsieve_operator.spec import HorovodJob
from gradsieve_operator.status import recall, record

RECORDED = sorted(Path(__file__).parent.glob("jobs_of_*/*.json"))


class Running:
    """A recorded job that goes on: what the operator records and deletes is kept."""

    def __init__(self, path: Path) -> None:
        found = json.loads(path.read_text())
        self.body, self.pods = found["job"], {pod["metadata"]["name"]: pod for pod in found["pods"]}
        self.original = set(self.pods)
        self.said: list[str] = []
        self.now = 2e9

    def write(self, change) -> None:
        """Change the spec as its author may: the API server counts that."""
        change(self.body["spec"])
        self.body["metadata"]["generation"] += 1

    def look(self) -> None:
        """Decide and act a few times, a minute after one another."""
        for _ in range(4):
            self.now += 60.0
            decision = decided(self._world(), lambda pods: {each["metadata"]["name"]: "n1" for each in pods})
            self.said += [word.reason for word in (decision.admitted, decision.degraded) if word]
            for action in decision.actions:
                if isinstance(action, d.DeletePod):
                    self.pods.pop(action.name, None)
                elif isinstance(action, d.Create) and action.manifest["kind"] == "Pod":
                    self._start(action.manifest)
            self.body["status"] |= record(decision.progress)

    def _start(self, manifest) -> None:
        about = {**manifest["metadata"], "uid": f"uid of {manifest['metadata']['name']}"}
        spec = {**manifest["spec"], "nodeName": "n1"}
        status = {"phase": "Running", "podIP": "10.0.0.9"}
        self.pods[about["name"]] = {"metadata": about, "spec": spec, "status": status}

    def _world(self) -> d.ObservedState:
        job = HorovodJob.parse(self.body)
        pods = [d.read_pod(pod, job.name) for pod in self.pods.values()]
        hosts = {contract.worker_host(group.name, index) for group in job.groups for index in range(4)}
        return d.ObservedState(
            job=job,
            progress=recall(self.body["status"]),
            pods=tuple(pod for pod in pods if pod is not None),
            children=frozenset(),
            authority=self._authority(),
            certified=frozenset(hosts),
            nodes=None,
            coordinator=None,
            compression=None,
            planned=True,
            neighbours=Neighbours(),
            refused="",
            now=self.now,
        )

    def _authority(self) -> str:
        found = {pod["metadata"]["annotations"][metadata.AUTHORITY_ANNOTATION] for pod in self.pods.values()}
        return found.pop() if found else "ca"


def templates(spec):
    found = [group["template"] for group in spec["workerGroups"]]
    return found + ([spec["launcher"]["template"]] if "template" in spec.get("launcher", {}) else [])


def schema_default(job, monkeypatch) -> None:
    """The API server fills in a new default, in what it returns; nobody has written anything."""
    for template in templates(job.body["spec"]):
        template["spec"]["newField"] = "Default"
        for container in template["spec"]["containers"]:
            for port in container.get("ports", ()):
                port["protocol"] = "SCTP"


def new_digest(job, monkeypatch) -> None:
    """The operator takes a new field into the digest."""
    made = metadata.origin

    def origin(job) -> str:
        return f"{made(job)}+"

    for module in (resources, metadata):
        monkeypatch.setattr(module, "origin", origin)


def new_pods(job, monkeypatch) -> None:
    """The operator makes its pods otherwise."""
    made = workers.pod_spec

    def pod_spec(*arguments):
        return {**made(*arguments), "dnsPolicy": "None"}

    monkeypatch.setattr(workers, "pod_spec", pod_spec)


NEXT = [schema_default, new_digest, new_pods]


@pytest.fixture(params=RECORDED, ids=[f"{path.parent.name}/{path.stem}" for path in RECORDED])
def job(request):
    return Running(request.param)


@pytest.mark.parametrize("upgrade", NEXT)
def test_a_running_job_keeps_its_pods(job, upgrade, monkeypatch):
    upgrade(job, monkeypatch)
    job.look()
    assert set(job.pods) == job.original
    assert "SpecChanged" not in job.said


@pytest.mark.parametrize("upgrade", NEXT)
def test_a_running_job_keeps_its_pods_when_its_author_changes_what_may_change_later(
    job, upgrade, monkeypatch
):
    upgrade(job, monkeypatch)
    job.look()
    job.write(lambda spec: spec.setdefault("compression", {}).update(densityPermille=20))
    job.look()
    assert set(job.pods) == job.original


def test_a_replacement_that_is_made_after_the_upgrade_stands_beside_the_older_pods(job, monkeypatch):
    for upgrade in NEXT:
        upgrade(job, monkeypatch)
    job.look()
    lost = next(name for name in sorted(job.original) if "coordinator" not in name)
    del job.pods[lost]
    job.look()
    new = set(job.pods) - job.original
    assert len(new) == 1
    kept = {
        job.pods[name]["metadata"]["annotations"][metadata.ORIGIN_ANNOTATION]
        for name in job.original - {lost}
    }
    assert {job.pods[name]["metadata"]["annotations"][metadata.ORIGIN_ANNOTATION] for name in new}.isdisjoint(
        kept
    )
    job.look()
    assert (job.original - {lost}) | new <= set(job.pods)


def test_several_upgrades_in_a_row_keep_the_pods_and_no_digest_that_no_pod_has(job, monkeypatch):
    for _ in range(5):
        new_digest(job, monkeypatch)
        job.look()
    assert set(job.pods) == job.original
    assert len(recall(job.body["status"]).origins) == 2


@pytest.mark.parametrize("upgrade", NEXT)
def test_a_job_that_is_changed_while_nobody_looks_gets_new_pods_before_and_after(job, upgrade, monkeypatch):
    upgrade(job, monkeypatch)
    job.look()
    other = copy.deepcopy(job.body["spec"]["workerGroups"][0]["template"])
    other["spec"]["containers"][0]["image"] = "train:2"
    job.write(lambda spec: spec["workerGroups"][0].update(template=other))
    job.look()
    assert "SpecChanged" in job.said
    assert not set(job.pods) & job.original
