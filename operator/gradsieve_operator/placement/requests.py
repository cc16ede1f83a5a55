"""What a pod takes of a node, as the scheduler counts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gradsieve_operator.spec import units

Resources = Mapping[str, int]
"""Resource -> thousandths (cpu), bytes (memory) or pieces; zeros are left out."""

PODS: Final = "pods"
GPU: Final = "nvidia.com/gpu"
_PORT_PREFIX = "hostPort/"


def pod_requests(spec: Mapping[str, Any], field: str = "spec") -> Resources:
    """Return what a pod with that ``spec`` holds of its node.

    1. A container asks for its requests, and for its limits where it names no request.
    2. Containers and sidecars (init containers that restart) run together: their sum. An init container runs
       with the sidecars before it: the largest of these. The pod asks for the larger of both.
    3. Requests of the pod as a whole (``spec.resources``) take the place of that sum.
    4. The overhead comes on top, and one of the node's places for pods. A port of the host can be held once.

    Source: k8s.io/component-helpers, ``resource.PodRequests`` (sidecars: KEP-753).

    Raises:
        SpecError: a quantity cannot be read; the message names it within ``field``.
    """
    running: dict[str, int] = {}
    starting: dict[str, int] = {}
    for index, container in enumerate(spec.get("initContainers") or ()):
        asked = _asked(container, f"{field}.initContainers[{index}]")
        if _is_sidecar(container):
            running = _sum(running, asked)
            starting = _most(starting, running)
        else:
            starting = _most(starting, _sum(running, asked))
    for index, container in enumerate(spec.get("containers") or ()):
        running = _sum(running, _asked(container, f"{field}.containers[{index}]"))
    total = _most(running, starting)
    total |= _asked_of_the_pod(spec, total, field)
    total = _sum(total, _units(spec.get("overhead"), f"{field}.overhead"))
    total |= dict.fromkeys(_host_ports(spec), 1)
    total[PODS] = 1
    return {resource: amount for resource, amount in total.items() if amount}


def is_single(resource: str) -> bool:
    """Return whether every node has exactly one of ``resource``, without saying so: a port of the host."""
    return resource.startswith(_PORT_PREFIX)


def shown(resource: str, amount: int) -> str:
    """Return an amount as people write it: ``cpu 500m``, ``memory 2Gi``, ``nvidia.com/gpu 1``."""
    if resource == "cpu":
        return f"cpu {amount // 1000}" if amount % 1000 == 0 else f"cpu {amount}m"
    if is_single(resource):
        return f"host port {resource.removeprefix(_PORT_PREFIX)}"
    for power, suffix in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if amount and amount % 1024**power == 0:
            return f"{resource} {amount // 1024**power}{suffix}"
    return f"{resource} {amount}"


def _is_sidecar(init_container: Mapping[str, Any]) -> bool:
    return init_container.get("restartPolicy") == "Always"


def _asked(container: Mapping[str, Any], field: str) -> dict[str, int]:
    resources = container.get("resources") or {}
    limits = _units(resources.get("limits"), f"{field}.resources.limits")
    return {**limits, **_units(resources.get("requests"), f"{field}.resources.requests")}


def _asked_of_the_pod(spec: Mapping[str, Any], summed: Resources, field: str) -> dict[str, int]:
    resources = spec.get("resources") or {}
    limits = _units(resources.get("limits"), f"{field}.resources.limits")
    unnamed = {resource: amount for resource, amount in limits.items() if resource not in summed}
    return {**unnamed, **_units(resources.get("requests"), f"{field}.resources.requests")}


def _units(amounts: Mapping[str, Any] | None, field: str) -> dict[str, int]:
    return {name: units(name, amount, f"{field}.{name}") for name, amount in (amounts or {}).items()}


def _host_ports(spec: Mapping[str, Any]) -> Iterable[str]:
    sidecars = (each for each in spec.get("initContainers") or () if _is_sidecar(each))
    for container in (*sidecars, *(spec.get("containers") or ())):
        for port in container.get("ports") or ():
            number = port.get("hostPort") or (spec.get("hostNetwork") and port.get("containerPort"))
            if number:
                yield f"{_PORT_PREFIX}{port.get('protocol', 'TCP')}/{number}"


def _sum(one: Resources, other: Resources) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _most(one: Resources, other: Resources) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
