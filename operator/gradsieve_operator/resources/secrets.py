"""A job's certificates as Secrets: one each for coordinator and operator, one for all workers."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Collection, Mapping

from gradsieve_operator import contract
from gradsieve_operator.certificates import Identity, JobCertificates, fingerprint
from gradsieve_operator.resources.metadata import (
    AUTHORITY_ANNOTATION,
    RENEWED_ANNOTATION,
    Manifest,
    child,
)
from gradsieve_operator.spec import HorovodJob


def certificate_secrets(job: HorovodJob, certificates: JobCertificates) -> list[Manifest]:
    """Return the three Secrets; whoever mounts one sees ``ca.crt``, ``tls.crt`` and ``tls.key``."""
    authority = certificates.authority
    workers = {contract.CA_CERTIFICATE: authority}
    for host, identity in certificates.workers.items():
        workers[contract.worker_certificate(host)] = identity.certificate
        workers[contract.worker_private_key(host)] = identity.key
    return [
        _secret(
            job, contract.coordinator_secret(job.name), authority, _own(authority, certificates.coordinator)
        ),
        _secret(job, contract.operator_secret(job.name), authority, _own(authority, certificates.operator)),
        _secret(job, contract.workers_secret(job.name), authority, workers),
    ]


def secret_names(job: HorovodJob) -> tuple[str, str, str]:
    """Return the names of the Secrets with the job's certificates."""
    return (
        contract.coordinator_secret(job.name),
        contract.operator_secret(job.name),
        contract.workers_secret(job.name),
    )


def renewed_secrets(
    job: HorovodJob,
    secrets: Mapping[str, Manifest],
    lost: Collection[str],
    certificates: JobCertificates,
    now: dt.datetime,
) -> list[Manifest]:
    """Return the three Secrets again, in the order in which they have to be written.

    Those that are not lost keep what they hold, but for ``ca.crt``. They come first: what is new is of no use
    before the others trust it, and an operator that is killed in between begins again.

    Args:
        job: whose Secrets they are.
        secrets: name -> Secret as it is in the cluster, of those that are not lost.
        lost: names of the others.
        certificates: of a further authority; ``authority`` holds all authorities of the job, PEM.
        now: the time.
    """
    manifests = certificate_secrets(job, certificates)
    for manifest in manifests:
        name, made = manifest["metadata"]["name"], manifest["data"]
        manifest["metadata"]["annotations"][RENEWED_ANNOTATION] = now.isoformat(timespec="seconds")
        if name not in lost:
            ca = {contract.CA_CERTIFICATE: made[contract.CA_CERTIFICATE]}
            manifest["data"] = {**secrets[name]["data"], **ca}
    return sorted(manifests, key=lambda manifest: manifest["metadata"]["name"] in lost)


def _own(authority: bytes, identity: Identity) -> dict[str, bytes]:
    return {
        contract.CA_CERTIFICATE: authority,
        contract.CERTIFICATE: identity.certificate,
        contract.PRIVATE_KEY: identity.key,
    }


def _secret(job: HorovodJob, name: str, authority: bytes, data: Mapping[str, bytes]) -> Manifest:
    marks = {AUTHORITY_ANNOTATION: fingerprint(authority)}
    return {
        **child(job, "v1", "Secret", name, annotations=marks),
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }
