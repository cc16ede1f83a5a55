"""`gradsieve submit` and `gradsieve top` on the cluster: from a program here to its exit status."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from cluster.pods import ARBITRARY_UID
from horovod_job import Job
from sample_jobs import A100

pytestmark = pytest.mark.timeout(400)
PROGRAM = """
import os, sys, time
rank = os.environ["OMPI_COMM_WORLD_RANK"]
print("hello from", rank, sys.argv[1:], os.environ["GREETING"], flush=True)
time.sleep(float(sys.argv[1]))
if rank == "0":
    print("last words", flush=True)
sys.exit(int(sys.argv[2]))
"""
OPTIONS = ("--workers", "2", "--retries", "0", "--cpu", "10m", "--env", "GREETING=hi")


@pytest.fixture
def call(cluster, namespace, tmp_path):
    """Start `gradsieve` as a user of the cluster does: with a kubeconfig, a program and a template."""
    (tmp_path / "train.py").write_text(PROGRAM)
    python = cluster.python_volume(namespace)
    container = {"image": cluster.training_image, "env": python.env, "volumeMounts": python.mounts}
    context = {"runAsNonRoot": True, "runAsUser": ARBITRARY_UID, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"securityContext": context, "volumes": python.volumes, "containers": [container]}
    (tmp_path / "template.yaml").write_text(yaml.safe_dump({"spec": pod}))

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gradsieve_hvd.cli", *words, "--namespace", namespace],
            cwd=tmp_path, env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return start


def submit(call, *words: str) -> subprocess.Popen[str]:
    return call("submit", "train.py", *OPTIONS, "--template", "template.yaml", *words)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=180)
    return process.returncode, out, err


def test_a_program_is_trained_to_its_end_and_watched_meanwhile(operator, cluster, namespace, call):
    cluster.nodes[0].label_gpu(A100, 4, 81920)
    job = Job(cluster, namespace, "train")
    running = submit(call, "--gpu", "a100", "20", "0")
    job.wait(lambda: job.condition("Running")["status"] == "True", 60, "ranks run")
    header, row = ended(call("top", "--once"))[1].splitlines()
    seen = dict(zip(header.split(), row.split(), strict=True))
    assert (seen["NAME"], seen["STATE"], seen["GROUPS"]) == ("train", "Running", "workers:2/2")
    assert seen["GPUS"] == f"2x{A100}"
    status, out, err = ended(running)
    assert status == 0, err
    assert len(re.findall(r"hello from [01] \['20', '0'\] hi", out)) == 2
    assert out.count("last words") == 1
    assert "Running: ranks are training" in err
    assert "Succeeded: all ranks have ended with status 0" in err
    assert job.status()["exitCode"] == 0
    program = json.loads(job.kubectl("get", "configmap", "train-program", "-o", "json"))
    assert program["metadata"]["ownerReferences"][0]["uid"] == job.uid()
    job.delete()
    gone = lambda: not job.kubectl("get", "configmap", "train-program", "--ignore-not-found", "-o", "name")  # noqa: E731
    job.wait(gone, 60, "the ConfigMap goes with the job")


def test_a_program_that_fails_gives_its_exit_status_to_the_command(operator, cluster, namespace, call):
    status, out, err = ended(submit(call, "--name", "failing", "1", "7"))
    assert status == 7, err
    assert Job(cluster, namespace, "failing").status()["exitCode"] == 7
    assert "last words" in out
    assert "BackoffLimitExceeded" in err


def test_a_job_whose_program_is_refused_is_not_left_behind(operator, cluster, namespace, call):
    job = Job(cluster, namespace, "train")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": namespace},
    }
    cluster.apply({**quota, "spec": {"hard": {"count/configmaps": "0"}}})
    job.wait(
        lambda: "count/configmaps" in job.kubectl("get", "quota", "none", "-o", "jsonpath={.status.hard}"),
        30,
        "quota",
    )
    status, _, err = ended(submit(call, "1", "0"))
    assert status == 1
    assert "cannot create the ConfigMap train-program: " in err
    assert "exceeded quota" in err
    job.wait(lambda: not job.kubectl("get", "hvj", "-o", "name"), 30, "the job is deleted")
