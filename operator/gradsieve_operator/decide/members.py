"""Who takes part in a job, who is lost, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradsieve_operator import contract
from gradsieve_operator.decide.actions import AvoidNode, Reason
from gradsieve_operator.decide.observed_state import ObservedState, Pod
from gradsieve_operator.spec import HorovodJob, WorkerGroup

UNSCHEDULABLE_SECONDS = 10.0
"""A pod pinned to a node with room is bound at once; if it is not, something else has taken the room."""

STUCK_SECONDS = 120.0
"""A replacement whose container cannot be started for so long is tried elsewhere; images may take a while."""

PREPARING_SECONDS = 120.0
"""A pod whose node takes so long to make its containers is worth a word; a large image may need as long."""

SILENT_SECONDS = 60.0
"""A worker that has run for so long, and was missed all the while, will not dial any more; nor will a
coordinator answer that has left all calls unanswered."""

NODES_STALE_SECONDS = 120.0
"""By then a watch on the nodes that had died was noticed and begun anew."""

_FAREWELL_SECONDS = 15.0
"""An agent ends well when its job does: the coordinator's own end may be seen a little later."""

_CANNOT_START = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)


@dataclass(frozen=True)
class Slot:
    """A worker's place in the job, whichever pod fills it."""

    group: WorkerGroup
    index: int

    @property
    def host(self) -> str:
        """Name of the host."""
        return contract.worker_host(self.group.name, self.index)


def slots(job: HorovodJob) -> list[Slot]:
    """Return all places of a job, in the order of ranks."""
    return [Slot(group, index) for group in job.groups for index in range(group.replicas)]


def certified_hosts(job: HorovodJob) -> tuple[str, ...]:
    """Return the hosts that get a certificate when a job starts: twice as many as it has workers.

    No certificate can be added later, and an elastic job may grow.
    """
    return tuple(
        contract.worker_host(group.name, index) for group in job.groups for index in range(2 * group.replicas)
    )


def present(observed: ObservedState) -> list[tuple[Slot, Pod]]:
    """Return who takes part, in the order of ranks: each place's last incarnation, if it is well."""
    last = newest(observed.pods)
    found = [(slot, last[slot.host]) for slot in slots(observed.job) if slot.host in last]
    return [(slot, pod) for slot, pod in found if pod.alive and loss(pod, slot.host, observed) is None]


def enough(members: Sequence[tuple[Slot, Pod]], observed: ObservedState) -> bool:
    """Whether the job may go on with ``members`` alone, by ``minReplicas``."""
    count = Counter(slot.group.name for slot, _ in members)
    return all(count[group.name] >= group.least for group in observed.job.groups)


def expected(observed: ObservedState) -> list[str]:
    """Return the hosts that the roster was meant for and whose loss was not counted yet."""
    sizes, absent = dict(observed.progress.sizes), observed.progress.absent
    workers = [slot.host for slot in slots(observed.job) if slot.index < sizes.get(slot.group.name, 0)]
    return [host for host in (contract.COORDINATOR_HOST, *workers) if host not in absent]


def newest(pods: Iterable[Pod]) -> dict[str, Pod]:
    """Return the last incarnation of each host."""
    return {pod.host: pod for pod in sorted(pods, key=lambda pod: pod.generation)}


def latest_generation(observed: ObservedState) -> int:
    """Return the greatest generation that was ever begun, as far as anything remembers."""
    workers = [pod.generation for pod in observed.pods if pod.role == contract.ROLE_WORKER]
    return max([observed.progress.generation, *workers])


def latest_attempt(observed: ObservedState) -> int:
    """Return the greatest attempt of a coordinator."""
    coordinators = [pod.generation for pod in observed.pods if pod.role == contract.ROLE_COORDINATOR]
    return max([observed.progress.attempt, *coordinators])


def node_lost(pod: Pod, observed: ObservedState) -> Reason | None:
    """Return why the node of ``pod`` is given up, None while it is not."""
    if observed.nodes is None or not pod.node:
        return None
    node = observed.nodes.get(pod.node)
    if node is None:
        # Our copy of the nodes may be older than the pod, which may be on one that has joined since.
        if observed.now - pod.created < NODES_STALE_SECONDS:
            return None
        return Reason("NodeGone", f"{pod.name}: node {pod.node} is no more")
    patience = observed.job.run_policy.node_lost
    if not node.ready and observed.now - node.since >= patience:
        return Reason("NodeLost", f"{pod.name}: node {pod.node} has not been ready for {patience} s")
    return None


def unbound_too_long(pod: Pod, observed: ObservedState) -> bool:
    """Whether a pod that the planner gave a node to was not bound to it in time."""
    waited = observed.now - pod.created
    return observed.planned and pod.alive and not pod.node and waited >= UNSCHEDULABLE_SECONDS


def refusals(pods: Iterable[Pod], observed: ObservedState) -> tuple[AvoidNode, ...]:
    """Return which nodes did not take ``pods``: these are unbound for too long, or were turned away.

    A pod that the scheduler has said nothing about is not refused: the scheduler may be away.
    """
    if not observed.planned:
        return ()
    found = []
    for pod in pods:
        group = pod.group or contract.COORDINATOR_HOST
        if pod.turned_away and pod.node:
            found.append(AvoidNode(group, pod.node, f"{pod.reason}: {pod.message}"))
        elif pod.unschedulable and pod.pinned and unbound_too_long(pod, observed):
            found.append(AvoidNode(group, pod.pinned, pod.message))
    return tuple(found)


def loss(pod: Pod | None, host: str, observed: ObservedState) -> Reason | None:
    """Return why the member at ``host`` is lost, None while it is not; ``pod`` is its last incarnation."""
    if pod is None:
        departed = observed.departed.get(host)
        return Reason("PodGone", f"{host}: its pod is no more") if departed is None else _gone(departed)
    if leaves_well(pod, observed):
        return None
    if pod.disruption and not pod.alive:
        return _gone(pod)
    if pod.over:
        status = "" if pod.exit_code is None else f" with status {pod.exit_code}"
        return Reason(
            pod.reason or "PodEnded", f"{pod.name} ended{status}: {pod.message or 'no reason was given'}"
        )
    if pod.deleting:
        return Reason("PodDeleted", f"{pod.name} is being deleted")
    return (
        node_lost(pod, observed)
        or _silent_coordinator(pod, observed)
        or _stuck(pod, observed)
        or _silent(pod, observed)
    )


def _gone(pod: Pod) -> Reason:
    if pod.disruption:
        return Reason("PodDisrupted", f"{pod.name} is gone: {pod.disruption}")
    return Reason("PodGone", f"{pod.name} is no more")


def leaves_well(pod: Pod, observed: ObservedState) -> bool:
    """Whether a pod has ended as it does when the whole job has: not lost, unless the others go on."""
    just_now = observed.now - (pod.ended or pod.created) < _FAREWELL_SECONDS
    return pod.ended_well and not pod.deleting and just_now


def silence_limit(job: HorovodJob) -> float:
    """Return for how many seconds a coordinator may be without an answer: busy, or behind a bad network."""
    return max(SILENT_SECONDS, job.run_policy.node_lost)


def hindrance(observed: ObservedState) -> Reason | None:
    """Return what keeps a member's containers from running; None when nothing does.

    Before ranks have ever run this is said and no more: another pod would have the same image and volumes.
    """
    last = newest(observed.pods).values()
    words = [*map(_cannot_start, last), *(_is_prepared_for_long(pod, observed.now) for pod in last)]
    return next((reason for reason in words if reason is not None), None)


def _cannot_start(pod: Pod) -> Reason | None:
    """Return why a container of ``pod`` cannot start, in its node's words."""
    if not pod.alive or pod.reason not in _CANNOT_START:
        return None
    return Reason("PodStuck", f"{pod.name} cannot start: {pod.reason}: {pod.message}")


def _is_prepared_for_long(pod: Pod, now: float) -> Reason | None:
    """Return that the node of ``pod`` has not made its containers for a while.

    A node waits for a volume's Secret, ConfigMap or claim without a word in the pod's status; pulling an
    image looks the same. So this is said, and never counts as a loss.
    """
    mute = pod.reason == "ContainerCreating" or (pod.reason in {"", "PodInitializing"} and not pod.ip)
    waits = pod.alive and pod.phase == "Pending" and bool(pod.node)
    if not (waits and mute and now - pod.created >= PREPARING_SECONDS):
        return None
    return Reason(
        "PodPreparing",
        f"{pod.name}: no container after {PREPARING_SECONDS:.0f} s; node {pod.node} pulls an image, or waits "
        f"for a volume's Secret, ConfigMap or claim: `kubectl describe pod {pod.name}` says which",
    )


def _silent_coordinator(pod: Pod, observed: ObservedState) -> Reason | None:
    limit = silence_limit(observed.job)
    if pod.role != contract.ROLE_COORDINATOR or observed.silence < limit:
        return None
    return Reason("CoordinatorSilent", f"{pod.name} runs, but has not answered for {limit:.0f} s")


def _stuck(pod: Pod, observed: ObservedState) -> Reason | None:
    stuck = _cannot_start(pod)
    if stuck is not None and observed.progress.ran and observed.now - pod.created >= STUCK_SECONDS:
        return stuck
    return None


def _silent(pod: Pod, observed: ObservedState) -> Reason | None:
    """Return that ``pod`` runs and does not dial, although it has had the time to.

    While its node is not ready, ``nodeLostSeconds`` says for how long to wait.
    """
    coordinator, node = observed.coordinator, (observed.nodes or {}).get(pod.node)
    if coordinator is None or not observed.progress.ran or pod.began is None:
        return None
    if node is not None and not node.ready:
        return None
    could_dial = observed.now - max(pod.began, 0.0 if node is None else node.since)
    if min(could_dial, coordinator.missing_seconds.get(pod.host, 0.0)) < SILENT_SECONDS:
        return None
    return Reason("WorkerSilent", f"{pod.name} runs, but the coordinator has not heard from it")
