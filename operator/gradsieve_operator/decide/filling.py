"""Places of a started job that are empty: pods for them, and what is done while there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradsieve_operator import contract
from gradsieve_operator.decide.actions import Action, Create, Decision, Reason, Record, Wanted
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
from gradsieve_operator.decide.observed_state import ObservedState, Pod, Unplaceable
from gradsieve_operator.decide.steering import noticed, steer

_LOOK_AGAIN = 1.0
_PAUSES = "places are filled after a pause"


def unplaced(observed: ObservedState) -> Decision | None:
    """Take back new pods that were refused, whose place was taken, or that cannot take part; then pause."""
    late = [pod for pod in newest(observed.pods).values() if unbound_too_long(pod, observed)]
    lost = _lost_newcomers(observed)
    if not late and not lost and not observed.refused:
        return None
    reason = Reason("Refused", observed.refused)
    if late:
        reason = Reason("PlaceTaken", f"{late[0].name} was not bound in time: {late[0].message}")
    elif lost:
        reason = lost[0][1]
    return take_back(observed, [*late, *(pod for pod, _ in lost)], reason)


def fill(observed: ObservedState) -> Decision | None:
    """Create pods for empty places; with room for only some, for the first of them.

    Returns:
        None when no place is empty.
    """
    filled = {slot.host for slot, _ in present(observed)}
    empty = [slot.host for slot in slots(observed.job) if slot.host not in filled]
    uncertified = [host for host in empty if host not in observed.certified]
    empty = [host for host in empty if host in observed.certified]
    leader = newest(observed.pods).get(contract.COORDINATOR_HOST)
    leaderless = leader is None or loss(leader, contract.COORDINATOR_HOST, observed) is not None
    if not empty and not leaderless:
        return _beyond(observed, uncertified) if uncertified else None
    pause = observed.progress.retry_at - observed.now
    if pause > 0:
        reason = Reason("Refused", observed.withheld) if observed.withheld else Reason("Waiting", _PAUSES)
        return _wait(observed, reason, leaderless, pause)
    # Above the roster's too: an agent that no roster names yet is then known to be newer than the last one.
    generation = max(latest_generation(observed), observed.progress.roster) + 1
    attempt = latest_attempt(observed) + 1 if leaderless else None
    wanted = Wanted(tuple(empty), generation, attempt, partly=True)
    found = places_for(wanted, observed)
    if found is None:
        return Decision((), observed.progress, wanted=wanted)
    if isinstance(found, Unplaceable):
        return _wait(observed, Reason("NoPlace", found.message), leaderless, _LOOK_AGAIN)
    hosts = found.hosts
    creations = [
        Create(pod)
        for pod in build(observed.job, observed.authority, hosts, generation, attempt, found.nodes)
    ]
    names = ", ".join(creation.name for creation in creations)
    # A job that grows lacks nothing.
    replaces = leaderless or any(host in {*expected(observed), *observed.progress.absent} for host in hosts)
    progress = begun(observed.progress, generation, attempt)
    # Whatever is left of an earlier incarnation goes before there is another one.
    places = {*hosts, *([contract.COORDINATOR_HOST] if leaderless else [])}
    left = [pod for pod in observed.pods if pod.occupies and not pod.deleting]
    doomed = [delete(pod, observed) for pod in left if pod.host in places]
    return Decision(
        (*prerequisites(observed), Record(), *doomed, *creations),
        progress,
        admitted=placed(),
        degraded=Reason("Replacing", f"created {names}") if replaces else None,
        requeue_after=0.0,
    )


def restore(observed: ObservedState) -> Decision | None:
    """Make what somebody has deleted: without its NetworkPolicy, MPI's traffic has no wall."""
    missing = _missing(observed)
    if not missing:
        # In the pause after a refusal nothing is tried, and still all is not well.
        refused = bool(observed.withheld and prerequisites(observed))
        return replace(steer(observed), degraded=Reason("Refused", observed.withheld)) if refused else None
    reason = hindrance(observed)
    if renewal(observed):
        reason = Reason(
            "CertificatesRenewed", f"lost or damaged, made again: Secret {', '.join(observed.lost)}"
        )
    return Decision(missing, noticed(observed), admitted=placed(), degraded=reason, requeue_after=0.0)


def take_back(observed: ObservedState, pods: Sequence[Pod], reason: Reason) -> Decision:
    """Delete replacements that have not got their places, and pause."""
    progress = pause_placement(observed, observed.progress)
    progress = replace(progress, absent=tuple(sorted({*progress.absent, *(pod.host for pod in pods)})))
    deletions = (delete(pod, observed, grace=0) for pod in pods)
    actions: tuple[Action, ...] = (*refusals(pods, observed), Record(), *deletions)
    return Decision(actions, progress, admitted=placed(), degraded=reason, requeue_after=0.0)


def _lost_newcomers(observed: ObservedState) -> list[tuple[Pod, Reason]]:
    """Return the pods that are lost and were in no roster yet, and why."""
    last, known = newest(observed.pods), expected(observed)
    new = [last[slot.host] for slot in slots(observed.job) if slot.host in last and slot.host not in known]
    new = [pod for pod in new if pod.generation > observed.progress.given_up and not pod.deleting]
    return [(pod, reason) for pod in new if (reason := loss(pod, pod.host, observed)) is not None]


def _wait(observed: ObservedState, reason: Reason, leaderless: bool, pause: float) -> Decision:
    """Go on with the members that are there if they are enough, and look for places again after ``pause``."""
    if leaderless or not enough(present(observed), observed):
        nothing = Decision((), noticed(observed), admitted=placed(), degraded=reason, requeue_after=pause)
        return _anew(observed, nothing)
    going_on = steer(observed)
    again = pause if going_on.requeue_after is None else min(pause, going_on.requeue_after)
    return _anew(observed, replace(going_on, degraded=reason, requeue_after=again))


def _beyond(observed: ObservedState, hosts: list[str]) -> Decision:
    message = (
        f"no certificate for {hosts[0]}: a job grows to twice its first size; suspend it to grow further"
    )
    return _anew(observed, replace(steer(observed), degraded=Reason("TooLarge", message)))


def _anew(observed: ObservedState, decision: Decision) -> Decision:
    """Return ``decision`` with what makes what all pods rely on: an empty place must not keep that away."""
    return replace(decision, actions=(*_missing(observed), *decision.actions))


def _missing(observed: ObservedState) -> tuple[Action, ...]:
    """Return what makes anew what all pods rely on; nothing in a pause, which may be for its refusal."""
    return () if observed.progress.retry_at > observed.now else prerequisites(observed)
