"""A new CustomResourceDefinition that fills in a default leaves the pods of running jobs alone."""

import json

import pytest
from horovod_job import Job, idle_group

pytestmark = pytest.mark.timeout(300)

DEFAULT = (
    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/workerGroups/items"
    "/properties/template/properties/spec/properties/schedulerName/default"
)
NAME = "default-scheduler"


@pytest.fixture
def new_schema(cluster):
    """What patches the CustomResourceDefinition; it is as it was afterwards."""

    def patch(**operation) -> None:
        change = json.dumps([{"path": DEFAULT, **operation}])
        cluster.kubectl("patch", "crd", "horovodjobs.gradsieve.io", "--type=json", "-p", change)

    yield lambda: patch(op="add", value=NAME)
    patch(op="remove")


def uids(job: Job) -> set[str]:
    return {pod["metadata"]["uid"] for pod in job.pods().values()}


def read(job: Job) -> dict:
    return json.loads(job.kubectl("get", "hvj", job.name, "-o", "json"))


def origins(job: Job) -> list[str]:
    return json.loads(job.status().get("record", "{}")).get("origins", [])


def filled(job: Job) -> bool:
    return "schedulerName" in read(job)["spec"]["workerGroups"][0]["template"]["spec"]


def test_a_running_job_keeps_its_pods_when_a_default_is_filled_in_and_when_it_is_changed_later(
    cluster, namespace, operator, job, new_schema
):
    # What runs in its coordinator's place answers nobody, which is a loss after that time.
    patient = {"nodeLostSeconds": 600}
    job.apply(idle_group("worker", 2, cluster.training_image, minReplicas=1), runPolicy=patient)
    job.wait(job.admitted, 90, "admitted")
    before, generation = uids(job), read(job)["metadata"]["generation"]
    new_schema()
    job.wait(lambda: filled(job), 60, "the default filled in")
    job.wait(lambda: len(origins(job)) == 2, 90, "the operator has seen it")
    # What tells this from a change by the author.
    assert read(job)["metadata"]["generation"] == generation
    job.patch({"compression": {"densityPermille": 20}})
    job.wait(lambda: job.status()["observedGeneration"] > generation, 60, "the change seen")
    assert uids(job) == before
    assert not job.said("SpecChanged")
