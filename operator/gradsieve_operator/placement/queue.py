"""Whose turn it is: priorities, and places held for a big job that smaller ones keep overtaking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gradsieve_operator.placement.cluster import Cluster
from gradsieve_operator.placement.eligibility import Eligibility
from gradsieve_operator.placement.gang import Gang
from gradsieve_operator.placement.planner import Assignment, assign
from gradsieve_operator.placement.rooms import Rooms
from gradsieve_operator.placement.shortage import Shortage, explain

PATIENCE = 3
"""How often a waiting gang is overtaken before places are held for it."""


_MOST_KNOWN = 4096
"""Kinds of gangs of which it is remembered whether they fit."""

_NOTHING = Cluster({}, {}, {})


def turn(gang: Gang) -> tuple[int, float, str]:
    """Return what waiting gangs are ordered by: priority, then who has waited longer."""
    return (-gang.priority, gang.since, gang.key)


class Known:
    """What was found out in earlier passes: where pods have room, which is counted again only on nodes that
    hold something else; and which gangs fit once all jobs have ended, which holds while nodes and the pods of
    others are as they were.

    A pass with 250 gangs on 500 nodes takes 0.03 s of processor time with it, 0.11 without. Clusters that are
    looked at with it must not change afterwards.

    Attributes:
        rest: the cluster; what is left of it, once gangs have taken their places.
        held: the same when all jobs have ended, less what was taken and what is held.
        ended: when all jobs have ended.
        ever: kind of a gang -> whether it fits then.
    """

    rest: Rooms
    held: Rooms
    ended: Rooms
    ever: dict[tuple[object, ...], bool]

    def __init__(self) -> None:
        self._begin(_NOTHING, _NOTHING)

    def look(self, cluster: Cluster) -> None:
        """Forget what does not hold in ``cluster``."""
        later = cluster.when_jobs_have_ended()
        if self.rest.cluster.nodes != cluster.nodes or len(self.ever) > _MOST_KNOWN:
            self._begin(cluster, later)
            return
        if self.ended.cluster != later:
            self.ever = {}
        self.rest.become(cluster)
        self.held.become(later)
        self.ended.become(later)

    def _begin(self, cluster: Cluster, later: Cluster) -> None:
        eligibility = Eligibility(cluster.nodes)
        self.rest = Rooms(cluster, eligibility)
        self.held, self.ended = Rooms(later, eligibility), Rooms(later, eligibility)
        self.ever = {}


def plan_queue(cluster: Cluster, waiting: Iterable[Gang]) -> dict[str, Assignment | Shortage]:
    """Return where all pods of each waiting gang go, or why they cannot: key -> plan. All plans fit together.

    Go through the gangs in their order:

    1. One that fits into what is left takes its places: it will be created in a moment.
    2. One that does not, and was overtaken `PATIENCE` times, holds the places that it would get if all jobs
       had ended. These do not depend on which jobs run, so they stay the same while it waits; later gangs get
       no more than what is left beside them, running jobs end, and so the places become free. One that would
       not even fit then holds nothing.
    3. Any other is overtaken by those of the later ones that fit.

    ``waiting`` are the gangs that could be created now if they had a place, each key once.
    """
    return dict(plans_in_turn(cluster, waiting))


def plans_in_turn(
    cluster: Cluster, waiting: Iterable[Gang], known: Known | None = None
) -> Iterator[tuple[str, Assignment | Shortage]]:
    """Yield what `plan_queue` returns, gang by gang: whoever asks may pause between them.

    ``known`` is brought up to date; it makes no difference to what is returned.
    """
    queue = _Pass(cluster, known or Known())
    for gang in sorted(waiting, key=turn):
        yield gang.key, queue.place(gang)


class _Pass:
    """What is left while one gang after the other takes its places.

    What has no room stays without, as nothing frees meanwhile: gangs that are equal are judged once.
    """

    def __init__(self, cluster: Cluster, known: Known) -> None:
        known.look(cluster)
        self._rest, self._held, self._ended, self._ever = known.rest, known.held, known.ended, known.ever
        self._roomless: set[tuple[object, ...]] = set()
        self._explained: dict[tuple[object, ...], Shortage] = {}
        self._held_for = ""

    def place(self, gang: Gang) -> Assignment | Shortage:
        """Return the plan for ``gang``, whose places are taken or held from now on."""
        kind = self._rest.kind(gang)
        found = None if kind in self._roomless else assign(self._rest, gang)
        if found is not None:
            self._take(found)
            return found
        self._roomless.add(kind)
        shortage = replace(self._explain(gang, kind), held_for=self._held_for, ever=self._fits_ever(gang))
        if gang.overtaken >= PATIENCE and shortage.ever:
            self._hold(gang)
        return shortage

    def _explain(self, gang: Gang, kind: tuple[object, ...]) -> Shortage:
        """Return what a gang lacks: said once for equal ones, while what is free stays as it is."""
        shapes = ((shape.group, tuple(shape.refused.left_out.values())) for shape in gang.shapes)
        words = (self._rest.changes, kind, *shapes)
        if words not in self._explained:
            self._explained[words] = explain(self._rest, gang)
        return self._explained[words]

    def _hold(self, gang: Gang) -> None:
        places = assign(self._held, gang)
        if places is not None:
            self._held_for = self._held_for or gang.key
            self._take(places)

    def _take(self, places: Assignment) -> None:
        self._rest.take(places.loads)
        self._held.take(places.loads)

    def _fits_ever(self, gang: Gang) -> bool:
        gang = gang.trusting()
        kind = self._ended.kind(gang)
        if kind not in self._ever:
            self._ever[kind] = assign(self._ended, gang) is not None
        return self._ever[kind]


def overtaken(gang: Gang, waiting: Iterable[Gang]) -> tuple[str, ...]:
    """Return the keys of the gangs that are overtaken when ``gang`` is placed: count one more for each."""
    return tuple(other.key for other in sorted(waiting, key=turn) if turn(other) < turn(gang))
