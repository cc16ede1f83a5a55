"""Small clusters and gangs for the planner's tests."""

from collections.abc import Iterable, Mapping
from typing import Any

from gradsieve_operator.placement import Assignment, Cluster, Gang, Load, Node, Shortage, plan_queue

GPU = "nvidia.com/gpu"


def node(name: str, *, labels: Mapping[str, str] | None = None, pods: int = 110, **more: Any) -> Node:
    """Return a ready node; keyword arguments with a capital letter or underscores are resources."""
    amounts = {"cpu": "8", "memory": "32Gi", "pods": str(pods), **more.pop("allocatable", {})}
    return Node.parse(
        {
            "metadata": {"name": name, "labels": dict(labels or {})},
            "spec": more.pop("spec", {}),
            "status": {
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": more.pop("ready", "True")}],
            },
        }
    )


def gpu_node(name: str, product: str, count: int, **more: Any) -> Node:
    """Return a node that carries the labels of GPU feature discovery."""
    labels = {"nvidia.com/gpu.product": product, **more.pop("labels", {})}
    amounts = {GPU: str(count), **more.pop("allocatable", {})}
    return node(name, labels=labels, allocatable=amounts, **more)


def pod(name: str, group: str = "workers", *, requests: Mapping[str, Any] | None = None, **spec: Any) -> dict:
    """Return a pod's manifest with one container."""
    container = {"name": "train", "resources": {"requests": dict(requests or {})}}
    return {
        "metadata": {"name": name, "labels": {"gradsieve.io/group": group}},
        "spec": {"containers": [container], **spec},
    }


def pods(count: int, group: str = "workers", **more: Any) -> list[dict]:
    """Return equal pods of a group."""
    return [pod(f"job-{group}-{index}-1", group, **more) for index in range(count)]


def gang(*manifests: dict, key: str = "team/job", **more: Any) -> Gang:
    """Return the gang of these pods."""
    return Gang.of(key, manifests, **more)


def cluster(*nodes: Node, loads: tuple[Load, ...] = ()) -> Cluster:
    """Return a cluster with these nodes and pods."""
    return Cluster.of(nodes, loads)


def load(where: str, *, ends: bool = False, **amounts: int) -> Load:
    """Return a pod on a node; amounts as the planner counts them, ``gpu`` for GPUs."""
    requests = {GPU if name == "gpu" else name: amount for name, amount in amounts.items()}
    return Load(node=where, requests={"pods": 1, **requests}, ends=ends)


def place(world: Cluster, wanted: Gang, waiting: Iterable[Gang]) -> Assignment | Shortage:
    """Return what the pass over the queue has for one gang, which may be among those that wait."""
    return plan_queue(world, {**{other.key: other for other in waiting}, wanted.key: wanted}.values())[
        wanted.key
    ]
