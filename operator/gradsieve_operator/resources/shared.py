"""The children that a job has once: Service, ServiceAccount, NetworkPolicy and ConfigMap."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gradsieve_operator import contract
from gradsieve_operator.resources.metadata import Manifest, child
from gradsieve_operator.spec import HorovodJob


@dataclass(frozen=True)
class Neighbours:
    """Who besides the job's own pods may reach them.

    Attributes:
        operator_namespace: where the operator's pods run; empty when it runs outside the cluster.
        operator_labels: labels of the operator's pods.
        operator_cidrs: addresses from which an operator outside the cluster calls.
        monitoring_label: label, with value ``true``, of namespaces that may read metrics.
    """

    operator_namespace: str = ""
    operator_labels: tuple[tuple[str, str], ...] = (("app.kubernetes.io/name", "gradsieve-operator"),)
    operator_cidrs: tuple[str, ...] = ()
    monitoring_label: str = "gradsieve.io/monitoring"


def shared_children(job: HorovodJob, neighbours: Neighbours) -> list[Manifest]:
    """Return everything that must be there before the first pod, secrets excepted."""
    return [service_account(job), config_map(job), service(job), network_policy(job, neighbours)]


def service_account(job: HorovodJob) -> Manifest:
    """An identity without rights and without a token: a job's pods never call the API server."""
    return {
        **child(job, "v1", "ServiceAccount", job.name),
        "automountServiceAccountToken": False,
    }


def config_map(job: HorovodJob) -> Manifest:
    """What the coordinator starts from, fixed for as long as pods run."""
    described = {"backend": job.launcher.backend, "name": job.name, "namespace": job.namespace}
    return {
        **child(job, "v1", "ConfigMap", job.name),
        "data": {contract.JOB_FILE: json.dumps(described, sort_keys=True)},
    }


def service(job: HorovodJob) -> Manifest:
    """Names for all pods of the job, before they are ready: they need each other to become ready."""
    return {
        **child(job, "v1", "Service", job.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {contract.LABEL_JOB: job.name},
            "ports": [
                {
                    "name": "coordinator",
                    "port": contract.COORDINATOR_PORT,
                    "targetPort": contract.COORDINATOR_PORT,
                    "protocol": "TCP",
                }
            ],
        },
    }


def network_policy(job: HorovodJob, neighbours: Neighbours) -> Manifest:
    """Wall off the job's pods: MPI authenticates nobody, so that this is all that protects its traffic.

    In comes what the job's own pods send, the operator's calls to the coordinator, and readers of metrics.
    What goes out is not restricted: training fetches data from wherever it lies.
    """
    own = {"podSelector": {"matchLabels": {contract.LABEL_JOB: job.name}}}
    ingress: list[Manifest] = [{"from": [own]}]
    if neighbours.operator_namespace:
        operator = {
            "namespaceSelector": {
                "matchLabels": {"kubernetes.io/metadata.name": neighbours.operator_namespace}
            },
            "podSelector": {"matchLabels": dict(neighbours.operator_labels)},
        }
        ingress.append({"from": [operator], "ports": [_tcp(contract.COORDINATOR_PORT)]})
    if neighbours.operator_cidrs:
        outside = [{"ipBlock": {"cidr": cidr}} for cidr in neighbours.operator_cidrs]
        ingress.append({"from": outside, "ports": [_tcp(contract.COORDINATOR_PORT)]})
    readers = {"namespaceSelector": {"matchLabels": {neighbours.monitoring_label: "true"}}}
    ingress.append({"from": [readers], "ports": [_tcp(contract.READONLY_PORT)]})
    return {
        **child(job, "networking.k8s.io/v1", "NetworkPolicy", job.name),
        "spec": {**own, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _tcp(port: int) -> Manifest:
    return {"protocol": "TCP", "port": port}
