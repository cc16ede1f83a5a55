"""Which of the possible placements is preferred: Fastest, Pack or Spread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradsieve_operator.placement.cluster import Cluster, Node
from gradsieve_operator.placement.eligibility import GPU_PRODUCT, avoided
from gradsieve_operator.placement.gang import Gang, Shape
from gradsieve_operator.placement.problem import Problem, Solution, most, take
from gradsieve_operator.placement.requests import GPU

ZONE = "topology.kubernetes.io/zone"
_GPU_MEMORY = "nvidia.com/gpu.memory"


@dataclass(slots=True)
class _State:
    """A placement in the making.

    free: of each node, after the pods placed so far.
    here: pods of the gang on each node.
    """

    free: list[tuple[int, ...]]
    here: list[int]


Rank = tuple[object, ...]
"""What nodes are compared by; the smallest is preferred."""


def preferred(problem: Problem, cluster: Cluster, gang: Gang) -> Solution | None:
    """Return a placement as the gang prefers it, None if that way none is found (there may be others).

    All: a pod that needs no GPU goes to a node with GPUs, and any pod to a node that is tainted
    PreferNoSchedule, only where nothing else is left; equal nodes are taken in the order of names.

    - ``Fastest``: the whole gang in one zone if it fits; best GPUs first (the order of ``gpuProducts``, else
      the larger memory); then as few nodes as possible, as ranks on one node exchange gradients in memory.
    - ``Pack``: the fullest nodes first, so that empty ones stay free for others.
    - ``Spread``: on as many nodes as possible, the emptiest first, so that a lost node costs little.
    """
    if gang.placement == "Fastest":
        zones = sorted({cluster.nodes[name].labels.get(ZONE, "") for name in problem.nodes})
        found = [] if len(zones) < 2 else [_in_zone(problem, cluster, gang, zone) for zone in zones]
        possible = [(rank, solution) for rank, solution in found if solution is not None]
        if possible:
            return min(possible, key=lambda pair: pair[0])[1]
    return _greedy(problem, cluster, gang)


def _in_zone(problem: Problem, cluster: Cluster, gang: Gang, zone: str) -> tuple[Rank, Solution | None]:
    inside = [
        number
        for number, name in enumerate(problem.nodes)
        if cluster.nodes[name].labels.get(ZONE, "") == zone
    ]
    solution = _greedy(problem.within(inside), cluster, gang)
    if solution is None:
        return (), None
    nodes = {node for placed in solution for node in placed}
    ranks = [
        (_gpu_rank(cluster.nodes[problem.nodes[node]], shape), count)
        for shape, placed in zip(gang.shapes, solution, strict=True)
        if shape.needs_gpus
        for node, count in placed.items()
    ]
    return (sum(rank * count for rank, count in ranks), len(nodes), zone), solution


def _greedy(problem: Problem, cluster: Cluster, gang: Gang) -> Solution | None:
    state = _State(list(problem.free), [0] * len(problem.nodes))
    solution: Solution = tuple({} for _ in gang.shapes)
    for shape in _hardest_first(problem):
        rank = _rank(problem, cluster, gang, shape)
        left, need = problem.counts[shape], problem.needs[shape]
        open_nodes = {node for node in problem.eligible[shape] if most(state.free[node], need, 1)}
        while left:
            if not open_nodes:
                return None
            node = min(open_nodes, key=lambda node: (rank(node, state), node))
            one_by_one = gang.placement == "Spread"
            count = 1 if one_by_one else most(state.free[node], need, left)
            state.free[node] = take(state.free[node], need, count)
            state.here[node] += count
            solution[shape][node] = solution[shape].get(node, 0) + count
            left -= count
            if not most(state.free[node], need, 1):
                open_nodes.remove(node)
    return solution


def _hardest_first(problem: Problem) -> list[int]:
    """Shapes with the least room beyond what they need come first."""

    def slack(shape: int) -> tuple[float, int]:
        room = sum(
            most(problem.free[node], problem.needs[shape], 1 << 20) for node in problem.eligible[shape]
        )
        return room / problem.counts[shape], shape

    return sorted(range(len(problem.counts)), key=slack)


def _rank(problem: Problem, cluster: Cluster, gang: Gang, shape: int) -> Callable[[int, _State], Rank]:
    kind, need, count = gang.shapes[shape], problem.needs[shape], problem.counts[shape]
    nodes = [cluster.nodes[name] for name in problem.nodes]
    last = {node: _last_resort(nodes[node], kind) for node in problem.eligible[shape]}
    if gang.placement == "Fastest":
        gpus = {node: _gpu_rank(nodes[node], kind) if kind.needs_gpus else 0 for node in last}

        def fastest(node: int, state: _State) -> Rank:
            return (*last[node], gpus[node], state.here[node] == 0, -most(state.free[node], need, count))

        return fastest
    empty = {node: _emptiness(problem, cluster, node) for node in last}
    if gang.placement == "Pack":
        return lambda node, _: (*last[node], empty[node])
    return lambda node, state: (*last[node], state.here[node], -empty[node])


def _last_resort(node: Node, shape: Shape) -> tuple[bool, bool]:
    return avoided(node, shape.spec), not shape.needs_gpus and node.allocatable.get(GPU, 0) > 0


def _gpu_rank(node: Node, shape: Shape) -> int:
    if shape.gpu_products:
        return shape.gpu_products.index(node.labels[GPU_PRODUCT])
    memory = node.labels.get(_GPU_MEMORY, "")
    return -int(memory) if memory.isdecimal() else 0


def _emptiness(problem: Problem, cluster: Cluster, node: int) -> float:
    """Return the free part of the node's scarcest resource among those the gang asks for.

    Equal parts are equal numbers: the quotient of whole numbers is rounded correctly.
    """
    parts = [
        free / capacity
        for resource, free in zip(problem.resources, problem.free[node], strict=True)
        if (capacity := cluster.capacity(problem.nodes[node], resource)) > 0
    ]
    return min(parts, default=0.0)
