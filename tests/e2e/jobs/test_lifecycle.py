"""Pods of a job come together, go together, and leave nothing behind. No training is needed for that."""

import pytest
from horovod_job import Job, idle_group

pytestmark = pytest.mark.timeout(300)


def idle(cluster, replicas: int, **fields):
    return idle_group("worker", replicas, cluster.training_image, **fields)


def admitted(job: Job) -> bool:
    return job.condition("Admitted")["status"] == "True"


def test_all_pods_of_a_job_are_bound_together_and_restricted(cluster, operator, job):
    job.apply(idle(cluster, 3))
    job.wait(lambda: admitted(job), 60, "admitted")
    pods = job.pods()
    assert sorted(pods) == ["digits-coordinator-1", *(f"digits-worker-{index}-1" for index in range(3))]
    assert all(pod["spec"].get("nodeName") for pod in pods.values())


def test_a_suspended_job_has_no_pods_and_a_resumed_one_has_new_ones(cluster, operator, job):
    job.apply(idle(cluster, 2))
    job.wait(lambda: admitted(job), 60, "admitted")
    job.patch({"suspend": True})
    job.wait(lambda: not job.pods(), 60, "no pods")
    job.wait(lambda: job.condition("Suspended")["status"] == "True", 30, "suspended")
    job.patch({"suspend": False})
    job.wait(lambda: admitted(job), 60, "admitted again")
    assert "digits-worker-0-2" in job.pods()


@pytest.mark.parametrize("policy", ["background", "foreground"])
def test_a_deleted_job_leaves_nothing(cluster, operator, job, policy):
    job.apply(idle(cluster, 2))
    job.wait(lambda: admitted(job), 60, "admitted")
    job.kubectl("delete", "hvj", "digits", f"--cascade={policy}", "--wait=false")
    job.wait(lambda: job.children() == [], 90, "nothing left")


def test_a_job_deleted_while_the_operator_is_down_leaves_nothing(cluster, operator, job):
    job.apply(idle(cluster, 2))
    job.wait(lambda: admitted(job), 60, "admitted")
    operator.kill()
    try:
        job.kubectl("delete", "hvj", "digits", "--wait=false")
        job.wait(lambda: job.children() == [], 90, "nothing left")
    finally:
        operator.start()


def test_a_quota_that_refuses_one_pod_leaves_none(cluster, operator, namespace, job):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": namespace},
        "spec": {"hard": {"pods": "2"}},
    }
    cluster.apply(quota)
    job.wait(
        lambda: "hard" in job.kubectl("get", "quota", "few", "-o", "jsonpath={.status}"), 30, "quota counted"
    )
    job.apply(idle(cluster, 3))
    job.wait(lambda: job.waits_because("Refused"), 60, "refused")
    assert "exceeded quota" in job.condition("Admitted")["message"]
    cluster.apply({**quota, "spec": {"hard": {"pods": "10"}}})
    job.wait(lambda: admitted(job), 90, "admitted under a larger quota")
