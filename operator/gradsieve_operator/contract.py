"""The strings that the operator shares with coordinator, agents and ranks, and the names of a job's children.

The other side keeps its copy in ``gradsieve_hvd.control.contract``; a test holds both together. Nothing here
is imported across the packages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

GROUP: Final = "gradsieve.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
JOB_KIND: Final = "HorovodJob"
JOB_PLURAL: Final = "horovodjobs"
POLICY_KIND: Final = "CompressionPolicy"
POLICY_PLURAL: Final = "compressionpolicies"

LABEL_JOB: Final = "gradsieve.io/job"
LABEL_ROLE: Final = "gradsieve.io/role"
LABEL_GROUP: Final = "gradsieve.io/group"
LABEL_INDEX: Final = "gradsieve.io/index"
LABEL_GENERATION: Final = "gradsieve.io/generation"

ROLE_COORDINATOR: Final = "coordinator"
ROLE_WORKER: Final = "worker"
ROLE_OPERATOR: Final = "operator"
CERTIFICATE_ORGANIZATION: Final = "gradsieve"

COORDINATOR_HOST: Final = "coordinator"
COORDINATOR_PORT: Final = 7443
READONLY_PORT: Final = 7480

TLS_DIRECTORY: Final = "/var/run/gradsieve/tls"
STATE_DIRECTORY: Final = "/dev/shm/gradsieve"  # noqa: S108 - a memory volume of the pod's own, not a shared host
CA_CERTIFICATE: Final = "ca.crt"
CERTIFICATE: Final = "tls.crt"
PRIVATE_KEY: Final = "tls.key"
JOB_FILE: Final = "job.json"

AGENT_COMMAND: Final = ("python3", "-m", "gradsieve_hvd", "agent")
COORDINATOR_COMMAND: Final = ("python3", "-m", "gradsieve_hvd", "coordinator")
FENCED_EXIT_STATUS: Final = 17

ENV_JOB: Final = "GRADSIEVE_JOB"
ENV_NAMESPACE: Final = "GRADSIEVE_NAMESPACE"
ENV_TLS_DIRECTORY: Final = "GRADSIEVE_TLS_DIR"
ENV_POD_UID: Final = "GRADSIEVE_POD_UID"
ENV_GENERATION: Final = "GRADSIEVE_GENERATION"
ENV_COORDINATOR: Final = "GRADSIEVE_COORDINATOR"
ENV_HOST: Final = "GRADSIEVE_HOST"
ENV_WORKER_GROUP: Final = "GRADSIEVE_WORKER_GROUP"
ENV_SLOTS: Final = "GRADSIEVE_SLOTS"
ENV_STATE_DIRECTORY: Final = "GRADSIEVE_STATE_DIR"
ENV_LISTEN: Final = "GRADSIEVE_LISTEN"
ENV_READONLY_LISTEN: Final = "GRADSIEVE_READONLY_LISTEN"
ENV_JOB_GENERATION: Final = "GRADSIEVE_JOB_GENERATION"
ENV_COMPRESSION: Final = "GRADSIEVE_COMPRESSION"  # JSON of the compression that the job starts with
ENV_HOME: Final = "HOME"
ENV_TMPDIR: Final = "TMPDIR"
RESERVED_ENVIRONMENT: Final = frozenset(
    {
        ENV_JOB,
        ENV_NAMESPACE,
        ENV_TLS_DIRECTORY,
        ENV_POD_UID,
        ENV_GENERATION,
        ENV_COORDINATOR,
        ENV_HOST,
        ENV_WORKER_GROUP,
        ENV_SLOTS,
        ENV_STATE_DIRECTORY,
        ENV_LISTEN,
        ENV_READONLY_LISTEN,
        ENV_JOB_GENERATION,
        ENV_COMPRESSION,
    }
)

PATH_AGENT: Final = "/v1/agent"
PATH_ROSTER: Final = "/v1/roster"
PATH_PLAN: Final = "/v1/plan"
PATH_TELEMETRY: Final = "/v1/telemetry"
PATH_STATUS: Final = "/v1/status"
PATH_STOP: Final = "/v1/stop"
PATH_READY: Final = "/readyz"

STATE_WAITING: Final = "Waiting"
STATE_STARTING: Final = "Starting"
STATE_RUNNING: Final = "Running"
STATE_SUCCEEDED: Final = "Succeeded"
STATE_FAILED: Final = "Failed"
STATE_LOST: Final = "Lost"

LABEL_KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
LABEL_KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
ANNOTATION_KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"

_NUMBER = "(0|[1-9][0-9]{0,15})"
_COORDINATOR_POD = re.compile(f"{COORDINATOR_HOST}-{_NUMBER}")
_WORKER_POD = re.compile(f"(.+)-{_NUMBER}-{_NUMBER}")


@dataclass(frozen=True)
class PodName:
    """What the name of one of a job's pods says.

    Attributes:
        role: worker or coordinator.
        host: its host name in the job.
        group: of a worker; empty for a coordinator.
        index: of a worker in its group; 0 for a coordinator.
        generation: of the job when a worker was made; of a coordinator, its attempt.
    """

    role: str
    host: str
    group: str
    index: int
    generation: int


def worker_host(group: str, index: int) -> str:
    """Host name of a worker, which its certificate is made out to."""
    return f"{group}-{index}"


def worker_pod(job: str, group: str, index: int, generation: int) -> str:
    """Name of a worker's pod."""
    return f"{job}-{worker_host(group, index)}-{generation}"


def coordinator_pod(job: str, attempt: int) -> str:
    """Name of the coordinator's pod."""
    return f"{job}-{COORDINATOR_HOST}-{attempt}"


def read_pod_name(job: str, name: str) -> PodName | None:
    """Return what the name of a pod of ``job`` says, None for a name that is not made by this module.

    Nobody can change a pod's name; its labels, anybody who may write pods can.
    """
    rest = name.removeprefix(f"{job}-")
    if rest == name:
        return None
    if found := _COORDINATOR_POD.fullmatch(rest):
        return PodName(ROLE_COORDINATOR, COORDINATOR_HOST, "", 0, int(found[1]))
    if found := _WORKER_POD.fullmatch(rest):
        group, index = found[1], int(found[2])
        return PodName(ROLE_WORKER, worker_host(group, index), group, index, int(found[3]))
    return None


def service_address(host: str, job: str, namespace: str) -> str:
    """DNS name of one of the job's hosts."""
    return f"{host}.{job}.{namespace}.svc"


def coordinator_url(job: str, namespace: str) -> str:
    """What agents dial."""
    return f"https://{service_address(COORDINATOR_HOST, job, namespace)}:{COORDINATOR_PORT}"


def coordinator_secret(job: str) -> str:
    """Secret with the coordinator's certificate."""
    return f"{job}-coordinator-tls"


def operator_secret(job: str) -> str:
    """Secret with the certificate that the operator shows the coordinator."""
    return f"{job}-operator-tls"


def workers_secret(job: str) -> str:
    """Secret with all workers' certificates; each pod mounts its own."""
    return f"{job}-workers-tls"


def worker_certificate(host: str) -> str:
    """Key of a worker's certificate in the workers' Secret."""
    return f"{host}.crt"


def worker_private_key(host: str) -> str:
    """Key of a worker's private key in the workers' Secret."""
    return f"{host}.key"
