"""A cluster, its kubelets and a job's coordinator in a few lines, with a clock that tests move.

It does what the real ones do to a job's pods: bind them where they are pinned if there is room, start them,
lose them with their node, start ranks when everybody of the roster is there, end them when one is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradsieve_operator import decide as d
from gradsieve_operator.adapt import Window
from gradsieve_operator.placement import Refusals, Refused
from gradsieve_operator.resources import Neighbours
from gradsieve_operator.spec import Compression, HorovodJob
from gradsieve_operator.spec.values import Mode


def decided(world: d.ObservedState, place: d.Placer) -> d.Decision:
    """Return what is decided once ``place`` has answered what is asked for."""
    decision = d.decide(world)
    if decision.wanted is None:
        return decision
    return d.decide(replace(world, places=d.find_places(world.job, decision.wanted, place)))


class Crash(Exception):
    """The operator was killed."""


@dataclass
class Leader:
    """What the coordinator in one pod knows."""

    generation: int = 0
    hosts: dict[str, str] = field(default_factory=dict)
    state: str = "Waiting"
    plan: int = 0
    missed: dict[tuple[str, str], float] = field(default_factory=dict)
    steps: int = 0
    started: int = -1


@dataclass
class VirtualCluster:
    """One job on some nodes.

    Attributes:
        body: the job, as its author last wrote it.
        capacity: node -> how many pods fit; each pod counts 1.
        length: steps of training until the job is done; one per second of running.
        cut: pods that run, and whose agents do not reach the coordinator.
        unseen: nodes that the operator does not know.
        signals: what a Prometheus has to say of nodes.
        held: host -> what keeps its pod's container from starting.
        closed: nodes that have room, and to which the scheduler binds no pod of the job.
        scheduling: whether there is a scheduler, which says why it does not bind a pod.
        measure: plan that ranks follow -> what the coordinator has measured of it.
        modes: that the program says it can change to, once ranks run; None if it says nothing.
        refusals: of nodes, which its planner remembers as the operator's does.
    """

    body: dict[str, Any]
    capacity: dict[str, int]
    length: int = 5
    elastic: bool = False
    now: float = 1000.0
    pods: dict[str, d.Pod] = field(default_factory=dict)
    nodes: dict[str, d.Node] = field(default_factory=dict)
    signals: dict[str, tuple[str, ...]] = field(default_factory=dict)
    foreign: dict[str, int] = field(default_factory=dict)
    children: set[tuple[str, str]] = field(default_factory=set)
    authority: str | None = None
    certified: frozenset[str] = frozenset()
    progress: d.Progress = field(default_factory=d.Progress)
    leaders: dict[str, Leader] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    rosters: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    said: list[d.Decision] = field(default_factory=list)
    quota: int = 10**6
    refused: str = ""
    gone: bool = False
    committed: int = 0
    deaf: bool = False
    invalid: str = ""
    cut: set[str] = field(default_factory=set)
    unseen: set[str] = field(default_factory=set)
    held: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    scheduling: bool = True
    refusals: Refusals = field(init=False)
    policy: Compression | None = None
    unresolved: str = ""
    silence: float = 0.0
    seen: dict[str, d.Pod] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    trust: str = ""
    measure: Callable[[int], Window | None] = lambda plan: None
    modes: tuple[Mode, ...] | None = None

    def __post_init__(self) -> None:
        self.nodes = {name: d.Node(ready=True, since=0.0) for name in self.capacity}
        self.refusals = Refusals(lambda: self.now)

    @property
    def job(self) -> HorovodJob:
        return HorovodJob.parse(self.body)

    # What the operator sees.

    def world(self) -> d.ObservedState:
        visible = self.visible()
        pods, surplus = d.part_surplus(visible.values(), self.progress)
        return d.ObservedState(
            job=self.job,
            progress=self.progress,
            pods=pods,
            surplus=surplus,
            children=frozenset(self.children),
            authority=self.authority,
            certified=self.certified,
            nodes={name: node for name, node in self.nodes.items() if name not in self.unseen},
            coordinator=None if self.deaf else self._status(),
            compression=self.job.compression.resolve(self.policy) if self.job.compression else None,
            planned=True,
            neighbours=Neighbours(),
            refused=self.refused,
            now=self.now,
            invalid=self.invalid,
            unresolved=self.unresolved,
            silence=self.silence,
            unanswered=self.silence,
            departed={host: pod for host, pod in self.last_seen().items() if pod.name not in visible},
            lost=self.lost,
            trust=self.trust,
            signals=self.signals,
            steering=self.job.steering.over(None),
        )

    def visible(self) -> Mapping[str, d.Pod]:
        """Return the pods that the operator sees, by their names."""
        return self.pods

    def last_seen(self) -> dict[str, d.Pod]:
        """Return host -> its last pod as a watch last told of it, whether it is still there or not."""
        for pod in sorted(self.pods.values(), key=lambda pod: pod.generation):
            if self.seen.get(pod.host, pod).generation <= pod.generation:
                self.seen[pod.host] = pod
        return self.seen

    def free(self, node: str, *, planned: bool = True) -> int:
        """Return how many more pods fit; ``planned`` counts those that are pinned there and not bound yet."""
        where = [pod.node or (pod.pinned if planned else "") for pod in self.pods.values() if not pod.over]
        return self.capacity[node] - where.count(node) - self.foreign.get(node, 0)

    def _place(self, manifests: Sequence[Mapping[str, Any]]) -> dict[str, str] | d.Unplaceable:
        room = {name: self.free(name) for name in sorted(self.nodes) if self.nodes[name].ready}
        placed = {}
        refused = self.refusals.of("job")
        for manifest in manifests:
            group = manifest["metadata"]["labels"].get("gradsieve.io/group", "coordinator")
            known = refused.get(group, Refused())
            able = [name for name, left in room.items() if left > 0 and name not in known.left_out]
            node = min(able, key=lambda name, known=known: name in known.doubted, default=None)
            if node is None:
                return d.Unplaceable(f"{len(manifests)} pods do not fit")
            room[node] -= 1
            placed[manifest["metadata"]["name"]] = node
        return placed

    def leader(self) -> tuple[d.Pod, Leader] | None:
        running = [pod for pod in self.pods.values() if pod.host == "coordinator" and pod.phase == "Running"]
        running = [pod for pod in running if pod.alive and self.nodes[pod.node].ready]
        if not running:
            return None
        pod = max(running, key=lambda pod: pod.generation)
        return pod, self.leaders.setdefault(pod.uid, Leader())

    def _status(self) -> d.CoordinatorStatus | None:
        found = self.leader()
        if found is None:
            return None
        leader = found[1]
        return d.CoordinatorStatus(
            generation=leader.generation,
            state=leader.state,
            connected=frozenset(pod.host for pod in self._agents()),
            missing=tuple(sorted(host for host, _ in self._missed(leader))),
            missing_seconds={host: self.now - since for (host, _), since in self._missed(leader).items()},
            plan_generation=leader.plan,
            window=self.measure(leader.plan),
            modes=self.modes if leader.state == "Running" else None,
        )

    def _missed(self, leader: Leader) -> dict[tuple[str, str], float]:
        here = {(agent.host, agent.uid) for agent in self._agents()}
        missed = [each for each in leader.hosts.items() if each not in here]
        leader.missed = {each: leader.missed.get(each, self.now) for each in missed}
        return leader.missed

    def _agents(self) -> list[d.Pod]:
        return [
            pod
            for pod in self.pods.values()
            if pod.role == "worker" and pod.phase == "Running" and not pod.over
            if self.nodes[pod.node].ready and pod.name not in self.cut
        ]

    # What the operator does.

    def operate(self, crash_at: int | None = None) -> d.Decision:
        """Decide once and act; killed before the action number ``crash_at``."""
        if self.gone:
            return d.Decision((), self.progress)
        decision = decided(self.world(), self._place)
        self.refused = ""
        self.said.append(decision)
        for number, action in enumerate(decision.actions):
            if number == crash_at:
                raise Crash
            if not self._act(action, decision):
                return decision
        if crash_at is not None and crash_at >= len(decision.actions):
            raise Crash
        if not self.gone:
            self.progress = decision.progress
        return decision

    def _act(self, action: d.Action, decision: d.Decision) -> bool:
        match action:
            case d.Create(manifest):
                return self._create(manifest)
            case d.IssueCertificates() | d.RenewCertificates() | d.MarkPod():
                self._certify(action)
            case d.DeletePod(name, uid, grace):
                self._delete(name, uid, grace)
            case d.AvoidNode(group, node, why):
                self.refusals.add("job", group, node, why)
            case d.Record():
                self.progress = decision.progress
            case d.PutRoster(roster):
                self._roster(roster)
            case d.PutPlan(plan):
                found = self.leader()
                if found is not None:
                    found[1].plan = plan["generation"]
            case d.DeleteJob():
                self.gone = True
                self.pods.clear()
                self.children.clear()
        return True

    def _certify(self, action: d.IssueCertificates | d.RenewCertificates | d.MarkPod) -> None:
        match action:
            case d.IssueCertificates(hosts):
                self.authority, self.certified = f"ca-{len(self.made)}-{self.now}", frozenset(hosts)
            case d.RenewCertificates(hosts):
                self.lost, self.trust, self.certified = (), f"{self.trust}+", frozenset(hosts)
            case d.MarkPod(name, uid, trust):
                if name in self.pods and self.pods[name].uid == uid:
                    self.pods[name] = replace(self.pods[name], trust=trust)

    def _create(self, manifest: Mapping[str, Any]) -> bool:
        name, kind = manifest["metadata"]["name"], manifest["kind"]
        if kind != "Pod":
            self.children.add((kind, name))
            return True
        assert name not in self.pods, f"{name} is there already"
        assert name not in self.made, f"{name} was made before"
        if len([pod for pod in self.pods.values() if not pod.over]) >= self.quota:
            self.refused = f"pods {name!r} is forbidden: exceeded quota"
            return False
        self.made.append(name)
        uid = f"uid-{len(self.made)}"
        raw = {**manifest, "metadata": {**manifest["metadata"], "uid": uid}, "status": {}}
        pod = d.read_pod(raw, self.job.name)
        assert pod is not None
        self.pods[name] = replace(pod, created=self.now)
        return True

    def _delete(self, name: str, uid: str, grace: int | None) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid:
            return
        if grace == 0 or not pod.node or pod.over:
            del self.pods[name]
        else:
            self.pods[name] = replace(pod, deleting=True)

    def _roster(self, roster: Mapping[str, Any]) -> None:
        found = self.leader()
        if found is None:
            return
        leader = found[1]
        assert roster["generation"] >= leader.generation, "a lower generation"
        hosts = {host["host"]: host["podUID"] for host in roster["hosts"]}
        assert roster["generation"] > leader.generation or hosts == leader.hosts, "changed in place"
        leader.generation, leader.hosts, leader.state = roster["generation"], hosts, "Waiting"
        self.rosters.append((roster["generation"], tuple(hosts)))

    def live(self, seconds: float) -> None:
        """Let time pass second by second, and the operator look each time for as long as it wants to."""
        for _ in range(round(seconds)):
            while self.operate().requeue_after == 0.0:
                pass
            self.tick()

    # What the cluster does.

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass, and scheduler, kubelets and coordinator do what they do."""
        self.now += seconds
        for name, pod in list(self.pods.items()):
            up = not pod.node or self.nodes[pod.node].ready
            if pod.deleting and up:
                del self.pods[name]
            elif not pod.node and self._binds(pod):
                self.pods[name] = replace(pod, node=pod.pinned, message="", unschedulable=False)
            elif not pod.node and self.scheduling:
                self.pods[name] = replace(pod, message="0/3 nodes are available", unschedulable=True)
            elif pod.node and up and pod.phase == "Pending":
                started = {"phase": "Running", "ready": True, "ip": "10.0.0.1", "began": self.now}
                reason = self.held.get(pod.host, "")
                self.pods[name] = replace(
                    pod, **({"reason": reason} if reason else {**started, "reason": ""})
                )
        self._train()

    def _binds(self, pod: d.Pod) -> bool:
        open_node = self.scheduling and self.nodes[pod.pinned].ready and pod.pinned not in self.closed
        return open_node and self.free(pod.pinned, planned=False) > 0

    def _train(self) -> None:
        found = self.leader()
        if found is None:
            return
        pod, leader = found
        everybody = leader.hosts and not self._missed(leader)
        if leader.state == "Waiting" and everybody and leader.started < leader.generation:
            leader.state, leader.started = "Running", leader.generation
        elif leader.state == "Running" and not everybody:
            leader.state = "Lost"
        elif leader.state == "Running":
            self.committed += 1
            if self.committed >= self.length:
                leader.state = "Succeeded"
                self.pods[pod.name] = replace(pod, phase="Succeeded", ended=self.now, exit_code=0)

    # What goes wrong.

    def kill(self, name: str, **how: Any) -> None:
        self.pods[name] = replace(
            self.pods[name], **{"phase": "Failed", "ended": self.now, "exit_code": 137, **how}
        )

    def evict(self, name: str, reason: str = "EvictionByEvictionAPI", *, gone: bool = False) -> None:
        """Let the API server take a pod from its place; ``gone``: before anybody looks."""
        self.pods[name] = replace(self.pods[name], deleting=True, disruption=f"{reason}: evicting")
        if gone:
            self.last_seen()
            del self.pods[name]

    def turn_away(self, name: str) -> None:
        """Let a pod's kubelet refuse what was bound to it."""
        message = "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu"
        self.kill(name, exit_code=None, reason="OutOfnvidia.com/gpu", message=message, turned_away=True)

    def node(self, name: str, *, ready: bool) -> None:
        if self.nodes[name].ready != ready:
            self.nodes[name] = d.Node(ready=ready, since=self.now)

    def settle(self, seconds: int = 600) -> None:
        """Operate and tick until the job has ended and nothing is left to do."""
        quiet = 0
        for _ in range(seconds * 2):
            before = (self.progress, dict(self.pods))
            decision = self.operate()
            if decision.requeue_after != 0.0:
                self.tick()
            done = self.gone or self.progress.finished is not None
            quiet = quiet + 1 if done and before == (self.progress, self.pods) else 0
            if quiet > 40:
                return
        raise AssertionError(f"never settled: {self.said[-1]}")

    def alive(self) -> set[str]:
        return {name for name, pod in self.pods.items() if pod.alive}
