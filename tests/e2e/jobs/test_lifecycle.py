"""What a job makes is its own, and goes with it. No training is needed for that."""

import time

import pytest
from horovod_job import Job, contents, idle_group

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def submit(cluster, namespace):
    """Create a job of idle workers."""

    def apply(name: str, workers: int = 1, group: str = "worker", **spec) -> Job:
        job = Job(cluster, namespace, name)
        job.apply(idle_group(group, workers, cluster.training_image), **spec)
        return job

    return apply


@pytest.fixture
def empty(cluster, namespace, idle):
    """Whether nothing is in the namespace that was not there before the test."""
    before = contents(cluster, namespace)
    return lambda: contents(cluster, namespace) <= before


def admitted(*jobs: Job) -> None:
    for job in jobs:
        job.wait(job.admitted, 90, f"{job.name} admitted")


def runs(job: Job, pod: str) -> bool:
    return job.pods().get(pod, {}).get("status", {}).get("phase") == "Running"


def test_all_pods_of_a_job_are_bound_together(operator, submit):
    job = submit("digits", 3)
    admitted(job)
    pods = job.pods()
    assert sorted(pods) == ["digits-coordinator-1", *(f"digits-worker-{index}-1" for index in range(3))]
    assert all(pod["spec"].get("nodeName") for pod in pods.values())


def test_a_suspended_job_has_no_pods_a_resumed_one_new_ones_and_a_deleted_one_nothing(
    operator, submit, empty
):
    job = submit("digits", 2)
    admitted(job)
    job.patch({"suspend": True})
    job.wait(lambda: not job.pods(), 60, "no pods")
    job.wait(lambda: job.condition("Suspended")["status"] == "True", 30, "suspended")
    job.patch({"suspend": False})
    admitted(job)
    assert "digits-worker-0-2" in job.pods()
    job.patch({"suspend": True})
    job.wait(lambda: not job.pods(), 60, "no pods")
    job.delete()
    job.wait(empty, 60, "nothing left")


def test_deleted_jobs_leave_nothing(operator, submit, empty):
    orphans, family = submit("orphans", 2), submit("family", 2)
    admitted(orphans, family)
    orphans.delete("--cascade=background")
    family.delete("--cascade=foreground")
    orphans.wait(empty, 90, "nothing left")


def test_jobs_deleted_while_the_operator_is_down_leave_nothing(operator, submit, empty):
    orphans, family = submit("orphans", 2), submit("family", 2)
    sleeping = submit("sleeping")
    admitted(orphans, family, sleeping)
    sleeping.patch({"suspend": True})
    sleeping.wait(lambda: not sleeping.pods(), 60, "no pods")
    operator.kill()
    try:
        orphans.delete("--cascade=background")
        family.delete("--cascade=foreground")
        sleeping.delete()
        orphans.wait(empty, 90, "nothing left")
    finally:
        operator.start()


def test_a_job_whose_time_to_live_ends_while_the_operator_is_down_goes_when_it_is_back(
    operator, submit, empty
):
    time_to_live = 10  # on a busy machine it must be seen before it goes
    job = submit("digits", runPolicy={"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": time_to_live})
    job.wait(lambda: job.condition("Failed")["status"] == "True", 60, "ended")
    operator.kill()
    try:
        time.sleep(time_to_live + 1)
        assert job.condition("Failed")["reason"] == "DeadlineExceeded"
    finally:
        operator.start()
    job.wait(empty, 60, "nothing left")


def test_ended_jobs_keep_the_pods_that_their_policy_says_and_go_after_their_time_to_live(
    operator, submit, empty
):
    policies = ("All", "Running", "None")
    jobs = {name: submit(name.lower(), 2, runPolicy={"cleanPodPolicy": name}) for name in policies}
    jobs["TTL"] = submit("ttl", runPolicy={"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 2})
    admitted(*(jobs[policy] for policy in policies))
    for policy in policies:
        leader = f"{jobs[policy].name}-coordinator-1"
        # It is never ready: what takes the coordinator's place runs no ranks.
        jobs[policy].wait(lambda job=jobs[policy], leader=leader: runs(job, leader), 90, f"{leader} runs")
        jobs[policy].end_well(leader)
    kept = {
        "All": [],
        "Running": ["running-coordinator-1"],
        "None": ["none-coordinator-1", "none-worker-0-1", "none-worker-1-1"],
    }
    for policy in policies:
        job = jobs[policy]
        job.wait(lambda job=job: job.condition("Complete")["status"] == "True", 60, "complete")
        job.wait(
            lambda job=job, left=kept[policy]: sorted(job.pods()) == left, 60, f"{policy}: {kept[policy]}"
        )
        job.delete()
    jobs["TTL"].wait(empty, 90, "nothing left")


def test_a_job_made_anew_under_the_same_name_has_nothing_of_its_predecessor(operator, submit):
    first = submit("digits", 2)
    admitted(first)
    before = first.uid()
    first.delete("--cascade=background")
    job = submit("digits", 2)
    assert job.uid() != before
    admitted(job)
    job.wait(lambda: all(uids == {job.uid()} for uids in job.owners().values()), 60, "all is its own")
    job.wait(lambda: len(job.pods()) == 3, 30, "all pods are its own")
    assert job.admitted()


def test_jobs_whose_pods_would_have_the_same_names_take_nothing_from_each_other(operator, submit):
    first = submit("a-b", group="c")
    admitted(first)
    second = submit("a", group="b-c")
    admitted(second)
    assert set(map(frozenset, first.owners().values())) == {frozenset({first.uid()})}
    assert set(map(frozenset, second.owners().values())) == {frozenset({second.uid()})}
    assert "a-b-c-0-1" in first.pods()


def test_a_quota_that_refuses_one_pod_leaves_none(cluster, operator, namespace, submit):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": namespace},
        "spec": {"hard": {"pods": "2"}},
    }
    job = Job(cluster, namespace)
    cluster.apply(quota)
    job.wait(
        lambda: "hard" in job.kubectl("get", "quota", "few", "-o", "jsonpath={.status}"), 30, "quota counted"
    )
    submit("digits", 3)
    # It tries again and again, so that what an Event once said is looked for, not what holds at a moment.
    job.wait(lambda: job.said("Refused") != [] and not job.pods(), 90, "refused, and no pod left")
    assert "exceeded quota" in job.said("Refused")[0]
    cluster.apply({**quota, "spec": {"hard": {"pods": "10"}}})
    job.wait(job.admitted, 90, "admitted under a larger quota")
