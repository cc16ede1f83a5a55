"""A job's certificates: who each of them is, and whom TLS lets in with them."""

import datetime as dt
import ssl
import tempfile
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from handshakes import shake_hands

from gradsieve_operator.certificates import Identity, JobCertificates, fingerprint, issue

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def certificates() -> JobCertificates:
    return issue("digits", "research", ["a100-0", "t4-0"], NOW)


def context(purpose: ssl.Purpose, authority: bytes, identity: Identity) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cadata=authority.decode())
    made.verify_mode = ssl.CERT_REQUIRED
    with tempfile.TemporaryDirectory() as folder:
        chain, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        chain.write_bytes(identity.certificate)
        key.write_bytes(identity.key)
        made.load_cert_chain(chain, key)
    return made


def subject(pem: bytes) -> tuple[str, ...]:
    name = x509.load_pem_x509_certificate(pem).subject
    oids = (NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.COMMON_NAME)
    return tuple(str(name.get_attributes_for_oid(oid)[0].value) for oid in oids)


def test_the_subject_says_who_holds_it(certificates):
    assert subject(certificates.coordinator.certificate) == ("gradsieve", "coordinator", "coordinator")
    assert subject(certificates.operator.certificate) == ("gradsieve", "operator", "operator")
    assert subject(certificates.workers["t4-0"].certificate) == ("gradsieve", "worker", "t4-0")


def test_the_names_are_the_host_and_its_service_name(certificates):
    made = x509.load_pem_x509_certificate(certificates.workers["a100-0"].certificate)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a100-0", "a100-0.digits.research.svc"]


def test_all_are_elliptic_valid_since_an_hour_and_signed_by_the_authority(certificates):
    authority = x509.load_pem_x509_certificate(certificates.authority)
    for identity in (certificates.coordinator, certificates.operator, *certificates.workers.values()):
        made = x509.load_pem_x509_certificate(identity.certificate)
        made.verify_directly_issued_by(authority)
        assert isinstance(made.public_key(), ec.EllipticCurvePublicKey)
        assert made.not_valid_before_utc <= NOW - dt.timedelta(minutes=59)


def test_the_coordinator_learns_who_dials(certificates):
    seen = shake_hands(
        context(ssl.Purpose.SERVER_AUTH, certificates.authority, certificates.workers["a100-0"]),
        context(ssl.Purpose.CLIENT_AUTH, certificates.authority, certificates.coordinator),
        "coordinator",
    )
    assert (("commonName", "a100-0"),) in seen["subject"]
    assert (("organizationalUnitName", "worker"),) in seen["subject"]


def test_another_jobs_worker_is_refused(certificates):
    other = issue("digits", "research", ["a100-0"], NOW)
    with pytest.raises(ssl.SSLError):
        shake_hands(
            context(ssl.Purpose.SERVER_AUTH, certificates.authority, other.workers["a100-0"]),
            context(ssl.Purpose.CLIENT_AUTH, certificates.authority, certificates.coordinator),
            "coordinator",
        )


def test_a_worker_cannot_pass_for_the_coordinator(certificates):
    with pytest.raises(ssl.SSLError):
        shake_hands(
            context(ssl.Purpose.SERVER_AUTH, certificates.authority, certificates.operator),
            context(ssl.Purpose.CLIENT_AUTH, certificates.authority, certificates.workers["a100-0"]),
            "a100-0",
        )


def test_authorities_are_told_apart(certificates):
    assert fingerprint(certificates.authority) == fingerprint(certificates.authority)
    assert fingerprint(certificates.authority) != fingerprint(issue("digits", "research", [], NOW).authority)


def test_long_names_are_no_obstacle():
    names = issue("j" * 63, "n" * 63, ["g" * 40 + "-0"], NOW)
    assert subject(names.workers["g" * 40 + "-0"].certificate)[2] == "g" * 40 + "-0"
