"""How a job ends, is held back, and what is left of it afterwards."""

from __future__ import annotations

from dataclasses import replace

from gradsieve_operator import contract
from gradsieve_operator.decide.actions import Action, Decision, DeleteJob, DeletePod, Record, Stop, Word
from gradsieve_operator.decide.members import latest_attempt, latest_generation, node_lost
from gradsieve_operator.decide.progress import Progress
from gradsieve_operator.decide.world import Pod, World

_LAST_WORDS_SECONDS = 30.0
"""A coordinator that has reported the end gets so long to end itself, so that its log stays readable."""


def finish(world: World, word: Word, *, succeeded: bool) -> Decision:
    """End the job for good; what is left is cleaned up by the decisions after this one."""
    # The planner keeps places for whoever waits.
    progress = replace(
        world.progress,
        finished=world.now,
        succeeded=succeeded,
        absent=(),
        waiting_since=None,
        overtaken=0,
    )
    return Decision((), progress, ended=word, again=0.0)


def after_the_end(world: World) -> Decision:
    """Delete the pods that ``cleanPodPolicy`` names, and the job itself when its time is over."""
    assert world.progress.finished is not None
    policy, waited = world.job.run_policy, world.now - world.progress.finished
    if policy.ttl_after_finished is not None and waited >= policy.ttl_after_finished:
        return Decision((DeleteJob(),), world.progress)
    doomed = _removable(world) if policy.clean_pod_policy != "None" else []
    if policy.clean_pod_policy == "Running":
        doomed = [pod for pod in doomed if pod.occupies]
    # Only of a success does the coordinator know by itself; after a deadline it would wait for new orders.
    heard_out = not world.progress.succeeded or waited >= _LAST_WORDS_SECONDS
    speaking = [pod for pod in doomed if _speaks(pod) and not heard_out]
    actions = tuple(delete(pod, world) for pod in doomed if pod not in speaking)
    waits = [_LAST_WORDS_SECONDS - waited] if speaking else []
    if policy.ttl_after_finished is not None:
        waits.append(policy.ttl_after_finished - waited)
    return Decision(actions, world.progress, again=min(waits, default=None))


def suspended(world: World) -> Decision:
    """End the ranks and delete all pods; the next start is a new one, by the compression asked for then."""
    doomed = _removable(world)
    progress = replace(forget_start(world), compression=None, adaptation=None)
    actions: tuple[Action, ...] = (Record(), *(delete(pod, world) for pod in doomed))
    if any(pod.alive for pod in doomed) and world.coordinator is not None:
        actions = (Stop("suspended"), *actions)
    return Decision(actions, progress, admitted=Word("Suspended", "spec.suspend is true"))


def restart_whole(world: World, word: Word) -> Decision:
    """Delete all pods because none of them can be used any more; once they are gone the job starts anew."""
    progress = forget_start(world)
    actions: tuple[Action, ...] = (Record(), *(delete(pod, world) for pod in _removable(world)))
    return Decision(actions, progress, admitted=word, again=1.0)


def delete(pod: Pod, world: World, grace: int | None = None) -> DeletePod:
    """Return the deletion of ``pod``; on a lost node it waits for nobody's word."""
    return DeletePod(pod.name, pod.uid, 0 if node_lost(pod, world) else grace)


def forget_start(world: World) -> Progress:
    """Return the progress of a job none of whose pods counts any more; counters and compression go on."""
    return replace(
        world.progress,
        generation=latest_generation(world),
        attempt=latest_attempt(world),
        given_up=latest_generation(world),
        given_up_attempt=latest_attempt(world),
        waiting_since=None,
        waited_since=None,
        overtaken=0,
        setbacks=0,
        retry_at=0.0,
        started=None,
        running=False,
        changed=None,
        absent=(),
        sizes=(),
    )


def _removable(world: World) -> list[Pod]:
    """Return the pods whose deletion has not begun, or hangs because their node cannot confirm it."""
    return [pod for pod in world.pods if not pod.deleting or node_lost(pod, world)]


def _speaks(pod: Pod) -> bool:
    return pod.role == contract.ROLE_COORDINATOR and pod.phase == "Running"
