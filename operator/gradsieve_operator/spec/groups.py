"""A group of equal workers and the pod template that they are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradsieve_operator.contract import RESERVED_ENVIRONMENT
from gradsieve_operator.spec.fields import Fields
from gradsieve_operator.spec.quantity import units
from gradsieve_operator.spec.values import (
    DNS_LABEL,
    MAX_GROUP_NAME,
    MAX_SLOTS,
    MAX_WORKERS,
    RESERVED_GROUP,
)

MAX_CONTAINERS = 32
_OF_THE_OPERATOR = {
    "hostname": "workers are named after group and index",
    "subdomain": "it is the job's Service",
    "nodeName": "use nodeSelector or affinity to choose nodes",
    "schedulingGates": "use spec.suspend to hold a job back",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    """Workers of one kind.

    replicas: how many there shall be.
    min_replicas: with how many the job goes on; None: with no fewer than ``replicas``.
    slots_per_worker: ranks in each of them.
    template: PodTemplateSpec as the API server returns it; its first container runs the training.
    """

    name: str
    replicas: int
    min_replicas: int | None
    slots_per_worker: int
    template: Mapping[str, Any]

    @property
    def least(self) -> int:
        """With how many workers the job goes on."""
        return self.replicas if self.min_replicas is None else self.min_replicas

    @property
    def container(self) -> Mapping[str, Any]:
        """The container that runs the training."""
        container: Mapping[str, Any] = self.template["spec"]["containers"][0]
        return container

    @property
    def command(self) -> tuple[str, ...]:
        """The training command."""
        return (*self.container.get("command", ()), *self.container.get("args", ()))

    @classmethod
    def parse(cls, source: Fields) -> WorkerGroup:
        """Read one item of ``spec.workerGroups``.

        Raises:
            SpecError: a field is missing or its value is not allowed.
        """
        name = source.name("name", DNS_LABEL, MAX_GROUP_NAME)
        if name is None:
            raise source.missing("name", "how the group's workers are called")
        if name == RESERVED_GROUP:
            raise source.error("name", f"{RESERVED_GROUP!r} is the name of the job's own pod; choose another")
        replicas = source.number("replicas", 1, MAX_WORKERS)
        if replicas is None:
            raise source.missing("replicas", "how many workers the group has")
        least = source.number("minReplicas", 1, MAX_WORKERS)
        if least is not None and least > replicas:
            raise source.error("minReplicas", f"is {least}; it must be at most replicas, which is {replicas}")
        if not source.has("template"):
            raise source.missing("template", "what the group's pods are made from")
        template = source.object("template")
        check_template(template)
        if not (template.values["spec"]["containers"][0].get("command") or [""])[0]:
            raise template.missing("spec.containers[0].command", "which program every rank runs")
        return cls(
            name=name,
            replicas=replicas,
            min_replicas=least,
            slots_per_worker=source.number_or("slotsPerWorker", 1, 1, MAX_SLOTS),
            template=template.values,
        )


def check_template(template: Fields) -> None:
    """Check what the operator relies on in a PodTemplateSpec.

    Raises:
        SpecError: no container, a field that is the operator's to set, or resources that are no quantities.
    """
    spec = template.object("spec")
    containers = spec.items("containers", MAX_CONTAINERS)
    if not containers:
        raise spec.error("containers", "is empty; the first container runs the training")
    for name, instead in _OF_THE_OPERATOR.items():
        if spec.values.get(name):
            raise spec.error(name, f"is set by the operator: {instead}; remove it")
    if spec.values.get("restartPolicy", "Never") != "Never":
        raise spec.error("restartPolicy", "must be Never: the operator replaces workers; remove it")
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.items(kind, MAX_CONTAINERS)):
            _check_container(Fields.of(container, spec.at(f"{kind}[{index}]")))


def check_plannable(template: Fields) -> None:
    """Check that a template asks for nothing that the planner does not look at.

    Its pods would be pinned to nodes that the scheduler refuses, again and again.

    Raises:
        SpecError: required affinity between pods, hard topology spread, or dynamic resources.
    """
    instead = "is not looked at by the planner: use scheduling.placement, or scheduling.gang: None"
    spec = template.object("spec")
    for kind in ("podAffinity", "podAntiAffinity"):
        affinity = spec.object("affinity").object(kind)
        if affinity.values.get("requiredDuringSchedulingIgnoredDuringExecution"):
            raise affinity.error("requiredDuringSchedulingIgnoredDuringExecution", instead)
    for index, constraint in enumerate(spec.items("topologySpreadConstraints", 100)):
        if Fields.of(constraint, "").values.get("whenUnsatisfiable") != "ScheduleAnyway":
            raise spec.error(f"topologySpreadConstraints[{index}]", instead)
    if spec.values.get("resourceClaims"):
        raise spec.error("resourceClaims", instead)


def _check_container(container: Fields) -> None:
    resources = container.object("resources")
    for kind in ("requests", "limits"):
        amounts = resources.object(kind)
        for resource, quantity in amounts.values.items():
            units(resource, quantity, amounts.at(resource))
    for index, variable in enumerate(container.items("env", 1000)):
        name = Fields.of(variable, container.at(f"env[{index}]"))
        if name.values.get("name") in RESERVED_ENVIRONMENT:
            raise name.error("name", f"{name.values['name']} is set by the operator; remove it")
