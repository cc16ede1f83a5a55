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
    Reason,
    Record,
    Wanted,
)
from gradsieve_operator.decide.creation import begun, build, places_for, prerequisites, renewal
from gradsieve_operator.decide.effective_compression import effective_compression
from gradsieve_operator.decide.endings import delete, finish
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
from gradsieve_operator.decide.observed_state import ObservedState, Pod, Unplaceable
from gradsieve_operator.decide.progress import Progress
from gradsieve_operator.decide.same_spec import of_another_spec

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_LOOK_AGAIN, _LOOK_SELDOM = 5.0, 60.0
"""What the planner finds wakes waiting jobs. This is for what makes no event: for jobs that were set back, a
node that has refused their pods may be tried again; for others, something else is missing than before."""

_SPOILED_GRACE = 2
"""Seconds for the containers of a gang that is withdrawn: they have not begun to train."""


def admit(observed: ObservedState) -> Decision:
    """Decide for a job that has not got all of its places yet.

    0. Nothing is created for a job that is invalid, and what stands goes: it would hold places for nothing.
    1. A pod that was refused, failed, or was not bound in time spoils the whole gang: all of its pods go, and
       after a pause that doubles each time it is planned anew, without the nodes that have refused its pods.
    2. While pods of an earlier placement stand, or the pause lasts, nothing is created.
    3. What must be there before the first pod is made: Service, account, certificates.
    4. All pods get a node and are created, or none is.
    5. Once all are bound, the job has started. A node may still turn a pod away: then failures count on.

    A half-made gang, left by an operator that was killed, is completed if the rest still fits.
    """
    limit, since = observed.job.scheduling.schedule_timeout, observed.progress.waiting_since
    if limit is not None and since is not None and observed.now - since >= limit:
        said = f"no place within {limit} s (spec.scheduling.scheduleTimeoutSeconds)"
        said += f": {observed.invalid}" if observed.invalid else ""
        return finish(observed, Reason("ScheduleTimeout", said), succeeded=False)
    if observed.invalid:
        return _hold_back(observed)
    gang = [pod for pod in observed.pods if not pod.deleting and _current(pod, observed)]
    trouble = _trouble(gang, observed)
    if trouble is not None:
        return withdraw(observed, gang, trouble)
    stale = [pod for pod in observed.pods if pod.occupies and not pod.deleting and pod not in gang]
    if stale:
        reason = Reason("Waiting", f"{len(stale)} pods of an earlier start are still there")
        return Decision(_deletions(stale, observed), observed.progress, admitted=reason, requeue_after=1.0)
    pause = observed.progress.retry_at - observed.now
    if pause > 0:
        # What was said about the setback still holds.
        return Decision((), observed.progress, requeue_after=pause)
    if len(gang) == observed.job.workers + 1:
        return _started(observed, gang)
    return _create(observed, gang)


def withdraw(observed: ObservedState, gang: Iterable[Pod], reason: Reason) -> Decision:
    """Delete what stands of a placement that failed, and plan anew after a pause."""
    progress = pause_placement(observed, observed.progress)
    progress = replace(progress, given_up=progress.generation, given_up_attempt=progress.attempt)
    # Recorded first: a pod that survives a killed operator is then known to be of no placement.
    gang = tuple(gang)
    actions = (*refusals(gang, observed), Record(), *_deletions(gang, observed))
    return Decision(actions, progress, admitted=reason, requeue_after=progress.retry_at - observed.now)


def pause_placement(observed: ObservedState, progress: Progress) -> Progress:
    """Return ``progress`` with one more setback, and the time before which nothing is placed."""
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(progress.placement_failures, 10))
    # Rivals that spoil each other's placement must not come back at the same time, again and again.
    chance = hashlib.sha256(f"{observed.job.uid} {progress.placement_failures}".encode()).digest()[0]
    pause *= 1.0 + chance / 256.0
    return replace(
        progress,
        generation=latest_generation(observed),
        attempt=latest_attempt(observed),
        placement_failures=progress.placement_failures + 1,
        retry_at=observed.now + pause,
    )


def _hold_back(observed: ObservedState) -> Decision:
    """Let a job that cannot start hold nothing; the time that it waits counts."""
    reason = Reason("InvalidSpec", observed.invalid)
    standing = [pod for pod in observed.pods if not pod.deleting and (pod.alive or _current(pod, observed))]
    if standing:
        return withdraw(observed, standing, reason)
    progress = replace(observed.progress, waiting_since=observed.progress.waiting_since or observed.now)
    return Decision((), progress, admitted=reason, requeue_after=_LOOK_AGAIN)


def _current(pod: Pod, observed: ObservedState) -> bool:
    """Whether ``pod`` belongs to the placement that is under way."""
    if pod.role == contract.ROLE_COORDINATOR:
        return pod.generation > observed.progress.given_up_attempt
    return pod.generation > observed.progress.given_up


def _trouble(gang: Iterable[Pod], observed: ObservedState) -> Reason | None:
    if observed.refused:
        return Reason("Refused", observed.refused)
    members = {contract.COORDINATOR_HOST, *(slot.host for slot in slots(observed.job))}
    for pod in gang:
        if pod.over:
            return Reason("PodFailed", f"{pod.name}: {pod.reason}: {pod.message}")
        if unbound_too_long(pod, observed):
            return Reason(
                "PlaceTaken", f"{pod.name} was not bound in time: {pod.message or 'no reason given'}"
            )
        if pod.authority != observed.authority:
            return Reason("CertificatesGone", f"{pod.name} has a certificate that is no longer valid")
        if of_another_spec(pod, observed) or pod.host not in members:
            return Reason("SpecChanged", f"{pod.name} was made from another spec")
        lost = node_lost(pod, observed)
        if lost is not None:
            return lost
    return None


def _started(observed: ObservedState, gang: Iterable[Pod]) -> Decision:
    progress = replace(
        observed.progress, generation=latest_generation(observed), attempt=latest_attempt(observed)
    )
    unbound = sorted(pod.name for pod in gang if not pod.node)
    if unbound:
        reason = Reason("Binding", f"{len(unbound)} pods are not bound yet: {', '.join(unbound[:5])}")
        return Decision((), progress, admitted=reason, requeue_after=1.0)
    progress = replace(
        progress,
        started=observed.now,
        retry_at=0.0,
        waiting_since=None,
        waited_since=progress.waiting_since,
        overtaken=0,
        sizes=tuple((group.name, group.replicas) for group in observed.job.groups),
        compression=effective_compression(observed)[0],
    )
    # Nothing is done that would have to be recorded first: this is written with the rest of the status.
    return Decision((), progress, admitted=placed(), requeue_after=0.0)


def placed() -> Reason:
    """Return why a job that has started is admitted."""
    return Reason("Placed", "all pods have their nodes")


def _create(observed: ObservedState, gang: list[Pod]) -> Decision:
    have = newest(gang)
    hosts = [slot.host for slot in slots(observed.job) if slot.host not in have]
    generation = latest_generation(observed) + 1
    attempt = None if contract.COORDINATOR_HOST in have else latest_attempt(observed) + 1
    wanted = Wanted(tuple(hosts), generation, attempt)
    found = places_for(wanted, observed)
    if found is None:
        return Decision((), observed.progress, wanted=wanted)
    progress = replace(observed.progress, waiting_since=observed.progress.waiting_since or observed.now)
    if isinstance(found, Unplaceable):
        if found.pending:
            # What was said before still holds, unless something is wrong.
            wrong = Reason("PlannerFails", found.message) if found.failing else None
            return Decision((), progress, admitted=wrong, requeue_after=_next_look(observed, progress))
        if gang:
            return withdraw(observed, gang, Reason("PlaceTaken", found.message))
        return Decision(
            (),
            progress,
            admitted=Reason("NoPlace", found.message),
            requeue_after=_next_look(observed, progress),
        )
    preparing = prerequisites(observed)
    reason = Reason("Preparing", "certificates are being issued")
    if renewal(observed):
        return Decision(preparing, progress, admitted=reason, requeue_after=0.0)
    if observed.authority is None or not {slot.host for slot in slots(observed.job)} <= observed.certified:
        # Pods are stamped with their authority: they are made once it is known.
        preparing = (*preparing, IssueCertificates(certified_hosts(observed.job)))
        return Decision(preparing, progress, admitted=reason, requeue_after=0.0)
    progress = begun(progress, generation, attempt)
    pods = build(observed.job, observed.authority, hosts, generation, attempt, found.nodes)
    creations = [Create(manifest) for manifest in pods]
    reason = Reason("Binding", "pods are being created")
    return Decision((*preparing, Record(), *creations), progress, admitted=reason, requeue_after=1.0)


def _next_look(observed: ObservedState, progress: Progress) -> float:
    """Return after how many seconds to look again at a job that waits, if its planner says nothing."""
    again, limit = (
        _LOOK_AGAIN if progress.placement_failures else _LOOK_SELDOM,
        observed.job.scheduling.schedule_timeout,
    )
    if limit is None or progress.waiting_since is None:
        return again
    return min(again, progress.waiting_since + limit - observed.now)


def _deletions(pods: Iterable[Pod], observed: ObservedState) -> tuple[Action, ...]:
    return tuple(delete(pod, observed, grace=_SPOILED_GRACE) for pod in pods if not pod.deleting)
