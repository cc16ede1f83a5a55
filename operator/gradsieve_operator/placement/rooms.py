"""Where pods of a kind have room: counted once for equal pods, and again only where something has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradsieve_operator.placement.cluster import Cluster, Load
from gradsieve_operator.placement.eligibility import Eligibility, Eligible
from gradsieve_operator.placement.gang import Gang, Shape
from gradsieve_operator.placement.requests import Resources

_Kind = tuple[Eligible, tuple[tuple[str, int], ...]]
"""Where equal pods may be, and what each of them holds."""

_MOST_KEPT = 10_000
"""Changes of nodes, and kinds of pods, that are remembered; then everything is counted again."""


@dataclass(slots=True)
class _Room:
    """Room for equal pods.

    fitting: node -> how many of them fit there, where at least one does; in the order of names.
    seen: how many of the changes are counted in ``fitting``.
    """

    fitting: dict[str, int]
    seen: int


class Rooms:
    """A cluster that fills up, and how many pods of which kind still fit where.

    It may then `become` the same cluster as it is a moment later.

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
        # Nodes on which what is free has changed, in the order in which it has.
        self._changes: list[str] = []

    def become(self, cluster: Cluster) -> None:
        """Be ``cluster``: the same nodes with other pods, of which nothing was taken yet.

        Rooms are counted again on the nodes that hold something else: from one pass over all who wait to the
        next these are few.
        """
        before, after = self.cluster.held, cluster.held
        full = max(len(self._changes), len(self._kinds)) > _MOST_KEPT
        if full or cluster.guarded != self.cluster.guarded:
            self._rooms, self._kinds, self._changes = {}, {}, []
            self._guards = cluster.guards()
        # Counters would compare themselves in Python, key by key.
        self._changes += [
            name for name in cluster.nodes if dict(before.get(name, {})) != dict(after.get(name, {}))
        ]
        self.cluster = cluster

    def take(self, loads: Iterable[Load]) -> None:
        """Fill the cluster with pods that it does not hold yet."""
        loads = tuple(loads)
        self.cluster = self.cluster.with_loads(loads)
        self._changes += dict.fromkeys(load.node for load in loads)

    @property
    def changes(self) -> int:
        """How often something has changed on a node: what is free stays as it is while this does."""
        return len(self._changes)

    def eligible(self, shape: Shape) -> Eligible:
        """Return the nodes that pods of ``shape`` may be on, whatever is free there; refusals not counted."""
        return self._eligibility.of(shape, self._guards.closed(shape.namespace, shape.labels))

    def fitting(self, shape: Shape) -> Mapping[str, int]:
        """Return how many pods of ``shape`` fit on each node, looked at alone: nodes where any does.

        Nodes that have refused such pods lately are not among them. Good until something changes.
        """
        fitting = self._room(shape).fitting
        left_out = shape.refused.left_out
        if not left_out:
            return fitting
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
        kind, now = self._kind(shape), len(self._changes)
        room = self._rooms.get(kind)
        if room is None:
            room = self._rooms[kind] = _Room(self._fitting(kind[0].nodes, shape.requests), now)
        elif room.seen < now:
            eligible, fitting = kind[0], room.fitting
            changed = {name for name in self._changes[room.seen :] if name in eligible.among}
            counted = self._fitting(changed, shape.requests)
            new = counted.keys() - fitting.keys()
            for name in changed - counted.keys():
                fitting.pop(name, None)
            fitting.update(counted)
            if new:
                room.fitting = {name: fitting[name] for name in eligible.nodes if name in fitting}
            room.seen = now
        return room

    def _fitting(self, nodes: Iterable[str], requests: Resources) -> dict[str, int]:
        counts = ((name, self.cluster.fitting(name, requests)) for name in nodes)
        return {name: count for name, count in counts if count > 0}
