"""The planner, fed from the cluster: who asks for places now, and what was promised a moment ago."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradsieve_operator import decide, placement, resources
from gradsieve_operator.cluster.api import Api, path
from gradsieve_operator.cluster.reflector import Reflector, key_of
from gradsieve_operator.decide.world import timestamp
from gradsieve_operator.resources import Manifest
from gradsieve_operator.spec import HorovodJob

_PRODUCT = "nvidia.com/gpu.product"

_PROMISE_SECONDS = 30.0
"""A pod that was created is seen by then; one that was not created holds its place no longer."""


@dataclass(frozen=True)
class NodeView:
    """A node as the planner and as losses are judged by."""

    planned: placement.Node
    state: decide.Node


def keep_node(raw: Mapping[str, Any]) -> NodeView:
    """Return what is kept of a node."""
    conditions = (raw.get("status") or {}).get("conditions") or ()
    ready: Mapping[str, Any] = next((each for each in conditions if each["type"] == "Ready"), {})
    state = decide.Node(ready.get("status") == "True", timestamp(ready.get("lastTransitionTime")))
    return NodeView(placement.Node.parse(raw), state)


class Planning:
    """Places gangs one at a time; what one gets is taken for the next, whether or not the watch has shown it.

    Args:
        api: the server.
        changed: called when nodes or pods change, so that waiting jobs look again.
    """

    def __init__(self, api: Api, changed: Callable[[], None]) -> None:
        self.nodes: Reflector[NodeView] = Reflector(api, path("v1", "nodes"), keep_node, changed)
        unfinished = "status.phase!=Succeeded,status.phase!=Failed"
        self.pods: Reflector[placement.Load] = Reflector(
            api, path("v1", "pods"), placement.Load.parse, self._pods_changed, fieldSelector=unfinished
        )
        self._changed = changed
        self._promised: dict[str, tuple[float, placement.Load]] = {}
        self._waiting: dict[str, placement.Gang] = {}
        self._passed: set[tuple[str, str]] = set()
        self._priorities: dict[str, int] = {}
        self._refusals = placement.Refusals()
        self._api = api

    async def learn_priorities(self) -> None:
        """Read the cluster's priority classes."""
        found = await self._api.get(path("scheduling.k8s.io/v1", "priorityclasses"))
        self._priorities = {item["metadata"]["name"]: item["value"] for item in found.get("items") or ()}

    def priority(self, class_name: str | None) -> int:
        """Return the value of a priority class; 0 for none, and for one that is not known."""
        return self._priorities.get(class_name or "", 0)

    def states(self) -> dict[str, decide.Node]:
        """Return what losses are judged by: name of a node -> its state."""
        return {view.planned.name: view.state for view in self.nodes.kept.values()}

    def gpu_products(self) -> dict[str, str]:
        """Return the GPUs of the nodes that have any: name of a node -> product."""
        found = {view.planned.name: view.planned.labels.get(_PRODUCT) for view in self.nodes.kept.values()}
        return {name: product for name, product in found.items() if product}

    def overtaken(self, key: str) -> int:
        """Return how often a waiting job was overtaken; 0 for others, whatever their status records."""
        gang = self._waiting.get(key)
        return 0 if gang is None else gang.overtaken

    def placer(self, job: HorovodJob, progress: decide.Progress) -> decide.Placer:
        """Return what finds nodes for pods of ``job``, which has waited as ``progress`` says.

        Nothing is taken yet: see `promise`. A job that has started waits for nobody: others may wait for its
        end, and it could not get there without the workers that it lacks.
        """
        key = f"{job.namespace}/{job.name}"
        starts = progress.started is None
        # One picture for all that a decision asks: nothing is awaited meanwhile.
        cluster = functools.cache(self._cluster)

        def place(manifests: Sequence[Manifest]) -> Mapping[str, str] | decide.Unplaceable:
            gang = placement.Gang.of(
                key,
                manifests,
                gpu_products=job.scheduling.gpu_products,
                refused=self._refusals.of(_spec_of(job)),
                placement=job.scheduling.placement,
                priority=self.priority(job.scheduling.priority_class_name),
                since=progress.waiting_since or time.time(),
                overtaken=max(progress.overtaken, self.overtaken(key)),
            )
            waiting = {**(self._waiting if starts else {}), key: gang}
            found = placement.plan_queue(cluster(), waiting.values())[key]
            if starts:
                self._waiting[key] = gang
            if isinstance(found, placement.Shortage):
                return decide.Unplaceable(found.message)
            return found.nodes

        return place

    def promise(self, key: str, pods: Sequence[Manifest]) -> None:
        """Take the places of pods that are about to be created, and count whom their job overtakes.

        However often a start is tried, it overtakes another job once.
        """
        gang = self._waiting.pop(key, None)
        if gang is not None:
            for other in placement.overtaken(gang, self._waiting.values()):
                if (other, key) not in self._passed:
                    self._passed.add((other, key))
                    passed = self._waiting[other]
                    self._waiting[other] = replace(passed, overtaken=passed.overtaken + 1)
        until = time.monotonic() + _PROMISE_SECONDS
        for pod in pods:
            load = placement.Load.parse(pod)
            if load is not None:
                self._promised[key_of(pod)] = (until, load)

    def withdraw(self, pods: Sequence[Manifest]) -> None:
        """Give back the places of pods that were not created."""
        for pod in pods:
            self._promised.pop(key_of(pod), None)

    def refused(self, job: HorovodJob, group: str, node: str, why: str) -> None:
        """Take note that ``node`` did not take a pod of a group of ``job``."""
        self._refusals.add(_spec_of(job), group, node, why)

    def waiting(self) -> list[tuple[str, str]]:
        """Return namespace and name of the jobs that wait for places."""
        split = (key.partition("/") for key in self._waiting)
        return [(namespace, name) for namespace, _, name in split]

    def places_held(self) -> int:
        """Return for how many pods of jobs that were overtaken too often places are held, where they fit."""
        return sum(gang.count for gang in self._waiting.values() if gang.overtaken >= placement.PATIENCE)

    def pause(self, key: str) -> None:
        """Take note that a job does not ask for places now."""
        self._waiting.pop(key, None)

    def leave(self, key: str) -> None:
        """Take note that a job does not wait for places any more: it has them, or is no more."""
        self.pause(key)
        self._passed = {pair for pair in self._passed if key not in pair}

    def _pods_changed(self) -> None:
        """End the promises to pods that the watch has shown: they are counted, and no longer once they go."""
        for key in [key for key in self._promised if key in self.pods.kept]:
            del self._promised[key]
        self._changed()

    def _cluster(self) -> placement.Cluster:
        now = time.monotonic()
        self._promised = {key: (until, load) for key, (until, load) in self._promised.items() if now < until}
        promised = (load for key, (_, load) in self._promised.items() if key not in self.pods.kept)
        loads = [*self.pods.kept.values(), *promised]
        return placement.Cluster.of((view.planned for view in self.nodes.kept.values()), loads)


def _spec_of(job: HorovodJob) -> str:
    """Return what refusals are remembered by: pods of another spec may well be taken."""
    return f"{job.uid} {resources.origin(job)}"
