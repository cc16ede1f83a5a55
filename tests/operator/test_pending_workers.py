"""With ``minReplicas``, a worker that cannot run yet neither stops nor fails those that train."""

import horovod_jobs as jobs
import pytest
from virtual_cluster import VirtualCluster

SURVIVORS, ALL = ("worker-0", "worker-1"), ("worker-0", "worker-1", "worker-2")
DAY = 86400


def training(replicas: int, least: int = 1, **spec) -> VirtualCluster:
    group = jobs.group("worker", replicas, minReplicas=least)
    it = VirtualCluster(jobs.body(group, **spec), {f"n{index}": 2 for index in range(4)}, length=10**6)
    watch(it, 10)
    assert it.progress.running
    return it


def watch(it: VirtualCluster, seconds: int, step: float = 1.0) -> list[bool]:
    """Return whether ranks trained, each time that someone looked."""
    trained = []
    for _ in range(int(seconds / step)):
        while it.operate().requeue_after == 0.0:
            pass
        it.tick(step)
        trained.append(it.progress.running)
    return trained


def grow(it: VirtualCluster, replicas: int) -> None:
    it.body["spec"]["workerGroups"][0]["replicas"] = replicas


@pytest.mark.parametrize("backend", ["MPI", "Gloo"])
@pytest.mark.parametrize("reason", ["ContainerCreating", "ImagePullBackOff"])
def test_a_group_grows_when_the_new_pod_can_run_and_trains_until_then(reason, backend):
    it = training(2, launcher={"backend": backend}, runPolicy={"backoffLimit": 0})
    it.held["worker-2"] = reason
    grow(it, 3)
    assert all(watch(it, DAY, step=60.0))
    assert (it.progress.restarts, it.progress.finished) == (0, None)
    assert [hosts for _, hosts in it.rosters] == [SURVIVORS]
    said = "PodPreparing" if reason == "ContainerCreating" else "PodStuck"
    assert said in {decision.degraded.reason for decision in it.said if decision.degraded}
    it.held.clear()
    watch(it, 200)
    assert (it.progress.running, it.progress.restarts) == (True, 0)
    assert [hosts for _, hosts in it.rosters] == [SURVIVORS, ALL]


def test_a_pod_that_cannot_start_is_tried_elsewhere_after_growing_pauses():
    it = training(2)
    it.held["worker-2"] = "ImagePullBackOff"
    grow(it, 3)
    watch(it, 3600, step=5.0)
    assert 12 <= len(it.made) - 3 <= 27
    assert len([name for name in it.pods if "worker-2" in name]) <= 1


def test_a_new_pod_that_fails_before_it_takes_part_is_no_restart_and_made_again_after_a_pause():
    it = training(2, runPolicy={"backoffLimit": 0})
    grow(it, 3)
    for _ in range(600):
        watch(it, 1)
        for name in [name for name, pod in it.pods.items() if pod.host == "worker-2" and pod.alive]:
            it.kill(name, exit_code=1, reason="Error")
    assert (it.progress.restarts, it.progress.running) == (0, True)
    assert 5 <= len(it.made) - 3 <= 14
    watch(it, 200)
    assert it.rosters[-1][1] == ALL


def test_a_lost_worker_s_place_is_filled_at_once_and_all_start_together():
    it = training(2)
    it.kill("digits-worker-1-1")
    began = it.now
    while "digits-worker-1-2" not in it.pods:
        watch(it, 1)
    assert it.now - began <= 2
    watch(it, 10)
    assert (it.progress.running, it.progress.restarts) == (True, 1)
    assert [hosts for _, hosts in it.rosters] == [SURVIVORS, SURVIVORS]


def test_survivors_wait_half_a_minute_for_a_replacement_and_then_go_on_without():
    it = training(3, runPolicy={"backoffLimit": 1})
    it.held["worker-2"] = "ContainerCreating"
    it.kill("digits-worker-2-1")
    assert not any(watch(it, 28)[2:])
    assert all(watch(it, 600)[8:])
    assert [hosts for _, hosts in it.rosters] == [ALL, SURVIVORS]
    it.held.clear()
    watch(it, 20)
    assert (it.rosters[-1][1], it.progress.running, it.progress.restarts) == (ALL, True, 1)
    assert it.made[4:] == ["digits-worker-2-2"]


def test_what_cannot_start_counts_when_too_few_others_are_left():
    it = training(3, least=3, runPolicy={"backoffLimit": 2})
    it.held["worker-2"] = "ImagePullBackOff"
    it.kill("digits-worker-2-1")
    watch(it, 600)
    assert {decision.ended.reason for decision in it.said if decision.ended} == {"BackoffLimitExceeded"}


def test_ranks_that_are_lost_start_again_while_a_pod_is_awaited():
    it = training(2)
    it.held["worker-2"] = "ContainerCreating"
    grow(it, 3)
    watch(it, 100)
    it.cut.add("digits-worker-1-1")
    watch(it, 5)
    it.cut.clear()
    watch(it, 10)
    assert (it.progress.running, it.progress.restarts) == (True, 1)
    assert it.rosters[-1][1] == SURVIVORS


def test_a_coordinator_that_is_lost_meanwhile_is_replaced_and_the_others_go_on():
    it = training(2)
    it.held["worker-2"] = "ContainerCreating"
    grow(it, 3)
    watch(it, 5)
    it.kill("digits-coordinator-1")
    watch(it, 20)
    assert (it.progress.running, it.progress.restarts) == (True, 1)
    assert it.rosters[-1][1] == SURVIVORS


def test_a_new_pod_is_of_a_later_generation_than_the_roster_that_does_not_name_it():
    it = training(2)
    for attempt in (1, 2, 3):
        it.kill(f"digits-coordinator-{attempt}")
        watch(it, 10)
    roster = it.rosters[-1][0]
    it.held["worker-2"] = "ContainerCreating"
    grow(it, 3)
    watch(it, 5)
    assert it.rosters[-1][0] == roster
    assert next(pod.generation for pod in it.pods.values() if pod.host == "worker-2") > roster
