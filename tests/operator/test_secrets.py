"""A job's certificates as Secrets, and which of them are lost."""

import datetime as dt

import horovod_jobs as jobs
import pytest

from gradsieve_operator.certificates import issue
from gradsieve_operator.resources import certificate_secrets, held, read_secret

HOSTS = ["worker-0", "worker-1"]


def make() -> list[dict]:
    return certificate_secrets(jobs.job(), issue("digits", "research", HOSTS, dt.datetime.now(dt.UTC)))


@pytest.fixture(scope="module")
def secrets() -> dict[str, dict]:
    return {secret["metadata"]["name"]: secret for secret in make()}


def test_each_role_has_its_own(secrets):
    assert {name: set(secret["data"]) for name, secret in secrets.items()} == {
        "digits-coordinator-tls": {"ca.crt", "tls.crt", "tls.key"},
        "digits-operator-tls": {"ca.crt", "tls.crt", "tls.key"},
        "digits-workers-tls": {
            "ca.crt",
            "worker-0.crt",
            "worker-0.key",
            "worker-1.crt",
            "worker-1.key",
        },
    }


def contents(secrets: dict[str, dict]) -> dict:
    return {name: read_secret(jobs.job(), name, secret) for name, secret in secrets.items()}


def test_they_go_together(secrets):
    found = held(jobs.job(), contents(secrets))
    authority = secrets["digits-operator-tls"]["metadata"]["annotations"]["gradsieve.io/authority"]
    assert found.authority == authority
    assert (found.certified, found.lost, found.trust) == ({"worker-0", "worker-1"}, (), "")


@pytest.mark.parametrize("which", range(3))
def test_a_missing_one_is_lost_and_the_others_go_on(secrets, which):
    rest = dict(item for place, item in enumerate(secrets.items()) if place != which)
    found = held(jobs.job(), contents(rest))
    assert found.lost == (list(secrets)[which],)
    assert found.authority is not None


def test_without_any_all_are_issued_anew():
    assert held(jobs.job(), {}).authority is None


def test_secrets_of_two_beginnings_mean_all_anew(secrets):
    assert held(jobs.job(), contents({**secrets, "digits-operator-tls": make()[1]})).authority is None


def changed(secret: dict, **data: str | None) -> dict:
    found = {**secret["data"], **{name.replace("_", "."): value for name, value in data.items()}}
    return {**secret, "data": {name: value for name, value in found.items() if value is not None}}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({"tls_key": None}, id="missing"),
        pytest.param({"tls_key": ""}, id="empty"),
        pytest.param({"tls_key": "AAAA"}, id="no key"),
        pytest.param({"tls_key": "not base64"}, id="no base64"),
        pytest.param({"tls_crt": "AAAA"}, id="no certificate"),
        pytest.param({"ca_crt": "AAAA"}, id="no authority"),
        pytest.param({"ca_crt": None}, id="missing authority"),
    ],
)
@pytest.mark.parametrize("name", ["digits-operator-tls", "digits-coordinator-tls"])
def test_a_damaged_one_is_lost(secrets, name, data):
    found = held(jobs.job(), contents({**secrets, name: changed(secrets[name], **data)}))
    assert found.lost == (name,)


@pytest.mark.parametrize("data", [None, {}])
def test_an_empty_one_is_lost(secrets, data):
    name = "digits-workers-tls"
    assert held(jobs.job(), contents({**secrets, name: {**secrets[name], "data": data}})).lost == (name,)


def test_one_that_holds_another_party_s_certificate_is_lost(secrets):
    name, other = "digits-operator-tls", secrets["digits-coordinator-tls"]["data"]
    swapped = changed(secrets[name], tls_crt=other["tls.crt"], tls_key=other["tls.key"])
    assert held(jobs.job(), contents({**secrets, name: swapped})).lost == (name,)


def test_one_whose_key_is_of_another_certificate_is_lost(secrets):
    name, other = "digits-operator-tls", secrets["digits-coordinator-tls"]["data"]
    swapped = changed(secrets[name], tls_key=other["tls.key"])
    assert held(jobs.job(), contents({**secrets, name: swapped})).lost == (name,)
