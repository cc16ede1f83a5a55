"""Manifests of a job's children: pure functions from the job to JSON, the same for the same job."""

from gradsieve_operator.resources.coordinator import coordinator, coordinator_template
from gradsieve_operator.resources.metadata import (
    AUTHORITY_ANNOTATION,
    ORIGIN_ANNOTATION,
    Manifest,
    origin,
)
from gradsieve_operator.resources.secrets import (
    certificate_secrets,
    common_authority,
    secret_names,
)
from gradsieve_operator.resources.shared import Neighbours, shared_children
from gradsieve_operator.resources.workers import worker

__all__ = [
    "AUTHORITY_ANNOTATION",
    "ORIGIN_ANNOTATION",
    "Manifest",
    "Neighbours",
    "certificate_secrets",
    "common_authority",
    "coordinator",
    "coordinator_template",
    "origin",
    "secret_names",
    "shared_children",
    "worker",
]
