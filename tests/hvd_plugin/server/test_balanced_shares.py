"""Shares of mode "balanced": near to what speeds allow, and equal where ranks only seem to differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.server.events import Pushed, Release, Reply, Started
from gradsieve_hvd.server.modes import MODES, BalancedShares
from gradsieve_hvd.server.node_table import NodeTable, take_turn


def decided(speeds, present):
    table = NodeTable(len(speeds))
    for node, speed, share in zip(table.nodes, speeds, present, strict=True):
        node.share = share
        node.record_push(Pushed(0.0, 0, node.rank, 0, 100, 100 / speed))
    return list(BalancedShares().decide(table).values())


def test_a_rank_that_is_late_by_a_tenth_among_uneven_ones_gives_some_of_its_batch_away():
    assert decided([1, 1, 2, 4], [0.5, 0.5, 1.1, 1.9]) == pytest.approx([0.5, 0.5, 1, 2])


def test_shares_stay_while_they_would_change_by_less_than_a_twentieth():
    present = [0.48, 0.52, 0.98, 2.02]
    assert decided([1, 1, 2, 4], present) == present


def test_ranks_that_seem_to_differ_by_less_than_a_fifth_have_equal_shares():
    assert decided([1.0, 1.4], [1.0, 1.0]) == [1.0, 1.0]
    assert decided([1.0, 1.6], [1.0, 1.0]) == pytest.approx([0.77, 1.23], abs=0.005)


def test_shares_become_equal_again_where_ranks_seem_to_differ_by_less_than_a_tenth():
    assert decided([1.0, 1.15], [0.9, 1.1]) == [1.0, 1.0]
    assert decided([1.0, 1.3], [0.75, 1.25]) == pytest.approx([0.87, 1.13], abs=0.005)


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8), st.data())
def test_no_rank_is_later_than_speeds_allow_by_more_than_the_bands(speeds, data):
    present = data.draw(st.lists(st.floats(0.125, 3.0), min_size=len(speeds), max_size=len(speeds)))
    shares = decided(speeds, present)
    ideal = len(speeds) / sum(speeds)
    late = max(share / speed for share, speed in zip(shares, speeds, strict=True)) / ideal - 1
    even = shares == [1.0] * len(speeds)
    assert late <= (1 / 0.8 - 1 if even else 1 / 0.95 - 1) + 1e-9


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9))
def test_shares_within_their_bounds_add_up_to_the_number_of_ranks(speeds):
    shares = decided(speeds, [1.0] * len(speeds))
    assert sum(shares) == pytest.approx(len(speeds))
    assert all(1 / 8 <= share <= 3 for share in shares)
    between = [share / speed for share, speed in zip(shares, speeds, strict=True) if 1 / 8 < share < 3]
    even = shares == [1.0] * len(speeds)
    assert even or not between or between == pytest.approx([between[0]] * len(between))


def test_shares_change_when_speeds_are_told_after_the_third_step_and_every_tenth():
    """A rank becomes slower with each step here, so that shares would change after each."""
    table, number, changed = NodeTable(2), 0, []
    replies = {each.rank: each.share for each in take_turn(table, MODES["balanced"], Started(0.0))}
    for step in range(1, 31):
        actions = []
        for rank, seconds in enumerate((1.0, 1.0 + 0.5 * step)):
            samples = round(100 * replies[rank])
            pushed = Pushed(float(step), number, rank, table.version, samples, seconds * replies[rank])
            actions = take_turn(table, MODES["balanced"], pushed)
            number += 1
        assert isinstance(actions[0], Release)
        told = {each.rank: each.share for each in actions if isinstance(each, Reply)}
        if told != replies:
            changed.append(step)
        replies = told
    assert changed == [3, 10, 20, 30]
