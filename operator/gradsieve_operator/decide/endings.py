"""How a job ends, is held back, and what is left of it afterwards."""

from __future__ import annotations

from dataclasses import replace

from gradsieve_operator import contract
from gradsieve_operator.decide.actions import Action, Decision, DeleteJob, DeletePod, Reason, Record, Stop
from gradsieve_operator.decide.members import latest_attempt, latest_generation, node_lost
from gradsieve_operator.decide.observed_state import ObservedState, Pod
from gradsieve_operator.decide.progress import Progress

_LAST_WORDS_SECONDS = 30.0
"""A coordinator that has reported the end gets so long to end itself, so that its log stays readable."""


def finish(observed: ObservedState, reason: Reason, *, succeeded: bool) -> Decision:
    """End the job for good; what is left is cleaned up by the decisions after this one."""
    # The planner keeps places for whoever waits.
    progress = replace(
        observed.progress,
        finished=observed.now,
        succeeded=succeeded,
        absent=(),
        waiting_since=None,
        overtaken=0,
    )
    return Decision((), progress, ended=reason, requeue_after=0.0)


def after_the_end(observed: ObservedState) -> Decision:
    """Delete the pods that ``cleanPodPolicy`` names, and the job itself when its time is over."""
    assert observed.progress.finished is not None
    policy, waited = observed.job.run_policy, observed.now - observed.progress.finished
    if policy.ttl_after_finished is not None and waited >= policy.ttl_after_finished:
        return Decision((DeleteJob(),), observed.progress)
    doomed = _removable(observed) if policy.clean_pod_policy != "None" else []
    if policy.clean_pod_policy == "Running":
        doomed = [pod for pod in doomed if pod.occupies]
    # Only of a success does the coordinator know by itself; after a deadline it would wait for new orders.
    heard_out = not observed.progress.succeeded or waited >= _LAST_WORDS_SECONDS
    speaking = [pod for pod in doomed if _speaks(pod) and not heard_out]
    actions = tuple(delete(pod, observed) for pod in doomed if pod not in speaking)
    waits = [_LAST_WORDS_SECONDS - waited] if speaking else []
    if policy.ttl_after_finished is not None:
        waits.append(policy.ttl_after_finished - waited)
    return Decision(actions, observed.progress, requeue_after=min(waits, default=None))


def suspended(observed: ObservedState) -> Decision:
    """End the ranks and delete all pods; the next start is a new one, by the compression asked for then."""
    doomed = _removable(observed)
    progress = replace(forget_start(observed), compression=None, adaptation=None)
    # While pods go nothing depends on what is recorded: each that has gone is no write of its own.
    actions: tuple[Action, ...] = (Record(), *(delete(pod, observed) for pod in doomed)) if doomed else ()
    if any(pod.alive for pod in doomed) and observed.coordinator is not None:
        actions = (Stop("suspended"), *actions)
    return Decision(actions, progress, admitted=Reason("Suspended", "spec.suspend is true"))


def restart_whole(observed: ObservedState, reason: Reason) -> Decision:
    """Delete all pods because none of them can be used any more; once they are gone the job starts anew."""
    progress = forget_start(observed)
    actions: tuple[Action, ...] = (Record(), *(delete(pod, observed) for pod in _removable(observed)))
    return Decision(actions, progress, admitted=reason, requeue_after=1.0)


def delete(pod: Pod, observed: ObservedState, grace: int | None = None) -> DeletePod:
    """Return the deletion of ``pod``; on a lost node it waits for nobody's word."""
    return DeletePod(pod.name, pod.uid, 0 if node_lost(pod, observed) else grace)


def forget_start(observed: ObservedState) -> Progress:
    """Return the progress of a job none of whose pods counts any more; counters and compression go on."""
    return replace(
        observed.progress,
        generation=latest_generation(observed),
        attempt=latest_attempt(observed),
        given_up=latest_generation(observed),
        given_up_attempt=latest_attempt(observed),
        waiting_since=None,
        waited_since=None,
        overtaken=0,
        placement_failures=0,
        retry_at=0.0,
        started=None,
        running=False,
        changed=None,
        absent=(),
        sizes=(),
    )


def _removable(observed: ObservedState) -> list[Pod]:
    """Return the pods whose deletion has not begun, or hangs because their node cannot confirm it."""
    return [pod for pod in observed.pods if not pod.deleting or node_lost(pod, observed)]


def _speaks(pod: Pod) -> bool:
    return pod.role == contract.ROLE_COORDINATOR and pod.phase == "Running"
