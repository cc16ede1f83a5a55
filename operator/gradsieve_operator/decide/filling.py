"""Places of a started job that are empty: pods for them, and what is done while there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradsieve_operator import contract
from gradsieve_operator.decide.actions import Action, Create, Decision, Record, Wanted, Word
from gradsieve_operator.decide.admission import pause_placement, placed
from gradsieve_operator.decide.creation import begun, build, places_for, prerequisites, renewal
from gradsieve_operator.decide.endings import delete
from gradsieve_operator.decide.members import (
    enough,
    expected,
    hindrance,
    latest_attempt,
    latest_generation,
    loss,
    newest,
    present,
    refusals,
    slots,
    unbound_too_long,
)
from gradsieve_operator.decide.steering import noticed, steer
from gradsieve_operator.decide.world import Pod, Unplaceable, World

_LOOK_AGAIN = 1.0
_PAUSES = "places are filled after a pause"


def unplaced(world: World) -> Decision | None:
    """Take back new pods that were refused, whose place was taken, or that cannot take part; then pause."""
    late = [pod for pod in newest(world.pods).values() if unbound_too_long(pod, world)]
    lost = _lost_newcomers(world)
    if not late and not lost and not world.refused:
        return None
    word = Word("Refused", world.refused)
    if late:
        word = Word("PlaceTaken", f"{late[0].name} was not bound in time: {late[0].message}")
    elif lost:
        word = lost[0][1]
    return take_back(world, [*late, *(pod for pod, _ in lost)], word)


def fill(world: World) -> Decision | None:
    """Create pods for empty places; with room for only some, for the first of them.

    Returns:
        None when no place is empty.
    """
    filled = {slot.host for slot, _ in present(world)}
    empty = [slot.host for slot in slots(world.job) if slot.host not in filled]
    uncertified = [host for host in empty if host not in world.certified]
    empty = [host for host in empty if host in world.certified]
    leader = newest(world.pods).get(contract.COORDINATOR_HOST)
    leaderless = leader is None or loss(leader, contract.COORDINATOR_HOST, world) is not None
    if not empty and not leaderless:
        return _beyond(world, uncertified) if uncertified else None
    pause = world.progress.retry_at - world.now
    if pause > 0:
        word = Word("Refused", world.withheld) if world.withheld else Word("Waiting", _PAUSES)
        return _wait(world, word, leaderless, pause)
    # Above the roster's too: an agent that no roster names yet is then known to be newer than the last one.
    generation = max(latest_generation(world), world.progress.roster) + 1
    attempt = latest_attempt(world) + 1 if leaderless else None
    wanted = Wanted(tuple(empty), generation, attempt, partly=True)
    found = places_for(wanted, world)
    if found is None:
        return Decision((), world.progress, wanted=wanted)
    if isinstance(found, Unplaceable):
        return _wait(world, Word("NoPlace", found.message), leaderless, _LOOK_AGAIN)
    hosts = found.hosts
    creations = [
        Create(pod) for pod in build(world.job, world.authority, hosts, generation, attempt, found.nodes)
    ]
    names = ", ".join(creation.name for creation in creations)
    # A job that grows lacks nothing.
    replaces = leaderless or any(host in {*expected(world), *world.progress.absent} for host in hosts)
    progress = begun(world.progress, generation, attempt)
    # Whatever is left of an earlier incarnation goes before there is another one.
    places = {*hosts, *([contract.COORDINATOR_HOST] if leaderless else [])}
    left = [pod for pod in world.pods if pod.occupies and not pod.deleting]
    doomed = [delete(pod, world) for pod in left if pod.host in places]
    return Decision(
        (*prerequisites(world), Record(), *doomed, *creations),
        progress,
        admitted=placed(),
        degraded=Word("Replacing", f"created {names}") if replaces else None,
        again=0.0,
    )


def restore(world: World) -> Decision | None:
    """Make what somebody has deleted: without its NetworkPolicy, MPI's traffic has no wall."""
    missing = _missing(world)
    if not missing:
        # In the pause after a refusal nothing is tried, and still all is not well.
        refused = bool(world.withheld and prerequisites(world))
        return replace(steer(world), degraded=Word("Refused", world.withheld)) if refused else None
    word = hindrance(world)
    if renewal(world):
        word = Word("CertificatesRenewed", f"lost or damaged, made again: Secret {', '.join(world.lost)}")
    return Decision(missing, noticed(world), admitted=placed(), degraded=word, again=0.0)


def take_back(world: World, pods: Sequence[Pod], word: Word) -> Decision:
    """Delete replacements that have not got their places, and pause."""
    progress = pause_placement(world, world.progress)
    progress = replace(progress, absent=tuple(sorted({*progress.absent, *(pod.host for pod in pods)})))
    deletions = (delete(pod, world, grace=0) for pod in pods)
    actions: tuple[Action, ...] = (*refusals(pods, world), Record(), *deletions)
    return Decision(actions, progress, admitted=placed(), degraded=word, again=0.0)


def _lost_newcomers(world: World) -> list[tuple[Pod, Word]]:
    """Return the pods that are lost and were in no roster yet, and why."""
    last, known = newest(world.pods), expected(world)
    new = [last[slot.host] for slot in slots(world.job) if slot.host in last and slot.host not in known]
    new = [pod for pod in new if pod.generation > world.progress.given_up and not pod.deleting]
    return [(pod, word) for pod in new if (word := loss(pod, pod.host, world)) is not None]


def _wait(world: World, word: Word, leaderless: bool, pause: float) -> Decision:
    """Go on with the members that are there if they are enough, and look for places again after ``pause``."""
    if leaderless or not enough(present(world), world):
        nothing = Decision((), noticed(world), admitted=placed(), degraded=word, again=pause)
        return _anew(world, nothing)
    going_on = steer(world)
    again = pause if going_on.again is None else min(pause, going_on.again)
    return _anew(world, replace(going_on, degraded=word, again=again))


def _beyond(world: World, hosts: list[str]) -> Decision:
    message = (
        f"no certificate for {hosts[0]}: a job grows to twice its first size; suspend it to grow further"
    )
    return _anew(world, replace(steer(world), degraded=Word("TooLarge", message)))


def _anew(world: World, decision: Decision) -> Decision:
    """Return ``decision`` with what makes what all pods rely on: an empty place must not keep that away."""
    return replace(decision, actions=(*_missing(world), *decision.actions))


def _missing(world: World) -> tuple[Action, ...]:
    """Return what makes anew what all pods rely on; nothing in a pause, which may be for its refusal."""
    return () if world.progress.retry_at > world.now else prerequisites(world)
