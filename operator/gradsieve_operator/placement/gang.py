"""Pods that are placed together or not at all."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gradsieve_operator.contract import COORDINATOR_HOST, LABEL_GROUP, LABEL_INDEX
from gradsieve_operator.placement.refusals import Refused
from gradsieve_operator.placement.requests import GPU, Resources, pod_requests
from gradsieve_operator.spec.values import Placement

_LOOKED_AT = ("nodeSelector", "affinity", "tolerations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Equal pods of a gang.

    group: of the workers; ``coordinator`` for that pod.
    pods: their names, in the order of names.
    spec: of any of them, as far as the planner looks at it.
    requests: of each of them.
    gpu_products: where they may be, if they ask for GPUs; empty: anywhere.
    namespace: of them.
    labels: of each of them, less its index.
    refused: nodes that did not take such pods lately.
    """

    group: str
    pods: tuple[str, ...]
    spec: Mapping[str, Any] = field(hash=False)
    requests: Resources = field(hash=False)
    gpu_products: tuple[str, ...]
    namespace: str = ""
    labels: Mapping[str, str] = field(hash=False, default_factory=dict)
    refused: Refused = field(hash=False, default=Refused())

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.pods)

    @property
    def needs_gpus(self) -> bool:
        """Whether they ask for GPUs."""
        return self.requests.get(GPU, 0) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """All pods of a job that need a node.

    key: namespace and name of the job.
    shapes: its pods by kind, in an order that depends on names only.
    placement: what is preferred among the placements that are possible.
    priority: of its pods; a higher one goes first.
    since: when it began to wait, seconds since the epoch; the longer one goes first.
    overtaken: how often a job that came later was placed while this one waited.
    """

    key: str
    shapes: tuple[Shape, ...]
    placement: Placement = "Fastest"
    priority: int = 0
    since: float = 0.0
    overtaken: int = 0

    @property
    def count(self) -> int:
        """How many pods it has."""
        return sum(shape.count for shape in self.shapes)

    def trusting(self) -> Gang:
        """Return it without what it was refused."""
        if not any(shape.refused.left_out or shape.refused.doubted for shape in self.shapes):
            return self
        shapes = tuple(replace(shape, refused=Refused()) for shape in self.shapes)
        return replace(self, shapes=shapes)

    @classmethod
    def of(
        cls,
        key: str,
        manifests: Iterable[Mapping[str, Any]],
        *,
        gpu_products: tuple[str, ...] = (),
        refused: Mapping[str, Refused] | None = None,
        **more: Any,
    ) -> Gang:
        """Return the gang of these pods.

        Args:
            key: namespace and name of the job.
            manifests: the pods as they would be created, not yet pinned to nodes.
            gpu_products: where pods that ask for GPUs may be, best first; empty: anywhere.
            refused: group -> nodes that did not take its pods lately.
            more: the other attributes.

        Raises:
            SpecError: an amount cannot be read.
        """
        kinds: defaultdict[str, list[str]] = defaultdict(list)
        first: dict[str, tuple[str, Mapping[str, Any], Resources, Mapping[str, Any]]] = {}
        for manifest in manifests:
            metadata, spec = manifest["metadata"], manifest.get("spec") or {}
            labels = {**(metadata.get("labels") or {})}
            # Workers that differ in nothing else are placed together.
            labels.pop(LABEL_INDEX, None)
            group = labels.get(LABEL_GROUP) or COORDINATOR_HOST
            looked_at = {name: spec[name] for name in _LOOKED_AT if spec.get(name)}
            requests = pod_requests(spec)
            kind = json.dumps([group, looked_at, sorted(requests.items()), labels], sort_keys=True)
            kinds[kind].append(metadata["name"])
            about = {"namespace": metadata.get("namespace") or "", "labels": labels}
            first.setdefault(kind, (group, looked_at, requests, about))
        shapes = [
            Shape(
                group=group,
                pods=tuple(sorted(kinds[kind])),
                spec=looked_at,
                requests=requests,
                gpu_products=gpu_products if requests.get(GPU) else (),
                refused=(refused or {}).get(group, Refused()),
                **about,
            )
            for kind, (group, looked_at, requests, about) in sorted(first.items())
        ]
        return cls(key=key, shapes=tuple(shapes), **more)
