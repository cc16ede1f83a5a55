"""What is decided for jobs as they happen, minute by minute, on a clock that the tests move."""

import dataclasses
import itertools

import pytest
from measured_job import MeasuredJob, even, throttled

from gradsieve_operator.adapt import Asked, Change, Plan, adapt
from gradsieve_operator.spec import Adaptation

ADAPTATION = Adaptation(enabled=True, interval=30, cooldown=120)
ALL = ("Synchronous", "Balanced", "Local", "Adaptive")
BEGAN = 1000.0


def asks(*, modes=ALL, choose=True, density=50, lowest=5, highest=50, mode="Synchronous") -> Asked:
    return Asked(
        plan=Plan(mode, density),
        lowest_permille=lowest,
        highest_permille=highest,
        choose_mode=choose,
        modes=modes,
        adaptation=ADAPTATION,
    )


def plans(job):
    return [(plan.mode, plan.density_permille, reason) for _, plan, reason in job.changes]


def test_nothing_changes_among_even_ranks_on_a_link_that_keeps_up():
    job = MeasuredJob(asks(), even(), link=lambda _: 0.1).run(1800)
    assert plans(job) == []
    assert (job.holds[-1].reason, job.holds[-1].settled) == ("AsGoodAsItGets", True)


def test_nothing_is_concluded_while_a_rank_tells_nothing_of_itself():
    job = MeasuredJob(asks(), throttled(4, since=BEGAN + 60)).run(100)
    window = dataclasses.replace(job.window(), silent=1)
    hold = adapt(window, job.asked, job.memory, job.now)
    assert (hold.reason, hold.settled) == ("SilentRanks", False)


def test_a_rank_that_stays_slow_gets_a_smaller_share_where_shares_may_change():
    job = MeasuredJob(asks(), throttled(4, since=BEGAN + 300)).run(600)
    assert plans(job) == [("Balanced", 50, "SlowTail")]
    assert job.changes[0][0] - BEGAN - 300 <= 60 + 2 * ADAPTATION.interval
    assert "the slowest rank on host-7 always works" in job.memory.evidence


def test_a_rank_that_stays_slow_is_not_waited_for_where_shares_may_not_change():
    job = MeasuredJob(asks(modes=("Synchronous", "Adaptive")), throttled(4, since=BEGAN + 300)).run(600)
    assert plans(job) == [("Adaptive", 50, "SlowTail")]


@pytest.mark.parametrize("lag", [9.0, 19.0])
def test_a_change_is_not_taken_back_because_it_took_some_steps_to_come_into_force(lag):
    quick = dataclasses.replace(ADAPTATION, interval=15, cooldown=20, min_samples=5)
    wish = dataclasses.replace(asks(), adaptation=quick)
    job = MeasuredJob(wish, throttled(4, since=BEGAN + 300), lag=lag).run(900)
    assert plans(job) == [("Balanced", 50, "SlowTail")]


def test_ranks_train_in_step_again_soon_after_the_slow_one_has_recovered():
    recovers = BEGAN + 900
    job = MeasuredJob(asks(), throttled(4, since=BEGAN + 300, until=recovers)).run(1500)
    assert [reason for _, _, reason in plans(job)] == ["SlowTail", "EvenRanks"]
    assert job.plan == Plan("Synchronous", 50)
    assert job.changes[1][0] - recovers <= ADAPTATION.cooldown + 2 * ADAPTATION.interval


def test_ranks_that_are_slow_in_turns_are_not_waited_for_although_shares_may_change():
    def in_turns(now):
        return [0.3 if int(now / 2) % 8 == rank else 0.1 for rank in range(8)]

    job = MeasuredJob(asks(), in_turns).run(600)
    assert plans(job) == [("Adaptive", 50, "TransientStragglers")]


def test_ranks_exchange_seldomer_when_the_link_is_too_slow_for_the_lowest_density():
    job = MeasuredJob(asks(), even(), link=lambda _: 100.0).run(900)
    assert plans(job) == [("Synchronous", 5, "LongDelay"), ("Local", 5, "ExchangeBound")]
    assert job.plan.local_steps == 5


def test_a_link_that_becomes_fifty_times_slower_lowers_the_density_and_its_recovery_raises_it():
    def link(now):
        return 10.0 if BEGAN + 300 <= now < BEGAN + 900 else 0.2

    job = MeasuredJob(asks(choose=False), even(), link=link).run(1500)
    assert plans(job)[0] == ("Synchronous", 5, "LongDelay")
    assert {reason for _, _, reason in plans(job)[1:]} == {"IdleLink"}
    assert job.changes[1][0] - BEGAN - 900 <= ADAPTATION.cooldown + 2 * ADAPTATION.interval
    assert job.plan.density_permille >= 20


@pytest.mark.parametrize(("probes", "density"), [(True, 50), (False, 5)])
def test_a_link_that_has_recovered_gets_all_entries_again_if_ranks_tell_its_start_up_time_from_its_bandwidth(
    probes, density
):
    def link(now):
        return 10.0 if BEGAN + 300 <= now < BEGAN + 420 else 0.2

    job = MeasuredJob(asks(choose=False), even(), link=link, start_up=0.02, probes=probes).run(1500)
    assert ("Synchronous", 5, "LongDelay") in plans(job)
    assert job.plan.density_permille == density


def test_waiting_that_fewer_bytes_do_not_shorten_is_no_reason_to_send_fewer():
    job = MeasuredJob(asks(choose=False), even(), link=lambda _: 0.02, start_up=0.3, probes=True).run(600)
    assert plans(job) == []


def test_an_idle_link_is_given_more_entries_up_to_the_limit():
    job = MeasuredJob(asks(choose=False, density=10, highest=200), even(), link=lambda _: 0.01).run(3600)
    assert {reason for _, _, reason in plans(job)} == {"IdleLink"}
    assert job.plan.density_permille == 200


def test_a_gain_that_does_not_come_is_taken_back_and_tried_again_ever_more_seldom():
    slow = throttled(4, since=0)
    job = MeasuredJob(asks(modes=("Synchronous", "Adaptive")), slow, costs={"Adaptive": 4.0}).run(40_000)
    reasons = [reason for _, _, reason in plans(job)]
    assert reasons == (["SlowTail", "GainMissing"] * len(reasons))[: len(reasons)]
    times = [when for when, _, _ in job.changes]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(pauses[:6]))
    assert len(times) <= 20


def test_a_taken_back_change_is_said_with_what_was_expected_and_what_came():
    job = MeasuredJob(asks(modes=("Synchronous", "Adaptive")), throttled(4, since=0), costs={"Adaptive": 4.0})
    job.run(300)
    assert job.memory.reason == "GainMissing"
    assert "was expected to shorten the time to a loss by" in job.memory.evidence
    assert "would lengthen the time to a loss by" in job.memory.evidence


def test_a_lower_density_that_does_not_help_against_start_up_times_is_taken_back():
    job = MeasuredJob(asks(choose=False), even(), link=lambda _: 0.02, start_up=0.3).run(600)
    assert [reason for _, _, reason in plans(job)][:2] == ["LongDelay", "GainMissing"]


def test_a_node_that_is_slow_every_other_five_seconds_changes_a_job_three_times_in_ten_minutes_at_most():
    def flapping(now):
        return [0.1] * 7 + [0.4 if int(now / 5) % 2 else 0.1]

    for modes in (ALL, ("Synchronous", "Adaptive"), ("Synchronous", "Balanced")):
        job = MeasuredJob(asks(modes=modes), flapping).run(600)
        assert len(job.changes) <= 3


def test_under_a_named_mode_only_the_density_changes():
    job = MeasuredJob(asks(choose=False), throttled(4, since=0), link=lambda _: 50.0).run(900)
    assert {mode for mode, _, _ in plans(job)} == {"Synchronous"}
    assert job.plan.density_permille == 5


def test_a_program_that_only_trains_in_step_does_so_however_uneven_its_ranks():
    job = MeasuredJob(asks(modes=("Synchronous",)), throttled(4, since=0)).run(900)
    assert plans(job) == []


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        pytest.param({"lowest": None, "highest": None}, "NoBounds", id="no limits"),
        pytest.param({"lowest": 50, "highest": 50}, "NoBounds", id="limits that leave nothing"),
        pytest.param({"lowest": None, "highest": None, "density": None}, "NoDensity", id="no density"),
    ],
)
def test_a_job_that_leaves_nothing_to_choose_is_told_what_is_missing(limits, reason):
    job = MeasuredJob(asks(choose=False, **limits), even(), link=lambda _: 50.0).run(300)
    assert (job.changes, job.holds[-1].reason, job.holds[-1].settled) == ([], reason, False)


@pytest.mark.parametrize("reason", ["Confirming", "CoolDown"])
def test_who_has_to_wait_is_told_until_when(reason):
    job = MeasuredJob(asks(), throttled(4, since=BEGAN + 300))
    while not (job.holds and job.holds[-1].reason == reason):
        job.run(2)
    window, memory = job.window(), job.memory
    hold = adapt(window, job.asked, memory, job.now)
    before, then = (adapt(window, job.asked, memory, job.now + hold.again + late) for late in (-0.1, 0.0))
    assert (hold.reason, before.reason) == (reason, reason)
    assert isinstance(then, Change) or then.reason != reason


def test_who_waits_for_samples_is_told_when_they_will_have_come():
    job = MeasuredJob(asks(), even()).run(4)
    hold = adapt(job.window(), job.asked, job.memory, job.now)
    assert (hold.reason, hold.again) == ("TooFewSamples", 2.0 * (ADAPTATION.min_samples - 2))
