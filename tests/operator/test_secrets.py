"""A job's certificates as Secrets, and when they have to be issued anew."""

import datetime as dt

import horovod_jobs as jobs
import pytest

from gradsieve_operator.certificates import issue
from gradsieve_operator.resources import certificate_secrets, common_authority

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


def test_they_go_together(secrets):
    assert common_authority(jobs.job(), secrets, HOSTS) is not None


def test_a_missing_host_means_all_anew(secrets):
    assert common_authority(jobs.job(), secrets, ["worker-2"]) is None


@pytest.mark.parametrize("which", range(3))
def test_a_missing_one_means_all_anew(secrets, which):
    rest = [item for place, item in enumerate(secrets.items()) if place != which]
    assert common_authority(jobs.job(), dict(rest), ["worker-0"]) is None


def test_secrets_of_two_authorities_mean_all_anew(secrets):
    mixed = {**secrets, "digits-operator-tls": make()[1]}
    assert common_authority(jobs.job(), mixed, ["worker-0"]) is None
