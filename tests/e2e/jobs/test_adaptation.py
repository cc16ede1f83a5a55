"""A job that trains by what is measured: its ranks' mode follows a node that becomes slow and recovers."""

import pytest
from adaptation_kills import killing
from adapted_job import DEALT, SERVED, followed, limited, modes_followed, plan, throttled, training

pytestmark = [pytest.mark.timeout(600), pytest.mark.sole_training]


def require_slow_tail(job, mode):
    slow = plan(job)
    assert slow["reason"] == "SlowTail"
    assert "the slowest rank on worker-1" in slow["evidence"]
    assert {group["mode"] for group in job.status()["workerGroups"]} == {mode}


def test_adaptation_gives_a_throttled_node_a_smaller_share_and_takes_it_back(
    cluster, operator, tmp_path, record_property
):
    """The operator is killed at each kind of write of the loop.

    Plan 1 may have told the density only, before the program had said that it can change its mode.
    """
    with killing(cluster, operator, tmp_path) as kills, training(cluster, DEALT) as job:
        with throttled(cluster, job):
            first = plan(job)["generation"]
            took = job.wait(lambda: followed(job) == "Balanced", 150, "shares by speed")
            record_property("seconds_to_balanced", round(took, 1))
            require_slow_tail(job, "Balanced")
        took = job.wait(lambda: followed(job) == "Synchronous", 150, "equal shares again")
        record_property("seconds_to_synchronous", round(took, 1))
        assert plan(job)["reason"] == "EvenRanks"
        # Two changes on a quiet machine; what else runs on this one may make ranks uneven, too.
        assert plan(job)["generation"] >= first + 2
        for rank in range(2):
            assert modes_followed(job, rank)[-2:] == ["Balanced", "Synchronous"]
        assert job.status()["restartCount"] == 0
    record_property("kills", len(kills.deaths))
    assert kills.left() == set()


def test_adaptation_lets_ranks_step_at_their_own_pace_beside_a_container_with_a_limit_and_ends_that(
    cluster, operator, record_property
):
    """What follows is the operator's to know: with a server of one core exchanging may take so much that it
    tries local steps before the node recovers."""
    with training(cluster, SERVED) as job:
        with limited(cluster, job):
            took = job.wait(lambda: followed(job) == "Adaptive", 150, "ranks at their own pace")
            record_property("seconds_to_adaptive", round(took, 1))
            require_slow_tail(job, "Adaptive")
            assert "its container's CPU limit was used up in" in plan(job)["evidence"]
            assert job.status()["telemetry"]["step"] > 0
        took = job.wait(lambda: followed(job) in ("Synchronous", "Local"), 180, "a mode without a server")
        record_property("seconds_without_a_server", round(took, 1))
        for rank in range(2):
            assert "Adaptive" in modes_followed(job, rank)
            assert modes_followed(job, rank)[-1] in ("Synchronous", "Local")
