"""One pass over all waiting gangs finds what each of them would find on its own."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from waiting_gangs import queues, worlds

from gradsieve_operator.placement import (
    PATIENCE,
    Assignment,
    Known,
    Shortage,
    plan,
    plan_queue,
    plans_in_turn,
)
from gradsieve_operator.placement.queue import turn


def place(world, wanted, waiting):
    """The definition: go through the gangs before this one, and plan it in what they leave."""
    rest, held_for = world, ""
    for other in sorted((other for other in waiting if turn(other) < turn(wanted)), key=turn):
        taken = plan(rest, other)
        if isinstance(taken, Shortage) and other.overtaken >= PATIENCE:
            taken = plan(rest.when_jobs_have_ended(), other)
            held_for = held_for or (other.key if isinstance(taken, Assignment) else "")
        if isinstance(taken, Assignment):
            rest = rest.with_loads(taken.loads)
    found = plan(rest, wanted)
    if isinstance(found, Shortage):
        ever = isinstance(plan(world.when_jobs_have_ended(), wanted.trusting()), Assignment)
        return replace(found, held_for=held_for, ever=ever)
    return found


@settings(max_examples=300)
@given(worlds(), queues())
def test_the_pass_over_the_queue_finds_for_each_gang_what_is_found_for_it_alone(world, waiting):
    assert plan_queue(world, waiting) == {each.key: place(world, each, waiting) for each in waiting}


_BETWEEN = ("a job has started", "other jobs wait", "jobs have ended", "all is as it was", "other nodes")


@settings(max_examples=120)
@given(worlds(), worlds(), st.lists(st.tuples(st.sampled_from(_BETWEEN), queues()), max_size=4))
def test_what_earlier_passes_have_found_changes_no_plan(first, second, passes):
    known, world, waiting = Known(), first, []
    for between, others in passes:
        if between == "other nodes":
            world = second
        elif between == "jobs have ended":
            world = world.when_jobs_have_ended()
        elif between == "all is as it was":
            world = first
        # Those that wait for longer than a pass are the same objects.
        waiting = waiting if between == "a job has started" and waiting else others
        found = dict(plans_in_turn(world, waiting, known))
        assert found == plan_queue(world, waiting)
        # Jobs start in what was found for them, and are pods that end some day from then on.
        placed = [load for each in found.values() if isinstance(each, Assignment) for load in each.loads]
        world = world.with_loads(placed[:1])


@settings(max_examples=100)
@given(worlds(), queues())
def test_all_plans_of_a_pass_fit_together(world, waiting):
    plans = plan_queue(world, waiting).values()
    taken = [item for found in plans if isinstance(found, Assignment) for item in found.loads]
    together = world.with_loads(taken)
    for item in taken:
        assert all(together.free(item.node, resource) >= 0 for resource in item.requests)
