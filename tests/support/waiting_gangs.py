"""Small clusters and queues of gangs for laws, as strategies of hypothesis."""

from dataclasses import replace

from hypothesis import strategies as st
from worlds import GPU, cluster, gang, gpu_node, load, node, pod

from gradsieve_operator.placement import PATIENCE, Refused
from gradsieve_operator.placement.antiaffinity import AntiAffinity

NAMES = ("n0", "n1", "n2")
GUARD = AntiAffinity(
    topology="zone", selector={"matchLabels": {"gradsieve.io/group": "g1"}}, namespaces=("",)
)


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
