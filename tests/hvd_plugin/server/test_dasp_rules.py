"""DASP's rules (METHODS D), each on a scripted clock."""

import dataclasses
from itertools import pairwise

import pytest
from scripted_workers import Script, cycle

from gradsieve_hvd.server.events import Continue, Reply
from gradsieve_hvd.server.modes import MODES, DynamicAdaptive, SharesBySpeed

DASP = DynamicAdaptive()


def release_times(script):
    return [time for time, _ in script.releases()]


def test_an_even_cluster_behaves_as_bsp():
    seconds = cycle([1, 1.1, 0.95], [1.05, 0.9, 1], [0.97, 1, 1.08], [1, 1.02, 1])
    dasp = Script(DASP, 4, seconds).run(40)
    bsp = Script(MODES["synchronous"], 4, seconds).run(40)
    assert release_times(dasp) == release_times(bsp)
    assert dasp.contributors() == bsp.contributors()


def test_rule_2_the_first_round_does_not_wait_for_the_slowest():
    script = Script(DASP, 4, cycle(1, 1, 1.1, 4)).run(1.5)
    # L = 1, the lower median; who has not pushed at 1.25 L is no member.
    assert release_times(script) == [pytest.approx(1.25)]
    assert script.contributors() == [[0, 1, 2]]


def test_rule_2_a_round_is_as_long_as_the_median_worker_needs():
    script = Script(DASP, 5, cycle(1, 2, 2.2, 4, 4)).run(20)
    gaps = [after - before for before, after in pairwise(release_times(script)[3:])]
    assert gaps == pytest.approx([2.2] * len(gaps))


def test_rule_2_a_single_slow_iteration_does_not_end_a_membership():
    script = Script(DASP, 4, cycle(1, 1, 1, [1] * 20 + [1.4])).run(21.5)
    assert script.contributors()[20] == [0, 1, 2, 3]
    assert release_times(script)[20] == pytest.approx(21.4)


def test_rule_3_the_cut_is_armed_only_after_long_iterations():
    script = Script(DASP, 4, cycle(1, 1, 1, [1, 1, 1, 3, 1, 1, 1])).run(14)
    times = release_times(script)
    gaps = [after - before for before, after in pairwise(times)]
    # The first long iteration is seen while it lasts, at 1.5 L; the next one is cut at 1.08 L.
    assert gaps[2] == pytest.approx(1.5)
    assert max(gaps[3:]) == pytest.approx(1.08)


def test_rule_3_the_cut_needs_half_of_the_members():
    script = Script(DASP, 4, cycle(1, *[[1, 1, 1, 3]] * 3)).run(6)
    times = release_times(script)
    assert times[2:4] == [3, 6]  # one of four has pushed at 4, the second does at 6
    assert script.contributors()[3] == [0, 1]


def test_rule_3_members_that_do_something_else_are_not_waited_for():
    """Three of four wait in a collective, or evaluate: less than half push, so that nothing is cut off."""
    away = [1, 1, 1, 100]
    script = Script(DASP, 4, cycle(1, away, away, away)).run(14)
    assert release_times(script)[2:] == [3, 11, 12, 13, 14]  # begun at 3, with L = 1
    assert script.contributors()[3:] == [[0]] * 4


def test_rule_3_members_that_are_slow_for_a_while_are_waited_for():
    slow = [1, 1, 1, 7.9]
    script = Script(DASP, 4, cycle(1, slow, slow, slow)).run(11)
    assert release_times(script)[3] == pytest.approx(10.9)


@pytest.mark.parametrize(
    ("usual", "cut"),
    [pytest.param([1.0], 1.08, id="even"), pytest.param([0.9, 1.1, 1.0], 1.45, id="median deviation 10 %")],
)
def test_rule_3_the_cut_widens_with_the_scatter_of_iterations(usual, cut):
    armed = dataclasses.replace(DASP, long_share=-1.0)
    script = Script(armed, 4, cycle(usual, usual, usual, [*[1] * 9, 5])).run(11.5)
    times = release_times(script)
    assert max(b - a for a, b in pairwise(times[2:])) == pytest.approx(cut)


def test_rule_4_late_gradients_join_the_next_release_damped_and_gated():
    script = Script(DASP, 4, cycle(1, 1, 1, 3.5)).run(9)
    late = [
        (script.missed[each.number], each)
        for _, release in script.releases()
        for each in release.contributions
        if script.pushes[each.number].rank == 3
    ]
    assert late
    for missed, contribution in late:
        assert missed > 0
        assert contribution.gated
        assert contribution.weight == 1 / (1 + 0.25 * missed)
    fresh = [
        each
        for _, release in script.releases()
        for each in release.contributions
        if script.missed[each.number] == 0
    ]
    assert {(each.weight, each.gated) for each in fresh} == {(1.0, False)}


@pytest.mark.parametrize(
    ("slow", "waits"),
    [
        pytest.param(3.5, False, id="release far: fresh weights now"),
        pytest.param(4.1, True, id="near: waits"),
    ],
)
def test_rule_5_who_is_out_of_phase_waits_only_for_a_near_release(slow, waits):
    script = Script(DASP, 4, cycle(1, 1, 1, slow)).run(6)
    # Rounds end at 1.25, 2.25, 3.25, ...: at 3.5 the next release is 0.75 L away, at 4.1 it is 0.15 L.
    answered = script.replies(3)[1][0]
    assert answered == (pytest.approx(4.25) if waits else pytest.approx(slow))


def test_rule_6_a_fast_worker_computes_another_batch_at_the_same_weights():
    script = Script(DASP, 4, cycle(1, 1, 1, 0.5)).run(10)
    told = [type(each) for _, each in script.replies(3)]
    assert told[1:5] == [Reply, Continue, Reply, Continue]
    assert script.contributors()[3] == [0, 1, 2, 3, 3]
    assert {script.missed[number] for number, push in script.pushes.items() if number in script.missed} == {0}


def test_rule_6_not_if_it_would_end_after_the_round():
    script = Script(DASP, 4, cycle(1, 1, 1, 0.6)).run(10)
    assert not any(isinstance(each, Continue) for _, each in script.replies(3))


def test_rule_7_batches_follow_speed_within_bounds():
    balanced = dataclasses.replace(DASP, shares=SharesBySpeed())
    script = Script(balanced, 4, cycle(2, 2, 1, 0.5)).run(60)
    assert [node.share for node in script.table.nodes] == pytest.approx([0.5, 0.5, 1, 2])
    assert script.contributors()[-1] == [0, 1, 2, 3]


def test_rule_7_speeds_are_known_after_some_iterations_of_each_worker():
    seconds = cycle(1, [9, *[1] * 20], 1, 1)
    balanced = dataclasses.replace(DASP, shares=SharesBySpeed(least_iterations=3))
    at_once = dataclasses.replace(DASP, shares=SharesBySpeed())

    def shares(policy):
        script = Script(policy, 4, seconds).run(30)
        return {
            each.share for rank in range(4) for _, each in script.replies(rank) if isinstance(each, Reply)
        }

    assert shares(balanced) == {1.0}  # what was odd about the first iterations is not in the medians
    assert min(shares(at_once)) < 0.2


def test_rule_8_what_has_missed_too_many_releases_is_discarded_and_its_worker_goes_on():
    script = Script(DASP, 4, cycle(1, 1, 1, [20, 1])).run(50)
    assert [script.pushes[number].rank for number in script.discarded] == [3, 3]
    assert max(script.missed.values()) <= 16
    assert [round(time) for time, _ in script.replies(3)] == [0, 20, 21, 41, 42]


def test_a_worker_that_leaves_holds_up_no_round():
    script = Script(DASP, 3, cycle(1, 1, 1), leaves_after={0: 2, 1: 4}).run(20)
    assert script.contributors()[-3:] == [[2]] * 3
