"""A worker that runs and is not heard from is replaced once it has had a minute to dial, and not before."""

from dataclasses import replace

import horovod_jobs as jobs
import pytest
from virtual_cluster import VirtualCluster

from gradsieve_operator.decide import read_pod

WORKER, SUCCESSOR = "digits-worker-1-1", "digits-worker-1-2"


def training(**spec) -> VirtualCluster:
    """A job that has trained for two minutes, on nodes with room for one more pod each."""
    it = VirtualCluster(jobs.body(**spec), {f"n{index}": 2 for index in range(3)}, length=10**6)
    it.live(150)
    assert it.progress.running
    return it


def replaced_after(it: VirtualCluster, most: int = 700) -> int:
    """Return after how many seconds a pod more was made."""
    made = len(it.made)
    for second in range(most):
        it.live(1)
        if len(it.made) > made:
            return second
    raise AssertionError("nothing was made")


def test_a_replacement_may_take_its_time_to_start_and_has_a_minute_from_then():
    it = training()
    it.kill(WORKER)
    it.live(1)
    for _ in range(70):
        it.pods[SUCCESSOR] = replace(it.pods[SUCCESSOR], node="n0", phase="Pending", reason="PodInitializing")
        it.operate()
        it.now += 1
    it.cut.add(SUCCESSOR)
    it.tick()
    assert it.pods[SUCCESSOR].phase == "Running"
    it.live(58)
    assert (it.pods[SUCCESSOR].alive, it.progress.restarts) == (True, 1)
    assert replaced_after(it) <= 3
    assert [said.degraded.reason for said in it.said if said.degraded].count("WorkerSilent") == 1


def test_a_replacement_that_dials_late_costs_no_second_restart():
    it = training()
    it.kill(WORKER)
    it.cut.add(SUCCESSOR)
    it.live(50)
    it.cut.clear()
    it.live(100)
    assert (it.progress.running, it.progress.restarts, it.made[3:]) == (True, 1, [SUCCESSOR])


def test_an_agent_that_is_missed_for_less_than_a_minute_keeps_its_place():
    it = training()
    it.cut.add(WORKER)
    it.live(50)
    assert (it.progress.restarts, len(it.made)) == (0, 3)
    it.cut.clear()
    it.live(100)
    assert (it.progress.running, it.progress.restarts, len(it.made)) == (True, 1, 3)


def test_an_agent_that_is_missed_for_a_minute_is_replaced():
    it = training()
    it.cut.add(WORKER)
    assert 58 <= replaced_after(it) <= 62


@pytest.mark.parametrize("seconds", [10, 300])
def test_a_worker_on_a_node_that_is_not_ready_is_lost_when_node_lost_seconds_say(seconds):
    it = training(runPolicy={"nodeLostSeconds": seconds})
    it.node(it.pods[WORKER].node, ready=False)
    assert seconds - 2 <= replaced_after(it) <= seconds + 2


def test_after_its_node_is_back_a_worker_has_a_minute_to_dial():
    it = training(runPolicy={"nodeLostSeconds": 300})
    node = it.pods[WORKER].node
    it.node(node, ready=False)
    it.live(200)
    it.cut = {pod.name for pod in it.pods.values() if pod.node == node}
    it.node(node, ready=True)
    assert 55 <= replaced_after(it) <= 65


STARTED = "2026-01-01T00:00:10Z"


@pytest.mark.parametrize(
    ("state", "began"),
    [
        pytest.param({"waiting": {"reason": "PodInitializing"}}, None, id="waits"),
        pytest.param({"running": {"startedAt": STARTED}}, 1767225610.0, id="runs"),
        pytest.param({"terminated": {"exitCode": 0, "startedAt": STARTED}}, 1767225610.0, id="has run"),
        pytest.param({"terminated": {"exitCode": 137, "startedAt": None}}, None, id="never ran"),
    ],
)
def test_a_pod_begins_when_its_own_container_does(state, began):
    sidecar = {"name": "a-sidecar", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    statuses = [sidecar, {"name": "train", "state": state}]
    containers = [{"name": "train"}, {"name": "a-sidecar"}]
    status = {"phase": "Running", "containerStatuses": statuses}
    raw = {"metadata": {"name": "digits-worker-0-1"}, "spec": {"containers": containers}, "status": status}
    assert read_pod(raw, "digits").began == began
