"""Jobs on nodes that exist in the API only: the nodes, and the end of a job, which kwok leaves to tests."""

from __future__ import annotations

import json
from typing import Any

from horovod_job import Job
from kubernetes import client

NAMESPACE = "research"


def add_node(cluster: Any, name: str, cpu: int) -> None:
    """Create a node with so many processors and enough of everything else."""
    holds = {"cpu": str(cpu), "memory": "64Gi", "pods": "20", "ephemeral-storage": "100Gi"}
    core = client.CoreV1Api(cluster.api)
    about = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    core.create_node({"metadata": about, "status": {"allocatable": holds, "capacity": holds}})
    # New nodes are tainted until a controller finds them ready, which is left out with simulated ones.
    core.patch_node(name, {"spec": {"taints": None}})


def namespace() -> dict[str, Any]:
    """Return the namespace of the jobs."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def succeed(job: Job) -> None:
    """Have the job's coordinator end as it does when the program ended well, and wait until the job has."""
    job.wait(job.admitted, 60, "admitted")

    def running() -> dict[str, dict[str, Any]]:
        pods = job.pods().items()
        return {
            name: pod for name, pod in pods if "coordinator" in name and pod["status"]["phase"] == "Running"
        }

    job.wait(lambda: bool(running()), 60, "a coordinator")
    [(name, pod)] = running().items()
    [status] = pod["status"]["containerStatuses"]
    status |= {"ready": False, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    change = {"status": {"phase": "Succeeded", "containerStatuses": [status]}}
    job.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps(change))
    job.wait(lambda: job.condition("Complete")["status"] == "True", 60, "complete")
