"""A job's conditions: what holds of it, why, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gradsieve_operator import contract
from gradsieve_operator.decide import Decision, ObservedState, effective_compression, silence_limit
from gradsieve_operator.status.held import held
from gradsieve_operator.status.times import written

State = Literal["True", "False", "Unknown"]

TYPES = (
    "Suspended",
    "Admitted",
    "RendezvousReady",
    "Running",
    "TelemetryAvailable",
    "PlanConverged",
    "Degraded",
    "Complete",
    "Failed",
)
RECONCILE_ERROR = "ReconcileError"
"""Of a job that the operator fails to work on; jobs that it never failed on have no such condition."""

ADAPTATION_HELD = "AdaptationHeld"
"""Of a job that asks for adaptation, or for another mode than Synchronous; others have no such condition."""

_NOT_ALL = (RECONCILE_ERROR, ADAPTATION_HELD)

MOST_CONDITIONS = 16
"""What the schema allows. Those of others have what ours leave."""

STALE_SECONDS = 60.0
"""Telemetry that is older says nothing about now."""
_MOST_NAMED = 8
_LONGEST_MESSAGE = 4096
_OVER = "the job has ended"
_SUSPENDED = "spec.suspend is true"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition without its history."""

    type: str
    status: State
    reason: str
    message: str


def conditions(observed: ObservedState, decision: Decision, previous: Mapping[str, Any]) -> list[Condition]:
    """Return all conditions of a job that was looked at, in the order of `TYPES`.

    Args:
        observed: what was seen.
        decision: what was decided.
        previous: the job's status before; a reason that nothing new was said about is taken from it.
    """
    known = {condition["type"]: condition for condition in previous.get("conditions") or ()}
    admitted = _admitted(observed, decision, known)
    return [
        _suspended(observed, decision),
        admitted,
        _rendezvous(observed, decision, known),
        _running(observed, decision, admitted, known),
        _telemetry(observed, decision),
        _plan(observed, decision),
        _degraded(decision),
        _ended("Complete", decision, known, succeeded=True),
        _ended("Failed", decision, known, succeeded=False),
        *_adaptation(observed, decision, known),
        *_reconciled(known),
    ]


def merged(
    previous: Sequence[Mapping[str, Any]], current: Iterable[Condition], *, generation: int, now: float
) -> list[dict[str, Any]]:
    """Return the list for the status: the time of transition is kept where the status is the same.

    Conditions of types that are not among ``current`` are kept as they are: ours, and of those that others
    have set as many as there is room for.
    """
    known = {condition["type"]: condition for condition in previous}
    result = []
    for condition in current:
        before = known.pop(condition.type, None)
        same = before is not None and before["status"] == condition.status
        result.append(
            {
                "type": condition.type,
                "status": condition.status,
                "observedGeneration": generation,
                "lastTransitionTime": before["lastTransitionTime"] if before and same else written(now),
                "reason": condition.reason,
                "message": condition.message,
            }
        )
    ours = [dict(condition) for kind, condition in known.items() if kind in (*TYPES, *_NOT_ALL)]
    theirs = [dict(condition) for kind, condition in known.items() if kind not in (*TYPES, *_NOT_ALL)]
    # Room for our own, of which some may not have been said yet.
    mine = len(TYPES) + 1 + any(each["type"] == ADAPTATION_HELD for each in result + ours)
    return result + ours + theirs[: MOST_CONDITIONS - mine]


def invalid(problem: str) -> list[Condition]:
    """Return the conditions of a job that the operator cannot run as it is written."""
    return [
        Condition("Admitted", "False", "InvalidSpec", problem),
        Condition("Running", "False", "InvalidSpec", problem),
    ]


def troubled(problem: str, previous: Iterable[Mapping[str, Any]]) -> list[Condition]:
    """Return the conditions of a job that the operator fails to work on.

    Args:
        problem: what went wrong, in words.
        previous: its conditions before: only of ranks that ran last nobody knows now whether they do.
    """
    said = problem[:_LONGEST_MESSAGE]
    condition = Condition(RECONCILE_ERROR, "True", "UnexpectedError", said)
    ran = any(each["type"] == "Running" and each["status"] == "True" for each in previous)
    unknown = Condition(
        "Running", "Unknown", RECONCILE_ERROR, f"the operator fails to work on the job: {said}"
    )
    return [unknown, condition] if ran else [condition]


def _reconciled(known: Mapping[str, Any]) -> list[Condition]:
    """Return that a job that the operator failed to work on is worked on again; nothing of others."""
    if RECONCILE_ERROR not in known:
        return []
    return [Condition(RECONCILE_ERROR, "False", "Reconciled", "the operator works on the job again")]


def _suspended(observed: ObservedState, decision: Decision) -> Condition:
    if not observed.job.suspend:
        return Condition("Suspended", "False", "NotSuspended", "spec.suspend is false")
    if decision.progress.finished is not None:
        return Condition("Suspended", "False", "Ended", _OVER)
    left = sum(pod.occupies for pod in observed.pods)
    if left:
        return Condition("Suspended", "False", "Suspending", f"{left} pods are still there")
    return Condition("Suspended", "True", "Suspended", _SUSPENDED)


def _admitted(observed: ObservedState, decision: Decision, known: Mapping[str, Any]) -> Condition:
    status: State = "True" if decision.progress.started is not None else "False"
    if decision.admitted is not None:
        return Condition("Admitted", status, decision.admitted.reason, decision.admitted.message)
    before = known.get("Admitted")
    if before is not None and before["status"] == status:
        return Condition("Admitted", status, before["reason"], before["message"])
    if status == "True":
        return Condition("Admitted", status, "Placed", "all pods have their nodes")
    return Condition("Admitted", status, "Waiting", f"{observed.job.workers} workers have no place yet")


def _rendezvous(observed: ObservedState, decision: Decision, known: Mapping[str, Any]) -> Condition:
    def rendezvous(status: State, reason: str, message: str) -> Condition:
        return Condition("RendezvousReady", status, reason, message)

    coordinator, progress = observed.coordinator, decision.progress
    if progress.finished is not None:
        return rendezvous("False", "Ended", _OVER)
    if progress.started is None:
        return rendezvous("False", "NotAdmitted", "not all pods have their nodes")
    if coordinator is None:
        return rendezvous("Unknown", "CoordinatorSilent", "the coordinator did not answer")
    before = known.get("RendezvousReady")
    if progress.roster != observed.progress.roster and before is not None and before["status"] == "True":
        # What the coordinator says of a roster that it is about to be told of is known at the next look.
        return rendezvous("True", before["reason"], before["message"])
    if coordinator.missing:
        return rendezvous("False", "Waiting", f"waiting for {_listed(coordinator.missing)}")
    if coordinator.generation < progress.roster or not coordinator.generation:
        return rendezvous("False", "Waiting", "the coordinator has not got the list of workers yet")
    return rendezvous("True", "AllRegistered", "all workers have registered with the coordinator")


def _running(
    observed: ObservedState, decision: Decision, admitted: Condition, known: Mapping[str, Any]
) -> Condition:
    progress = decision.progress
    if progress.finished is not None:
        ended = _ended("Complete" if progress.succeeded else "Failed", decision, known, progress.succeeded)
        return Condition("Running", "False", "Succeeded" if progress.succeeded else "Failed", ended.message)
    if observed.job.suspend:
        return Condition("Running", "False", "Suspended", _SUSPENDED)
    if admitted.status != "True":
        return Condition("Running", "False", admitted.reason, admitted.message)
    coordinator, limit = observed.coordinator, silence_limit(observed.job)
    if progress.running and observed.unanswered >= limit:
        said = f"the coordinator has not answered for {limit:.0f} s"
        return Condition("Running", "Unknown", "CoordinatorSilent", said)
    if progress.running and (coordinator is None or coordinator.state == contract.STATE_RUNNING):
        return Condition("Running", "True", "Running", "ranks are training")
    said = coordinator.message if coordinator is not None else ""
    if progress.ran:
        return Condition("Running", "False", "Restarting", said or "ranks are being started again")
    return Condition("Running", "False", "Starting", said or "ranks are being started")


def _telemetry(observed: ObservedState, decision: Decision) -> Condition:
    if decision.progress.finished is not None:
        return Condition("TelemetryAvailable", "False", "Ended", _OVER)
    if observed.job.suspend:
        return Condition("TelemetryAvailable", "False", "Suspended", _SUSPENDED)
    coordinator = observed.coordinator
    if coordinator is None or not coordinator.telemetry:
        return Condition("TelemetryAvailable", "False", "NoSample", "no sample from rank 0")
    if observed.now - coordinator.sampled_at(observed.now) > STALE_SECONDS:
        message = f"the last sample from rank 0 is older than {STALE_SECONDS:.0f} s"
        return Condition("TelemetryAvailable", "False", "Stale", message)
    return Condition("TelemetryAvailable", "True", "Reporting", "rank 0 reports")


def _plan(observed: ObservedState, decision: Decision) -> Condition:
    wanted, coordinator = decision.progress.plan_generation, observed.coordinator
    if decision.progress.finished is not None:
        return Condition("PlanConverged", "Unknown", "Ended", _OVER)
    if observed.job.suspend:
        return Condition("PlanConverged", "Unknown", "Suspended", _SUSPENDED)
    if observed.invalid:
        return Condition("PlanConverged", "Unknown", "InvalidSpec", observed.invalid)
    compression, objection = effective_compression(observed)
    if objection is not None:
        return Condition("PlanConverged", "False", objection.reason, objection.message)
    if not compression.manifest():
        return Condition("PlanConverged", "True", "NoPlan", "the job leaves compression to its program")
    if not decision.progress.plan:
        return Condition("PlanConverged", "False", "Pending", "no rank runs yet")
    if coordinator is None:
        return Condition("PlanConverged", "Unknown", "CoordinatorSilent", "the coordinator did not answer")
    if coordinator.applied_plan < wanted:
        followed = f"ranks follow {coordinator.applied_plan or 'none'}"
        return Condition("PlanConverged", "False", "Pending", f"the plan is {wanted}, {followed}")
    memory = decision.progress.adaptation
    why = f": {memory.evidence}" if memory is not None and memory.evidence else ""
    return Condition("PlanConverged", "True", "Applied", f"all ranks follow plan {wanted}{why}")


def _adaptation(observed: ObservedState, decision: Decision, known: Mapping[str, Any]) -> list[Condition]:
    found = held(observed, decision, known.get(ADAPTATION_HELD))
    if found is None:
        return []
    return [Condition(ADAPTATION_HELD, "True" if found.held else "False", found.reason, found.message)]


def _degraded(decision: Decision) -> Condition:
    if decision.degraded is not None:
        return Condition("Degraded", "True", decision.degraded.reason, decision.degraded.message)
    if decision.progress.absent and decision.progress.finished is None:
        absent = [host for host in decision.progress.absent if host != contract.COORDINATOR_HOST]
        without = _listed(absent) if absent else "its coordinator"
        return Condition("Degraded", "True", "WorkersMissing", f"the job is without {without}")
    return Condition("Degraded", "False", "AsExpected", "nothing is missing")


def _ended(kind: str, decision: Decision, known: Mapping[str, Any], succeeded: bool) -> Condition:
    progress, before = decision.progress, known.get(kind)
    if progress.finished is None:
        return Condition(kind, "False", "NotEnded", "the job has not ended")
    if progress.succeeded != succeeded:
        return Condition(kind, "False", "Succeeded" if progress.succeeded else "Failed", "it ended otherwise")
    if decision.ended is not None:
        return Condition(kind, "True", decision.ended.reason, decision.ended.message)
    if before is not None and before["status"] == "True":
        return Condition(kind, "True", before["reason"], before["message"])
    return Condition(kind, "True", "Succeeded" if succeeded else "Failed", "the job has ended")


def _listed(hosts: Sequence[str]) -> str:
    more = len(hosts) - _MOST_NAMED
    return ", ".join(hosts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
