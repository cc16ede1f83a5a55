"""What pods hold is counted pod by pod as it would be counted anew."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from worlds import load, node

from gradsieve_operator.placement import Cluster, Holdings, Load
from gradsieve_operator.placement.antiaffinity import AntiAffinity

NODES = [node("b"), node("a")]
AWAY = AntiAffinity(topology="zone", selector={}, namespaces=("team",))
LOADS = st.builds(
    lambda where, cpu, gpu, ends, away: replace(
        load(where, ends=ends, cpu=cpu, gpu=gpu), keeps_away=(AWAY,) if away else ()
    ),
    st.sampled_from(["a", "b", "gone"]),
    st.integers(0, 3),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
)
CHANGES = st.lists(st.tuples(st.sampled_from("uvwxyz"), st.none() | LOADS), max_size=30)


def amounts(totals) -> dict[str, dict[str, int]]:
    """Return what is held, without what is not."""
    found = {name: {what: amount for what, amount in each.items() if amount} for name, each in totals.items()}
    return {name: each for name, each in found.items() if each}


@given(CHANGES)
def test_after_any_changes_the_cluster_is_that_of_the_pods_that_are_left(changes):
    holdings, left = Holdings(), dict[str, Load]()
    for pod, found in changes:
        holdings.put(pod, found)
        left.pop(pod, None)
        if found is not None:
            left[pod] = found
    mine, anew = holdings.cluster(NODES), Cluster.of(NODES, left.values())
    assert list(mine.nodes) == list(anew.nodes) == ["a", "b"]
    assert amounts(mine.held) == amounts(anew.held)
    assert amounts(mine.ending) == amounts(anew.ending)
    assert mine.guarded == anew.guarded
    assert {pod for pod in "uvwxyz" if pod in holdings} == left.keys()
