"""What the operator knows when it decides: nothing but what it has just seen, and the time.

Times are seconds since the epoch, as the cluster's objects carry them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.adapt import Window
from gradsieve_operator.decide.pace import Pace
from gradsieve_operator.decide.progress import Progress
from gradsieve_operator.foreign_text import one_line
from gradsieve_operator.placement.cluster import pinned_node
from gradsieve_operator.resources import (
    AUTHORITY_ANNOTATION,
    ORIGIN_ANNOTATION,
    TRUST_ANNOTATION,
    Neighbours,
)
from gradsieve_operator.spec import Compression, HorovodJob, Steering
from gradsieve_operator.spec.values import Mode

_ENDED = ("Succeeded", "Failed")
_COMMANDS = frozenset({contract.COORDINATOR_COMMAND, contract.AGENT_COMMAND})
_INITIALIZING = "PodInitializing"


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the job.

    Attributes:
        name: of the pod.
        uid: of this incarnation.
        role: worker or coordinator.
        host: its host name in the job.
        group: of a worker; empty for a coordinator.
        index: of a worker in its group.
        generation: of the job when a worker was made; of a coordinator, its attempt.
        node: that it is bound to; empty before.
        phase: Pending, Running, Succeeded, Failed or Unknown; of all of its containers together.
        deleting: whether its deletion has begun.
        created: when it was made.
        began: when the container that runs our command began to run; None before.
        ended: when that container ended; None before.
        exit_code: of that container; None while it runs.
        reason: why it is not well, in one word; empty when nothing is said.
        message: the same in a sentence.
        ip: its address; empty before it has one.
        ready: whether all of its containers are.
        authority: who signed its certificate.
        origin: digest of the spec that it was made from.
        disruption: who took it from its place, and why; empty when nobody did. Said of pods that are
            evicted, preempted, or deleted with their node; not of those that used up what is theirs.
        turned_away: whether its node refused it: it has failed, and never had a container.
        pinned: the node that the planner chose for it; empty for none.
        unschedulable: whether the scheduler says that it cannot be bound.
        trust: digest of the authorities that it was marked to trust; empty for its first one alone.
    """

    name: str
    uid: str
    role: str
    host: str
    group: str = ""
    index: int = 0
    generation: int = 0
    node: str = ""
    phase: str = "Pending"
    deleting: bool = False
    created: float = 0.0
    began: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    ip: str = ""
    ready: bool = False
    authority: str = ""
    origin: str = ""
    disruption: str = ""
    turned_away: bool = False
    pinned: str = ""
    unschedulable: bool = False
    trust: str = ""

    @property
    def over(self) -> bool:
        """Whether what it is there for has ended and will not come back; a sidecar may go on."""
        return self.exit_code is not None or self.phase in _ENDED

    @property
    def ended_well(self) -> bool:
        """Whether what it is there for has ended with status 0."""
        return self.phase == "Succeeded" if self.exit_code is None else self.exit_code == 0

    @property
    def occupies(self) -> bool:
        """Whether any container of it runs or may yet run: it holds its place on a node."""
        return self.phase not in _ENDED

    @property
    def alive(self) -> bool:
        """Whether it runs or may yet run."""
        return not self.over and not self.deleting


@dataclass(frozen=True)
class Node:
    """What a loss is judged by, and what may explain a slow rank.

    Attributes:
        ready: whether its kubelet says so.
        since: when that last changed.
        troubles: what else is reported of it: that it is cordoned, conditions such as MemoryPressure.
    """

    ready: bool
    since: float
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True)
class CoordinatorStatus:
    """What the coordinator says of itself; see the calls in the control channel's documentation.

    modes: that the program can change to while it runs; None before its ranks have said anything.
    """

    generation: int = 0
    state: str = contract.STATE_WAITING
    connected: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()
    missing_seconds: Mapping[str, float] = field(default_factory=dict)
    message: str = ""
    plan_generation: int = 0
    applied_plan: int = 0
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    telemetry_age: float | None = None
    committed_step: int | None = None
    window: Window | None = None
    modes: tuple[Mode, ...] | None = None

    def sampled_at(self, now: float) -> float:
        """Return when its last sample came. Coordinators of earlier versions know only its host's clock."""
        return float(self.telemetry["time"]) if self.telemetry_age is None else now - self.telemetry_age


@dataclass(frozen=True)
class Unplaceable:
    """No place for all of the pods that were asked for: what is missing where.

    Attributes:
        message: in a sentence.
        pending: whether that is not known yet: the planner says when it is.
        failing: whether the planner fails again and again meanwhile, as the message says.
    """

    message: str
    pending: bool = False
    failing: bool = False


@dataclass(frozen=True)
class Places:
    """Nodes for pods.

    Attributes:
        hosts: of the workers that have one, in the order of ranks.
        nodes: pod -> node; without it, the scheduler chooses.
    """

    hosts: tuple[str, ...]
    nodes: Mapping[str, str]


@dataclass(frozen=True)
class ObservedState:
    """Everything that a decision depends on.

    Attributes:
        job: as its author wants it now.
        progress: what the operator itself has recorded in the job's status.
        pods: all pods of the job that count, ended and deleting ones included.
        children: kind and name of everything else that the job has.
        authority: fingerprint of the authority behind its certificates; None when nothing of it is left.
        certified: hosts that have a certificate.
        nodes: name -> state; None when the operator may not see nodes.
        coordinator: what it answered; None without an answer.
        compression: the job's and its policy's together; None when the job leaves it to the program, or they
            cannot be told.
        steering: what job and policy say about parallelism and adaptation.
        planned: whether the operator's planner chooses the nodes.
        places: what the planner has found for what an earlier decision on the same world has asked for; None
            while nothing was asked.
        neighbours: who besides the job's pods may reach them.
        refused: why the API server refused a child a moment ago; empty when it did not.
        withheld: why it refused a child when one was last tried to be made; empty when it did not.
        now: the time.
        invalid: why the job cannot start as it is written (``job`` may be its outline); empty when it can.
        unresolved: why it cannot be told what a started job and its policy ask for; empty when it can.
        silence: seconds for which the coordinator has left call after call without an answer, although it
            could have answered.
        unanswered: seconds since it last gave an answer that makes sense, whosever fault that is.
        surplus: living pods of places that others of ``pods`` fill.
        departed: host -> its pod as it was last seen, where that is no longer there.
        lost: names of the Secrets with certificates that are missing or damaged.
        trust: digest of all authorities of the job; empty while it has only its first one.
        pace: how often its coordinator is asked.
        signals: node -> what is measured of it that may explain a slow rank.
    """

    job: HorovodJob
    progress: Progress
    pods: tuple[Pod, ...]
    children: frozenset[tuple[str, str]]
    authority: str | None
    certified: frozenset[str]
    nodes: Mapping[str, Node] | None
    coordinator: CoordinatorStatus | None
    compression: Compression | None
    planned: bool
    neighbours: Neighbours
    refused: str
    now: float
    withheld: str = ""
    invalid: str = ""
    unresolved: str = ""
    silence: float = 0.0
    unanswered: float = 0.0
    surplus: tuple[Pod, ...] = ()
    departed: Mapping[str, Pod] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    trust: str = ""
    pace: Pace = field(default_factory=Pace)
    signals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    steering: Steering = field(default_factory=Steering)
    places: Places | Unplaceable | None = None


def timestamp(text: object) -> float:
    """Return the seconds of an RFC 3339 time; 0 for none, and for one that no clock shows (the year 0)."""
    try:
        return dt.datetime.fromisoformat(text).timestamp() if isinstance(text, str) and text else 0.0
    except (ValueError, OverflowError):
        return 0.0


def read_pod(raw: Mapping[str, Any], job: str) -> Pod | None:
    """Return what matters of a pod of ``job`` as the API server returns it; None if its name is not ours.

    Which place it fills is read from its name: labels can be edited.
    """
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    notes, named = metadata.get("annotations") or {}, contract.read_pod_name(job, metadata["name"])
    if named is None:
        return None
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    state = _our_container(spec, status).get("state") or {}
    ended = state.get("terminated") or {}
    ran = state.get("running") or ended
    why = ended or _waiting(state, status)
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        role=named.role,
        host=named.host,
        group=named.group,
        index=named.index,
        generation=named.generation,
        node=spec.get("nodeName", ""),
        phase=status.get("phase", "Pending"),
        deleting="deletionTimestamp" in metadata,
        created=timestamp(metadata.get("creationTimestamp")),
        began=timestamp(ran.get("startedAt")) or None,
        ended=timestamp(ended["finishedAt"]) if ended.get("finishedAt") else None,
        exit_code=ended.get("exitCode"),
        reason=one_line(status.get("reason") or why.get("reason") or ""),
        message=one_line(status.get("message") or why.get("message") or _scheduling(conditions)),
        ip=status.get("podIP", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        authority=notes.get(AUTHORITY_ANNOTATION, ""),
        origin=notes.get(ORIGIN_ANNOTATION, ""),
        disruption=one_line(_disruption(conditions)),
        turned_away=status.get("phase") == "Failed" and not status.get("containerStatuses"),
        pinned=pinned_node(spec) or "",
        unschedulable=conditions.get("PodScheduled", {}).get("reason") == "Unschedulable",
        trust=notes.get(TRUST_ANNOTATION, ""),
    )


def _our_container(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of the container that runs our command; the kubelet sorts them by name.

    It was the first when the pod was made, but webhooks may put theirs before it.
    """
    containers = spec.get("containers") or ()
    ours = [container for container in containers if tuple(container.get("command") or ()) in _COMMANDS]
    name = next((container["name"] for container in (*ours, *containers)), "")
    found = (each for each in status.get("containerStatuses") or () if each.get("name") == name)
    return next(found, {})


def _waiting(state: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a container waits for; while it waits for init containers, what the first of those does."""
    own: Mapping[str, Any] = state.get("waiting") or {}
    if own.get("reason") != _INITIALIZING:
        return own
    states = ((each.get("state") or {}).get("waiting") for each in status.get("initContainerStatuses") or ())
    return next((each for each in states if each and each.get("reason") != _INITIALIZING), own)


def _disruption(conditions: Mapping[str, Any]) -> str:
    found = conditions.get("DisruptionTarget", {})
    if found.get("status") != "True":
        return ""
    return ": ".join(str(found[part]) for part in ("reason", "message") if found.get(part)) or "disrupted"


def _scheduling(conditions: Mapping[str, Any]) -> str:
    scheduled = conditions.get("PodScheduled", {})
    return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else ""
