"""Manifests of a job's children: pure functions from the job to JSON, the same for the same job."""

from gradsieve_operator.resources.coordinator import coordinator, coordinator_template
from gradsieve_operator.resources.held import Contents, Held, held, read_secret
from gradsieve_operator.resources.metadata import (
    AUTHORITY_ANNOTATION,
    ORIGIN_ANNOTATION,
    RENEWED_ANNOTATION,
    TRUST_ANNOTATION,
    Manifest,
    origin,
    owned,
)
from gradsieve_operator.resources.secrets import (
    certificate_secrets,
    renewed_secrets,
    secret_names,
)
from gradsieve_operator.resources.shared import Neighbours, shared_children
from gradsieve_operator.resources.workers import worker

__all__ = [
    "AUTHORITY_ANNOTATION",
    "ORIGIN_ANNOTATION",
    "RENEWED_ANNOTATION",
    "TRUST_ANNOTATION",
    "Contents",
    "Held",
    "Manifest",
    "Neighbours",
    "certificate_secrets",
    "coordinator",
    "coordinator_template",
    "held",
    "origin",
    "owned",
    "read_secret",
    "renewed_secrets",
    "secret_names",
    "shared_children",
    "worker",
]
