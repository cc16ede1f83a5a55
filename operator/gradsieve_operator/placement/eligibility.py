"""Which nodes a pod may be on at all, however much of them is free, and why not on the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradsieve_operator.placement.cluster import Node, Taint
from gradsieve_operator.placement.gang import Shape
from gradsieve_operator.placement.selectors import matches

GPU_PRODUCT = "nvidia.com/gpu.product"
_NOT_HARD = "PreferNoSchedule"

_MOST_KNOWN = 256
"""Kinds of pods that are remembered, each with the names of its nodes."""


Closed = frozenset[tuple[str, str]]
"""Key and value of the node labels at which other pods' anti-affinity keeps a pod away."""


@dataclass(frozen=True, slots=True, eq=False)
class Eligible:
    """The nodes that equal pods may be on, whatever is free there; refusals not counted. Told by identity.

    nodes: their names, in the order of names.
    among: the same, to look for one.
    barred: reason -> how many other nodes there are.
    """

    nodes: tuple[str, ...]
    among: frozenset[str]
    barred: Mapping[str, int]


class Eligibility:
    """Finds out which nodes pods may be on, once for equal ones.

    Args:
        nodes: by name, in the order of names.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._known: dict[tuple[str, tuple[str, ...], Closed], Eligible] = {}

    def of(self, shape: Shape, closed: Closed) -> Eligible:
        """Return where pods of ``shape`` may be, away from ``closed``; one object for equal pods, mostly."""
        key = (json.dumps(shape.spec, sort_keys=True), shape.gpu_products, closed)
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._find(shape, closed)
        return self._known[key]

    def _find(self, shape: Shape, closed: Closed) -> Eligible:
        names, barred = [], Counter[str]()
        for name, node in self._nodes.items():
            why = obstacle(node, shape.spec, shape.gpu_products)
            if why is None and any(node.labels.get(key) == value for key, value in closed):
                why = "closed to such pods by another pod's anti-affinity"
            if why is None:
                names.append(name)
            else:
                barred[why] += 1
        return Eligible(tuple(names), frozenset(names), barred)


def obstacle(node: Node, spec: Mapping[str, Any], gpu_products: tuple[str, ...]) -> str | None:
    """Return what keeps a pod with that ``spec`` off the node, None if nothing does.

    What is looked at: readiness, cordons and taints against tolerations, ``nodeSelector``, required node
    affinity, and the GPU's product if ``gpu_products`` names the allowed ones.
    """
    if not node.ready:
        return "not ready"
    for taint in node.taints:
        if taint.effect != _NOT_HARD and not tolerated(taint, spec):
            cordoned = taint.key == "node.kubernetes.io/unschedulable"
            return "cordoned" if cordoned else f"tainted {_shown(taint)}"
    for key, value in (spec.get("nodeSelector") or {}).items():
        if node.labels.get(key) != value:
            return f"not labelled {key}={value}"
    if gpu_products and node.labels.get(GPU_PRODUCT) not in gpu_products:
        return f"without {' or '.join(gpu_products)}"
    required = _required_affinity(spec)
    if required is not None and not any(_matches_term(node, term) for term in required):
        return "outside the required node affinity"
    return None


def tolerated(taint: Taint, spec: Mapping[str, Any]) -> bool:
    """Return whether a pod tolerates a taint."""
    return any(_tolerates(toleration, taint) for toleration in spec.get("tolerations") or ())


def avoided(node: Node, spec: Mapping[str, Any]) -> bool:
    """Return whether a taint asks to prefer other nodes."""
    return any(taint.effect == _NOT_HARD and not tolerated(taint, spec) for taint in node.taints)


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if not key:
        return operator == "Exists"
    if key != taint.key:
        return False
    return operator == "Exists" or (operator == "Equal" and (toleration.get("value") or "") == taint.value)


def _required_affinity(spec: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else list(required.get("nodeSelectorTerms") or ())


def _matches_term(node: Node, term: Mapping[str, Any]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term matches no node
    return all(matches(node.labels, expression) for expression in expressions) and all(
        matches({"metadata.name": node.name}, field) for field in fields
    )


def _shown(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
