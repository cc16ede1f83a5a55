"""Manifests of pods that pass *restricted* pod security under an arbitrary id and with a read-only root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.python import PythonVolume

Manifest = dict[str, Any]
# An id such as OpenShift gives: no image was built for it.
ARBITRARY_UID = 1_000_660_000


def restricted_pod() -> Manifest:
    """Return the `securityContext` of a pod that a namespace with *restricted* pod security admits."""
    return {
        "runAsNonRoot": True,
        "runAsUser": ARBITRARY_UID,
        "runAsGroup": 0,
        "fsGroup": ARBITRARY_UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def restricted_container() -> Manifest:
    """Return the `securityContext` of a container in such a pod."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def pod(
    namespace: str,
    name: str,
    image: str,
    command: Sequence[str] = (),
    *,
    node: str | None = None,
    labels: dict[str, str] | None = None,
    python: PythonVolume | None = None,
    container: Manifest | None = None,
    **spec: Any,
) -> Manifest:
    """Return a pod with one container, with a writable /tmp and, where `python` says how, the project's
    packages.

    Args:
        namespace: where it goes.
        name: the pod's name, and its container's.
        image: on the harness's own nodes one that they already have: they pull nothing.
        command: what runs; the image's own program if empty.
        node: where it must run, by the ordinary scheduler; None for anywhere.
        labels: the pod's.
        python: from `Cluster.python_volume`.
        container: more fields of the container.
        spec: more fields of the pod's spec.
    """
    python = python or PythonVolume()
    home = [{"name": "HOME", "value": "/tmp"}, {"name": "TMPDIR", "value": "/tmp"}]
    only = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        **({"command": list(command)} if command else {}),
        "env": [*home, *python.env],
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}, *python.mounts],
        "securityContext": restricted_container(),
        **(container or {}),
    }
    if node is not None:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec.setdefault("affinity", {"nodeAffinity": required})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels or {}},
        "spec": {
            "containers": [only],
            "volumes": [{"name": "scratch", "emptyDir": {}}, *python.volumes],
            "securityContext": restricted_pod(),
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }
