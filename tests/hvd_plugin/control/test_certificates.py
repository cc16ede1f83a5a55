"""A job's certificates: who they name, what they are good for, and that nobody can add one later."""

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.control.certificates import issue, parties
from gradsieve_hvd.control.certificates_command import command
from gradsieve_hvd.control.fields import Refused
from gradsieve_hvd.control.identity import PERMISSIONS, Identity
from gradsieve_hvd.control.tls import client_context, server_context

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def made():
    who = parties([("a100-0", ["10.0.0.5", "a100-0.job.ns.svc"])], ["trainer", "10.0.0.1"])
    issued = issue(who, lifetime=timedelta(days=2), now=NOW)
    return {party.name: credentials for party, credentials in zip(who, issued, strict=True)}


def certificate(credentials):
    return x509.load_pem_x509_certificate(credentials.certificate)


def test_the_subject_says_role_and_name():
    names = {
        name: [part.value for part in certificate(credentials).subject]
        for name, credentials in made().items()
    }
    assert names == {
        "coordinator": ["gradsieve", "coordinator", "coordinator"],
        "operator": ["gradsieve", "operator", "operator"],
        "a100-0": ["gradsieve", "worker", "a100-0"],
    }


def test_names_and_addresses_are_in_the_certificate():
    names = certificate(made()["coordinator"]).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["coordinator", "trainer"]
    assert [str(ip) for ip in names.value.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]


def test_a_worker_cannot_serve_and_nobody_can_sign():
    for name, credentials in made().items():
        extensions = certificate(credentials).extensions
        usage = list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        server = ExtendedKeyUsageOID.SERVER_AUTH
        assert usage == [server if name == "coordinator" else ExtendedKeyUsageOID.CLIENT_AUTH]
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_they_are_valid_from_an_hour_before_since_clocks_differ():
    worker = certificate(made()["a100-0"])
    assert worker.not_valid_before_utc == NOW - timedelta(hours=1)
    assert worker.not_valid_after_utc == NOW + timedelta(days=2)


def test_two_jobs_have_nothing_in_common():
    first, second = made(), made()
    assert first["operator"].authority != second["operator"].authority
    assert len({c.authority for c in first.values()}) == 1
    common = x509.load_pem_x509_certificate(first["operator"].authority).subject
    assert common.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "ca"


@pytest.mark.parametrize("name", ["coordinator", "operator", "worker", "h0", "x" * 65, ""])
def test_a_host_cannot_take_a_roles_name_or_another_hosts(name):
    with pytest.raises(ConfigurationError, match="host"):
        parties([("h0", []), (name, [])])


def test_the_command_writes_folders_that_others_cannot_read(tmp_path):
    done = CliRunner().invoke(command, [str(tmp_path / "tls"), "--host", "h0=10.0.0.5", "--host", "h1"])
    assert done.exit_code == 0, done.output
    assert [Path(line).name for line in done.output.splitlines()] == ["coordinator", "operator", "h0", "h1"]
    for folder in (tmp_path / "tls").iterdir():
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == dict.fromkeys(
            ["ca.crt", "tls.crt", "tls.key"], 0o600
        )
    assert not list(tmp_path.rglob("ca.key"))


def test_nothing_is_overwritten(tmp_path):
    arguments = [str(tmp_path / "tls"), "--host", "h0"]
    CliRunner().invoke(command, arguments)
    before = (tmp_path / "tls" / "h0" / "tls.key").read_bytes()
    again = CliRunner().invoke(command, arguments)
    assert isinstance(again.exception, ConfigurationError)
    assert (tmp_path / "tls" / "h0" / "tls.key").read_bytes() == before


def test_both_sides_demand_tls_13_and_a_certificate(tmp_path):
    CliRunner().invoke(command, [str(tmp_path), "--host", "h0"])
    server, client = server_context(tmp_path / "coordinator"), client_context(tmp_path / "h0")
    assert server.verify_mode == client.verify_mode == ssl.CERT_REQUIRED
    assert server.minimum_version == client.minimum_version == ssl.TLSVersion.TLSv1_3
    assert client.check_hostname


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="must hold ca.crt, tls.crt and tls.key"):
        client_context(tmp_path)


def subject(*parts):
    return {"subject": tuple(((name, value),) for name, value in parts)}


GOOD = [("organizationName", "gradsieve"), ("organizationalUnitName", "worker"), ("commonName", "h0")]


def test_an_identity_is_what_the_certificate_says():
    assert Identity.of(subject(*GOOD)) == Identity("worker", "h0")


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([], id="nothing"),
        pytest.param(GOOD[1:], id="no organisation"),
        pytest.param([GOOD[0], GOOD[1]], id="no name"),
        pytest.param([GOOD[0], ("organizationalUnitName", "root"), GOOD[2]], id="unknown role"),
        pytest.param([*GOOD, ("organizationalUnitName", "operator")], id="two roles"),
        pytest.param([("organizationName", "other"), *GOOD[1:]], id="another organisation"),
    ],
)
def test_another_certificate_is_nobody(parts):
    with pytest.raises(Refused) as refusal:
        Identity.of(subject(*parts))
    assert refusal.value.status == 403
    with pytest.raises(Refused):
        Identity.of(None)


def test_each_call_is_for_one_role_and_other_calls_are_for_nobody():
    for (method, path), roles in PERMISSIONS.items():
        for role in ("worker", "operator", "coordinator"):
            if role in roles:
                Identity(role, role).demand(method, path)
            else:
                with pytest.raises(Refused, match=f"{method} {path} is not for"):
                    Identity(role, role).demand(method, path)
    for method, path in [("DELETE", "/v1/plan"), ("GET", "/v1/secret"), ("PUT", "/v1/status")]:
        with pytest.raises(Refused):
            Identity("operator", "operator").demand(method, path)
