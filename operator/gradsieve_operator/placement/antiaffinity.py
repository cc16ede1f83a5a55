"""Pods that keep other pods away from where they are: required anti-affinity, as the scheduler counts it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gradsieve_operator.contract import LABEL_INDEX
from gradsieve_operator.placement.selectors import keys, selects

_NAMESPACE = "kubernetes.io/metadata.name"
"""The label that every namespace has, with its name as the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AntiAffinity:
    """One term of a pod's required anti-affinity.

    topology: label of nodes; those with the same value as the pod's own node are closed.
    selector: label selector of the pods that are kept away.
    namespaces: where these pods are, by name.
    namespace_selector: and by the label with the namespace's name; None for no further ones.
    """

    topology: str
    selector: Mapping[str, Any]
    namespaces: tuple[str, ...]
    namespace_selector: Mapping[str, Any] | None = None

    def keeps_away(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether a pod with these labels is kept away."""
        by_label = self.namespace_selector
        inside = namespace in self.namespaces or (
            by_label is not None and selects(by_label, {_NAMESPACE: namespace})
        )
        return inside and selects(self.selector, labels)


class Guards:
    """What all pods of a cluster keep others away from; equal terms are judged once.

    Args:
        terms: each with the value that its label has on the pod's own node.
    """

    def __init__(self, terms: Iterable[tuple[AntiAffinity, str]]) -> None:
        self._domains: dict[str, tuple[AntiAffinity, set[tuple[str, str]]]] = {}
        for term, value in terms:
            _, domains = self._domains.setdefault(json.dumps(asdict(term), sort_keys=True), (term, set()))
            domains.add((term.topology, value))

    def closed(self, namespace: str, labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
        """Return key and value of the node labels at which pods with these labels are kept away."""
        found: set[tuple[str, str]] = set()
        for term, domains in self._domains.values():
            if term.keeps_away(namespace, labels):
                found |= domains
        return frozenset(found)


def anti_affinity(namespace: str, spec: Mapping[str, Any]) -> tuple[AntiAffinity, ...]:
    """Return the terms of a pod's required anti-affinity that can be judged from here.

    Left out are parts that only the scheduler can judge: namespaces chosen by labels other than their name,
    which the operator may not read, and selectors of a worker's index, as the planner places equal workers
    together. ``matchLabelKeys`` need no look: the API server has merged them into the selector.

    Args:
        namespace: of the pod.
        spec: of the pod.
    """
    affinity = (spec.get("affinity") or {}).get("podAntiAffinity") or {}
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    return tuple(_readable(namespace, terms))


def _readable(namespace: str, terms: Iterable[Mapping[str, Any]]) -> Iterable[AntiAffinity]:
    for term in terms:
        selector, chosen = term.get("labelSelector"), term.get("namespaceSelector")
        if selector is None or LABEL_INDEX in keys(selector):
            continue  # no selector matches no pod
        named = tuple(term.get("namespaces") or ())
        if not named and chosen is None:
            named = (namespace,)
        if chosen is not None and not keys(chosen) <= {_NAMESPACE}:
            chosen = None
        if named or chosen is not None:
            yield AntiAffinity(
                topology=term["topologyKey"],
                selector=selector,
                namespaces=named,
                namespace_selector=chosen,
            )
