"""From nothing to an exit status with the commands of docs/kubernetes.md: install, test, submit, watch."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cluster.binaries import program
from cluster.external import ExternalCluster, skip
from cluster.pods import ARBITRARY_UID
from helm_chart import MANIFESTS, NAMESPACE, ROOT, helm
from horovod_job import Job
from sample_jobs import A100, PROGRAM

pytestmark = [pytest.mark.timeout(400), pytest.mark.sole_training]
DOCUMENT = (ROOT / "docs/kubernetes.md").read_text()
SECONDS = 180
ONE_MACHINE = {"OMP_NUM_THREADS": "1", "HOROVOD_CYCLE_TIME": "20", "OMPI_MCA_mpi_yield_when_idle": "1"}


def command(beginning: str) -> str:
    """The one line of the document's blocks that begins so."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    found = {line for block in blocks for line in block.splitlines() if line.startswith(beginning)}
    [one] = {beginning} & found or found
    return one


@pytest.fixture
def folder(cluster, namespace, tmp_path) -> Path:
    """A clone's chart, a program of the newcomer's, and what stands in for the training image."""
    (tmp_path / "helm").symlink_to(ROOT / "helm")
    shutil.copy(PROGRAM, tmp_path / "train.py")
    python = cluster.python_volume(namespace)
    # Long enough to be looked at: four epochs took 7 s, and a look takes two or three beside another cluster.
    settings = {**ONE_MACHINE, "EPOCHS": "16"}
    container = {
        "image": cluster.training_image,
        "env": [*python.env, *({"name": name, "value": value} for name, value in settings.items())],
        "volumeMounts": python.mounts,
    }
    context = {"runAsNonRoot": True, "runAsUser": ARBITRARY_UID, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"securityContext": context, "volumes": python.volumes, "containers": [container]}
    (tmp_path / "template.yaml").write_text(yaml.safe_dump({"spec": pod}))
    return tmp_path


@pytest.fixture
def start(cluster, namespace, folder):
    """Start a command as the newcomer does, with other images' names and in a namespace of the test's own."""
    repository, _, tag = cluster.operator_image.rpartition(":")
    kubeconfig = folder / "kubeconfig"
    shutil.copy(cluster.kubeconfig, kubeconfig)
    found = cluster.environment()
    path = os.pathsep.join([str(program("helm").parent), str(Path(sys.executable).parent), found["PATH"]])
    environment = {**found, "PATH": path, "KUBECONFIG": str(kubeconfig)}

    def run(line: str) -> subprocess.Popen[str]:
        line = line.replace("REGISTRY/gradsieve-operator", f"{repository},image.tag={tag}")
        line = line.replace("REGISTRY/gradsieve-training", cluster.training_image)
        return subprocess.Popen(
            ["sh", "-c", f"exec {line}"], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    said(run(f"kubectl config set-context --current --namespace={namespace}"))
    return run


@pytest.fixture
def installed(cluster, start):
    """Installed as the document says, and tested."""
    if isinstance(cluster, ExternalCluster):
        skip("installing an operator beside the one that is there")
    try:
        said(start(command("helm install gradsieve")))
        yield said(start(command("helm test")))
    finally:
        words = ("uninstall", "gradsieve", "--namespace", NAMESPACE, "--ignore-not-found", "--wait")
        helm(*words, environment=cluster.environment())
        gone = ("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s")
        cluster.kubectl(*gone, timeout=70)
        cluster.kubectl("apply", "-f", str(MANIFESTS / "crds"))


def said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err
    return out


def test_a_newcomer_installs_the_operator_submits_a_training_and_watches_it(
    cluster, namespace, installed, start
):
    assert "Succeeded" in installed
    cluster.nodes[0].label_gpu(A100, 4, 81920)
    training = start(f"{command('gradsieve submit')} --template template.yaml")
    job = Job(cluster, namespace, "train")

    def runs() -> bool:
        assert training.poll() is None, said(training)
        return job.condition("Running")["status"] == "True"

    job.wait(runs, 120, "ranks run")
    header, row = said(start(command("gradsieve top"))).splitlines()
    shown = dict(zip(header.split(), row.split(), strict=True))
    assert (shown["NAME"], shown["GROUPS"], shown["GPUS"]) == ("train", "workers:4/4", f"4x{A100}")

    def hosts() -> set[tuple[str, str]]:
        ranks = said(start(command("gradsieve top train"))).split("\n\n")[-1].splitlines()
        assert ranks[0].split() == ["HOST", "RANK", "WORK", "WAIT", "THROTTLED", "CONNECTED"]
        return {(row.split()[0], row.split()[-1]) for row in ranks[1:]}

    # Rank 0 has reported nothing yet when ranks have just begun.
    job.wait(
        lambda: hosts() == {(f"workers-{index}", "yes") for index in range(4)}, 60, "all ranks are shown"
    )
    assert "accuracy" in said(training)
    assert job.condition("Complete")["status"] == "True"
