"""The sample manifests as users apply them, with what stands in for the training image patched in."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import yaml
from cluster.pods import ARBITRARY_UID
from horovod_job import Job

SAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "samples"
PROGRAM = SAMPLES / "programs" / "digits.py"
A100, T4 = "NVIDIA-A100-SXM4-80GB", "Tesla-T4"

_ONE_MACHINE = {"OMP_NUM_THREADS": "1", "HOROVOD_CYCLE_TIME": "20", "OMPI_MCA_mpi_yield_when_idle": "1"}
"""All nodes share the cores of one machine, and ranks that wait for others would keep these from them."""


def load(name: str) -> dict[str, Any]:
    """Return the sample manifest ``name``; where it uses aliases, each place gets a copy of its own."""
    shared = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text())
    found: dict[str, Any] = json.loads(json.dumps(shared))
    return found


def stand_in(job: dict[str, Any], cluster: Any, namespace: str, **environment: str) -> None:
    """Change a sample in place so that it runs without the training image.

    Its containers get what stands in for that image, a user (that image names none), the Python packages and
    ``environment``.
    """
    python = cluster.python_volume(namespace)
    given = {**_ONE_MACHINE, **environment}
    variables = [{"name": name, "value": value} for name, value in given.items()]
    for group in job["spec"]["workerGroups"]:
        pod = group["template"]["spec"]
        pod["securityContext"]["runAsUser"] = ARBITRARY_UID
        pod["volumes"] = [*pod["volumes"], *python.volumes]
        first = pod["containers"][0]
        first["image"] = cluster.training_image
        own = [each for each in first.get("env", ()) if each["name"] not in given]
        first["env"] = [*own, *python.env, *variables]
        first["volumeMounts"] = [*first["volumeMounts"], *python.mounts]


class SampleJob(Job):
    """A sample, applied with `apply_sample`.

    Args:
        cluster: where it is.
        namespace: where in the cluster.
        name: of the sample, and so of the job.
    """

    def apply_sample(
        self, *, manifest: dict[str, Any] | None = None, program: str = "", **environment: str
    ) -> float:
        """Apply the sample and its program with the commands of docs/kubernetes.md; returns when, in seconds
        since the epoch.

        Args:
            manifest: the job, to be changed; None for the sample itself.
            program: its text; empty for the sample program.
            environment: variables of the containers; see `stand_in`.
        """
        text = f"--from-literal=digits.py={program or PROGRAM.read_text()}"
        self.kubectl("create", "configmap", "training-program", text)
        job = manifest or load(self.name)
        stand_in(job, self._cluster, self.namespace, **environment)
        applied = time.time()
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(job))
        return applied
