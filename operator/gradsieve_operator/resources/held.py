"""What a job's Secrets hold, and what is to be done about those that are lost or damaged: pure.

A job begins with one authority, whose key is never stored. What it has signed stays good; what is lost later,
a further authority signs, whose key is not stored either. All Secrets of the job name all of its authorities,
so that everybody trusts what is new, as soon as the new ``ca.crt`` has reached them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gradsieve_operator import contract
from gradsieve_operator.certificates import Identity, check, short_fingerprint
from gradsieve_operator.resources.metadata import Manifest
from gradsieve_operator.resources.secrets import secret_names
from gradsieve_operator.spec import HorovodJob

MOST_AUTHORITIES = 16
"""The first and the latest: somebody may delete a Secret again and again, and ``ca.crt`` must stay small."""


@dataclass(frozen=True)
class Contents:
    """What one sound Secret holds.

    Attributes:
        authorities: whom its holder trusts, the job's first one first.
        signers: fingerprints of those that have signed what it holds.
        hosts: that have a certificate in it.
    """

    authorities: tuple[x509.Certificate, ...]
    signers: frozenset[str]
    hosts: frozenset[str]


@dataclass(frozen=True)
class Held:
    """What all Secrets of a job hold together.

    Attributes:
        authority: fingerprint of the job's first authority; None when none of it is left, or when Secrets are
            of two jobs' beginnings: then all have to be issued again, for new pods.
        certified: hosts that have a certificate.
        lost: names of the Secrets that are missing or damaged.
        bundle: all authorities of the job, PEM, the first one first.
        trust: digest of the bundle; empty while there is one authority only.
    """

    authority: str | None = None
    certified: frozenset[str] = frozenset()
    lost: tuple[str, ...] = ()
    bundle: bytes = b""
    trust: str = ""


def read_secret(job: HorovodJob, name: str, secret: Manifest) -> Contents | None:
    """Return what a Secret holds, None if it is damaged: TLS would fail with it.

    Args:
        job: whose Secret it is.
        name: which one of the job's.
        secret: as it is in the cluster.
    """
    try:
        data = {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}
        authorities = tuple(x509.load_pem_x509_certificates(data[contract.CA_CERTIFICATE]))
        parties = _parties(job, name, data)
        signers = {
            check(Identity(data[certificate], data[key]), role, host, authorities)
            for role, host, certificate, key in parties
        }
    except (KeyError, ValueError, binascii.Error):
        return None
    hosts = {host for role, host, _, _ in parties if role == contract.ROLE_WORKER}
    return Contents(authorities, frozenset(signers), frozenset(hosts)) if parties else None


def held(job: HorovodJob, contents: Mapping[str, Contents | None]) -> Held:
    """Return what the Secrets with these contents hold together.

    1. Those that are missing or damaged are lost.
    2. Without any, or with such that began with different authorities, there is no authority.
    3. One that does not trust what others hold is lost, too: an operator may have been killed between them.
    """
    names = secret_names(job)
    sound = {name: found for name in names if (found := contents.get(name)) is not None}
    firsts = {short_fingerprint(each.authorities[0]) for each in sound.values()}
    if len(firsts) != 1:
        return Held(lost=names)
    signers = frozenset[str]().union(*(each.signers for each in sound.values()))
    trusting = {
        name: each
        for name, each in sound.items()
        if signers <= {short_fingerprint(authority) for authority in each.authorities}
    }
    union = {short_fingerprint(one): one for each in trusting.values() for one in each.authorities}
    if not union:
        return Held(lost=names)
    workers = trusting.get(contract.workers_secret(job.name))
    return Held(
        authority=firsts.pop(),
        certified=frozenset() if workers is None else workers.hosts,
        lost=tuple(name for name in names if name not in trusting),
        bundle=_bundle(tuple(union.values())),
        trust=hashlib.sha256("".join(sorted(union)).encode()).hexdigest()[:16] if len(union) > 1 else "",
    )


def _bundle(authorities: tuple[x509.Certificate, ...]) -> bytes:
    # One more is about to be added.
    kept = (authorities[0], *authorities[1:][2 - MOST_AUTHORITIES :])
    return b"".join(each.public_bytes(Encoding.PEM) for each in kept)


def _parties(job: HorovodJob, name: str, data: Mapping[str, bytes]) -> list[tuple[str, str, str, str]]:
    """Return role, host, and the names of certificate and key, of all that a Secret is for."""
    own = contract.CERTIFICATE, contract.PRIVATE_KEY
    if name == contract.coordinator_secret(job.name):
        return [(contract.ROLE_COORDINATOR, contract.COORDINATOR_HOST, *own)]
    if name == contract.operator_secret(job.name):
        return [(contract.ROLE_OPERATOR, contract.ROLE_OPERATOR, *own)]
    hosts = [key.removesuffix(".key") for key in data if key.endswith(".key")]
    return [
        (
            contract.ROLE_WORKER,
            host,
            contract.worker_certificate(host),
            contract.worker_private_key(host),
        )
        for host in hosts
    ]
