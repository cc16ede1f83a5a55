"""What is lost is replaced and counted."""

import json
from collections import Counter

import pytest
from horovod_job import Job, idle_group
from sightings import sightings

pytestmark = pytest.mark.timeout(300)
REPLACED_SECONDS = 2.0
"""From decision to pod."""


def settled(job: Job, workers: int) -> bool:
    """Whether each place of the job has exactly one living pod, and it is bound."""
    living = [pod for pod in job.pods().values() if "deletionTimestamp" not in pod["metadata"]]
    living = [pod for pod in living if pod["status"].get("phase") in ("Pending", "Running")]
    hosts = Counter(pod["spec"]["hostname"] for pod in living if pod["spec"].get("nodeName"))
    return len(hosts) == len(living) == workers + 1 and set(hosts.values()) == {1}


def start(cluster, job: Job, workers: int, **spec) -> None:
    job.apply(idle_group("worker", workers, cluster.training_image), **spec)
    job.wait(lambda: job.condition("Admitted")["status"] == "True", 90, "admitted")


def newest(job: Job, host: str) -> str:
    """Return the name of the pod that fills a place now."""
    pods = [pod for pod in job.pods().values() if pod["spec"]["hostname"] == host]
    last = max(pods, key=lambda pod: int(pod["metadata"]["name"].rpartition("-")[2]))
    return str(last["metadata"]["name"])


def restarts(job: Job) -> int:
    return int(job.status().get("restartCount", 0))


def delete(job: Job, pod: str) -> None:
    job.kubectl("delete", "pod", pod, "--wait=false")


def evict(job: Job, pod: str) -> None:
    """Do what `kubectl drain` does with each pod of a node."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    path = f"/api/v1/namespaces/{job.namespace}/pods/{pod}/eviction"
    job.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(eviction))


@pytest.mark.parametrize("lose", [delete, evict])
def test_a_deleted_or_evicted_worker_is_replaced_under_a_new_name(
    cluster, operator, job, record_property, lose
):
    start(cluster, job, 3)
    with sightings(cluster, job) as seen:
        lose(job, "digits-worker-1-1")
        job.wait(lambda: settled(job, 3) and restarts(job) == 1, 60, "settled with one restart")
    seconds = seen.replacement_seconds(1, "digits-worker-1-2")
    record_property("seconds_from_decision_to_pod", round(seconds, 2))
    assert seconds <= REPLACED_SECONDS
    assert "digits-worker-0-1" in job.pods()


def test_evictions_never_fail_a_job_and_failures_of_its_own_do(cluster, operator, job):
    """As often as nodes are drained, and pods of any role."""
    start(cluster, job, 2, runPolicy={"backoffLimit": 1})
    for count, host in enumerate(("worker-1", "coordinator", "worker-1", "worker-1"), 1):
        evict(job, newest(job, host))
        job.wait(lambda count=count: settled(job, 2) and restarts(job) == count, 90, f"restart {count}")
    assert job.condition("Failed")["status"] == "False"
    assert len(job.said("PodDisrupted")) == 4
    assert "EvictionByEvictionAPI" in job.said("PodDisrupted")[0]
    delete(job, newest(job, "worker-1"))
    job.wait(lambda: settled(job, 2) and restarts(job) == 5, 60, "a failure is started again")
    delete(job, newest(job, "worker-1"))
    job.wait(lambda: job.condition("Failed")["reason"] == "BackoffLimitExceeded", 60, "failed")


def test_a_lost_coordinator_is_a_new_attempt(cluster, operator, job):
    start(cluster, job, 2)
    job.kubectl("delete", "pod", "digits-coordinator-1", "--wait=false")
    job.wait(lambda: "digits-coordinator-2" in job.pods(), 30, "a new coordinator")
    job.wait(lambda: settled(job, 2) and restarts(job) == 1, 60, "settled with one restart")
    assert {"digits-worker-0-1", "digits-worker-1-1"} <= set(job.pods())


def test_one_loss_too_many_fails_the_job_and_its_pods_go(cluster, operator, job):
    start(cluster, job, 2, runPolicy={"backoffLimit": 0})
    job.kubectl("delete", "pod", "digits-worker-0-1", "--wait=false")
    # As docs/kubernetes.md waits for an end of either kind, and asks which one it was.
    job.kubectl("wait", "--for=jsonpath={.status.completionTime}", "--timeout=60s", "hvj/digits")
    said = job.kubectl("wait", "--for=condition=Complete", "--timeout=1s", "hvj/digits", check=False)
    assert "condition met" not in said
    assert job.condition("Failed")["reason"] == "BackoffLimitExceeded"
    assert "worker-0" in job.condition("Failed")["message"]
    job.wait(lambda: not job.pods(), 60, "nothing runs")


def test_a_job_whose_ranks_do_not_run_in_time_fails_and_its_pods_go(cluster, operator, job):
    start(cluster, job, 1, runPolicy={"preRunningDeadlineSeconds": 10})
    job.wait(lambda: job.condition("Failed")["reason"] == "PreRunningDeadlineExceeded", 60, "failed")
    job.wait(lambda: not job.pods(), 60, "nothing runs")


def test_a_finished_job_goes_after_its_time_to_live(cluster, operator, job):
    start(cluster, job, 1, runPolicy={"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 10})
    job.wait(lambda: job.children() == [] and "digits" not in job.kubectl("get", "hvj"), 90, "all gone")
