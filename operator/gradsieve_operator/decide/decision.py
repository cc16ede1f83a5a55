"""The decision as a whole."""

from __future__ import annotations

from dataclasses import replace

from gradsieve_operator import contract
from gradsieve_operator.decide.actions import Action, Decision, MarkPod
from gradsieve_operator.decide.admission import admit
from gradsieve_operator.decide.endings import after_the_end, delete, suspended
from gradsieve_operator.decide.observed_state import ObservedState
from gradsieve_operator.decide.running import keep_running
from gradsieve_operator.decide.same_spec import anchored


def decide(observed: ObservedState) -> Decision:
    """Return what to do now for a job.

    It looks at nothing but ``observed``: whatever happened before, in whichever order, and wherever an
    operator was killed, the same state leads to the same decision. A decision is carried out once; then the
    job is looked at again. Surplus pods go first, whatever else is done, and whether or not a coordinator
    answers.
    """
    if observed.job.deleted:
        return Decision((), observed.progress)
    observed = replace(observed, progress=anchored(observed))
    first: tuple[Action, ...] = (*(delete(pod, observed) for pod in observed.surplus), *_marks(observed))
    decision = _decide(observed)
    return replace(decision, actions=(*first, *decision.actions)) if first else decision


def _marks(observed: ObservedState) -> tuple[MarkPod, ...]:
    """Return what brings further authorities to the coordinator, which checks all others, at once."""
    leaders = (pod for pod in observed.pods if pod.role == contract.ROLE_COORDINATOR and pod.alive)
    return tuple(MarkPod(pod.name, pod.uid, observed.trust) for pod in leaders if pod.trust != observed.trust)


def _decide(observed: ObservedState) -> Decision:
    if observed.progress.finished is not None:
        return after_the_end(observed)
    if observed.job.suspend:
        return suspended(observed)
    if observed.progress.started is None:
        return admit(observed)
    return keep_running(observed)
