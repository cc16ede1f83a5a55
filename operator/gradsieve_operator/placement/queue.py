"""Whose turn it is: priorities, and places held for a big job that smaller ones keep overtaking."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradsieve_operator.placement.cluster import Cluster
from gradsieve_operator.placement.gang import Gang
from gradsieve_operator.placement.planner import Assignment, plan
from gradsieve_operator.placement.shortage import Shortage

PATIENCE = 3
"""How often a waiting gang is overtaken before places are held for it."""


def turn(gang: Gang) -> tuple[int, float, str]:
    """Return what waiting gangs are ordered by: priority, then who has waited longer."""
    return (-gang.priority, gang.since, gang.key)


def place(cluster: Cluster, gang: Gang, waiting: Iterable[Gang]) -> Assignment | Shortage:
    """Return where all pods of ``gang`` go while others wait too, or why they cannot.

    1. Go through the gangs that come before it, in their order.
    2. One that fits now takes its places: it will be created in a moment.
    3. One that does not, and was overtaken `PATIENCE` times, holds the places that it would get if all jobs
       had ended. These do not depend on which jobs run, so they stay the same while it waits; later gangs get
       no more than what is left beside them, running jobs end, and so the places become free. One that would
       not even fit then holds nothing.
    4. Any other is overtaken, if ``gang`` fits into what is left.

    ``waiting`` are the gangs that could be created now if they had a place; ``gang`` may be among them.
    """
    before = sorted((other for other in waiting if turn(other) < turn(gang)), key=turn)
    rest, held_for = cluster, ""
    for other in before:
        taken = plan(rest, other)
        if isinstance(taken, Shortage) and other.overtaken >= PATIENCE:
            taken = plan(rest.when_jobs_have_ended(), other)
            held_for = held_for or (other.key if isinstance(taken, Assignment) else "")
        if isinstance(taken, Assignment):
            rest = rest.with_loads(taken.loads)
    found = plan(rest, gang)
    if isinstance(found, Shortage):
        ever = isinstance(plan(cluster.when_jobs_have_ended(), gang.trusting()), Assignment)
        return replace(found, held_for=held_for, ever=ever)
    return found


def overtaken(gang: Gang, waiting: Iterable[Gang]) -> tuple[str, ...]:
    """Return the keys of the gangs that are overtaken when ``gang`` is placed: count one more for each."""
    return tuple(other.key for other in sorted(waiting, key=turn) if turn(other) < turn(gang))
