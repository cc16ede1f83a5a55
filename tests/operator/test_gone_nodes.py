"""A node that is no more has lost its pods, and one that the operator has not seen yet has not."""

import horovod_jobs as jobs
from virtual_cluster import VirtualCluster

from gradsieve_operator.decide.members import NODES_STALE_SECONDS

WORKER = "digits-worker-1-1"


def without_its_node(seconds: float) -> VirtualCluster:
    """A job whose second worker is on a node that the operator does not see, after it has run for a while."""
    it = VirtualCluster(jobs.body(), {f"n{index}": 2 for index in range(3)}, length=10**6)
    it.live(seconds)
    assert it.pods[WORKER].phase == "Running"
    it.unseen.add(it.pods[WORKER].node)
    it.live(2)
    return it


def test_a_pod_on_a_node_that_has_just_joined_is_not_lost():
    it = without_its_node(NODES_STALE_SECONDS / 2)
    assert it.pods[WORKER].alive
    assert it.progress.restarts == 0


def test_a_pod_whose_node_is_no_more_is_replaced():
    it = without_its_node(NODES_STALE_SECONDS + 5)
    assert it.progress.restarts == 1
    assert next(said.degraded.reason for said in it.said if said.degraded) == "NodeGone"
