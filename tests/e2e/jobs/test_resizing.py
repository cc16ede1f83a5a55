"""Running jobs get more workers, fewer, and go on without those that find no place. Ranks keep a journal."""

import pytest
from horovod_job import Job
from journal import Journal, journal, journal_group

pytestmark = pytest.mark.timeout(420)
PRODUCT = "Resizing-Test"
ONE_GPU = {"requests": {"cpu": "10m"}, "limits": {"nvidia.com/gpu": "1"}}

COUNTED_SECONDS = 10
"""In which a status says what became of the pods: counts alone are written 2 s after the last write."""


def newest(told: Journal) -> set[int]:
    """Return the ranks of the last generation."""
    generations = told.generations()
    return generations[max(generations)] if generations else set()


def counts(job: Job) -> tuple[int, int]:
    """Return how many workers the status says are wanted, and how many are ready."""
    status = job.status()
    return status["desired"], status["ready"]


def hosts(job: Job) -> set[str]:
    """Return the places that have a living worker."""
    living = [pod for pod in job.pods().values() if "deletionTimestamp" not in pod["metadata"]]
    return {pod["spec"]["hostname"] for pod in living} - {"coordinator"}


def test_replicas_of_a_running_job_grow_and_shrink(cluster, operator, job, namespace, tmp_path):
    with journal(cluster, namespace, tmp_path / "journal") as told:
        group = {**journal_group(cluster, namespace, 2), "minReplicas": 1}
        job.apply(group)
        job.wait(lambda: newest(told) == {0, 1}, 120, "two ranks run")
        for replicas in (3, 1):
            job.patch({"workerGroups": [{**group, "replicas": replicas}]})
            wanted = set(range(replicas))
            job.wait(lambda wanted=wanted: newest(told) == wanted, 120, f"{replicas} ranks run")
            places = {f"worker-{index}" for index in range(replicas)}
            job.wait(lambda places=places: hosts(job) == places, 60, f"{replicas} workers are left")
        job.wait(lambda: job.condition("Running")["status"] == "True", 60, "running")
        assert told.overlaps() == []
        job.wait(lambda: counts(job) == (1, 1), COUNTED_SECONDS, "one worker wanted, one ready")
        assert job.condition("Failed")["status"] == "False"


def test_a_job_goes_on_without_a_worker_that_finds_no_place_and_with_it_when_there_is_one(
    cluster, operator, job, namespace, tmp_path
):
    for node in cluster.nodes[1:3]:
        node.label_gpu(PRODUCT, 1, 15360)
    with journal(cluster, namespace, tmp_path / "journal") as told:
        group = {**journal_group(cluster, namespace, 2), "minReplicas": 1}
        group["template"]["spec"]["containers"][0]["resources"] = ONE_GPU
        job.apply(group, scheduling={"gpuProducts": [PRODUCT]})
        job.wait(lambda: newest(told) == {0, 1}, 120, "two ranks run")
        node = job.pods()["digits-worker-1-1"]["spec"]["nodeName"]
        cluster.kubectl("cordon", node)
        try:
            job.kubectl("delete", "pod", "digits-worker-1-1", "--wait=false")
            job.wait(lambda: newest(told) == {0}, 120, "one rank goes on")
            job.wait(lambda: job.condition("Running")["status"] == "True", 60, "running")
            assert (job.condition("Degraded")["status"], job.condition("Degraded")["reason"]) == (
                "True",
                "NoPlace",
            )
            job.wait(lambda: counts(job) == (2, 1), COUNTED_SECONDS, "two workers wanted, one ready")
        finally:
            cluster.kubectl("uncordon", node)
        job.wait(lambda: newest(told) == {0, 1}, 120, "two ranks again")
        assert told.overlaps() == []
