"""The objects of the simulated cluster: nodes, jobs that run, jobs that wait, and pods of others. Pure."""

from __future__ import annotations

import random
from typing import Any

from scale.sizes import GPUS_PER_NODE, NAMESPACES, OTHERS, PRODUCTS, SHAPES, WORKERS, Sizes

Manifest = dict[str, Any]
DENSITY = 10
"""Per mille; what jobs start with."""

_GPU = "nvidia.com/gpu"
_RACK = "example.com/rack"
_RACK_NODES = 10
_IMAGE = "registry.invalid/none"


def nodes(sizes: Sizes) -> list[Manifest]:
    """Return nodes of five GPU products in racks of ten and three zones."""
    return [_node(index) for index in range(sizes.nodes)]


def foreign_pods(sizes: Sizes) -> list[Manifest]:
    """Return bound pods of others; on each node at least one holds a GPU: no node is ever all free."""
    return [
        _foreign_pod(index, f"node-{index % sizes.nodes:04}", gpus=int(index < sizes.foreign_gpus))
        for index in range(sizes.foreign_pods)
    ]


def running_job(index: int, *, adapted: bool = False) -> Manifest:
    """Return a job of four pods that fits, with one GPU of its product for each worker.

    Args:
        index: of the job.
        adapted: whether the operator may change its mode and density.
    """
    group = _group("workers", WORKERS, {"cpu": "2", _GPU: "1"})
    # With it, the number of workers may be changed while the job runs.
    group["minReplicas"] = WORKERS
    job = _job("run", index, [group], gpuProducts=[PRODUCTS[index % len(PRODUCTS)]])
    if adapted:
        job["spec"] |= {
            "parallelism": {"mode": "Auto"},
            "adaptation": {"enabled": True, "intervalSeconds": 15, "cooldownSeconds": 60},
        }
    return job


def small_job(name: str, index: int) -> Manifest:
    """Return a job of four pods that needs no GPU: it fits, however full the cluster is."""
    return _job(name, index, [_group("workers", WORKERS, {"cpu": "1"})])


def waiting_job(index: int, sizes: Sizes) -> Manifest:
    """Return a job of one to four groups that does not fit, whatever jobs end; there are 60 shapes of them.

    Some ask for whole nodes, each of which has a foreign pod. Of the others each group alone finds room in
    its rack, a node for each of its pods, and two groups do not: only a search tells.
    """
    shape = index % SHAPES
    kind, count = random.Random(shape), 1 + shape % 4
    if count == 1 or shape % 8 < 4:
        requests = {"memory": f"{kind.choice((4, 16, 64))}Gi", _GPU: str(GPUS_PER_NODE)}
        groups = [_group("g0", kind.choice((1, 2, 4, 8)), {"cpu": f"{1000 + shape}m", **requests})]
        for number in range(1, count):
            requests = {"cpu": str(kind.choice((1, 2, 4))), _GPU: str(kind.choice((1, 2, 4)))}
            groups.append(_group(f"g{number}", kind.choice((1, 2, 4, 8)), requests))
    else:
        rack = {_RACK: f"rack-{shape % max(1, sizes.nodes // _RACK_NODES):02}"}
        pods = min(sizes.nodes, _RACK_NODES) // 2 + 1
        groups = [_group(f"g{number}", pods, {"cpu": f"{60_000 + shape}m"}, rack) for number in range(count)]
    placement = kind.choice(("Fastest", "Pack", "Spread"))
    return _job("wait", index, groups, placement=placement)


def _job(name: str, index: int, groups: list[Manifest], **scheduling: Any) -> Manifest:
    # With names of a fixed length none is the beginning of another.
    return {
        "apiVersion": "gradsieve.io/v1alpha1",
        "kind": "HorovodJob",
        "metadata": {"name": f"{name}-{index:04}", "namespace": NAMESPACES[index % len(NAMESPACES)]},
        "spec": {
            "workerGroups": groups,
            "compression": {"algorithm": "Laplace", "densityPermille": DENSITY},
            "scheduling": scheduling,
        },
    }


def _group(
    name: str, replicas: int, requests: dict[str, str], selector: dict[str, str] | None = None
) -> Manifest:
    limits = {each: amount for each, amount in requests.items() if each == _GPU}
    resources = {"requests": requests, "limits": limits}
    container = {
        "name": "train",
        "image": _IMAGE,
        "command": ["python3", "train.py"],
        "resources": resources,
    }
    spec = {"containers": [container], "nodeSelector": selector or {}}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}


def _node(index: int) -> Manifest:
    name = f"node-{index:04}"
    amounts = {"cpu": "96", "memory": "768Gi", "pods": "110", _GPU: str(GPUS_PER_NODE)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": f"zone-{index % 3}",
                _RACK: f"rack-{index // _RACK_NODES:02}",
                f"{_GPU}.product": PRODUCTS[index % len(PRODUCTS)],
                f"{_GPU}.count": str(GPUS_PER_NODE),
                f"{_GPU}.memory": str(81920 >> index % len(PRODUCTS)),
            },
        },
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def _foreign_pod(index: int, node: str, *, gpus: int) -> Manifest:
    limits = {_GPU: str(gpus)} if gpus else {}
    resources = {"requests": {"cpu": "500m", "memory": "1Gi", **limits}, "limits": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"other-{index:05}", "namespace": OTHERS},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": _IMAGE, "resources": resources}],
        },
    }
