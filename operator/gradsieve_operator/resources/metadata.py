"""What all children of a job have in common: whose they are, and the labels they are found by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.spec import HorovodJob

Manifest = dict[str, Any]
"""An object of the Kubernetes API as JSON."""

AUTHORITY_ANNOTATION = "gradsieve.io/authority"
"""Fingerprint of the authority that signed what a Secret holds or a pod mounts: they go together by it."""

RENEWED_ANNOTATION = "gradsieve.io/renewed"
"""When the job's Secrets were last made to trust a further authority: nodes take a while to deliver that."""

TRUST_ANNOTATION = "gradsieve.io/trust"
"""Digest of the authorities that a pod shall trust. Nodes deliver changed Secrets at their leisure, but look
at a pod at once when it changes."""

ATTEMPT_ANNOTATION = "gradsieve.io/attempt"
"""Which of the job's coordinators a pod is."""

ORIGIN_ANNOTATION = "gradsieve.io/origin"
"""Digest of what a pod was made from: a job that was changed while suspended starts with new pods.

What the digest is made of may change from version to version; see `gradsieve_operator.decide.same_spec`."""


def origin(job: HorovodJob) -> str:
    """Return a digest of all that may change only while the job is suspended and that pods depend on."""
    groups = [(group.name, group.slots_per_worker, group.template) for group in job.groups]
    launcher = [job.launcher.backend, job.launcher.template]
    placed = [job.scheduling.priority_class_name, job.scheduling.queue_name, job.scheduling.gpu_products]
    text = json.dumps([groups, launcher, placed], sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def marks(job: HorovodJob, authority: str) -> dict[str, str]:
    """Return the annotations of every pod of ours.

    Args:
        job: whose pod it is.
        authority: fingerprint of the authority that signed the pod's certificate.
    """
    return {AUTHORITY_ANNOTATION: authority, ORIGIN_ANNOTATION: origin(job)}


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


def owned(raw: Mapping[str, Any], uid: str) -> bool:
    """Whether an object of the API server's is a child of the job with ``uid``."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)
