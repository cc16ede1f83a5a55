"""A node for every pod of a gang, or what is missing where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradsieve_operator.placement.cluster import Cluster, Load
from gradsieve_operator.placement.eligibility import Eligibility, obstacle
from gradsieve_operator.placement.gang import Gang
from gradsieve_operator.placement.packing import search
from gradsieve_operator.placement.preferences import preferred
from gradsieve_operator.placement.problem import Problem, Solution
from gradsieve_operator.placement.rooms import Rooms
from gradsieve_operator.placement.shortage import Shortage, explain


@dataclass(frozen=True, slots=True)
class Assignment:
    """A node for every pod of the gang.

    nodes: pod -> node.
    loads: what the pods will hold.
    """

    nodes: Mapping[str, str]
    loads: tuple[Load, ...]


def plan(cluster: Cluster, gang: Gang, eligibility: Eligibility | None = None) -> Assignment | Shortage:
    """Return where all pods of ``gang`` go in ``cluster`` as it is now, or why they cannot.

    Equal arguments give equal results, in whatever order nodes and pods arrived. ``eligibility`` is that of
    its nodes, where it is known already.
    """
    rooms = Rooms(cluster, eligibility)
    return assign(rooms, gang) or explain(rooms, gang)


def assign(rooms: Rooms, gang: Gang) -> Assignment | None:
    """Return where all pods of ``gang`` go, None if there is no room for all of them.

    0. Where one shape alone has no room for all of its pods, there is none.
    1. Leave out the nodes that have refused such pods lately, be it to be tried again or not.
    2. Place the gang as its preference says, greedily.
    3. If that finds nothing, take any placement that a search finds.
    4. If there is none, do the same with the nodes that may be tried again.
    """
    if any(sum(rooms.fitting(shape).values()) < shape.count for shape in gang.shapes):
        return None
    problem = Problem.of(rooms, gang)
    solution = None
    if any(shape.refused.doubted for shape in gang.shapes):
        solution = _solve(problem.without_doubts(gang), rooms.cluster, gang)
    solution = solution or _solve(problem, rooms.cluster, gang)
    return None if solution is None else _assignment(problem, gang, solution)


def still_fits(cluster: Cluster, gang: Gang, nodes: Mapping[str, str]) -> bool:
    """Return whether a plan that was made a moment ago fits into ``cluster``, of which its nodes are enough.

    Not looked at: other pods' anti-affinity, which the scheduler knows.

    Args:
        cluster: as it is now.
        gang: that the plan is for.
        nodes: the plan: pod -> node.
    """
    placed = [(nodes[pod], shape) for shape in gang.shapes for pod in shape.pods]
    for where, shape in set(placed):
        node = cluster.nodes.get(where)
        if node is None or obstacle(node, shape.spec, shape.gpu_products) is not None:
            return False
    filled = cluster.with_loads(Load(node=where, requests=shape.requests) for where, shape in placed)
    return all(filled.free(where, name) >= 0 for where, shape in placed for name in shape.requests)


def _solve(problem: Problem, cluster: Cluster, gang: Gang) -> Solution | None:
    return preferred(problem, cluster, gang) or search(problem)


def _assignment(problem: Problem, gang: Gang, solution: Solution) -> Assignment:
    nodes: dict[str, str] = {}
    loads = []
    for shape, placed in zip(gang.shapes, solution, strict=True):
        places = [problem.nodes[node] for node, count in sorted(placed.items()) for _ in range(count)]
        nodes |= dict(zip(shape.pods, places, strict=True))
        loads += [Load(node=node, requests=shape.requests, ends=True) for node in places]
    return Assignment(nodes, tuple(loads))
