"""A job's certificates: a certification authority per job, whose key is used once and never stored.

Whoever holds a certificate is who its subject says: the organization is ours, the organizational unit is the
role and the common name the host. The names a client checks when it dials stand in the subject alternative
names. Nothing is ever added to a job's authority; what is lost while the job runs, a further authority signs,
which is likewise used once, and which the job's parties are told to trust as well; see `resources.held`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gradsieve_operator import contract

_BACKDATED = dt.timedelta(hours=1)
"""Clocks of nodes differ: a certificate must not be refused as not valid yet."""

_LIFETIME = dt.timedelta(days=3650)
"""Longer than any job: nothing can be renewed once the authority's key is gone."""


@dataclass(frozen=True)
class Identity:
    """A certificate with its private key, both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class JobCertificates:
    """All certificates of a job.

    Attributes:
        authority: the certificate that signed all others, PEM.
        coordinator: what the coordinator shows to everybody.
        operator: what the operator shows to the coordinator.
        workers: host -> what its agent shows to the coordinator.
    """

    authority: bytes
    coordinator: Identity
    operator: Identity
    workers: Mapping[str, Identity]


def issue(job: str, namespace: str, hosts: Iterable[str], now: dt.datetime) -> JobCertificates:
    """Make an authority for ``job``, sign a certificate for everyone in it, and forget the authority's key.

    Args:
        job: name of the job, which is the hosts' DNS domain below ``namespace``.
        namespace: where the job lives.
        hosts: names of the workers' hosts, ``<group>-<index>``.
        now: the time, with its zone; certificates are valid from an hour before.
    """
    authority = _Authority(job, namespace, now)
    return JobCertificates(
        authority=_pem(authority.certificate),
        coordinator=authority.sign(contract.ROLE_COORDINATOR, contract.COORDINATOR_HOST),
        operator=authority.sign(contract.ROLE_OPERATOR, contract.ROLE_OPERATOR),
        workers={host: authority.sign(contract.ROLE_WORKER, host) for host in hosts},
    )


def check(identity: Identity, role: str, host: str, authorities: Iterable[x509.Certificate]) -> str:
    """Return the fingerprint of the authority that has signed ``identity``.

    Raises:
        ValueError: it is damaged, somebody else's, or none of ``authorities`` has signed it.
    """
    certificate = x509.load_pem_x509_certificate(identity.certificate)
    if certificate.subject != _subject(role, host):
        raise ValueError(f"it is made out to {certificate.subject.rfc4514_string()}")
    try:
        key = serialization.load_pem_private_key(identity.key, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error
    if key.public_key() != certificate.public_key():
        raise ValueError("key and certificate do not belong together")
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (InvalidSignature, TypeError, ValueError):
            continue
        return short_fingerprint(authority)
    raise ValueError("no authority that is trusted has signed it")


def short_fingerprint(certificate: x509.Certificate) -> str:
    """Return 16 hexadecimal digits of a certificate's SHA-256."""
    return certificate.fingerprint(hashes.SHA256()).hex()[:16]


def fingerprint(certificate: bytes) -> str:
    """Return 16 hexadecimal digits of a PEM certificate's SHA-256: which authority a Secret belongs to."""
    return short_fingerprint(x509.load_pem_x509_certificate(certificate))


class _Authority:
    """A fresh key and what it signs; the key dies with the object.

    Args:
        job, namespace: whose authority it is.
        now: the time, with its zone.
    """

    def __init__(self, job: str, namespace: str, now: dt.datetime) -> None:
        self._job, self._namespace, self._now = job, namespace, now
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject("authority", job)
        self.certificate = (
            self._builder(subject, subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def sign(self, role: str, host: str) -> Identity:
        """Issue a certificate for ``host`` in ``role``, valid under its short and its full name."""
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role == contract.ROLE_COORDINATOR:
            # Nobody but the coordinator may answer as a server: a worker's certificate must not pass for it.
            purposes = [ExtendedKeyUsageOID.SERVER_AUTH]
        names = [host, contract.service_address(host, self._job, self._namespace)]
        certificate = (
            self._builder(_subject(role, host), self.certificate.subject, key.public_key())
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return Identity(_pem(certificate), _key_pem(key))

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _BACKDATED)
            .not_valid_after(self._now + _LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )


def _subject(role: str, host: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, contract.CERTIFICATE_ORGANIZATION),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            x509.NameAttribute(NameOID.COMMON_NAME, host),
        ]
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
