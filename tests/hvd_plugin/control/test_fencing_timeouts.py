"""A host that fell silent may still run ranks for a while: for so long, and no longer."""

from gradsieve_hvd.control.contract import FORSAKEN_SECONDS, KILL_SECONDS, SILENCE_SECONDS
from gradsieve_hvd.control.fencing_timeouts import LEASE_SECONDS, FencingTimeouts
from gradsieve_hvd.control.messages import Incarnation

OLD, OTHER = Incarnation("h1", "uid-1"), Incarnation("h2", "uid-2")


def test_a_lease_covers_all_that_an_agent_takes_to_notice_and_to_end_its_ranks():
    assert LEASE_SECONDS > SILENCE_SECONDS + FORSAKEN_SECONDS + KILL_SECONDS


def test_ranks_of_a_silent_host_may_run_until_its_lease_is_over():
    timeouts = FencingTimeouts()
    assert (timeouts.hosts(0.0), timeouts.seconds(0.0)) == ([], 0.0)
    timeouts.silent(OLD, 100.0)
    timeouts.silent(OTHER, 103.0)
    assert timeouts.hosts(101.0) == ["h1", "h2"]
    assert timeouts.seconds(101.0) == LEASE_SECONDS + 2.0
    assert timeouts.hosts(100.0 + LEASE_SECONDS) == ["h2"]
    assert timeouts.hosts(103.0 + LEASE_SECONDS) == []


def test_a_host_that_is_heard_of_again_has_no_lease():
    timeouts = FencingTimeouts()
    timeouts.silent(OLD, 100.0)
    timeouts.heard(OLD)
    assert timeouts.hosts(101.0) == []
