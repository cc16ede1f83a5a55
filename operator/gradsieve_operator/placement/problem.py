"""A placement problem in numbers: vectors of what is free and of what is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gradsieve_operator.placement.gang import Gang
from gradsieve_operator.placement.rooms import Rooms

Vector = tuple[int, ...]
"""An amount of each resource that the gang asks for, in one fixed order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """How many pods of each shape on which node? Shapes and nodes are numbered.

    nodes: names of the nodes that at least one pod of a shape fits on, in the order of names.
    resources: what the vectors count.
    free: of each node.
    needs: of one pod of each shape.
    counts: how many pods of each shape there are.
    eligible: numbers of the nodes that each shape may be on, and that have room for at least one of its pods.
    """

    nodes: tuple[str, ...]
    resources: tuple[str, ...]
    free: tuple[Vector, ...]
    needs: tuple[Vector, ...]
    counts: tuple[int, ...]
    eligible: tuple[frozenset[int], ...]

    @classmethod
    def of(cls, rooms: Rooms, gang: Gang) -> Problem:
        """Return the problem of placing ``gang`` where there is room now."""
        fitting = [rooms.fitting(shape) for shape in gang.shapes]
        kept = tuple(sorted({name for names in fitting for name in names}))
        numbers = {name: number for number, name in enumerate(kept)}
        resources = tuple(sorted({name for shape in gang.shapes for name in shape.requests}))
        free = rooms.cluster.free
        return cls(
            nodes=kept,
            resources=resources,
            free=tuple(tuple(free(name, resource) for resource in resources) for name in kept),
            needs=tuple(
                tuple(shape.requests.get(resource, 0) for resource in resources) for shape in gang.shapes
            ),
            counts=tuple(shape.count for shape in gang.shapes),
            eligible=tuple(frozenset(numbers[name] for name in names) for names in fitting),
        )

    def without_doubts(self, gang: Gang) -> Problem:
        """Return the same problem with only those nodes eligible for a shape that have not refused it."""
        return replace(
            self,
            eligible=tuple(
                frozenset(node for node in nodes if self.nodes[node] not in shape.refused.doubted)
                for shape, nodes in zip(gang.shapes, self.eligible, strict=True)
            ),
        )

    def within(self, nodes: Iterable[int]) -> Problem:
        """Return the same problem with only these nodes eligible."""
        among = frozenset(nodes)
        return replace(self, eligible=tuple(nodes & among for nodes in self.eligible))


Solution = tuple[dict[int, int], ...]
"""For each shape: node -> how many pods."""


def most(free: Sequence[int], need: Vector, limit: int) -> int:
    """Return how many pods with that need fit, at most ``limit``."""
    for amount, each in zip(free, need, strict=True):
        if each and amount < limit * each:
            limit = amount // each
            if limit <= 0:
                return 0
    return limit


def take(free: Sequence[int], need: Vector, count: int) -> Vector:
    """Return what is left when ``count`` pods with that need are there."""
    return tuple(amount - count * each for amount, each in zip(free, need, strict=True))
