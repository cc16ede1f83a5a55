"""What all children of a job have in common: whose they are, and the labels they are found by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.spec import HorovodJob

Manifest = dict[str, Any]
"""An object of the Kubernetes API as JSON."""


def child(
    job: HorovodJob,
    api_version: str,
    kind: str,
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Begin the manifest of a child: it is owned by the job, so that it goes when the job goes.

    Args:
        job: the owner.
        api_version: of the child.
        kind: of the child.
        name: of the child.
        labels: further labels; the job's own wins.
        annotations: none when empty.
    """
    metadata: Manifest = {
        "name": name,
        "namespace": job.namespace,
        "labels": {**(labels or {}), contract.LABEL_JOB: job.name},
        "ownerReferences": [
            {
                "apiVersion": contract.API_VERSION,
                "kind": contract.JOB_KIND,
                "name": job.name,
                "uid": job.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
