"""Telling the coordinator who takes part and how to compress, and hearing from it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from gradsieve_operator import contract
from gradsieve_operator.decide import requests
from gradsieve_operator.decide.actions import Action, Decision, PutPlan, PutRoster, Reason, Record
from gradsieve_operator.decide.adapting import adapted, plan_to_send, why
from gradsieve_operator.decide.admission import placed
from gradsieve_operator.decide.effective_compression import effective_compression
from gradsieve_operator.decide.endings import delete
from gradsieve_operator.decide.losses import rested
from gradsieve_operator.decide.members import (
    Slot,
    enough,
    hindrance,
    latest_attempt,
    latest_generation,
    newest,
    present,
    slots,
)
from gradsieve_operator.decide.observed_state import ObservedState, Pod
from gradsieve_operator.decide.progress import Progress
from gradsieve_operator.spec import Compression

_FIRST_SAMPLE_SECONDS = 60.0
"""Ranks that report at all have done so by then."""

_PENDING_SECONDS = 30.0
"""Ranks that must start anew wait for so long for a pod that does not run yet; a pull may take longer."""


def steer(observed: ObservedState) -> Decision:
    """Bring the coordinator's roster and plan up to date.

    1. Other members than in the last roster, or another coordinator: a new generation of the roster.
    2. Another mode or density than in the last plan, as asked for or as adaptation decides: a new generation
       of it. A program is told a mode once it has said that it can change.
    3. The roster, and what adaptation has decided, is recorded first. Roster and plan are sent until the
       coordinator says that it has them; one that has a later plan than is recorded has it from an operator
       that was killed before it recorded it, and gets the next one.
    4. Pods that are in no roster any more are deleted once the coordinator knows; it is said if it is silent.
    5. What keeps a pod from starting is said.
    """
    members, coordinator = taking_part(observed), observed.coordinator
    compression, _ = effective_compression(observed)
    progress = noticed(observed)
    if members is not None:
        progress = _next_roster(observed, members, progress)
    progress, held = adapted(observed, compression, progress)
    progress = _next_plan(compression, observed, progress)
    actions: list[Action] = []
    planned = progress.plan_generation != observed.progress.plan_generation
    decided = planned and progress.adaptation != observed.progress.adaptation
    if progress.roster != observed.progress.roster or decided:
        actions.append(Record())
    knows = coordinator is not None and members is not None and coordinator.generation >= progress.roster
    if coordinator is not None and members is not None and not knows:
        body = requests.roster(observed.job, progress.roster, members, compression)
        actions.append(PutRoster(body))
    if coordinator is not None and progress.plan and coordinator.plan_generation < progress.plan_generation:
        told = plan_to_send(observed, compression, progress)
        actions.append(PutPlan({"generation": progress.plan_generation, **told, **why(progress)}))
    leaving = _leaving(observed)
    if knows:
        actions.extend(delete(pod, observed) for pod in leaving)
    again = next_call(observed, progress) if knows else observed.pace.starting
    if held is not None and held.again is not None:
        again = min(again, max(held.again, observed.pace.deciding))
    reason = hindrance(observed)
    if reason is None and leaving and observed.silence:
        names = ", ".join(pod.name for pod in leaving)
        reason = Reason(
            "CoordinatorSilent", f"{names}: not deleted before the coordinator, which is silent, knows it"
        )
    return Decision(
        tuple(actions), progress, admitted=placed(), degraded=reason, requeue_after=again, held=held
    )


def _leaving(observed: ObservedState) -> list[Pod]:
    """Return the pods that are in no roster any more: of places that the job has no longer, or replaced."""
    last = newest(observed.pods)
    places = {contract.COORDINATOR_HOST, *(slot.host for slot in slots(observed.job))}
    left = (pod for pod in observed.pods if pod.occupies and not pod.deleting)
    return [pod for pod in left if pod.host not in places or pod != last[pod.host]]


def next_call(observed: ObservedState, progress: Progress) -> float:
    """Return after how many seconds to listen again to a coordinator that knows all that it shall know.

    Ranks that run have something to say for a while, and when they were told something: their first sample,
    a plan that they follow, or what has made their coordinator's pod not ready.
    """
    coordinator = observed.coordinator
    if coordinator is None or not progress.running:
        return observed.pace.starting
    leader = newest(observed.pods).get(contract.COORDINATOR_HOST)
    first = not coordinator.telemetry and observed.now - (progress.changed or 0.0) < _FIRST_SAMPLE_SECONDS
    follows = not coordinator.telemetry or coordinator.applied_plan >= progress.plan_generation
    if first or not follows or leader is None or not leader.ready:
        return observed.pace.expecting
    if coordinator.missing:
        return observed.pace.steady
    return observed.pace.adapted if observed.steering.adaptation.enabled else observed.pace.relaxed


def taking_part(observed: ObservedState) -> Sequence[tuple[Slot, Pod]] | None:
    """Return who shall be in the roster, in the order of ranks; None while the last one is to stay.

    All members that are well. But once ranks have run and enough run for ``minReplicas``, a pod whose
    container does not run yet, and may never, is left out:

    1. Members that train go on without it.
    2. If the roster must change anyway, they wait for it for some seconds, to be started anew only once.
    """
    everyone, before = present(observed), observed.progress.members
    able = [(slot, pod) for slot, pod in everyone if pod.began is not None]
    if not observed.progress.ran or len(able) == len(everyone) or not enough(able, observed):
        return everyone
    if roster_digest(observed, able) == before:
        return able
    soon = any(pod.began is None and observed.now - pod.created < _PENDING_SECONDS for _, pod in everyone)
    if soon and roster_digest(observed, everyone) == before:
        return everyone
    # The loss of a coordinator that no roster was meant for yet would not be counted.
    return None if soon and contract.COORDINATOR_HOST not in observed.progress.absent else able


def noticed(observed: ObservedState) -> Progress:
    """Return the progress with what the coordinator says about the ranks."""
    progress, coordinator = observed.progress, observed.coordinator
    leader = newest(observed.pods).get(contract.COORDINATOR_HOST)
    running = progress.running and leader is not None and leader.alive
    if coordinator is not None:
        running = coordinator.state == contract.STATE_RUNNING
        if coordinator.modes is not None:
            progress = replace(progress, modes=coordinator.modes)
    progress = rested(progress, observed.now)
    if running == progress.running:
        return progress
    return replace(progress, running=running, changed=observed.now)


def roster_digest(observed: ObservedState, members: Sequence[tuple[Slot, Pod]]) -> str:
    """Return what tells rosters apart, whatever their generation: the members, and the coordinator."""
    leader = newest(observed.pods).get(contract.COORDINATOR_HOST)
    who = [leader.uid if leader else "", *(f"{slot.host}={pod.uid}" for slot, pod in members)]
    return hashlib.sha256("\n".join(who).encode()).hexdigest()[:16]


def _next_roster(
    observed: ObservedState, members: Sequence[tuple[Slot, Pod]], progress: Progress
) -> Progress:
    digest = roster_digest(observed, members)
    if digest == progress.members:
        return progress
    filled = {slot.host for slot, _ in members}
    known = 0 if observed.coordinator is None else observed.coordinator.generation
    return replace(
        progress,
        generation=latest_generation(observed),
        attempt=latest_attempt(observed),
        # A record that was lost or taken back must not send what the coordinator takes for old.
        roster=max(latest_generation(observed), progress.roster + 1, known + 1),
        members=digest,
        absent=tuple(slot.host for slot in slots(observed.job) if slot.host not in filled),
        sizes=tuple((group.name, group.replicas) for group in observed.job.groups),
    )


def _next_plan(compression: Compression, observed: ObservedState, progress: Progress) -> Progress:
    digest = requests.plan_digest(plan_to_send(observed, compression, progress))
    known = 0 if observed.coordinator is None else observed.coordinator.plan_generation
    changed = bool(digest) and (digest != progress.plan or known > progress.plan_generation)
    return replace(
        progress,
        compression=compression,
        plan=digest,
        plan_generation=max(progress.plan_generation, known) + 1 if changed else progress.plan_generation,
    )
