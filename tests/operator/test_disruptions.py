"""Evictions and lost nodes never end a job; failures of its own do, unless it has run well since."""

from dataclasses import replace

import horovod_jobs as jobs
import pytest
from operator_in_memory import JOB, bind, conditions, recorded, running, until
from virtual_cluster import VirtualCluster

from gradsieve_operator.decide import read_pod
from gradsieve_operator.decide.members import newest as newest_pods

REASONS = (
    "DeletionByPodGC",
    "DeletionByTaintManager",
    "EvictionByEvictionAPI",
    "PreemptionByScheduler",
    "TerminationByKubelet",
)
WELL_SECONDS = 600


def training(limit: int = 0, workers: int = 2, **spec) -> VirtualCluster:
    policy = {"backoffLimit": limit, "nodeLostSeconds": 5}
    body = jobs.body(jobs.group("worker", workers), runPolicy=policy, **spec)
    it = VirtualCluster(body, {f"n{index}": 4 for index in range(3)}, length=10**6)
    it.live(10)
    assert it.progress.running
    return it


def newest(it: VirtualCluster, host: str) -> str:
    return newest_pods(it.pods.values())[host].name


def trains_again(it: VirtualCluster, seconds: int = 90) -> None:
    for _ in range(seconds):
        it.live(1)
        last = newest_pods(it.pods.values())
        if it.progress.running and len(last) == 3 and all(pod.alive for pod in last.values()):
            return
    raise AssertionError(it.said[-1])


def fails(it: VirtualCluster) -> None:
    """Let the program fail: the coordinator ends with its status and last words."""
    it.kill(newest(it, "coordinator"), exit_code=1, message="rank 0 failed with status 1")
    it.live(1)


@pytest.mark.parametrize("gone", [False, True], ids=["seen", "gone before anybody looks"])
@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("host", ["worker-1", "coordinator"])
def test_a_disrupted_pod_is_replaced_and_never_counts(host, reason, gone):
    it = training(limit=0)
    for _ in range(3):
        it.evict(newest(it, host), reason, gone=gone)
        trains_again(it)
    assert (it.progress.failures, it.progress.restarts, it.progress.finished) == (0, 3, None)
    degraded = [decision.degraded for decision in it.said if decision.degraded is not None]
    said = [word for word in degraded if word.reason == "PodDisrupted"]
    assert len(said) == 3
    assert said[0].message.endswith(f"is gone: {reason}: evicting")


def test_all_pods_of_a_drained_node_are_one_restart():
    it = training(limit=0)
    for name in list(it.pods):
        it.evict(name)
    trains_again(it)
    assert (it.progress.failures, it.progress.restarts) == (0, 1)


def test_a_lost_node_does_not_count():
    it = training(limit=0)
    for _ in range(2):
        node = it.pods[newest(it, "worker-1")].node
        it.node(node, ready=False)
        it.live(10)
        it.node(node, ready=True)
        trains_again(it)
    assert (it.progress.failures, it.progress.finished) == (0, None)
    assert it.progress.restarts >= 2


def test_a_pod_that_has_used_up_its_own_storage_counts():
    """Its node evicts it, too, but says nothing of a disruption."""
    it = training(limit=1)
    for _ in range(2):
        message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."
        it.kill(newest(it, "worker-1"), exit_code=137, reason="Evicted", message=message)
        it.live(1)
        if it.progress.finished is None:
            trains_again(it)
    assert (it.progress.failures, it.progress.succeeded) == (1, False)
    assert it.progress.finished is not None


def test_a_deleted_pod_of_which_nothing_else_is_known_counts():
    it = training(limit=1)
    del it.pods["digits-worker-1-1"]
    trains_again(it)
    assert (it.progress.failures, it.progress.restarts) == (1, 1)


def test_failures_of_the_program_count_and_wait_longer_each_time():
    it = training(limit=2)
    waits = []
    for _ in range(2):
        fails(it)
        waits.append(it.progress.retry_at - it.now)
        trains_again(it)
    fails(it)
    assert it.said[-1].ended is None
    assert (it.progress.failures, it.progress.succeeded) == (2, False)
    assert it.progress.finished is not None
    assert waits[1] > waits[0] + 4


def test_a_worker_that_fails_is_replaced_at_once_the_first_time_and_waits_longer_each_time_after_that():
    it = training(limit=4)
    waits = []
    for _ in range(4):
        it.kill(newest(it, "worker-1"), exit_code=1)
        it.operate()
        waits.append(it.progress.retry_at - it.now)
        trains_again(it)
    assert waits == [0.0, 5.0, 10.0, 20.0]
    assert it.progress.failures == 4


def test_a_worker_that_somebody_deletes_is_replaced_at_once_whatever_failed_before():
    it = training(limit=2)
    fails(it)
    trains_again(it)
    name = newest(it, "worker-1")
    it.pods[name] = replace(it.pods[name], deleting=True)
    it.operate()
    assert it.progress.retry_at == it.now


def test_what_fails_for_a_lost_pod_belongs_to_that_loss():
    it = training(limit=0)
    it.evict("digits-worker-1-1")
    it.live(1)
    fails(it)
    assert it.progress.finished is None
    trains_again(it)
    assert it.progress.failures == 0
    # The ranks run again: what fails now fails for itself.
    fails(it)
    assert (it.progress.succeeded, it.progress.finished is None) == (False, False)


def test_a_failure_seen_together_with_an_eviction_belongs_to_it():
    it = training(limit=0)
    it.evict("digits-worker-1-1")
    fails(it)
    trains_again(it)
    assert (it.progress.failures, it.progress.restarts) == (0, 1)


def test_a_program_that_fails_long_after_an_eviction_counts_although_its_ranks_were_never_seen_to_run():
    it = training(limit=0)
    it.evict("digits-worker-1-1")
    it.held["worker-1"] = "ContainerCreating"
    it.live(61)
    fails(it)
    assert it.progress.finished is not None


def test_failures_are_forgotten_once_the_job_has_run_well_for_ten_minutes():
    it = training(limit=1)
    for _ in range(3):
        fails(it)
        trains_again(it)
        assert it.progress.failures == 1
        it.live(WELL_SECONDS + 1)
        assert it.progress.failures == 0
    assert it.progress.restarts == 3
    fails(it)
    trains_again(it)
    it.live(WELL_SECONDS - 60)
    fails(it)
    assert it.progress.finished is not None


def test_ranks_that_go_on_without_lost_workers_have_run_well_only_since_the_last_loss():
    it = training(limit=1, workers=2)
    it.body["spec"]["workerGroups"][0]["minReplicas"] = 1
    it.progress = replace(it.progress, failures=1, failed_at=it.now + 300.0)
    it.live(WELL_SECONDS + 1)
    assert it.progress.failures == 1
    it.live(300)
    assert it.progress.failures == 0


def test_what_is_evicted_again_and_again_waits_longer_each_time_and_at_once_again_later():
    it = training(limit=0)
    waits = []
    for _ in range(8):
        it.evict(newest(it, "worker-1"))
        it.operate()
        waits.append(it.progress.retry_at - it.now)
        trains_again(it)
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    it.live(WELL_SECONDS + 1)
    it.evict(newest(it, "worker-1"))
    it.operate()
    assert it.progress.retry_at == it.now


def condition(status: str = "True") -> dict:
    return {
        "type": "DisruptionTarget",
        "status": status,
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }


@pytest.mark.parametrize(
    ("status", "disruption"),
    [
        pytest.param("True", "EvictionByEvictionAPI: Eviction API: evicting", id="evicted"),
        pytest.param("False", "", id="it did not come to that"),
    ],
)
def test_the_condition_is_read_from_the_pod(status, disruption):
    pod = {"metadata": {"name": "digits-worker-0-1"}, "status": {"conditions": [condition(status)]}}
    assert read_pod(pod, "digits").disruption == disruption


async def test_the_watch_tells_of_pods_that_are_gone_when_the_operator_looks(server):
    server.objects[JOB, "research", "digits"] = jobs.body(runPolicy={"backoffLimit": 0})
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
        server.delete("v1/pods", "digits-worker-1-1", last={"status": {"conditions": [condition()]}})
        await until(lambda: recorded(server).restarts == 1)
        await until(lambda: any(name.startswith("digits-worker-1-2") for name in server.all("v1/pods")))
    assert recorded(server).failures == 0
    assert conditions(server)["Failed"]["status"] == "False"
    events = [each["reason"] for each in server.all("v1/events").values()]
    assert "PodDisrupted" in events
