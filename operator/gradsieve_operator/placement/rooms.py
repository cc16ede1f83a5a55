"""Where pods of a kind have room: counted once for equal pods, and again only where something was taken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradsieve_operator.placement.cluster import Cluster, Load
from gradsieve_operator.placement.eligibility import Eligibility, Eligible
from gradsieve_operator.placement.gang import Gang, Shape
from gradsieve_operator.placement.requests import Resources

_Kind = tuple[Eligible, tuple[tuple[str, int], ...]]
"""Where equal pods may be, and what each of them holds."""


@dataclass(slots=True)
class _Room:
    """Room for equal pods.

    fitting: node -> how many of them fit there, where at least one does; in the order of names.
    seen: how many of the takings are counted in ``fitting``.
    """

    fitting: dict[str, int]
    seen: int


class Rooms:
    """A cluster that fills up, and how many pods of which kind still fit where.

    Args:
        cluster: as it is before anything is taken.
        eligibility: of its nodes, where it is known already.

    Attributes:
        cluster: as it is now.
    """

    def __init__(self, cluster: Cluster, eligibility: Eligibility | None = None) -> None:
        self.cluster = cluster
        self._eligibility = eligibility or Eligibility(cluster.nodes)
        self._guards = cluster.guards()
        self._rooms: dict[_Kind, _Room] = {}
        # By identity, and with the shape itself, so that no other one gets its place in memory.
        self._kinds: dict[int, tuple[Shape, _Kind]] = {}
        self._taken: list[str] = []

    def take(self, loads: Iterable[Load]) -> None:
        """Fill the cluster with pods that it does not hold yet."""
        loads = tuple(loads)
        self.cluster = self.cluster.with_loads(loads)
        self._taken += dict.fromkeys(load.node for load in loads)

    @property
    def takings(self) -> int:
        """How often something was taken of a node: what is free stays as it is while this does."""
        return len(self._taken)

    def eligible(self, shape: Shape) -> Eligible:
        """Return the nodes that pods of ``shape`` may be on, whatever is free there; refusals not counted."""
        return self._eligibility.of(shape, self._guards.closed(shape.namespace, shape.labels))

    def fitting(self, shape: Shape) -> dict[str, int]:
        """Return how many pods of ``shape`` fit on each node, looked at alone: nodes where any does.

        Nodes that have refused such pods lately are not among them.
        """
        fitting = self._room(shape).fitting
        left_out = shape.refused.left_out
        return {name: count for name, count in fitting.items() if name not in left_out}

    def kind(self, gang: Gang) -> tuple[object, ...]:
        """Return what gangs have in common for which the same nodes have room, as long as nothing frees."""
        shapes = (
            (self._kind(shape), shape.count, tuple(shape.refused.left_out), shape.refused.doubted)
            for shape in gang.shapes
        )
        return (gang.placement, *shapes)

    def _kind(self, shape: Shape) -> _Kind:
        known = self._kinds.get(id(shape))
        if known is None:
            kind = self.eligible(shape), tuple(sorted(shape.requests.items()))
            known = self._kinds[id(shape)] = shape, kind
        return known[1]

    def _room(self, shape: Shape) -> _Room:
        kind, now = self._kind(shape), len(self._taken)
        room = self._rooms.get(kind)
        if room is None:
            room = self._rooms[kind] = _Room(self._fitting(kind[0].nodes, shape.requests), now)
        elif room.seen < now:
            # What is taken only grows: where nothing fitted, nothing does.
            touched = [name for name in dict.fromkeys(self._taken[room.seen :]) if name in room.fitting]
            counted = self._fitting(touched, shape.requests)
            for name in touched:
                if name in counted:
                    room.fitting[name] = counted[name]
                else:
                    del room.fitting[name]
            room.seen = now
        return room

    def _fitting(self, nodes: Iterable[str], requests: Resources) -> dict[str, int]:
        counts = ((name, self.cluster.fitting(name, requests)) for name in nodes)
        return {name: count for name, count in counts if count > 0}
