"""The answer to what a decision asks for, from whatever places given pods all or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gradsieve_operator.decide.actions import Wanted
from gradsieve_operator.decide.creation import build
from gradsieve_operator.decide.observed_state import Places, Unplaceable
from gradsieve_operator.resources import Manifest
from gradsieve_operator.spec import HorovodJob

Placer = Callable[[Sequence[Manifest]], Mapping[str, str] | Unplaceable]
"""Finds nodes for all of the given pods, or for none: pod name -> node."""


def find_places(job: HorovodJob, wanted: Wanted, place: Placer) -> Places | Unplaceable:
    """Return nodes for what is wanted; where that will do, for as many of its first hosts as have room.

    1. Try all of them, then the fewest that make sense: in a full cluster that is the end.
    2. Bisect between the two: where pods have a place, fewer of them have one, too.

    The planner's search may give up where there is nearly no room; then one pod or another may get its place
    a moment later, but what is found is always a placement.

    The planner is shown pods as they will be made: what decides where they fit is told in one way only.

    Args:
        job: whose pods they are.
        wanted: what was asked for.
        place: the planner.
    """

    def found_for(count: int) -> Places | Unplaceable:
        hosts = wanted.hosts[:count]
        found = place(build(job, None, hosts, wanted.generation, wanted.attempt, {}))
        return found if isinstance(found, Unplaceable) else Places(hosts, found)

    fits, fails = (1 if wanted.attempt is None else 0), len(wanted.hosts)
    whole = found_for(fails)
    if isinstance(whole, Places) or not wanted.partly:
        return whole
    best = found_for(fits) if fits < fails else whole
    if isinstance(best, Unplaceable):
        return best
    while fails - fits > 1:
        count = (fits + fails) // 2
        found = found_for(count)
        if isinstance(found, Unplaceable):
            fails = count
        else:
            fits, best = count, found
    return best
