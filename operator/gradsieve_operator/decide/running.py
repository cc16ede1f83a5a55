"""A job that has all of its places: success, failure, losses, replacements, and growing or shrinking."""

from __future__ import annotations

from dataclasses import replace

from gradsieve_operator import contract
from gradsieve_operator.decide.actions import Decision, Word
from gradsieve_operator.decide.admission import placed, withdraw
from gradsieve_operator.decide.endings import finish, forget_start, restart_whole
from gradsieve_operator.decide.filling import fill, restore, take_back, unplaced
from gradsieve_operator.decide.losses import another_restart, count_losses, ranks_lost
from gradsieve_operator.decide.members import (
    leaves_well,
    newest,
    slots,
)
from gradsieve_operator.decide.progress import Progress
from gradsieve_operator.decide.same_spec import of_another_spec
from gradsieve_operator.decide.steering import next_call, noticed, roster_digest, steer, taking_part
from gradsieve_operator.decide.world import World

_LOOK_AGAIN = 1.0


def keep_running(world: World) -> Decision:
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
    if world.invalid:
        return _success(world) or _deadline(world) or _left_alone(world)
    return (
        _unusable(world)
        or _success(world)
        or _deadline(world)
        or _turned_away(world)
        or count_losses(world)
        or _farewell(world)
        or unplaced(world)
        or _resume(world)
        or fill(world)
        or restore(world)
        or steer(world)
    )


def _unusable(world: World) -> Decision | None:
    living = [pod for pod in world.pods if pod.alive]
    if any(of_another_spec(pod, world) for pod in living):
        return restart_whole(
            world, Word("SpecChanged", "the job was changed while suspended: new pods start")
        )
    if world.authority is None or any(pod.authority != world.authority for pod in living):
        return another_restart(world, Word("CertificatesGone", "its certificates were deleted"), whole=True)
    return None


def _left_alone(world: World) -> Decision:
    """Let ranks train on: a new operator that reads specs more strictly must not end them."""
    word, progress = Word("InvalidSpec", world.invalid), noticed(world)
    again = max(_LOOK_AGAIN, next_call(world, progress))
    return Decision((), progress, admitted=placed(), degraded=word, again=again)


def _success(world: World) -> Decision | None:
    pod = newest(world.pods).get(contract.COORDINATOR_HOST)
    told = world.coordinator is not None and world.coordinator.state == contract.STATE_SUCCEEDED
    if told or (pod is not None and pod.ended_well):
        return finish(world, Word("Succeeded", "all ranks have ended with status 0"), succeeded=True)
    return None


def _deadline(world: World) -> Decision | None:
    assert world.progress.started is not None
    policy, age = world.job.run_policy, world.now - world.progress.started
    if policy.active_deadline is not None and age >= policy.active_deadline:
        word = Word("DeadlineExceeded", f"it did not end within {policy.active_deadline} s")
        return finish(world, word, succeeded=False)
    limit = policy.pre_running_deadline
    if limit is not None and not world.progress.ran and age >= limit:
        said = (
            world.coordinator.message if world.coordinator is not None else "the coordinator did not answer"
        )
        word = Word("PreRunningDeadlineExceeded", f"no rank ran within {limit} s: {said}")
        return finish(world, word, succeeded=False)
    return None


def _turned_away(world: World) -> Decision | None:
    """Take back pods that were bound, but whose nodes had no room any more when they saw them.

    Before ranks have run, nothing is kept: half a gang would hold places for nothing. Later only these pods
    go, and their places are filled after a pause.
    """
    refused = [pod for pod in newest(world.pods).values() if pod.turned_away and not pod.deleting]
    if not refused:
        return None
    word = Word("PodFailed", f"{refused[0].name}: {refused[0].reason}: {refused[0].message}")
    if world.progress.ran:
        return take_back(world, refused, word)
    since, setbacks = world.progress.waited_since or world.progress.started, world.progress.setbacks
    anew = replace(forget_start(world), waiting_since=since, setbacks=setbacks)
    return withdraw(_with(world, anew), world.pods, word)


def _with(world: World, progress: Progress) -> World:
    """Return ``world`` as it is with another ``progress``."""
    return replace(world, progress=progress)


def _farewell(world: World) -> Decision | None:
    last = newest(world.pods)
    if not any(slot.host in last and leaves_well(last[slot.host], world) for slot in slots(world.job)):
        return None
    return Decision((), noticed(world), admitted=placed(), again=_LOOK_AGAIN)


def _resume(world: World) -> Decision | None:
    """Count a restart when the coordinator has lost its ranks while all members are well and connected."""
    coordinator, progress = world.coordinator, world.progress
    if coordinator is None or coordinator.state != contract.STATE_LOST:
        return None
    members = taking_part(world)
    if members is None or coordinator.generation < progress.roster:
        return None
    same = roster_digest(world, members) == progress.members
    if not same or any(slot.host not in coordinator.connected for slot, _ in members):
        return None
    anew = _with(world, replace(progress, roster=coordinator.generation + 1))
    return ranks_lost(anew, coordinator.message or "the ranks were lost")
