"""The names of a job's children are what contract and DNS allow."""

from gradsieve_operator import contract


def test_children_are_named_after_the_job():
    assert contract.worker_pod("digits", "a100", 1, 7) == "digits-a100-1-7"
    assert contract.coordinator_pod("digits", 2) == "digits-coordinator-2"
    assert contract.workers_secret("digits") == "digits-workers-tls"


def test_agents_dial_the_coordinator_by_its_service_name():
    assert contract.coordinator_url("digits", "team") == "https://coordinator.digits.team.svc:7443"


def test_the_environment_that_the_operator_sets_is_reserved_and_the_user_s_home_is_not():
    named = {value for name, value in vars(contract).items() if name.startswith("ENV_")}
    assert named - contract.RESERVED_ENVIRONMENT == {"HOME", "TMPDIR"}
