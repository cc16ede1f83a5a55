"""The operator's strings are those of coordinator, agents and ranks."""

import pytest

from gradsieve_hvd.control import contract as names
from gradsieve_hvd.dropin import job_compression
from gradsieve_operator import contract
from gradsieve_operator.spec import values

SAME = {
    "ENV_JOB": "JOB",
    "ENV_NAMESPACE": "NAMESPACE",
    "ENV_TLS_DIRECTORY": "TLS_DIRECTORY",
    "ENV_POD_UID": "POD_UID",
    "ENV_GENERATION": "GENERATION",
    "ENV_COORDINATOR": "COORDINATOR",
    "ENV_HOST": "HOST",
    "ENV_WORKER_GROUP": "WORKER_GROUP",
    "ENV_SLOTS": "SLOTS",
    "ENV_STATE_DIRECTORY": "STATE_DIRECTORY",
    "ENV_LISTEN": "LISTEN",
    "ENV_READONLY_LISTEN": "READ_ONLY_LISTEN",
    "ENV_JOB_GENERATION": "JOB_GENERATION",
    "ENV_COMPRESSION": "COMPRESSION",
    "CA_CERTIFICATE": "CA_CERTIFICATE",
    "CERTIFICATE": "CERTIFICATE",
    "PRIVATE_KEY": "PRIVATE_KEY",
    "CERTIFICATE_ORGANIZATION": "ORGANIZATION",
    "ROLE_COORDINATOR": "ROLE_COORDINATOR",
    "ROLE_WORKER": "ROLE_WORKER",
    "ROLE_OPERATOR": "ROLE_OPERATOR",
    "COORDINATOR_HOST": "SERVER_NAME",
    "COORDINATOR_PORT": "PORT",
    "READONLY_PORT": "READ_ONLY_PORT",
    "PATH_AGENT": "AGENT_PATH",
    "PATH_ROSTER": "ROSTER_PATH",
    "PATH_PLAN": "PLAN_PATH",
    "PATH_TELEMETRY": "TELEMETRY_PATH",
    "PATH_STATUS": "STATUS_PATH",
    "PATH_STOP": "STOP_PATH",
    "PATH_READY": "READY_PATH",
    "STATE_WAITING": "WAITING",
    "STATE_STARTING": "STARTING",
    "STATE_RUNNING": "RUNNING",
    "STATE_SUCCEEDED": "SUCCEEDED",
    "STATE_FAILED": "FAILED",
    "STATE_LOST": "LOST",
    "FENCED_EXIT_STATUS": "FENCED_STATUS",
}


@pytest.mark.parametrize(("ours", "theirs"), SAME.items())
def test_a_string_is_the_same_on_both_sides(ours, theirs):
    assert getattr(contract, ours) == getattr(names, theirs)


def test_every_state_of_the_coordinator_is_known():
    states = {value for name, value in vars(contract).items() if name.startswith("STATE_")}
    assert set(names.STATES) == states - {contract.STATE_DIRECTORY}


def test_every_variable_of_the_operator_is_compared():
    variables = {name for name in vars(contract) if name.startswith("ENV_")}
    assert variables - set(SAME) == {"ENV_HOME", "ENV_TMPDIR"}


def test_the_backends_are_the_same():
    assert set(values.BACKENDS) == {names.MPI, names.GLOO}


def test_every_algorithm_of_the_api_is_one_that_programs_can_be_told():
    assert set(values.ALGORITHMS) == {*job_compression.STOCK, *job_compression.MAKERS}
