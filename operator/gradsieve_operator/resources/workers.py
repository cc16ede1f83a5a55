"""The pods that train."""

from __future__ import annotations

from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.resources.metadata import Manifest, child, marks
from gradsieve_operator.resources.template import Container, asks_for_gpus, pin, pod_spec
from gradsieve_operator.spec import HorovodJob, WorkerGroup


def worker(
    job: HorovodJob,
    group: WorkerGroup,
    index: int,
    *,
    generation: int,
    authority: str,
    node: str | None,
) -> Manifest:
    """Build the pod of one worker.

    Args:
        job: whose worker it is.
        group: of that job.
        index: in the group, from 0.
        generation: of the job, when the pod is made; part of its name, so that no two incarnations share one.
        authority: fingerprint of the authority that signed its certificate.
        node: where the planner wants it; None leaves it to the scheduler.
    """
    host = contract.worker_host(group.name, index)
    given = group.template.get("metadata") or {}
    labels = {
        **(given.get("labels") or {}),
        contract.LABEL_ROLE: contract.ROLE_WORKER,
        contract.LABEL_GROUP: group.name,
        contract.LABEL_INDEX: str(index),
        contract.LABEL_GENERATION: str(generation),
    }
    annotations = {**(given.get("annotations") or {}), **marks(job, authority)}
    if job.scheduling.queue_name is not None:
        labels[contract.LABEL_KUEUE_QUEUE] = job.scheduling.queue_name
        labels[contract.LABEL_KUEUE_GROUP] = job.name
        annotations[contract.ANNOTATION_KUEUE_COUNT] = str(job.workers)
    container = Container(
        command=contract.AGENT_COMMAND,
        environment={
            contract.ENV_JOB: job.name,
            contract.ENV_NAMESPACE: job.namespace,
            contract.ENV_GENERATION: str(generation),
            contract.ENV_TLS_DIRECTORY: contract.TLS_DIRECTORY,
            contract.ENV_COORDINATOR: contract.coordinator_url(job.name, job.namespace),
            contract.ENV_HOST: host,
            contract.ENV_WORKER_GROUP: group.name,
            contract.ENV_SLOTS: str(group.slots_per_worker),
            contract.ENV_STATE_DIRECTORY: contract.STATE_DIRECTORY,
        },
        tls=[_own_certificate(job, host)],
    )
    spec = pod_spec(group.template, job.name, host, container)
    if job.scheduling.priority_class_name is not None:
        spec["priorityClassName"] = job.scheduling.priority_class_name
    pin(spec, node, job.scheduling.gpu_products if asks_for_gpus(spec) else ())
    name = contract.worker_pod(job.name, group.name, index, generation)
    return {**child(job, "v1", "Pod", name, labels=labels, annotations=annotations), "spec": spec}


def _own_certificate(job: HorovodJob, host: str) -> dict[str, Any]:
    paths = {
        contract.CA_CERTIFICATE: contract.CA_CERTIFICATE,
        contract.worker_certificate(host): contract.CERTIFICATE,
        contract.worker_private_key(host): contract.PRIVATE_KEY,
    }
    items = [{"key": key, "path": path} for key, path in paths.items()]
    return {"secret": {"name": contract.workers_secret(job.name), "items": items}}
