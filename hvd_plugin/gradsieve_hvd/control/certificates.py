"""A job's certificates: an authority of its own whose key is thrown away, and one certificate per party."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.control.contract import (
    CA_CERTIFICATE,
    CERTIFICATE,
    ORGANIZATION,
    PRIVATE_KEY,
    ROLE_COORDINATOR,
    ROLE_OPERATOR,
    ROLE_WORKER,
    SERVER_NAME,
)

_CLOCKS_DIFFER = timedelta(hours=1)
_RESERVED = (ROLE_COORDINATOR, ROLE_OPERATOR, ROLE_WORKER)
_MOST_NAME = 64
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True)
class Party:
    """Somebody who gets a certificate.

    Attributes:
        role: ``coordinator``, ``worker`` or ``operator``.
        name: a worker's host; otherwise the role.
        addresses: further DNS names and IP addresses at which it can be reached.
    """

    role: str
    name: str
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Credentials:
    """What one party needs, as PEM: the authority's certificate, its own, and its own private key."""

    authority: bytes
    certificate: bytes
    key: bytes

    def write(self, folder: Path) -> None:
        """Write the three files into ``folder``, which only the owner may read.

        Raises:
            ConfigurationError: one of them exists already.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        contents = {CA_CERTIFICATE: self.authority, CERTIFICATE: self.certificate, PRIVATE_KEY: self.key}
        for name, content in contents.items():
            try:
                descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError as error:
                raise ConfigurationError(
                    f"{folder / name} exists already: certificates are made once per job, in an empty folder"
                ) from error
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)


def parties(hosts: Iterable[tuple[str, Sequence[str]]], coordinator: Sequence[str] = ()) -> list[Party]:
    """The parties of a job on plain hosts.

    Args:
        hosts: each host's name and further addresses.
        coordinator: names and addresses at which the coordinator can be reached.

    Raises:
        ConfigurationError: a host's name is that of a role, too long, or is given twice.
    """
    found = [
        Party(ROLE_COORDINATOR, ROLE_COORDINATOR, tuple(coordinator)),
        Party(ROLE_OPERATOR, ROLE_OPERATOR),
    ]
    seen: set[str] = set(_RESERVED)
    for name, addresses in hosts:
        if name in seen:
            raise ConfigurationError(
                f"host {name!r}: a name may be given once and must not be that of a role"
            )
        if not 0 < len(name) <= _MOST_NAME:
            raise ConfigurationError(f"host {name!r}: a certificate's name has 1 to {_MOST_NAME} characters")
        seen.add(name)
        found.append(Party(ROLE_WORKER, name, tuple(addresses)))
    return found


def issue(to: Sequence[Party], *, lifetime: timedelta, now: datetime | None = None) -> list[Credentials]:
    """Make an authority and a certificate for each party, in their order.

    The authority's key exists in this call alone: nobody can add a party later. Valid from an hour before
    ``now``, since clocks differ.
    """
    begin = (now or datetime.now(UTC)) - _CLOCKS_DIFFER
    period = (begin, begin + _CLOCKS_DIFFER + lifetime)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = (
        _builder(_name("ca", "ca"), _name("ca", "ca"), authority_key.public_key(), period)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return [_credentials(party, authority, authority_key, period) for party in to]


def _credentials(
    party: Party,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    period: tuple[datetime, datetime],
) -> Credentials:
    key = ec.generate_private_key(ec.SECP256R1())
    names = [SERVER_NAME] if party.role == ROLE_COORDINATOR else [party.name]
    purpose = (
        ExtendedKeyUsageOID.SERVER_AUTH if party.role == ROLE_COORDINATOR else ExtendedKeyUsageOID.CLIENT_AUTH
    )
    certificate = (
        _builder(_name(party.role, party.name), authority.subject, key.public_key(), period)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in [*names, *party.addresses]]),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Credentials(authority.public_bytes(Encoding.PEM), certificate.public_bytes(Encoding.PEM), private)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, period: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(period[0])
        .not_valid_after(period[1])
    )


def _name(unit: str, common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _usage(wanted: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name == wanted for name in _USAGES})


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
