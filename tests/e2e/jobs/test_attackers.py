"""What a stranger's pod, a worker of another job, and a worker of the same job can do to a job: nothing.

Coordinator and agents are real; the attackers run in real pods with what such pods have.
"""

import json
from pathlib import Path

import pytest
from cluster.pods import pod
from horovod_job import Job, group, idle_group

pytestmark = pytest.mark.timeout(300)
SCRIPT = Path(__file__).with_name("attacker.py").read_text()
OWN, FORGED = "/var/run/gradsieve/tls", "forged"
OPERATORS = ["put roster", "put plan", "get status", "post stop"]
INSIDERS = ["register worker-1", "play the coordinator", "secrets", "files"]
LOOK_FOR_EVIL = "import os; print(os.path.exists(os.environ['TMPDIR'] + '/evil'))"
READ_STATUS = (
    "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:7480/v1/status').read().decode())"
)


@pytest.fixture
def victim(cluster, namespace, operator) -> Job:
    """A job of two workers whose ranks run."""
    python = cluster.python_volume(namespace)
    container = {"env": python.env, "volumeMounts": python.mounts}
    program = ["python3", "-c", "import time; time.sleep(3600)"]
    image, volumes = cluster.training_image, {"volumes": python.volumes}
    job = Job(cluster, namespace, "victim")
    job.apply(group("worker", 2, image, program, container=container, pod=volumes))
    return job


@pytest.fixture
def other(cluster, namespace, victim) -> Job:
    """Another job of the namespace; its worker has certificates of its own authority."""
    python = cluster.python_volume(namespace)
    variables = {each["name"]: each["value"] for each in python.env}
    variables["PYTHONPATH"] = f"/idle:{variables['PYTHONPATH']}"
    idle = idle_group("worker", 1, cluster.training_image)
    first, spec = idle["template"]["spec"]["containers"][0], idle["template"]["spec"]
    first["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    first["volumeMounts"] += python.mounts
    spec["volumes"] += python.volumes
    job = Job(cluster, namespace, "other")
    job.apply(idle)
    return job


@pytest.fixture
def stranger(cluster, namespace, victim) -> None:
    """A pod that belongs to no job."""
    python = cluster.python_volume(namespace)
    named = {"GRADSIEVE_NAMESPACE": namespace}
    manifest = pod(namespace, "stranger", cluster.training_image, ["sleep", "3600"], python=python)
    manifest["spec"]["containers"][0]["env"] += [{"name": n, "value": v} for n, v in named.items()]
    cluster.apply(manifest)


@pytest.fixture
def attack(cluster, namespace, victim, other, stranger):
    """Try things from a pod; returns what became of them, by name."""
    victim.wait(lambda: victim.condition("Running")["status"] == "True", 120, "the victim's ranks run")
    for name in ("other-worker-0-1", "stranger"):
        cluster.wait_for_pod(namespace, name, "Running")
    address = victim.pods()["victim-coordinator-1"]["status"]["podIP"]

    def run(source: str, folder: str, *names: str) -> dict[str, str]:
        words = [
            "exec",
            "-i",
            "--namespace",
            namespace,
            source,
            "--",
            "python3",
            "-",
            address,
            folder,
            *names,
        ]
        return json.loads(cluster.kubectl(*words, stdin=SCRIPT))

    return run


def test_nobody_but_the_operator_steers_a_job_with_its_network_policy_or_without(
    cluster, namespace, operator, victim, attack
):
    def ask(pod: str, program: str) -> str:
        return cluster.execute(namespace, pod, "python3", "-c", program).strip()

    def state():
        found = json.loads(ask("victim-coordinator-1", READ_STATUS))
        return {name: found[name] for name in ("generation", "state", "plan", "registered", "startedAt")}

    before = state()
    assert (before["generation"], before["state"]) == (1, "Running")
    outsiders = {"stranger": FORGED, "other-worker-0-1": OWN}
    ports = ["connect", "connect read-only"]
    everything = [*OPERATORS, "get plan", "post telemetry", "register worker-0", "without certificate"]

    cluster.settle_policies()
    for source, folder in outsiders.items():
        assert attack(source, folder, *ports) == dict.fromkeys(ports, "dropped")

    operator.kill()
    try:
        victim.kubectl("delete", "networkpolicy", "victim")
        cluster.settle_policies()
        for source, folder in outsiders.items():
            found = attack(source, folder, *ports, *everything, "put plan read-only")
            assert [found.pop(port) for port in ports] == ["connected"] * 2
            assert found.pop("put plan read-only") in ("404", "405")
            assert {name: said for name, said in found.items() if not said.startswith("cut off: ")} == {}
    finally:
        operator.start()

    found = attack("victim-worker-1-1", OWN, *everything, *INSIDERS)
    for name in OPERATORS:
        assert found[name].startswith("403")
        assert "is not for the certificate of worker 'worker-1'" in found[name]
    assert found["get plan"] == '403 {"error": "plan for worker-1: rank 0 is not there"}'
    assert found["post telemetry"] == '403 {"error": "telemetry from worker-1: rank 0 is not there"}'
    another = "the certificate of host 'worker-1' cannot register host 'worker-0'"
    assert found["register worker-0"] == f"4403 refused {another}"
    assert found["without certificate"].startswith("cut off: ")
    # As itself it may register once more, and is cut off at its first word that is no agent's.
    assert found["register worker-1"].startswith("4400 registered; refused")
    assert "certificate verify failed" in found["play the coordinator"]
    assert found["files"] == "ca.crt tls.crt tls.key; no token"
    assert found["secrets"] == "403"
    of_rank_0 = {"get plan": '200 {"generation": 0}', "post telemetry": "200 {}"}
    assert attack("victim-worker-0-1", OWN, *of_rank_0) == of_rank_0

    account = f"--as=system:serviceaccount:{namespace}:victim"
    assert victim.kubectl("auth", "can-i", "get", "secrets", account, check=False).strip() == "no"
    pods = ("victim-coordinator-1", "victim-worker-0-1", "victim-worker-1-1")
    assert {pod: ask(pod, LOOK_FOR_EVIL) for pod in pods} == dict.fromkeys(pods, "False")
    assert state() == before
    assert victim.condition("Running")["status"] == "True"

    victim.wait(lambda: "NetworkPolicy/victim" in victim.children(), 90, "the NetworkPolicy is there again")
    cluster.settle_policies()
    assert attack("stranger", FORGED, "connect") == {"connect": "dropped"}
