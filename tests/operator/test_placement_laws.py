"""Laws of the planner, held against a search through all placements of small worlds."""

from collections import Counter
from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import GPU, cluster, gang, gpu_node, load, node, pod

from gradsieve_operator.placement import Assignment, Cluster, Refused, Shortage, plan
from gradsieve_operator.placement.antiaffinity import AntiAffinity

POLICIES = st.sampled_from(["Fastest", "Pack", "Spread"])
TERMS = st.builds(
    lambda topology, group: AntiAffinity(
        topology=topology, selector={"matchLabels": {"gradsieve.io/group": group}}, namespaces=("",)
    ),
    st.sampled_from(["zone", "topology.kubernetes.io/zone"]),
    st.sampled_from(["g0", "g1"]),
)


@st.composite
def nodes(draw):
    """One to three nodes of different sizes, GPUs and zones."""
    made = []
    for index in range(draw(st.integers(1, 3))):
        amounts = {"cpu": str(draw(st.integers(1, 5))), "memory": str(draw(st.integers(0, 4)))}
        labels = {
            "zone": draw(st.sampled_from("ab")),
            "topology.kubernetes.io/zone": draw(st.sampled_from("xy")),
        }
        if draw(st.booleans()):
            labels["nvidia.com/gpu.product"] = draw(st.sampled_from(["A100", "T4"]))
            amounts[GPU] = str(draw(st.integers(0, 3)))
        made.append(node(f"n{index}", labels=labels, pods=draw(st.integers(1, 4)), allocatable=amounts))
    return made


@st.composite
def loads(draw):
    """Pods that are there already; nodes may be over-committed, or unknown. Some keep a group away."""
    amounts = {"cpu": st.integers(0, 3000), "memory": st.integers(0, 3), "gpu": st.integers(0, 1)}
    chosen = draw(st.lists(st.sampled_from(["n0", "n1", "gone"]), max_size=2))
    return tuple(
        replace(
            load(name, **{key: draw(value) for key, value in amounts.items()}, ends=draw(st.booleans())),
            keeps_away=draw(st.lists(TERMS, max_size=1).map(tuple)),
        )
        for name in chosen
    )


@st.composite
def gangs(draw, key="team/job"):
    """One to three groups with up to five pods in all."""
    manifests = []
    for group in range(draw(st.integers(1, 3))):
        requests = {
            "cpu": f"{draw(st.sampled_from([500, 1000, 1500, 2000]))}m",
            "memory": draw(st.integers(0, 2)),
        }
        requests[GPU] = draw(st.integers(0, 1))
        selector = {"zone": draw(st.sampled_from("ab"))} if draw(st.booleans()) else {}
        manifests += [
            pod(f"g{group}-{index}", f"g{group}", requests=requests, nodeSelector=selector)
            for index in range(draw(st.integers(1, 2)))
        ]
    products = draw(st.sampled_from([(), ("A100",), ("T4", "A100")]))
    refused = {
        "g0": Refused(
            left_out=dict.fromkeys(draw(st.sets(st.sampled_from(["n0", "n1"]), max_size=1)), "full"),
            doubted=frozenset(draw(st.sets(st.sampled_from(["n0", "n2"]), max_size=1))),
        )
    }
    return gang(*manifests, key=key, gpu_products=products, placement=draw(POLICIES), refused=refused)


def used(assignment: Assignment) -> Counter:
    """What the assignment holds: (node, resource) -> amount, counted anew from the loads."""
    total: Counter = Counter()
    for item in assignment.loads:
        for resource, amount in item.requests.items():
            total[item.node, resource] += amount
    return total


def is_allowed(world: Cluster, wanted, nodes_of) -> bool:
    """Whether pods may be on these nodes: refusals, anti-affinity, selectors, products, every resource."""
    total: Counter = Counter()
    for shape in wanted.shapes:
        for name in shape.pods:
            labels = world.nodes[nodes_of[name]].labels
            if nodes_of[name] in shape.refused.left_out or kept_away(world, shape, labels):
                return False
            if any(labels.get(key) != value for key, value in shape.spec.get("nodeSelector", {}).items()):
                return False
            if shape.gpu_products and labels.get("nvidia.com/gpu.product") not in shape.gpu_products:
                return False
            for resource, amount in shape.requests.items():
                total[nodes_of[name], resource] += amount
    return all(amount <= world.free(where, resource) for (where, resource), amount in total.items())


def kept_away(world: Cluster, shape, labels) -> bool:
    """Whether a pod that is there keeps this group away from nodes with these labels."""
    return any(
        shape.group in term.selector["matchLabels"].values()
        and labels[term.topology] == world.nodes[one.node].labels[term.topology]
        for one in world.guarded
        if one.node in world.nodes
        for term in one.keeps_away
    )


def possible(world: Cluster, wanted) -> bool:
    """Whether any placement at all is allowed: tries them all."""
    names = [name for shape in wanted.shapes for name in shape.pods]
    choices = product(world.nodes, repeat=len(names))
    return any(is_allowed(world, wanted, dict(zip(names, chosen, strict=True))) for chosen in choices)


@settings(max_examples=200)
@given(nodes(), loads(), gangs())
def test_a_placement_is_found_exactly_when_there_is_one(made, there, wanted):
    world = cluster(*made, loads=there)
    assert isinstance(plan(world, wanted), Assignment) == possible(world, wanted)


@settings(max_examples=200)
@given(nodes(), loads(), gangs())
def test_nothing_is_over_committed_and_no_gang_is_split(made, there, wanted):
    world = cluster(*made, loads=there)
    found = plan(world, wanted)
    if isinstance(found, Assignment):
        assert set(found.nodes) == {name for shape in wanted.shapes for name in shape.pods}
        assert is_allowed(world, wanted, found.nodes)
        assert Counter(item.node for item in found.loads) == Counter(found.nodes.values())
        assert all(amount <= world.free(*where) for where, amount in used(found).items())


@settings(max_examples=100)
@given(nodes(), loads(), gangs(), st.randoms(use_true_random=False))
def test_the_order_in_which_things_arrive_does_not_matter(made, there, wanted, random):
    shuffled, mixed = list(made), list(there)
    random.shuffle(shuffled)
    random.shuffle(mixed)
    assert plan(cluster(*made, loads=there), wanted) == plan(cluster(*shuffled, loads=tuple(mixed)), wanted)


@settings(max_examples=100)
@given(nodes(), loads(), gangs(), st.data())
def test_more_room_never_takes_a_placement_away(made, there, wanted, data):
    if isinstance(plan(cluster(*made, loads=there), wanted), Assignment):
        fewer = tuple(item for item in there if data.draw(st.booleans()))
        larger = [*made, gpu_node("n9", "A100", 2)]
        assert isinstance(plan(cluster(*made, loads=fewer), wanted), Assignment)
        assert isinstance(plan(cluster(*larger, loads=there), wanted), Assignment)


@settings(max_examples=200)
@given(nodes(), loads(), gangs(), st.data())
def test_where_a_gang_has_room_any_part_of_it_has(made, there, wanted, data):
    """What the search for the most places that can be filled relies on."""
    world = cluster(*made, loads=there)
    if isinstance(plan(world, wanted), Assignment):
        left = [replace(shape, pods=shape.pods[data.draw(st.integers(0, 2)) :]) for shape in wanted.shapes]
        part = replace(wanted, shapes=tuple(shape for shape in left if shape.pods))
        assert isinstance(plan(world, part), Assignment)


@settings(max_examples=100)
@given(nodes(), loads(), gangs())
def test_a_doubted_node_is_used_only_when_there_is_no_placement_without(made, there, wanted):
    world = cluster(*made, loads=there)
    strict = replace(
        wanted,
        shapes=tuple(
            replace(
                shape,
                refused=Refused(
                    left_out={**shape.refused.left_out, **dict.fromkeys(shape.refused.doubted, "")}
                ),
            )
            for shape in wanted.shapes
        ),
    )
    found = plan(world, wanted)
    if isinstance(found, Assignment) and not is_allowed(world, strict, found.nodes):
        assert not possible(world, strict)


@settings(max_examples=100)
@given(nodes(), loads(), gangs())
def test_what_is_missing_is_said_in_a_sentence(made, there, wanted):
    found = plan(cluster(*made, loads=there), wanted)
    if isinstance(found, Shortage):
        assert len(found.message) > 20
        assert [item.wanted for item in found.missing] == [shape.count for shape in wanted.shapes]
