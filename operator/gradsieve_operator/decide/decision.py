"""The decision as a whole."""

from __future__ import annotations

from dataclasses import replace

from gradsieve_operator import contract
from gradsieve_operator.decide.actions import Action, Decision, MarkPod
from gradsieve_operator.decide.admission import admit
from gradsieve_operator.decide.endings import after_the_end, delete, suspended
from gradsieve_operator.decide.running import keep_running
from gradsieve_operator.decide.same_spec import anchored
from gradsieve_operator.decide.world import World


def decide(world: World) -> Decision:
    """Return what to do now for a job.

    It looks at nothing but ``world``: whatever happened before, in whichever order, and wherever an operator
    was killed, the same world leads to the same decision. A decision is carried out once; then the world is
    looked at anew. Surplus pods go first, whatever else is done, and whether or not a coordinator answers.
    """
    if world.job.deleted:
        return Decision((), world.progress)
    world = replace(world, progress=anchored(world))
    first: tuple[Action, ...] = (*(delete(pod, world) for pod in world.surplus), *_marks(world))
    decision = _decide(world)
    return replace(decision, actions=(*first, *decision.actions)) if first else decision


def _marks(world: World) -> tuple[MarkPod, ...]:
    """Return what brings further authorities to the coordinator, which checks all others, at once."""
    leaders = (pod for pod in world.pods if pod.role == contract.ROLE_COORDINATOR and pod.alive)
    return tuple(MarkPod(pod.name, pod.uid, world.trust) for pod in leaders if pod.trust != world.trust)


def _decide(world: World) -> Decision:
    if world.progress.finished is not None:
        return after_the_end(world)
    if world.job.suspend:
        return suspended(world)
    if world.progress.started is None:
        return admit(world)
    return keep_running(world)
