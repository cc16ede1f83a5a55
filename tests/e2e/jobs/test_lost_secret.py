"""What a running job's pods rely on is lost or changed: it is put right, and no rank notices."""

import json

import pytest
from horovod_job import Job, python_group

pytestmark = pytest.mark.timeout(400)
TRAIN = "import time  # a-rank\nwhile True: time.sleep(1)"
FIND_RANKS = """
import pathlib
found = [each for each in pathlib.Path("/proc").iterdir() if each.name.isdecimal()]
print(*sorted(each.name for each in found if b"# a-" + b"rank" in (each / "cmdline").read_bytes()))
"""


@pytest.fixture
def training(cluster, namespace, operator) -> Job:
    job = Job(cluster, namespace)
    job.apply(python_group(cluster, namespace, 2, TRAIN))
    job.wait(lambda: job.condition("Running")["status"] == "True", 150, "ranks run")
    return job


def processes(job: Job) -> dict[str, str]:
    """Return the process ids of the ranks in each worker's pod."""
    workers = [name for name in job.pods() if "worker" in name]
    return {name: job.kubectl("exec", name, "--", "python3", "-c", FIND_RANKS).strip() for name in workers}


def test_ranks_keep_their_processes_while_one_secret_is_lost_another_damaged_and_both_made_again(
    cluster, operator, training, record_property
):
    secret, damaged = f"{training.name}-operator-tls", f"{training.name}-workers-tls"
    before, pods = processes(training), set(training.pods())
    assert all(before.values()), before
    uid = training.kubectl("get", "secret", secret, "-o", "jsonpath={.metadata.uid}")
    garbage = json.dumps({"data": {"somebody.key": "Z2FyYmFnZQ=="}})
    training.kubectl("patch", "secret", damaged, "--type=merge", "-p", garbage)
    training.kubectl("delete", "secret", secret)

    def again() -> bool:
        found = training.kubectl("get", "secret", secret, "-o", "jsonpath={.metadata.uid}")
        return found not in ("", uid)

    seconds = training.wait(again, 120, "made again")
    record_property("seconds_to_the_secret", round(seconds, 1))
    seconds = training.wait(lambda: trusted(training), 60, "the coordinator answers the renewed operator")
    record_property("seconds_until_it_is_trusted", round(seconds, 1))
    assert "somebody.key" not in json.loads(training.kubectl("get", "secret", damaged, "-o", "json"))["data"]
    assert processes(training) == before
    assert (set(training.pods()), training.status()["restartCount"]) == (pods, 0)
    training.patch({"suspend": True})
    training.wait(lambda: training.pods() == {}, 60, "suspended")
    assert training.status()["restartCount"] == 0


def test_children_that_lose_their_labels_or_are_deleted_are_put_right(training):
    label, kinds = "gradsieve.io/job", ("serviceaccount", "configmap", "service", "networkpolicy")
    for kind in kinds:
        training.kubectl("label", kind, training.name, f"{label}-")

    def labelled() -> bool:
        path = r"jsonpath={.metadata.labels.gradsieve\.io/job}"
        found = [training.kubectl("get", kind, training.name, "-o", path) for kind in kinds]
        return found == [training.name] * len(kinds)

    training.wait(labelled, 30, "they have their labels again")
    training.kubectl("delete", "networkpolicy", training.name)
    training.wait(lambda: f"NetworkPolicy/{training.name}" in training.children(), 15, "it is there again")


def trusted(job: Job) -> bool:
    """Whether the coordinator has answered the operator since its Secret was made again."""
    conditions = {each["type"]: each for each in job.status()["conditions"]}
    marked = job.pods()[f"{job.name}-coordinator-1"]["metadata"]["annotations"].get("gradsieve.io/trust")
    return bool(marked) and conditions["RendezvousReady"]["status"] == "True"
