"""The pod that starts the ranks, hears from them, and holds the plan."""

from __future__ import annotations

import copy
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.resources.metadata import ATTEMPT_ANNOTATION, Manifest, child, marks
from gradsieve_operator.resources.template import Container, pin, pod_spec
from gradsieve_operator.spec import HorovodJob

JOB_DIRECTORY = "/var/run/gradsieve/job"
JOB_VOLUME = "gradsieve-job"

_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
"""Of a coordinator whose template says nothing. With limits, so that it passes quotas that demand them."""

_READINESS = {
    "httpGet": {"path": contract.PATH_READY, "port": contract.READONLY_PORT},
    "periodSeconds": 2,
    "timeoutSeconds": 2,
    "failureThreshold": 1,
}
"""Ready while ranks run: a change of the pod tells the operator at once that there is something to ask."""


def coordinator(job: HorovodJob, *, attempt: int, authority: str, node: str | None) -> Manifest:
    """Build the coordinator's pod.

    Its template is ``spec.launcher.template``; without one, the first group's, less the resources (a
    coordinator needs no GPU) and less all containers but the first. Its readiness is ours, whatever the
    template says.

    Args:
        job: whose it is.
        attempt: counts the job's coordinators; part of the name.
        authority: fingerprint of the authority that signed its certificate.
        node: where the planner wants it; None leaves it to the scheduler.
    """
    template = coordinator_template(job)
    given = template.get("metadata") or {}
    labels = {**(given.get("labels") or {}), contract.LABEL_ROLE: contract.ROLE_COORDINATOR}
    annotations = {
        **(given.get("annotations") or {}),
        **marks(job, authority),
        ATTEMPT_ANNOTATION: str(attempt),
    }
    container = Container(
        command=contract.COORDINATOR_COMMAND,
        environment={
            contract.ENV_JOB: job.name,
            contract.ENV_NAMESPACE: job.namespace,
            contract.ENV_GENERATION: str(attempt),
            contract.ENV_TLS_DIRECTORY: contract.TLS_DIRECTORY,
            contract.ENV_LISTEN: f"0.0.0.0:{contract.COORDINATOR_PORT}",
            contract.ENV_READONLY_LISTEN: f"0.0.0.0:{contract.READONLY_PORT}",
        },
        tls=[{"secret": {"name": contract.coordinator_secret(job.name)}}],
    )
    spec = pod_spec(template, job.name, contract.COORDINATOR_HOST, container)
    first = spec["containers"][0]
    first["readinessProbe"] = copy.deepcopy(_READINESS)
    first["volumeMounts"].append({"name": JOB_VOLUME, "mountPath": JOB_DIRECTORY, "readOnly": True})
    spec["volumes"].append({"name": JOB_VOLUME, "configMap": {"name": job.name}})
    if job.scheduling.priority_class_name is not None:
        spec["priorityClassName"] = job.scheduling.priority_class_name
    pin(spec, node)
    name = contract.coordinator_pod(job.name, attempt)
    return {**child(job, "v1", "Pod", name, labels=labels, annotations=annotations), "spec": spec}


def coordinator_template(job: HorovodJob) -> dict[str, Any]:
    """Return the PodTemplateSpec that the coordinator's pod is made from; nothing of ``job`` is changed."""
    if job.launcher.template is not None:
        template = copy.deepcopy(dict(job.launcher.template))
    else:
        template = copy.deepcopy(dict(job.groups[0].template))
        first = template["spec"]["containers"][0]
        for name in ("resources", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"):
            first.pop(name, None)
        template["spec"]["containers"] = [first]
        template["spec"].pop("initContainers", None)
    template["spec"]["containers"][0].setdefault("resources", copy.deepcopy(_RESOURCES))
    return template
