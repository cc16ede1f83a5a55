"""A real training on two groups of workers: from apply to the accuracy in the log."""

import re
from pathlib import Path

import pytest
from horovod_job import Job, group

pytestmark = pytest.mark.timeout(400)
PROGRAM = Path(__file__).resolve().parents[3] / "manifests" / "samples" / "programs" / "digits.py"
A100, T4 = "NVIDIA-A100-SXM4-80GB", "Tesla-T4"


def training_groups(cluster, namespace):
    """Return two groups of two workers that mount the environment, the sources and the program."""
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "training-program", "namespace": namespace},
            "data": {"digits.py": PROGRAM.read_text()},
        }
    )
    python = cluster.python_volume(namespace)
    for name, product in (("a100", A100), ("t4", T4)):
        yield group(
            name,
            2,
            cluster.training_image,
            ["python3", "/workspace/digits.py"],
            container={
                "env": [*python.env, {"name": "OMP_NUM_THREADS", "value": "1"}],
                "volumeMounts": [*python.mounts, {"name": "program", "mountPath": "/workspace"}],
                "resources": {"requests": {"cpu": "100m"}, "limits": {"nvidia.com/gpu": "1"}},
            },
            pod={
                "nodeSelector": {"nvidia.com/gpu.product": product},
                "volumes": [*python.volumes, {"name": "program", "configMap": {"name": "training-program"}}],
            },
        )


@pytest.fixture
def gpus(cluster):
    cluster.nodes[0].label_gpu(A100, 4, 81920)
    cluster.nodes[1].label_gpu(T4, 4, 15360)


def test_digits_train_with_laplace_on_two_kinds_of_gpus(cluster, operator, job: Job, namespace, gpus):
    job.apply(
        *training_groups(cluster, namespace),
        compression={"algorithm": "Laplace", "densityPermille": 10},
        runPolicy={"cleanPodPolicy": "None"},
    )
    job.wait(lambda: job.condition("Complete")["status"] == "True", 300, "complete")
    where = {name: pod["spec"]["nodeName"] for name, pod in job.pods().items() if "coordinator" not in name}
    assert {name: node == cluster.nodes["t4" in name].name for name, node in where.items()} == dict.fromkeys(
        where, True
    )
    log = job.kubectl("logs", "digits-coordinator-1")
    found = re.search(r"accuracy (\d+\.\d+) %", log)
    assert found is not None, log
    assert float(found[1]) > 93.0
    assert "4 ranks go on from step 0" in log
    columns = job.kubectl("get", "hvj", "digits").split("\n")[0].split()
    assert columns == ["NAME", "STATE", "READY", "DESIRED", "STEP", "DENSITY", "AGE"]
    reasons = job.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}").split()
    assert {"Placed", "Running", "Succeeded"} <= set(reasons)
