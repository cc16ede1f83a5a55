"""One pass over all waiting gangs finds what each of them would find on its own."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import GPU, cluster, gang, gpu_node, load, node, pod

from gradsieve_operator.placement import PATIENCE, Assignment, Refused, Shortage, plan, plan_queue
from gradsieve_operator.placement.antiaffinity import AntiAffinity
from gradsieve_operator.placement.queue import turn

NAMES = ("n0", "n1", "n2")
GUARD = AntiAffinity(
    topology="zone", selector={"matchLabels": {"gradsieve.io/group": "g1"}}, namespaces=("",)
)


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


@st.composite
def worlds(draw):
    """Up to three nodes, some of them with GPUs, and pods that are there."""
    nodes = [
        gpu_node(name, draw(st.sampled_from(["A100", "T4"])), draw(st.integers(0, 4)), labels={"zone": zone})
        if draw(st.booleans())
        else node(name, labels={"zone": zone}, allocatable={"cpu": str(draw(st.integers(1, 6)))})
        for name, zone in zip(NAMES[: draw(st.integers(1, 3))], "aab", strict=False)
    ]
    loads = [
        replace(
            load(draw(st.sampled_from(NAMES)), cpu=draw(st.integers(0, 4000)), gpu=draw(st.integers(0, 2))),
            ends=draw(st.booleans()),
            keeps_away=(GUARD,) * draw(st.integers(0, 1)),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    return cluster(*nodes, loads=tuple(loads))


@st.composite
def kinds(draw):
    """The pods of a job of one or two groups, and what the job says of them."""
    manifests = []
    for group in range(draw(st.integers(1, 2))):
        requests = {"cpu": str(draw(st.integers(1, 3))), GPU: draw(st.integers(0, 2))}
        selector = {"zone": draw(st.sampled_from("ab"))} if draw(st.booleans()) else {}
        manifests += [
            pod(f"g{group}-{index}", f"g{group}", requests=requests, nodeSelector=selector)
            for index in range(draw(st.integers(1, 3)))
        ]
    refused = {
        "g0": Refused(
            left_out=dict.fromkeys(draw(st.sets(st.sampled_from(NAMES), max_size=1)), "full"),
            doubted=frozenset(draw(st.sets(st.sampled_from(NAMES), max_size=1))),
        )
    }
    about = {
        "gpu_products": draw(st.sampled_from([(), ("A100",), ("T4", "A100")])),
        "placement": draw(st.sampled_from(["Fastest", "Pack", "Spread"])),
        "refused": draw(st.sampled_from([{}, refused])),
    }
    return manifests, about


@st.composite
def queues(draw):
    """Up to six gangs of up to three kinds: some are equal but for their names."""
    chosen = draw(st.lists(kinds(), min_size=1, max_size=3))
    waiting = []
    for index in range(draw(st.integers(1, 6))):
        manifests, about = draw(st.sampled_from(chosen))
        waiting.append(
            gang(
                *manifests,
                key=f"team/{index}",
                since=draw(st.integers(0, 3)),
                priority=draw(st.integers(0, 1)),
                overtaken=draw(st.sampled_from([0, PATIENCE])),
                **about,
            )
        )
    return waiting


@settings(max_examples=300)
@given(worlds(), queues())
def test_the_pass_over_the_queue_finds_for_each_gang_what_is_found_for_it_alone(world, waiting):
    assert plan_queue(world, waiting) == {each.key: place(world, each, waiting) for each in waiting}


@settings(max_examples=100)
@given(worlds(), queues())
def test_all_plans_of_a_pass_fit_together(world, waiting):
    plans = plan_queue(world, waiting).values()
    taken = [item for found in plans if isinstance(found, Assignment) for item in found.loads]
    together = world.with_loads(taken)
    for item in taken:
        assert all(together.free(item.node, resource) >= 0 for resource in item.requests)
