"""A job that has all of its places: success, failure, losses, replacements, and growing or shrinking."""

from __future__ import annotations

from dataclasses import replace

from gradsieve_operator import contract
from gradsieve_operator.decide.actions import Decision, Reason
from gradsieve_operator.decide.admission import placed, withdraw
from gradsieve_operator.decide.endings import finish, forget_start, restart_whole
from gradsieve_operator.decide.filling import fill, restore, take_back, unplaced
from gradsieve_operator.decide.losses import another_restart, count_losses, ranks_lost
from gradsieve_operator.decide.members import (
    leaves_well,
    newest,
    slots,
)
from gradsieve_operator.decide.observed_state import ObservedState
from gradsieve_operator.decide.progress import Progress
from gradsieve_operator.decide.same_spec import of_another_spec
from gradsieve_operator.decide.steering import next_call, noticed, roster_digest, steer, taking_part

_LOOK_AGAIN = 1.0


def keep_running(observed: ObservedState) -> Decision:
    """Decide for a job that has started; the first of these that applies.

    0. It is invalid: its ranks go on, and nothing is done but to take note of their end.
    1. Pods made from another spec, or certificates that are gone: start over with new pods.
    2. The program has ended well, or a deadline has passed: the end.
    3. A pod was turned away by its node: it never had its place, and is no loss.
    4. A member is lost: restart, unless the job has failed too often.
    5. A member has ended well a moment ago: wait for the coordinator's own end.
    6. A new pod is lost before it took part: take it back, no rank has missed it.
    7. The ranks are lost and all members are well: start them again.
    8. A place is empty: fill it, or go on without where ``minReplicas`` allows it.
    9. What all pods rely on is missing, or was not looked at for a while: make it.
    10. Otherwise see to it that the coordinator knows members and plan.
    """
    if observed.invalid:
        return _success(observed) or _deadline(observed) or _left_alone(observed)
    return (
        _unusable(observed)
        or _success(observed)
        or _deadline(observed)
        or _turned_away(observed)
        or count_losses(observed)
        or _farewell(observed)
        or unplaced(observed)
        or _resume(observed)
        or fill(observed)
        or restore(observed)
        or steer(observed)
    )


def _unusable(observed: ObservedState) -> Decision | None:
    living = [pod for pod in observed.pods if pod.alive]
    if any(of_another_spec(pod, observed) for pod in living):
        return restart_whole(
            observed, Reason("SpecChanged", "the job was changed while suspended: new pods start")
        )
    if observed.authority is None or any(pod.authority != observed.authority for pod in living):
        return another_restart(
            observed, Reason("CertificatesGone", "its certificates were deleted"), whole=True
        )
    return None


def _left_alone(observed: ObservedState) -> Decision:
    """Let ranks train on: a new operator that reads specs more strictly must not end them."""
    reason, progress = Reason("InvalidSpec", observed.invalid), noticed(observed)
    again = max(_LOOK_AGAIN, next_call(observed, progress))
    return Decision((), progress, admitted=placed(), degraded=reason, requeue_after=again)


def _success(observed: ObservedState) -> Decision | None:
    pod = newest(observed.pods).get(contract.COORDINATOR_HOST)
    told = observed.coordinator is not None and observed.coordinator.state == contract.STATE_SUCCEEDED
    if told or (pod is not None and pod.ended_well):
        return finish(observed, Reason("Succeeded", "all ranks have ended with status 0"), succeeded=True)
    return None


def _deadline(observed: ObservedState) -> Decision | None:
    assert observed.progress.started is not None
    policy, age = observed.job.run_policy, observed.now - observed.progress.started
    if policy.active_deadline is not None and age >= policy.active_deadline:
        reason = Reason("DeadlineExceeded", f"it did not end within {policy.active_deadline} s")
        return finish(observed, reason, succeeded=False)
    limit = policy.pre_running_deadline
    if limit is not None and not observed.progress.ran and age >= limit:
        said = (
            observed.coordinator.message
            if observed.coordinator is not None
            else "the coordinator did not answer"
        )
        reason = Reason("PreRunningDeadlineExceeded", f"no rank ran within {limit} s: {said}")
        return finish(observed, reason, succeeded=False)
    return None


def _turned_away(observed: ObservedState) -> Decision | None:
    """Take back pods that were bound, but whose nodes had no room any more when they saw them.

    Before ranks have run, nothing is kept: half a gang would hold places for nothing. Later only these pods
    go, and their places are filled after a pause.
    """
    refused = [pod for pod in newest(observed.pods).values() if pod.turned_away and not pod.deleting]
    if not refused:
        return None
    reason = Reason("PodFailed", f"{refused[0].name}: {refused[0].reason}: {refused[0].message}")
    if observed.progress.ran:
        return take_back(observed, refused, reason)
    since = observed.progress.waited_since or observed.progress.started
    failures = observed.progress.placement_failures
    anew = replace(forget_start(observed), waiting_since=since, placement_failures=failures)
    return withdraw(_with(observed, anew), observed.pods, reason)


def _with(observed: ObservedState, progress: Progress) -> ObservedState:
    """Return ``observed`` as it is with another ``progress``."""
    return replace(observed, progress=progress)


def _farewell(observed: ObservedState) -> Decision | None:
    last = newest(observed.pods)
    if not any(slot.host in last and leaves_well(last[slot.host], observed) for slot in slots(observed.job)):
        return None
    return Decision((), noticed(observed), admitted=placed(), requeue_after=_LOOK_AGAIN)


def _resume(observed: ObservedState) -> Decision | None:
    """Count a restart when the coordinator has lost its ranks while all members are well and connected."""
    coordinator, progress = observed.coordinator, observed.progress
    if coordinator is None or coordinator.state != contract.STATE_LOST:
        return None
    members = taking_part(observed)
    if members is None or coordinator.generation < progress.roster:
        return None
    same = roster_digest(observed, members) == progress.members
    if not same or any(slot.host not in coordinator.connected for slot, _ in members):
        return None
    anew = _with(observed, replace(progress, roster=coordinator.generation + 1))
    return ranks_lost(anew, coordinator.message or "the ranks were lost")
