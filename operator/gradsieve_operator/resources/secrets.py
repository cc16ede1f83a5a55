"""A job's certificates as Secrets: one each for coordinator and operator, one for all workers."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

from gradsieve_operator import contract
from gradsieve_operator.certificates import Identity, JobCertificates, fingerprint
from gradsieve_operator.resources.metadata import AUTHORITY_ANNOTATION, Manifest, child
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


def common_authority(job: HorovodJob, secrets: Mapping[str, Manifest], hosts: Iterable[str]) -> str | None:
    """Return the fingerprint of the authority behind a job's Secrets.

    Args:
        job: whose Secrets they are.
        secrets: name -> Secret as it is in the cluster.
        hosts: the hosts that need a certificate.

    Returns:
        None when a Secret or a host's certificate is missing, or when they are not of one authority: then all
        have to be issued anew.
    """
    found = [secrets.get(name) for name in secret_names(job)]
    marks = {
        one["metadata"].get("annotations", {}).get(AUTHORITY_ANNOTATION) if one is not None else None
        for one in found
    }
    workers = found[-1]
    if len(marks) != 1 or None in marks or workers is None:
        return None
    data = workers.get("data") or {}
    if any(contract.worker_private_key(host) not in data for host in hosts):
        return None
    return str(marks.pop())


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
