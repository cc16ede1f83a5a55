"""Nodes that fall silent: what ran there is replaced elsewhere, and never trains beside its successor."""

import json
from contextlib import ExitStack

import pytest
from horovod_job import Job
from journal import ELASTIC_PROGRAM, journal, journal_group
from sightings import sightings

pytestmark = pytest.mark.timeout(420)
FENCED = 17
REPLACED_SECONDS = 2.0
"""From decision to pod."""

KEPT = "e2e.gradsieve.io/kept"


def node_of(cluster, name):
    return next(node for node in cluster.nodes if node.name == name)


def keep(job: Job, pod: str, *, kept: bool) -> None:
    """Keep a deleted pod in the API, so that its end can be read."""
    finalizers = {"metadata": {"finalizers": [KEPT] if kept else []}}
    job.kubectl("patch", "pod", pod, "--type=merge", "-p", json.dumps(finalizers))


def exit_code(job: Job, pod: str) -> int | None:
    statuses = job.pods()[pod]["status"].get("containerStatuses") or [{}]
    return statuses[0].get("state", {}).get("terminated", {}).get("exitCode")


@pytest.mark.parametrize("cut_off", [pytest.param(True, id="cut-off"), pytest.param(False, id="no-kubelet")])
def test_workers_of_a_lost_node_are_replaced_and_fenced_when_it_returns(
    cluster, operator, job, namespace, tmp_path, record_property, cut_off
):
    """A node is cut off, or only its kubelet stops; its agent is alive either way."""
    with journal(cluster, namespace, tmp_path / "journal") as told:
        job.apply(
            journal_group(cluster, namespace, 2),
            scheduling={"placement": "Spread"},
            runPolicy={"nodeLostSeconds": 1},
        )
        job.wait(lambda: told.generations().get(1) == {0, 1}, 120, "both ranks run")
        host, node = away_from_the_coordinator(cluster, job)
        victim = f"digits-{host}-1"
        keep(job, victim, kept=True)
        with ExitStack() as mending:
            seen = mending.enter_context(sightings(cluster, job))
            if cut_off:
                mending.callback(node.reconnect)
                node.cut_off()
            else:
                node.stop_kubelet()
                mending.callback(node.start_kubelet)
            seconds = job.wait(lambda: f"digits-{host}-2" in job.pods(), 90, "replaced")
            record_property("seconds_to_replacement", round(seconds, 1))
            seconds = job.wait(lambda: told.generations().get(2) == {0, 1}, 150, "both ranks run again")
            record_property("seconds_to_training", round(seconds, 1))
            if cut_off:
                # Otherwise the kubelet might end the pod before the coordinator does.
                node.stop_kubelet()
                mending.callback(node.start_kubelet)
                node.reconnect()
                refused = "another incarnation has taken this one's place"
                job.wait(lambda: refused in job.kubectl("logs", coordinator(job)), 60, "fenced")
        job.wait(lambda: exit_code(job, victim) == FENCED, 90, "its agent ended as fenced")
        keep(job, victim, kept=False)
        cluster.wait_until_ready(node.name, 60)
        job.wait(lambda: victim not in job.pods(), 60, "the old pod is gone")
        assert told.overlaps() == []
        successor = job.pods()[f"digits-{host}-2"]
        waited = seen.replacement_seconds(1, f"digits-{host}-2")
        record_property("seconds_from_decision_to_pod", round(waited, 2))
        assert waited <= REPLACED_SECONDS
        assert successor["spec"]["nodeName"] != node.name
        assert {life.pod for life in told.lives() if life.generation == 2} >= {successor["metadata"]["uid"]}
        assert job.status()["restartCount"] == 1


def test_elastic_ranks_of_a_cut_off_node_take_no_step_beside_their_successors(
    cluster, operator, job, namespace, tmp_path, record_property
):
    """Gloo's ranks do not end when they lose the coordinator; without the others they come no further."""
    with journal(cluster, namespace, tmp_path / "journal") as told:
        job.apply(
            journal_group(cluster, namespace, 2, ELASTIC_PROGRAM),
            launcher={"backend": "Gloo"},
            scheduling={"placement": "Spread"},
            runPolicy={"nodeLostSeconds": 1},
        )
        job.wait(lambda: {life.rank for life in told.lives()} == {0, 1}, 120, "both ranks train")
        host, node = away_from_the_coordinator(cluster, job)
        old = job.pods()[f"digits-{host}-1"]["metadata"]["uid"]
        with ExitStack() as mending:
            mending.callback(node.reconnect)
            node.cut_off()
            job.wait(lambda: f"digits-{host}-2" in job.pods(), 90, "replaced")
            new = job.pods()[f"digits-{host}-2"]["metadata"]["uid"]
            seconds = job.wait(lambda: new in {life.pod for life in told.lives()}, 200, "it trains")
            record_property("seconds_to_training", round(seconds, 1))
        cluster.wait_until_ready(node.name, 60)
        job.wait(lambda: f"digits-{host}-1" not in job.pods(), 90, "the old pod is gone")
        assert told.overlaps() == []
        last = max(life.last for life in told.lives() if life.pod == old)
        assert last < min(life.first for life in told.lives() if life.pod == new)


def away_from_the_coordinator(cluster, job: Job):
    """Return a worker's host that is on another node than the coordinator, and that node."""
    where = {pod["spec"]["hostname"]: pod["spec"]["nodeName"] for pod in job.pods().values()}
    host = next(host for host in ("worker-1", "worker-0") if where[host] != where["coordinator"])
    return host, node_of(cluster, where[host])


def coordinator(job: Job) -> str:
    return next(name for name in job.pods() if "coordinator" in name)
