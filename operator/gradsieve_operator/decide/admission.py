"""Getting a job its places: all of them or none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from gradsieve_operator import contract
from gradsieve_operator.decide.actions import (
    Action,
    Create,
    Decision,
    IssueCertificates,
    Record,
    Wanted,
    Word,
)
from gradsieve_operator.decide.creation import begun, build, places_for, prerequisites, renewal
from gradsieve_operator.decide.endings import delete, finish
from gradsieve_operator.decide.in_force import in_force
from gradsieve_operator.decide.members import (
    certified_hosts,
    latest_attempt,
    latest_generation,
    newest,
    node_lost,
    refusals,
    slots,
    unbound_too_long,
)
from gradsieve_operator.decide.progress import Progress
from gradsieve_operator.decide.same_spec import of_another_spec
from gradsieve_operator.decide.world import Pod, Unplaceable, World

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_LOOK_AGAIN, _LOOK_SELDOM = 5.0, 60.0
"""What the planner finds wakes waiting jobs. This is for what makes no event: for jobs that were set back, a
node that has refused their pods may be tried again; for others, something else is missing than before."""

_SPOILED_GRACE = 2
"""Seconds for the containers of a gang that is withdrawn: they have not begun to train."""


def admit(world: World) -> Decision:
    """Decide for a job that has not got all of its places yet.

    0. Nothing is created for a job that is invalid, and what stands goes: it would hold places for nothing.
    1. A pod that was refused, failed, or was not bound in time spoils the whole gang: all of its pods go, and
       after a pause that doubles each time it is planned anew, without the nodes that have refused its pods.
    2. While pods of an earlier placement stand, or the pause lasts, nothing is created.
    3. What must be there before the first pod is made: Service, account, certificates.
    4. All pods get a node and are created, or none is.
    5. Once all are bound, the job has started. A node may still turn a pod away: then the setbacks go on.

    A half-made gang, left by an operator that was killed, is completed if the rest still fits.
    """
    limit, since = world.job.scheduling.schedule_timeout, world.progress.waiting_since
    if limit is not None and since is not None and world.now - since >= limit:
        said = f"no place within {limit} s (spec.scheduling.scheduleTimeoutSeconds)"
        said += f": {world.invalid}" if world.invalid else ""
        return finish(world, Word("ScheduleTimeout", said), succeeded=False)
    if world.invalid:
        return _hold_back(world)
    gang = [pod for pod in world.pods if not pod.deleting and _current(pod, world)]
    trouble = _trouble(gang, world)
    if trouble is not None:
        return withdraw(world, gang, trouble)
    stale = [pod for pod in world.pods if pod.occupies and not pod.deleting and pod not in gang]
    if stale:
        word = Word("Waiting", f"{len(stale)} pods of an earlier start are still there")
        return Decision(_deletions(stale, world), world.progress, admitted=word, again=1.0)
    pause = world.progress.retry_at - world.now
    if pause > 0:
        # What was said about the setback still holds.
        return Decision((), world.progress, again=pause)
    if len(gang) == world.job.workers + 1:
        return _started(world, gang)
    return _create(world, gang)


def withdraw(world: World, gang: Iterable[Pod], word: Word) -> Decision:
    """Delete what stands of a placement that failed, and plan anew after a pause."""
    progress = pause_placement(world, world.progress)
    progress = replace(progress, given_up=progress.generation, given_up_attempt=progress.attempt)
    # Recorded first: a pod that survives a killed operator is then known to be of no placement.
    gang = tuple(gang)
    actions = (*refusals(gang, world), Record(), *_deletions(gang, world))
    return Decision(actions, progress, admitted=word, again=progress.retry_at - world.now)


def pause_placement(world: World, progress: Progress) -> Progress:
    """Return ``progress`` with one more setback, and the time before which nothing is placed."""
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(progress.setbacks, 10))
    # Rivals that spoil each other's placement must not come back at the same time, again and again.
    chance = hashlib.sha256(f"{world.job.uid} {progress.setbacks}".encode()).digest()[0]
    pause *= 1.0 + chance / 256.0
    return replace(
        progress,
        generation=latest_generation(world),
        attempt=latest_attempt(world),
        setbacks=progress.setbacks + 1,
        retry_at=world.now + pause,
    )


def _hold_back(world: World) -> Decision:
    """Let a job that cannot start hold nothing; the time that it waits counts."""
    word = Word("InvalidSpec", world.invalid)
    standing = [pod for pod in world.pods if not pod.deleting and (pod.alive or _current(pod, world))]
    if standing:
        return withdraw(world, standing, word)
    progress = replace(world.progress, waiting_since=world.progress.waiting_since or world.now)
    return Decision((), progress, admitted=word, again=_LOOK_AGAIN)


def _current(pod: Pod, world: World) -> bool:
    """Whether ``pod`` belongs to the placement that is under way."""
    if pod.role == contract.ROLE_COORDINATOR:
        return pod.generation > world.progress.given_up_attempt
    return pod.generation > world.progress.given_up


def _trouble(gang: Iterable[Pod], world: World) -> Word | None:
    if world.refused:
        return Word("Refused", world.refused)
    members = {contract.COORDINATOR_HOST, *(slot.host for slot in slots(world.job))}
    for pod in gang:
        if pod.over:
            return Word("PodFailed", f"{pod.name}: {pod.reason}: {pod.message}")
        if unbound_too_long(pod, world):
            return Word("PlaceTaken", f"{pod.name} was not bound in time: {pod.message or 'no reason given'}")
        if pod.authority != world.authority:
            return Word("CertificatesGone", f"{pod.name} has a certificate that is no longer valid")
        if of_another_spec(pod, world) or pod.host not in members:
            return Word("SpecChanged", f"{pod.name} was made from another spec")
        lost = node_lost(pod, world)
        if lost is not None:
            return lost
    return None


def _started(world: World, gang: Iterable[Pod]) -> Decision:
    progress = replace(world.progress, generation=latest_generation(world), attempt=latest_attempt(world))
    unbound = sorted(pod.name for pod in gang if not pod.node)
    if unbound:
        word = Word("Binding", f"{len(unbound)} pods are not bound yet: {', '.join(unbound[:5])}")
        return Decision((), progress, admitted=word, again=1.0)
    progress = replace(
        progress,
        started=world.now,
        retry_at=0.0,
        waiting_since=None,
        waited_since=progress.waiting_since,
        overtaken=0,
        sizes=tuple((group.name, group.replicas) for group in world.job.groups),
        compression=in_force(world)[0],
    )
    # Nothing is done that would have to be recorded first: this is written with the rest of the status.
    return Decision((), progress, admitted=placed(), again=0.0)


def placed() -> Word:
    """Return why a job that has started is admitted."""
    return Word("Placed", "all pods have their nodes")


def _create(world: World, gang: list[Pod]) -> Decision:
    have = newest(gang)
    hosts = [slot.host for slot in slots(world.job) if slot.host not in have]
    generation = latest_generation(world) + 1
    attempt = None if contract.COORDINATOR_HOST in have else latest_attempt(world) + 1
    wanted = Wanted(tuple(hosts), generation, attempt)
    found = places_for(wanted, world)
    if found is None:
        return Decision((), world.progress, wanted=wanted)
    progress = replace(world.progress, waiting_since=world.progress.waiting_since or world.now)
    if isinstance(found, Unplaceable):
        if found.pending:
            # What was said before still holds.
            return Decision((), progress, again=_next_look(world, progress))
        if gang:
            return withdraw(world, gang, Word("PlaceTaken", found.message))
        return Decision(
            (), progress, admitted=Word("NoPlace", found.message), again=_next_look(world, progress)
        )
    preparing = prerequisites(world)
    word = Word("Preparing", "certificates are being issued")
    if renewal(world):
        return Decision(preparing, progress, admitted=word, again=0.0)
    if world.authority is None or not {slot.host for slot in slots(world.job)} <= world.certified:
        # Pods are stamped with their authority: they are made once it is known.
        preparing = (*preparing, IssueCertificates(certified_hosts(world.job)))
        return Decision(preparing, progress, admitted=word, again=0.0)
    progress = begun(progress, generation, attempt)
    pods = build(world.job, world.authority, hosts, generation, attempt, found.nodes)
    creations = [Create(manifest) for manifest in pods]
    word = Word("Binding", "pods are being created")
    return Decision((*preparing, Record(), *creations), progress, admitted=word, again=1.0)


def _next_look(world: World, progress: Progress) -> float:
    """Return after how many seconds to look again at a job that waits, if its planner says nothing."""
    again, limit = _LOOK_AGAIN if progress.setbacks else _LOOK_SELDOM, world.job.scheduling.schedule_timeout
    if limit is None or progress.waiting_since is None:
        return again
    return min(again, progress.waiting_since + limit - world.now)


def _deletions(pods: Iterable[Pod], world: World) -> tuple[Action, ...]:
    return tuple(delete(pod, world, grace=_SPOILED_GRACE) for pod in pods if not pod.deleting)
