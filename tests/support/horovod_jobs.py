"""HorovodJobs for the operator's tests, as the API server would return them."""

from __future__ import annotations

from typing import Any

from gradsieve_operator.spec import HorovodJob

COMMAND = ["python3", "train.py"]


def group(name: str, replicas: int = 1, **fields: Any) -> dict[str, Any]:
    """Return one item of spec.workerGroups; ``container`` and ``pod`` go into the template."""
    container = {"name": "train", "image": "train:1", "command": COMMAND, **fields.pop("container", {})}
    spec = {"containers": [container], **fields.pop("pod", {})}
    template = {"metadata": fields.pop("metadata", {}), "spec": spec}
    return {"name": name, "replicas": replicas, "template": template, **fields}


def body(
    *groups: dict[str, Any], name: str = "digits", namespace: str = "research", **spec: Any
) -> dict[str, Any]:
    """Return a whole HorovodJob."""
    return {
        "apiVersion": "gradsieve.io/v1alpha1",
        "kind": "HorovodJob",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-of-{name}",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"workerGroups": list(groups) or [group("worker", 2)], **spec},
    }


def job(*groups: dict[str, Any], **fields: Any) -> HorovodJob:
    """Return what the operator makes of `body`."""
    return HorovodJob.parse(body(*groups, **fields))
