"""Turning a user's pod template into a pod of ours, without losing anything the user asked for."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.resources.metadata import Manifest
from gradsieve_operator.spec import parse_quantity, service_account

TLS_VOLUME = "gradsieve-tls"
SCRATCH_VOLUME = "gradsieve-scratch"
MEMORY_VOLUME = "gradsieve-shm"
SCRATCH_DIRECTORY = "/tmp"  # noqa: S108 - a volume of the pod's own
MEMORY_DIRECTORY = "/dev/shm"  # noqa: S108 - as above

GPU = "nvidia.com/gpu"

_UNLIMITED_SCRATCH = "10Gi"
_LEAST_MEMORY = 64 << 20
_UNLIMITED_MEMORY = 1 << 30
"""Size of /dev/shm where the container has no memory limit that it could be counted in."""


@dataclass(frozen=True)
class Container:
    """What the user's first container becomes.

    Attributes:
        command: replaces command and arguments.
        environment: set over the user's, None taking a variable's value from the pod's uid.
        tls: sources of the projected volume with the certificates.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    tls: Sequence[Mapping[str, Any]]


def pod_spec(template: Mapping[str, Any], job: str, host: str, container: Container) -> Manifest:
    """Return the spec of a pod that runs ``container`` in the template's first container.

    1. The first container gets our command and our variables; a user's HOME and TMPDIR stay.
    2. Every pod gets its certificates, a writable /tmp (Open MPI does not start without one under an
       arbitrary user id) and a /dev/shm of its own. Where the user mounts something there, it stays.
    3. The pod gets its host name below the job's Service, is never restarted in place (the job's restarts are
       counted), and holds no token of the API server.

    Args:
        template: the user's PodTemplateSpec, not changed.
        job: name of the job.
        host: host name within the job.
        container: what to run.
    """
    spec: Manifest = copy.deepcopy(dict(template.get("spec") or {}))
    first = spec["containers"][0]
    first["command"] = list(container.command)
    first.pop("args", None)
    first["env"] = _environment(first.get("env") or [], container.environment)
    _mount(spec, first, TLS_VOLUME, contract.TLS_DIRECTORY, _projected(container.tls), read_only=True)
    scratch = {"emptyDir": {"sizeLimit": scratch_size(first)}}
    _mount(spec, first, SCRATCH_VOLUME, SCRATCH_DIRECTORY, scratch)
    memory = {"emptyDir": {"medium": "Memory", "sizeLimit": str(shared_memory(first))}}
    _mount(spec, first, MEMORY_VOLUME, MEMORY_DIRECTORY, memory)
    # The older of its two names would be passed over beside ours.
    spec["serviceAccountName"] = service_account(spec) or job
    spec.pop("serviceAccount", None)
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        **spec,
        "hostname": host,
        "subdomain": job,
        "restartPolicy": "Never",
    }


def scratch_size(container: Mapping[str, Any]) -> str:
    """Return the size of /tmp: the container's limit of local storage, which counts it, or 10 GiB.

    Without any limit one pod could fill the disk of its node, whose kubelet would then evict others.
    """
    limits = (container.get("resources") or {}).get("limits") or {}
    return str(limits.get("ephemeral-storage", _UNLIMITED_SCRATCH))


def shared_memory(container: Mapping[str, Any]) -> int:
    """Return the size of /dev/shm in bytes: half of the container's memory limit, which counts it."""
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    if limit is None:
        return _UNLIMITED_MEMORY
    return max(_LEAST_MEMORY, int(parse_quantity(limit)) // 2)


def asks_for_gpus(spec: Mapping[str, Any]) -> bool:
    """Whether any container of a pod asks for GPUs."""
    amounts = (container.get("resources") or {} for container in spec.get("containers") or ())
    return any(GPU in (each.get(kind) or {}) for each in amounts for kind in ("limits", "requests"))


def pin(spec: Manifest, node: str | None, gpu_products: Sequence[str] = ()) -> None:
    """Bind ``spec`` to ``node`` (if any) and to nodes with one of the GPUs, over and above its own affinity.

    The user's terms are alternatives, so that each of them gets the addition. The ordinary scheduler still
    does the binding and still refuses what does not fit.

    Args:
        spec: of a pod; changed.
        node: its name.
        gpu_products: allowed values of the label of GPU feature discovery; empty for any node.
    """
    addition: Manifest = {}
    if node is not None:
        addition["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    if gpu_products:
        wanted = {"key": "nvidia.com/gpu.product", "operator": "In", "values": list(gpu_products)}
        addition["matchExpressions"] = [wanted]
    if not addition:
        return
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    nodes = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    required = nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [
        {**term, **{key: [*term.get(key, []), *more] for key, more in addition.items()}}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    nodes["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}


def _environment(given: Sequence[Manifest], ours: Mapping[str, str]) -> list[Manifest]:
    kept = [variable for variable in given if variable["name"] not in contract.RESERVED_ENVIRONMENT]
    names = {variable["name"] for variable in kept}
    uid = {"name": contract.ENV_POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    places = [
        {"name": name, "value": SCRATCH_DIRECTORY}
        for name in (contract.ENV_HOME, contract.ENV_TMPDIR)
        if name not in names
    ]
    # Ours first: a user's variable may refer to them as $(NAME).
    return [uid, *({"name": name, "value": value} for name, value in ours.items()), *places, *kept]


def _projected(sources: Sequence[Mapping[str, Any]]) -> Manifest:
    # Readable by any user id: the pod's only container that mounts it is the one that needs it.
    return {"projected": {"sources": [dict(source) for source in sources], "defaultMode": 0o444}}


def _mount(
    spec: Manifest, container: Manifest, volume: str, path: str, source: Manifest, *, read_only: bool = False
) -> None:
    mounts = container.setdefault("volumeMounts", [])
    if any(mount["mountPath"].rstrip("/") == path for mount in mounts):
        return
    mounts.append({"name": volume, "mountPath": path, **({"readOnly": True} if read_only else {})})
    spec.setdefault("volumes", []).append({"name": volume, **source})
