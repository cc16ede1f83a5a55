"""Why a gang has no place, for people."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gradsieve_operator.placement.cluster import Cluster
from gradsieve_operator.placement.gang import Gang, Shape
from gradsieve_operator.placement.requests import PODS, shown
from gradsieve_operator.placement.rooms import Rooms

_MOST_NAMED = 4  # nodes by name in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What one shape of a gang finds, looked at alone.

    group: of its pods.
    wanted: how many pods there are.
    requests: what each needs, as people write it.
    fitting: node -> how many of them fit there now.
    full: node -> what it has too little of, and how much of that is free; of some of these nodes.
    nodes: how many nodes there are in all.
    barred: reason -> how many nodes it may not be on for that reason.
    """

    group: str
    wanted: int
    requests: str
    fitting: dict[str, int]
    full: dict[str, str]
    nodes: int
    barred: dict[str, int]

    @property
    def fits(self) -> bool:
        """Whether this shape alone has room."""
        return sum(self.fitting.values()) >= self.wanted

    @property
    def closed(self) -> list[str]:
        """On how many nodes it may not be, for each reason."""
        return [
            f"1 node is {why}" if count == 1 else f"{count} nodes are {why}"
            for why, count in self.barred.items()
        ]

    def __str__(self) -> str:
        pods = "1 pod" if self.wanted == 1 else f"{self.wanted} pods"
        found = []
        if self.fitting:
            where = _named([f"{node}: {count}" for node, count in self.fitting.items()], len(self.fitting))
            found.append(f"{sum(self.fitting.values())} can start now ({where})")
        if self.full:
            count = self.nodes - len(self.fitting) - sum(self.barred.values())
            where = _named([f"{node} ({free})" for node, free in self.full.items()], count)
            found.append(f"too little is free on {where}")
        found += self.closed
        return f"{self.group} needs {pods} of {self.requests}: {'; '.join(found) or 'there is no node'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a gang has no place.

    missing: one item for each shape.
    held_for: key of a gang that what is free is held for; empty for none.
    ever: whether there would be room if all jobs had ended.
    """

    missing: tuple[Missing, ...]
    held_for: str = ""
    ever: bool = True

    @property
    def message(self) -> str:
        """A sentence that says what is missing where."""
        lacking = [str(item) for item in self.missing if not item.fits]
        together = ["each group has room for itself, but not all of them together"]
        together += [f"{item.group}: {'; '.join(item.closed)}" for item in self.missing if item.closed]
        text = ". ".join(lacking or together)
        if self.held_for:
            text += f". Free places are held for {self.held_for}, which has waited longer"
        if not self.ever:
            text += ". Not even with all other jobs ended would there be room"
        return text


def explain(rooms: Rooms, gang: Gang) -> Shortage:
    """Return what each shape of ``gang`` lacks, looked at alone."""
    return Shortage(missing=tuple(_missing(rooms, shape) for shape in gang.shapes))


def _missing(rooms: Rooms, shape: Shape) -> Missing:
    eligible, fitting = rooms.eligible(shape), rooms.fitting(shape)
    barred = Counter(eligible.barred)
    for name, said in shape.refused.left_out.items():
        if name in eligible.among and not _lacking(rooms.cluster, shape, name):
            barred[f"left out for a while, as such a pod was refused there ({said})"] += 1
    full = (
        (name, lacking)
        for name in eligible.nodes
        if name not in fitting and (lacking := _lacking(rooms.cluster, shape, name))
    )
    requests = [shown(name, amount) for name, amount in sorted(shape.requests.items()) if name != PODS]
    return Missing(
        group=shape.group,
        wanted=shape.count,
        requests=", ".join(requests) or "no size",
        fitting=dict(fitting),
        full=dict(itertools.islice(full, _MOST_NAMED)),
        nodes=len(eligible.nodes) + sum(eligible.barred.values()),
        barred=dict(sorted(barred.items(), key=lambda item: (-item[1], item[0]))),
    )


def _lacking(cluster: Cluster, shape: Shape, node: str) -> str:
    short = [
        shown(resource, max(cluster.free(node, resource), 0))
        for resource, amount in sorted(shape.requests.items())
        if cluster.free(node, resource) < amount
    ]
    return ", ".join(short)


def _named(items: Sequence[str], count: int) -> str:
    more = count - _MOST_NAMED
    return ", ".join(items[:_MOST_NAMED]) + (f" and {more} more nodes" if more > 0 else "")
