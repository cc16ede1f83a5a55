"""What all pods of a running job rely on is made anew, also while the job lacks a worker."""

import horovod_jobs as jobs
import pytest
from virtual_cluster import VirtualCluster

POLICY = ("NetworkPolicy", "digits")


def training(*, least: int, nodes: int) -> VirtualCluster:
    group = jobs.group("worker", 2, **({"minReplicas": least} if least < 2 else {}))
    it = VirtualCluster(jobs.body(group), {f"n{index}": 1 for index in range(nodes)}, length=10**6)
    it.live(10)
    assert it.progress.running
    return it


@pytest.mark.parametrize("least", [1, 2])
def test_a_deleted_network_policy_is_made_anew_while_a_worker_has_no_place(least):
    it = training(least=least, nodes=3)
    it.foreign[it.pods["digits-worker-1-1"].node] = 1
    it.kill("digits-worker-1-1")
    it.live(10)
    assert it.said[-1].degraded.reason == "NoPlace"
    it.children.clear()
    said = len(it.said)
    it.live(2)
    assert POLICY in it.children
    assert {decision.degraded.reason for decision in it.said[said:]} == {"NoPlace"}
    assert it.progress.running == (least == 1)


def test_a_deleted_network_policy_is_made_anew_while_a_job_cannot_grow_further():
    it = training(least=1, nodes=9)
    it.body["spec"]["workerGroups"][0]["replicas"] = 5
    it.live(10)
    assert it.said[-1].degraded.reason == "TooLarge"
    it.children.clear()
    it.live(2)
    assert POLICY in it.children
