"""BSP, LB-BSP, ASP, SSP and DSSP on a scripted clock."""

import pytest
from scripted_workers import Script, cycle

from gradsieve_hvd.server.events import Pushed, Release, Reply
from gradsieve_hvd.server.modes import MODES, DynamicStale, Stale


def test_bsp_makes_a_version_when_the_slowest_has_pushed():
    script = Script(MODES["synchronous"], 3, cycle(1, 1, 4)).run(12)
    assert [time for time, _ in script.releases()] == [4, 8, 12]
    assert script.contributors() == [[0, 1, 2]] * 3


def test_bsp_does_not_wait_for_who_has_left_and_still_applies_what_it_has_pushed():
    script = Script(MODES["synchronous"], 3, cycle(1, 1, 4), leaves_after={2: 1}).run(9)
    assert [time for time, _ in script.releases()] == [4, 6, 7, 8, 9]
    assert script.contributors()[:2] == [[0, 1, 2], [0, 1]]


def test_asp_never_lets_a_worker_wait():
    script = Script(MODES["asp"], 3, cycle(1, 2, 4)).run(8)
    for rank, seconds in enumerate((1, 2, 4)):
        assert [time for time, _ in script.replies(rank)] == list(range(0, 9, seconds))
    assert [len(each) for each in script.contributors()] == [1] * (8 + 4 + 2)


def test_ssp_lets_a_worker_lead_by_its_bound_and_then_wait_for_the_slowest():
    script = Script(Stale(bound=2), 2, cycle(1, 10)).run(20.5)
    # Clocks 0, 1, 2 may go on; at clock 3 it leads by 3 until the slowest has pushed.
    assert [time for time, _ in script.replies(0)] == [0, 1, 2, 10, 20]
    assert [time for time, _ in script.replies(1)] == [0, 10, 20]


def test_ssp_forgets_the_slowest_when_it_leaves():
    script = Script(Stale(bound=2), 2, cycle(1, 10), leaves_after={1: 1}).run(30)
    times = [time for time, _ in script.replies(0)]
    assert times[times.index(15.0) :] == [float(each) for each in range(15, 31)]


def test_dssp_gives_the_fastest_as_many_extra_iterations_as_let_it_wait_least():
    script = Script(DynamicStale(bound=1, most_extra=12), 2, cycle(1, 5)).run(30)
    first = next((time, each) for time, each in script.replies(0) if each.extra)
    # At 7 it pushes 1 after its last push; the slowest pushed at 5 after 5 and is due at 10: r* = 3, one now.
    assert first == (7, Reply(0, extra=2))
    assert [time for time, _ in script.replies(0) if 7 <= time <= 10] == [7, 8, 9, 10]


def test_dssp_grants_nothing_to_others_than_the_fastest():
    script = Script(DynamicStale(bound=1, most_extra=3), 3, cycle(1, 1.5, 6)).run(60)
    clocks, extras, granted = [0, 0, 0], [0, 0, 0], []
    for _, event, actions in script.log:
        if isinstance(event, Pushed):
            clocks[event.rank] += 1
        for each in actions:
            if isinstance(each, Reply):
                if each.extra > extras[each.rank]:
                    granted.append(clocks[each.rank] - max(clocks))
                extras[each.rank] = each.extra
    assert granted
    assert set(granted) == {0}


def test_lb_bsp_gives_every_worker_a_batch_that_takes_as_long_as_the_others():
    script = Script(MODES["balanced"], 4, cycle(2, 2, 1, 0.5)).run(20)
    shares = [node.share for node in script.table.nodes]
    assert shares == pytest.approx([0.5, 0.5, 1, 2])
    times = [time for time, _ in script.releases()]
    assert times[:3] == [2, 4, 6]  # of equal batches, until speeds are told
    assert times[4] - times[3] == pytest.approx(1)


def test_lb_bsp_keeps_its_shares_while_speeds_differ_by_less_than_the_dead_band():
    script = Script(MODES["balanced"], 4, cycle(1, 1.1, 1, 1)).run(20)
    assert [node.share for node in script.table.nodes] == [1, 1, 1, 1]


def test_lb_bsp_bounds_its_shares():
    script = Script(MODES["balanced"], 8, cycle(*[1] * 6, 100, 0.1)).run(300)
    assert script.table.nodes[6].share == 1 / 8
    assert script.table.nodes[7].share == 3


@pytest.mark.parametrize("name", ["synchronous", "balanced"])
def test_synchronous_modes_apply_every_gradient_in_full_and_fresh(name):
    script = Script(MODES[name], 4, cycle(1, [1, 3], 2, 4)).run(40)
    contributions = [each for _, release in script.releases() for each in release.contributions]
    assert {(each.weight, each.gated) for each in contributions} == {(1.0, False)}
    assert set(script.missed.values()) == {0}
    assert not any(
        isinstance(each, Release) and not each.contributions for _, _, a in script.log for each in a
    )
