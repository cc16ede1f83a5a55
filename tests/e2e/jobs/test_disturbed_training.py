"""A training over MPI that is slowed down on one node and then loses its coordinator."""

import json
import os
import re
import signal
import uuid
from pathlib import Path

import pytest
from cluster.errors import ClusterError
from cluster.external import ExternalCluster
from horovod_job import Job, group

pytestmark = [pytest.mark.timeout(300), pytest.mark.sole_training]
PROGRAM = Path(__file__).resolve().parents[3] / "manifests" / "samples" / "programs" / "digits.py"
COMMIT_STEPS = 10  # of the program
SLOW_CORES = 0.3
CLEARLY = 1.5


@pytest.fixture(scope="module")
def training(cluster, operator):
    """A job that trains for longer than the tests take."""
    if isinstance(cluster, ExternalCluster):
        pytest.skip("throttling a node and killing a process on it needs the harness's own cluster")
    namespace = cluster.create_namespace(f"e2e-{uuid.uuid4().hex[:8]}")
    program = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "training-program", "namespace": namespace},
        "data": {"digits.py": PROGRAM.read_text()},
    }
    cluster.apply(program)
    python = cluster.python_volume(namespace)
    settings = {"OMP_NUM_THREADS": "1", "EPOCHS": "100000"}
    job = Job(cluster, namespace)
    job.apply(
        group(
            "worker",
            2,
            cluster.training_image,
            ["python3", "/workspace/digits.py"],
            container={
                "env": [*python.env, *({"name": name, "value": text} for name, text in settings.items())],
                "volumeMounts": [*python.mounts, {"name": "program", "mountPath": "/workspace"}],
            },
            pod={
                "volumes": [*python.volumes, {"name": "program", "configMap": {"name": "training-program"}}]
            },
        ),
        scheduling={"placement": "Spread"},
        compression={"algorithm": "Laplace", "densityPermille": 10},
    )
    job.wait(lambda: committed(job) > 0, 150, "a training that has committed")
    # What ranks say of each other's steps depends on what else runs.
    with cluster.pods_first():
        yield job
    job.kubectl("delete", "hvj", job.name, "--wait=false")
    cluster.delete_namespace(namespace)


def telemetry(job: Job) -> dict:
    return job.status().get("telemetry") or {}


def committed(job: Job) -> int:
    return int(telemetry(job).get("committedStep", 0))


def kill(pod) -> None:
    """Kill the container's processes as the kernel does when memory runs out."""
    uid = pod["metadata"]["uid"]
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            groups = (process / "cgroup").read_text().replace("_", "-")
            command = (process / "cmdline").read_text()
        except OSError:
            continue
        if uid in groups and "gradsieve_hvd\0coordinator" in command:
            signal.pidfd_send_signal(os.pidfd_open(int(process.name)), signal.SIGKILL)


def ranks(job: Job) -> list[dict]:
    """Return what the coordinator has last heard of each rank, the slowest one last."""
    url = "http://127.0.0.1:7480/v1/status"
    ask = f"from urllib.request import urlopen; print(urlopen('{url}').read().decode())"
    told = job.kubectl("exec", "digits-coordinator-1", "--", "python3", "-c", ask)
    return sorted(json.loads(told)["telemetry"]["ranks"], key=lambda rank: rank["stepSeconds"])


@pytest.mark.parametrize(("rank", "host"), [(1, "worker-1"), (0, "worker-0")])
def test_telemetry_names_rank_and_worker_on_a_throttled_node(cluster, training, rank, host):
    pod = next(pod for pod in training.pods().values() if pod["spec"]["hostname"] == host)
    node = next(node for node in cluster.nodes if node.name == pod["spec"]["nodeName"])

    def named() -> bool:
        fast, slow = ranks(training)
        clear = slow["stepSeconds"] > CLEARLY * fast["stepSeconds"]
        return clear and (slow["rank"], slow["host"]) == (rank, host)

    node.throttle_cpu(SLOW_CORES)
    try:
        training.wait(named, 90, f"{host} is clearly the slow one")
        training.wait(lambda: telemetry(training).get("slowestWorker") == host, 60, "in the status")
    finally:
        node.throttle_cpu(None)


def last_step_before(training, tmp_path, end) -> int:
    """Return the last step that rank 0 was heard of; ``end`` is called while the log is being read."""
    heard = tmp_path / "heard"
    with heard.open("w") as file:
        # Rank 0 says each epoch's last step.
        reader = training.follow("digits-coordinator-1", file)
        training.wait(lambda: "loss" in heard.read_text(), 60, "heard of a step")
        end()
        reader.wait(60)
    return int(re.findall(r"^\[0\] step (\d+) loss", heard.read_text(), re.MULTILINE)[-1])


def test_a_killed_coordinator_costs_one_restart_and_no_more_than_a_commit_interval(
    training, tmp_path, record_property
):
    restarts = training.status()["restartCount"]
    coordinator = training.pods()["digits-coordinator-1"]
    last = last_step_before(training, tmp_path, lambda: kill(coordinator))
    seconds = training.wait(lambda: "digits-coordinator-2" in training.pods(), 60, "replaced")
    record_property("seconds_to_replacement", round(seconds, 1))

    def resumed() -> re.Match[str] | None:
        try:
            log = training.kubectl("logs", "digits-coordinator-2")
        except ClusterError:  # its container has not started yet
            return None
        return re.search(r"2 ranks go on from step (\d+)", log)

    seconds += training.wait(lambda: resumed() is not None, 150, "training again")
    record_property("seconds_to_training", round(seconds, 1))
    first = resumed()
    assert first is not None
    record_property("steps_lost", last - int(first[1]))
    assert int(first[1]) >= last - COMMIT_STEPS
    training.wait(lambda: committed(training) > last, 60, "new commits")
    assert training.status()["restartCount"] == restarts + 1
    assert {"digits-worker-0-1", "digits-worker-1-1"} <= set(training.pods())
