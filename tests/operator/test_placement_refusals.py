"""How long a node that has refused pods is left out, and what the planner makes of that."""

from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import GPU, cluster, gang, gpu_node, load, node, place, pods

from gradsieve_operator.placement import Assignment, Refusals, Refused, Shortage, plan
from gradsieve_operator.placement.refusals import FIRST_SECONDS, KEPT_SECONDS, LONGEST_SECONDS

WHY = "0/3 nodes are available: volume node affinity conflict"


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def refusing(clock: Clock, node: str = "a") -> Refusals:
    refusals = Refusals(clock)
    refusals.add("job", "workers", node, WHY)
    return refusals


def pause(refusals: Refusals, clock: Clock) -> float:
    """Let time pass until the node is tried again; returns how long that took."""
    began = clock.now
    while refusals.of("job")["workers"].left_out:
        clock.now += 1.0
    return clock.now - began


def test_each_refusal_after_the_last_one_s_time_counts_for_twice_as_long_up_to_a_limit():
    clock = Clock()
    refusals, pauses = Refusals(clock), []
    for _ in range(7):
        refusals.add("job", "workers", "a", WHY)
        pauses.append(pause(refusals, clock))
    assert pauses == [10, 20, 40, 80, 160, 300, 300]
    assert (FIRST_SECONDS, LONGEST_SECONDS) == (10, 300)


def test_pods_that_are_refused_together_count_once():
    clock = Clock()
    refusals = refusing(clock)
    clock.now += 4
    refusals.add("job", "workers", "a", WHY)
    assert pause(refusals, clock) == FIRST_SECONDS - 4


def test_after_its_time_a_node_is_doubted_and_in_the_end_forgotten():
    clock = Clock()
    refusals = refusing(clock)
    pause(refusals, clock)
    assert refusals.of("job") == {"workers": Refused(doubted=frozenset({"a"}))}
    clock.now += KEPT_SECONDS
    assert refusals.of("job") == {}
    refusals.add("job", "workers", "a", WHY)
    assert pause(refusals, clock) == FIRST_SECONDS


def test_what_one_job_or_group_was_refused_says_nothing_of_others():
    refusals = refusing(Clock())
    assert refusals.of("another") == {}
    assert set(refusals.of("job")) == {"workers"}


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 4000)), max_size=40))
def test_no_node_is_left_out_for_longer_than_the_limit_and_nothing_is_kept_for_ever(events):
    clock = Clock()
    refusals = Refusals(clock)
    for name, waited in events:
        clock.now += waited
        refusals.add("job", "workers", name, WHY)
    clock.now += LONGEST_SECONDS
    assert all(not found.left_out for found in refusals.of("job").values())
    clock.now += KEPT_SECONDS
    refusals.add("later", "workers", "a", WHY)
    assert len(refusals._refusals) == 1


NODES = (node("a"), node("b"), node("c"))


def wanting(count: int, refused: Refused, **more):
    return gang(*pods(count, requests={"cpu": 8}), refused={"workers": refused}, **more)


def test_a_node_that_is_left_out_is_not_used_and_the_message_says_why():
    refused = Refused(left_out={"a": WHY})
    found = plan(cluster(*NODES), wanting(2, refused))
    assert set(found.nodes.values()) == {"b", "c"}
    lacking = place(cluster(*NODES), wanting(3, refused), [])
    assert f"1 node is left out for a while, as such a pod was refused there ({WHY})" in lacking.message
    assert lacking.ever


def test_a_node_without_room_is_said_to_be_full_whether_or_not_it_has_refused():
    found = plan(cluster(*NODES, loads=(load("a", cpu=1000),)), wanting(3, Refused(left_out={"a": WHY})))
    assert "too little is free on a (cpu 7)" in found.message


def test_a_doubted_node_is_used_only_where_there_is_no_other():
    refused = Refused(doubted=frozenset({"a"}))
    assert set(plan(cluster(*NODES), wanting(2, refused)).nodes.values()) == {"b", "c"}
    assert set(plan(cluster(*NODES), wanting(3, refused)).nodes.values()) == {"a", "b", "c"}


def test_no_places_are_held_for_a_job_that_every_node_has_refused():
    two = (gpu_node("x", "T4", 1), gpu_node("y", "T4", 1))
    refused = {"workers": Refused(left_out={"x": WHY, "y": WHY})}
    waits = gang(*pods(1, requests={GPU: 1}), key="waits", since=1, overtaken=3, refused=refused)
    late = gang(*pods(2, requests={GPU: 1}), key="late", since=2)
    assert isinstance(place(cluster(*two), waits, [waits, late]), Shortage)
    assert isinstance(place(cluster(*two), late, [waits, late]), Assignment)
