"""A host that fell silent may still run ranks for a while: for so long, and no longer."""

from gradsieve_hvd.control.leases import LEASE_SECONDS, Leases
from gradsieve_hvd.control.messages import Incarnation
from gradsieve_hvd.control.names import FORSAKEN_SECONDS, KILL_SECONDS, SILENCE_SECONDS

OLD, OTHER = Incarnation("h1", "uid-1"), Incarnation("h2", "uid-2")


def test_a_lease_covers_all_that_an_agent_takes_to_notice_and_to_end_its_ranks():
    assert LEASE_SECONDS > SILENCE_SECONDS + FORSAKEN_SECONDS + KILL_SECONDS


def test_ranks_of_a_silent_host_may_run_until_its_lease_is_over():
    leases = Leases()
    assert (leases.hosts(0.0), leases.seconds(0.0)) == ([], 0.0)
    leases.silent(OLD, 100.0)
    leases.silent(OTHER, 103.0)
    assert leases.hosts(101.0) == ["h1", "h2"]
    assert leases.seconds(101.0) == LEASE_SECONDS + 2.0
    assert leases.hosts(100.0 + LEASE_SECONDS) == ["h2"]
    assert leases.hosts(103.0 + LEASE_SECONDS) == []


def test_a_host_that_is_heard_of_again_has_no_lease():
    leases = Leases()
    leases.silent(OLD, 100.0)
    leases.heard(OLD)
    assert leases.hosts(101.0) == []
