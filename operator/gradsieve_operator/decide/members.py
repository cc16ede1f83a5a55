"""Who takes part in a job, who is lost, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradsieve_operator import contract
from gradsieve_operator.decide.actions import AvoidNode, Word
from gradsieve_operator.decide.world import Pod, World
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


def present(world: World) -> list[tuple[Slot, Pod]]:
    """Return who takes part, in the order of ranks: each place's last incarnation, if it is well."""
    last = newest(world.pods)
    found = [(slot, last[slot.host]) for slot in slots(world.job) if slot.host in last]
    return [(slot, pod) for slot, pod in found if pod.alive and loss(pod, slot.host, world) is None]


def enough(members: Sequence[tuple[Slot, Pod]], world: World) -> bool:
    """Whether the job may go on with ``members`` alone, by ``minReplicas``."""
    count = Counter(slot.group.name for slot, _ in members)
    return all(count[group.name] >= group.least for group in world.job.groups)


def expected(world: World) -> list[str]:
    """Return the hosts that the roster was meant for and whose loss was not counted yet."""
    sizes, absent = dict(world.progress.sizes), world.progress.absent
    workers = [slot.host for slot in slots(world.job) if slot.index < sizes.get(slot.group.name, 0)]
    return [host for host in (contract.COORDINATOR_HOST, *workers) if host not in absent]


def newest(pods: Iterable[Pod]) -> dict[str, Pod]:
    """Return the last incarnation of each host."""
    return {pod.host: pod for pod in sorted(pods, key=lambda pod: pod.generation)}


def latest_generation(world: World) -> int:
    """Return the greatest generation that was ever begun, as far as anything remembers."""
    workers = [pod.generation for pod in world.pods if pod.role == contract.ROLE_WORKER]
    return max([world.progress.generation, *workers])


def latest_attempt(world: World) -> int:
    """Return the greatest attempt of a coordinator."""
    coordinators = [pod.generation for pod in world.pods if pod.role == contract.ROLE_COORDINATOR]
    return max([world.progress.attempt, *coordinators])


def node_lost(pod: Pod, world: World) -> Word | None:
    """Return why the node of ``pod`` is given up, None while it is not."""
    if world.nodes is None or not pod.node:
        return None
    node = world.nodes.get(pod.node)
    if node is None:
        # Our copy of the nodes may be older than the pod, which may be on one that has joined since.
        if world.now - pod.created < NODES_STALE_SECONDS:
            return None
        return Word("NodeGone", f"{pod.name}: node {pod.node} is no more")
    patience = world.job.run_policy.node_lost
    if not node.ready and world.now - node.since >= patience:
        return Word("NodeLost", f"{pod.name}: node {pod.node} has not been ready for {patience} s")
    return None


def unbound_too_long(pod: Pod, world: World) -> bool:
    """Whether a pod that the planner gave a node to was not bound to it in time."""
    waited = world.now - pod.created
    return world.planned and pod.alive and not pod.node and waited >= UNSCHEDULABLE_SECONDS


def refusals(pods: Iterable[Pod], world: World) -> tuple[AvoidNode, ...]:
    """Return which nodes did not take ``pods``: these are unbound for too long, or were turned away.

    A pod that the scheduler has said nothing about is not refused: the scheduler may be away.
    """
    if not world.planned:
        return ()
    found = []
    for pod in pods:
        group = pod.group or contract.COORDINATOR_HOST
        if pod.turned_away and pod.node:
            found.append(AvoidNode(group, pod.node, f"{pod.reason}: {pod.message}"))
        elif pod.unschedulable and pod.pinned and unbound_too_long(pod, world):
            found.append(AvoidNode(group, pod.pinned, pod.message))
    return tuple(found)


def loss(pod: Pod | None, host: str, world: World) -> Word | None:
    """Return why the member at ``host`` is lost, None while it is not; ``pod`` is its last incarnation."""
    if pod is None:
        departed = world.departed.get(host)
        return Word("PodGone", f"{host}: its pod is no more") if departed is None else _gone(departed)
    if leaves_well(pod, world):
        return None
    if pod.disruption and not pod.alive:
        return _gone(pod)
    if pod.over:
        status = "" if pod.exit_code is None else f" with status {pod.exit_code}"
        return Word(
            pod.reason or "PodEnded", f"{pod.name} ended{status}: {pod.message or 'no reason was given'}"
        )
    if pod.deleting:
        return Word("PodDeleted", f"{pod.name} is being deleted")
    return (
        node_lost(pod, world) or _silent_coordinator(pod, world) or _stuck(pod, world) or _silent(pod, world)
    )


def _gone(pod: Pod) -> Word:
    if pod.disruption:
        return Word("PodDisrupted", f"{pod.name} is gone: {pod.disruption}")
    return Word("PodGone", f"{pod.name} is no more")


def leaves_well(pod: Pod, world: World) -> bool:
    """Whether a pod has ended as it does when the whole job has: not lost, unless the others go on."""
    just_now = world.now - (pod.ended or pod.created) < _FAREWELL_SECONDS
    return pod.ended_well and not pod.deleting and just_now


def silence_limit(job: HorovodJob) -> float:
    """Return for how many seconds a coordinator may be without an answer: busy, or behind a bad network."""
    return max(SILENT_SECONDS, job.run_policy.node_lost)


def hindrance(world: World) -> Word | None:
    """Return what keeps a member's containers from running; None when nothing does.

    Before ranks have ever run this is said and no more: another pod would have the same image and volumes.
    """
    last = newest(world.pods).values()
    words = [*map(_cannot_start, last), *(_is_prepared_for_long(pod, world.now) for pod in last)]
    return next((word for word in words if word is not None), None)


def _cannot_start(pod: Pod) -> Word | None:
    """Return why a container of ``pod`` cannot start, in its node's words."""
    if not pod.alive or pod.reason not in _CANNOT_START:
        return None
    return Word("PodStuck", f"{pod.name} cannot start: {pod.reason}: {pod.message}")


def _is_prepared_for_long(pod: Pod, now: float) -> Word | None:
    """Return that the node of ``pod`` has not made its containers for a while.

    A node waits for a volume's Secret, ConfigMap or claim without a word in the pod's status; pulling an
    image looks the same. So this is said, and never counts as a loss.
    """
    mute = pod.reason == "ContainerCreating" or (pod.reason in {"", "PodInitializing"} and not pod.ip)
    waits = pod.alive and pod.phase == "Pending" and bool(pod.node)
    if not (waits and mute and now - pod.created >= PREPARING_SECONDS):
        return None
    return Word(
        "PodPreparing",
        f"{pod.name}: no container after {PREPARING_SECONDS:.0f} s; node {pod.node} pulls an image, or waits "
        f"for a volume's Secret, ConfigMap or claim: `kubectl describe pod {pod.name}` says which",
    )


def _silent_coordinator(pod: Pod, world: World) -> Word | None:
    limit = silence_limit(world.job)
    if pod.role != contract.ROLE_COORDINATOR or world.silence < limit:
        return None
    return Word("CoordinatorSilent", f"{pod.name} runs, but has not answered for {limit:.0f} s")


def _stuck(pod: Pod, world: World) -> Word | None:
    stuck = _cannot_start(pod)
    if stuck is not None and world.progress.ran and world.now - pod.created >= STUCK_SECONDS:
        return stuck
    return None


def _silent(pod: Pod, world: World) -> Word | None:
    """Return that ``pod`` runs and does not dial, although it has had the time to.

    While its node is not ready, ``nodeLostSeconds`` says for how long to wait.
    """
    coordinator, node = world.coordinator, (world.nodes or {}).get(pod.node)
    if coordinator is None or not world.progress.ran or pod.began is None:
        return None
    if node is not None and not node.ready:
        return None
    could_dial = world.now - max(pod.began, 0.0 if node is None else node.since)
    if min(could_dial, coordinator.missing_seconds.get(pod.host, 0.0)) < SILENT_SECONDS:
        return None
    return Word("WorkerSilent", f"{pod.name} runs, but the coordinator has not heard from it")
