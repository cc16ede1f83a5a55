"""What holds in every mode, whatever the workers do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_workers import Script

from gradsieve_hvd.server.events import Pushed, Reply
from gradsieve_hvd.server.modes import DASP_WITH_SHARES, MODES
from gradsieve_hvd.server.node_table import NodeTable, Phase

ALL = MODES | {"dasp with shares": DASP_WITH_SHARES}
SECONDS = 60.0
LONGEST = 8.0


@st.composite
def scripts(draw, modes=tuple(ALL)):
    ranks = draw(st.integers(1, 6))
    durations = draw(
        st.lists(st.lists(st.floats(0.2, LONGEST), min_size=1, max_size=6), min_size=ranks, max_size=ranks)
    )
    leaves = draw(st.dictionaries(st.integers(0, ranks - 1), st.integers(0, 8), max_size=ranks - 1))
    mode = ALL[draw(st.sampled_from(modes))]
    return Script(mode, ranks, lambda rank, clock: durations[rank][clock % len(durations[rank])], leaves)


@settings(max_examples=150, deadline=None)
@given(scripts())
def test_each_push_is_applied_or_discarded_once_or_still_waits(script):
    script.run(SECONDS)
    ends = [*script.missed, *script.discarded, *script.table.pending]
    assert sorted(ends) == sorted(script.pushes)


@settings(max_examples=150, deadline=None)
@given(scripts())
def test_no_worker_waits_for_ever(script):
    script.run(SECONDS)
    before = {node.rank: len(script.replies(node.rank)) for node in script.table.active}
    # A worker may have to wait until the slowest has caught up with a lead of 15 iterations and more.
    script.run(SECONDS + 20 * 3 * LONGEST)
    for node in script.table.active:
        assert len(script.replies(node.rank)) > before[node.rank]


@settings(max_examples=60, deadline=None)
@given(scripts(modes=("dasp", "dasp with shares")))
def test_no_applied_gradient_has_missed_more_releases_than_the_bound(script):
    script.run(3 * SECONDS)
    assert max(script.missed.values(), default=0) <= 16


@pytest.mark.parametrize(("name", "bound"), [("ssp", 3), ("dssp", 15)])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_worker_begins_an_iteration_with_a_lead_beyond_the_bound(name, bound, data):
    script = data.draw(scripts(modes=(name,))).run(SECONDS)
    clocks = dict.fromkeys(range(script.ranks), 0)
    for _, event, actions in script.log:
        if isinstance(event, Pushed):
            clocks[event.rank] += 1
        elif hasattr(event, "rank"):
            del clocks[event.rank]
        for action in actions:
            if isinstance(action, Reply):
                assert clocks[action.rank] - min(clocks.values()) <= bound


@settings(max_examples=60, deadline=None)
@given(scripts())
def test_deciding_changes_nothing_and_gives_the_same_again(script):
    script.run(SECONDS)
    table: NodeTable = script.table
    event = script.log[-1][1]
    before = repr((table.nodes, table.version, table.released, table.pending))
    if any(node.phase is Phase.WAITING for node in table.nodes) or table.pending:
        assert script.mode.decide(table, event) == script.mode.decide(table, event)
    script.mode.decide(table, event)
    assert repr((table.nodes, table.version, table.released, table.pending)) == before
