"""Telling the coordinator who takes part and how to compress, and hearing from it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from gradsieve_operator import contract
from gradsieve_operator.decide import requests
from gradsieve_operator.decide.actions import Action, Decision, PutPlan, PutRoster, Record
from gradsieve_operator.decide.admission import placed
from gradsieve_operator.decide.endings import delete
from gradsieve_operator.decide.members import (
    Slot,
    hindrance,
    latest_attempt,
    latest_generation,
    newest,
    slots,
)
from gradsieve_operator.decide.progress import Progress
from gradsieve_operator.decide.world import Pod, World

_STARTING_SECONDS, _RUNNING_SECONDS = 0.5, 3.0
"""How often the coordinator is asked: often while something is expected to happen."""


def steer(world: World, members: Sequence[tuple[Slot, Pod]]) -> Decision:
    """Bring the coordinator's roster and plan up to date.

    1. Other members than in the last roster, or another coordinator: a new generation of the roster.
    2. Another compression than in the last plan: a new generation of the plan.
    3. Both are recorded first, and sent until the coordinator says that it has them.
    4. Pods that are in no roster any more are deleted once the coordinator knows.
    5. What keeps a pod from starting is said.
    """
    progress = _next_plan(world, _next_roster(world, members, noticed(world)))
    coordinator = world.coordinator
    actions: list[Action] = []
    if (progress.roster, progress.plan_generation) != (world.progress.roster, world.progress.plan_generation):
        actions.append(Record(progress))
    knows = coordinator is not None and coordinator.generation >= progress.roster
    if coordinator is not None and not knows:
        body = requests.roster(world.job, progress.roster, members, world.compression)
        actions.append(PutRoster(body))
    if coordinator is not None and progress.plan and coordinator.plan_generation < progress.plan_generation:
        assert world.compression is not None
        actions.append(PutPlan(requests.plan(progress.plan_generation, world.compression)))
    last = newest(world.pods)
    if knows:
        places = {contract.COORDINATOR_HOST, *(s.host for s in slots(world.job))}
        surplus = (p for p in world.pods if p.alive and (p.host not in places or p != last[p.host]))
        actions.extend(delete(pod, world) for pod in surplus)
    again = _RUNNING_SECONDS if progress.running and knows else _STARTING_SECONDS
    return Decision(tuple(actions), progress, admitted=placed(), degraded=hindrance(world), again=again)


def noticed(world: World) -> Progress:
    """Return the progress with what the coordinator says about the ranks."""
    progress, coordinator = world.progress, world.coordinator
    leader = newest(world.pods).get(contract.COORDINATOR_HOST)
    running = progress.running and leader is not None and leader.alive
    if coordinator is not None:
        running = coordinator.state == contract.STATE_RUNNING
    if running == progress.running:
        return progress
    return replace(progress, running=running, changed=world.now)


def roster_digest(world: World, members: Sequence[tuple[Slot, Pod]]) -> str:
    """Return what tells rosters apart, whatever their generation: the members, and the coordinator."""
    leader = newest(world.pods).get(contract.COORDINATOR_HOST)
    who = [leader.uid if leader else "", *(f"{slot.host}={pod.uid}" for slot, pod in members)]
    return hashlib.sha256("\n".join(who).encode()).hexdigest()[:16]


def _next_roster(world: World, members: Sequence[tuple[Slot, Pod]], progress: Progress) -> Progress:
    digest = roster_digest(world, members)
    if digest == progress.members:
        return progress
    filled = {slot.host for slot, _ in members}
    return replace(
        progress,
        generation=latest_generation(world),
        attempt=latest_attempt(world),
        roster=max(latest_generation(world), progress.roster + 1),
        members=digest,
        absent=tuple(slot.host for slot in slots(world.job) if slot.host not in filled),
        sizes=tuple((group.name, group.replicas) for group in world.job.groups),
    )


def _next_plan(world: World, progress: Progress) -> Progress:
    digest = requests.plan_digest(world.compression)
    if digest == progress.plan:
        return progress
    return replace(progress, plan=digest, plan_generation=progress.plan_generation + bool(digest))
