"""The cluster as the planner sees it: nodes, and what pods hold of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradsieve_operator.contract import LABEL_JOB
from gradsieve_operator.placement.antiaffinity import AntiAffinity, Guards, anti_affinity
from gradsieve_operator.placement.requests import Resources, is_single, pod_requests
from gradsieve_operator.spec import parse_quantity

_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Taint:
    """What keeps pods away that do not tolerate it."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node.

    taints: a cordon is one of them, as it is for the scheduler.
    ready: whether its kubelet reports that it is.
    allocatable: what all its pods together may hold, rounded down.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    ready: bool
    allocatable: Resources

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Node:
        """Read the object that the API server returns.

        Raises:
            SpecError: an amount cannot be read.
        """
        metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        taints = [
            Taint(taint["key"], taint.get("value") or "", taint["effect"])
            for taint in spec.get("taints") or ()
        ]
        if spec.get("unschedulable") and all(taint.key != _UNSCHEDULABLE for taint in taints):
            taints.append(Taint(_UNSCHEDULABLE, "", "NoSchedule"))
        conditions = {found["type"]: found["status"] for found in status.get("conditions") or ()}
        return cls(
            name=metadata["name"],
            labels=dict(metadata.get("labels") or {}),
            taints=tuple(taints),
            ready=conditions.get("Ready") == "True" and not metadata.get("deletionTimestamp"),
            allocatable={
                name: int(parse_quantity(amount) * (1000 if name == "cpu" else 1))
                for name, amount in (status.get("allocatable") or {}).items()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one pod holds of a node, and whom it keeps away.

    node: where it is bound, or pinned or nominated before it is bound.
    ends: whether it belongs to a job of ours, whose pods end some day.
    keeps_away: its required anti-affinity.
    """

    node: str
    requests: Resources
    ends: bool = False
    keeps_away: tuple[AntiAffinity, ...] = ()

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Load | None:
        """Read the object that the API server returns; None for a pod that holds nothing of any node.

        Raises:
            SpecError: an amount cannot be read.
        """
        metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
        node = spec.get("nodeName") or pinned_node(spec) or status.get("nominatedNodeName")
        if not node or status.get("phase") in _FINISHED:
            return None
        ends = LABEL_JOB in (metadata.get("labels") or {})
        return cls(
            node=node,
            requests=pod_requests(spec),
            ends=ends,
            keeps_away=anti_affinity(metadata.get("namespace") or "", spec),
        )


def pinned_node(spec: Mapping[str, Any]) -> str | None:
    """Return the only node that a pod's affinity allows by name, if there is one."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    pinned: set[str | None] = set()
    for term in required.get("nodeSelectorTerms") or ():
        names = [
            field.get("values") or []
            for field in term.get("matchFields") or ()
            if field.get("key") == "metadata.name" and field.get("operator") == "In"
        ]
        pinned.add(names[0][0] if len(names) == 1 and len(names[0]) == 1 else None)
    return pinned.pop() if len(pinned) == 1 else None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes and what is held of each; nothing in it is changed.

    nodes: by name, in the order of names, so that no result depends on the order of arrival.
    held: node -> what pods hold, those of ``ending`` included.
    ending: node -> what pods of jobs hold, which end some day.
    guarded: pods that keep others away.
    """

    nodes: Mapping[str, Node]
    held: Mapping[str, Resources]
    ending: Mapping[str, Resources]
    guarded: tuple[Load, ...] = ()

    @classmethod
    def of(cls, nodes: Iterable[Node], loads: Iterable[Load]) -> Cluster:
        """Return the cluster with these nodes and pods."""
        held: defaultdict[str, Counter[str]] = defaultdict(Counter)
        ending: defaultdict[str, Counter[str]] = defaultdict(Counter)
        guarded = []
        for load in loads:
            _add(held[load.node], load.requests)
            if load.ends:
                _add(ending[load.node], load.requests)
            if load.keeps_away:
                guarded.append(load)
        by_name = {node.name: node for node in sorted(nodes, key=lambda node: node.name)}
        return cls(by_name, held, ending, tuple(guarded))

    def free(self, node: str, resource: str) -> int:
        """Return how much of a resource is free; negative where more is held than there is."""
        return self.capacity(node, resource) - self.held.get(node, {}).get(resource, 0)

    def capacity(self, node: str, resource: str) -> int:
        """Return how much of a resource the node has for pods."""
        return _capacity(self.nodes[node].allocatable, resource)

    def fitting(self, node: str, requests: Resources) -> int:
        """Return how many pods with these requests fit on the node, not above zero where none does."""
        there, held = self.nodes[node].allocatable, self.held.get(node, {})
        fewest: int | None = None
        for name, amount in requests.items():
            count = (_capacity(there, name) - held.get(name, 0)) // amount
            if fewest is None or count < fewest:
                fewest = count
            if fewest <= 0:
                break
        return fewest or 0

    def with_loads(self, loads: Iterable[Load]) -> Cluster:
        """Return this cluster with more pods in it."""
        held = dict(self.held)
        for load in loads:
            held[load.node] = _sum(held.get(load.node, {}), load.requests)
        return Cluster(self.nodes, held, self.ending, self.guarded)

    def when_jobs_have_ended(self) -> Cluster:
        """Return this cluster without the pods of jobs."""
        held = {}
        for node, amounts in self.held.items():
            ending = self.ending.get(node, {})
            left = {name: rest for name, amount in amounts.items() if (rest := amount - ending.get(name, 0))}
            if left:
                held[node] = left
        return Cluster(self.nodes, held, {}, tuple(load for load in self.guarded if not load.ends))

    def guards(self) -> Guards:
        """Return what keeps pods away from others, as far as it is on nodes that are known."""
        return Guards(
            (term, value)
            for load in self.guarded
            if load.node in self.nodes
            for term in load.keeps_away
            if (value := self.nodes[load.node].labels.get(term.topology)) is not None
        )


def _capacity(allocatable: Resources, resource: str) -> int:
    there = allocatable.get(resource)
    return int(is_single(resource)) if there is None else there


def _add(total: Counter[str], amounts: Resources) -> None:
    for name, amount in amounts.items():
        total[name] += amount


def _sum(one: Resources, other: Resources) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
