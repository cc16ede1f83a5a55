"""The planner, fed from the cluster: who asks for places now, and what was assumed a moment ago."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradsieve_operator import contract, decide, placement, resources
from gradsieve_operator.cluster.api import Api, path
from gradsieve_operator.cluster.node_view import NodeView, keep_node
from gradsieve_operator.cluster.planner_process import PlannerProcess
from gradsieve_operator.cluster.queue import Key
from gradsieve_operator.cluster.reflector import Reflector
from gradsieve_operator.cluster.store import key_of
from gradsieve_operator.cluster.waiting import Waiting
from gradsieve_operator.resources import Manifest
from gradsieve_operator.spec import HorovodJob

_PRODUCT = "nvidia.com/gpu.product"

_BURST_SECONDS, _LONGEST_BURST = 0.1, 1.0
"""Changes that come within it are planned for together."""

_LEISURE = 4.0
"""In large clusters, those that come within so many times as the last pass took, up to `_LONGEST_BURST`: of
changes that never end, a pass for each few would take a quarter of a processor."""

_ASSUMED_SECONDS = 30.0
"""A pod that was created is seen by then; one that was not created holds its place no longer."""


class Planning:
    """Places gangs: those of jobs that wait all together, in a process of its own.

    What a job gets is taken for the others, whether or not the watch has shown it.

    Args:
        api: the server.
        answered: called with the namespaces and names of waiting jobs for which there are news.
        told_of_jobs_pods: whether `hold` is told what pods with a job's label hold, and `pods_changed` of
            their changes; else they are followed here, too.
    """

    def __init__(
        self,
        api: Api,
        answered: Callable[[list[Key]], None],
        *,
        told_of_jobs_pods: bool,
    ) -> None:
        self.nodes: Reflector[NodeView] = Reflector(api, path("v1", "nodes"), keep_node, self._nodes_changed)
        self._states: dict[str, decide.Node] = {}
        self._gpu_products: dict[str, str] = {}
        selectors: dict[str, Any] = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        note = self.hold
        if told_of_jobs_pods:
            selectors["labelSelector"], note = f"!{contract.LABEL_JOB}", self._others_hold
        self.pods: Reflector[placement.Load] = Reflector(
            api, path("v1", "pods"), placement.Load.parse, self.pods_changed, note=note, **selectors
        )
        classes = path("scheduling.k8s.io/v1", "priorityclasses")
        self.priorities: Reflector[int] = Reflector(api, classes, lambda raw: int(raw["value"]))
        self._answered = answered
        self._waiting = Waiting()
        self._asked = asyncio.Event()
        self._holdings = placement.Holdings()
        self._eligibility: placement.Eligibility | None = None
        # Until when what is held is held for pods that no watch has shown yet.
        self._assumed: dict[str, float] = {}
        self._refusals = placement.Refusals()
        self._process = PlannerProcess(self._planner_fails)
        self._api = api

    async def run(self) -> None:
        """Plan all who wait, once for a burst of changes, until cancelled."""
        process = self._process
        try:
            while True:
                await self._asked.wait()
                await asyncio.sleep(max(_BURST_SECONDS, min(_LEISURE * process.took, _LONGEST_BURST)))
                self._asked.clear()
                gangs = dict(self._waiting.gangs)
                if gangs:
                    plans = await process.plan(self._cluster(), gangs.values())
                    self._answered([_key(each) for each in self._waiting.planned(gangs, plans)])
        finally:
            await process.stop()

    def reflectors(self) -> list[Reflector[Any]]:
        """Return what follows the server, kind by kind."""
        return [self.nodes, self.pods, self.priorities]

    def ages(self, now: float) -> dict[str, float]:
        """Return for how many seconds each part has stood still, at ``now`` of the monotonic clock."""
        return {
            "watch of nodes": now - self.nodes.heard,
            "watch of pods": now - self.pods.heard,
            "planning": self._process.behind(),
        }

    def priority(self, class_name: str | None) -> int:
        """Return the value of a priority class; 0 for none, and for one that is not known."""
        return self.priorities.kept.get(f"/{class_name}", 0)

    def states(self) -> Mapping[str, decide.Node]:
        """Return what losses are judged by: name of a node -> its state."""
        return self._states

    def gpu_products(self) -> Mapping[str, str]:
        """Return the GPUs of the nodes that have any: name of a node -> product."""
        return self._gpu_products

    def overtaken(self, key: str) -> int:
        """Return how often a waiting job was overtaken; 0 for others, whatever their status records."""
        return self._waiting.overtaken(key)

    def line_up(self, job: HorovodJob, progress: decide.Progress) -> None:
        """Have a job that waits for its places planned with the others before it is looked at.

        Left out is one of which pods stand: its turn has come already, and looking shows what it lacks.
        """
        stands = any(f"{job.namespace}/{name}" in self._holdings for name in decide.last_pods(job, progress))
        if not stands and progress.retry_at <= self._api.clock.now():
            gang = self._gang(job, progress, decide.first_pods(job, progress))
            self._waiting.join(gang)
            self._waiting.expect(gang.key)
            self._ask()

    def places(
        self, job: HorovodJob, progress: decide.Progress, wanted: decide.Wanted
    ) -> decide.Places | decide.Unplaceable:
        """Return nodes for pods of ``job``, which has waited as ``progress`` says, or why there are none.

        Nothing is taken yet: see `assume`. A job that has started waits for nobody, and is planned at once:
        others may wait for its end, and it could not get there without the workers that it lacks.
        """
        # One picture for all that is tried: nothing is awaited meanwhile.
        cluster = functools.cache(self._cluster)

        def place(manifests: Sequence[Manifest]) -> Mapping[str, str] | decide.Unplaceable:
            gang = self._gang(job, progress, manifests)
            if progress.started is None:
                return self._in_line(gang)
            if self._eligibility is None:
                self._eligibility = placement.Eligibility(cluster().nodes)
            found = placement.plan(cluster(), gang, self._eligibility)
            if isinstance(found, placement.Assignment):
                return found.nodes
            whole = placement.plan_queue(cluster(), [gang])[gang.key]
            return decide.Unplaceable(whole.message) if isinstance(whole, placement.Shortage) else whole.nodes

        return decide.find_places(job, wanted, place)

    def _gang(
        self, job: HorovodJob, progress: decide.Progress, manifests: Sequence[Manifest]
    ) -> placement.Gang:
        key = f"{job.namespace}/{job.name}"
        return placement.Gang.of(
            key,
            manifests,
            gpu_products=job.scheduling.gpu_products,
            refused=self._refusals.of(_spec_of(job)),
            placement=job.scheduling.placement,
            priority=self.priority(job.scheduling.priority_class_name),
            since=progress.waiting_since or self._api.clock.now(),
            overtaken=max(progress.overtaken, self.overtaken(key)),
        )

    def _in_line(self, gang: placement.Gang) -> Mapping[str, str] | decide.Unplaceable:
        """Return what the last pass has found for a gang that waits, if that still holds."""
        if self._waiting.join(gang):
            self._ask()
        found = self._waiting.plan(gang)
        if isinstance(found, str):
            return decide.Unplaceable(found)
        if found is not None and placement.still_fits(self._cluster(), gang, found):
            return found
        if found is not None:
            self._waiting.forget_plan(gang.key)
            self._ask()
        if self._process.trouble:
            return decide.Unplaceable(self._process.trouble, pending=True, failing=True)
        return decide.Unplaceable("its places are being looked for", pending=True)

    def assume(self, key: str, pods: Sequence[Manifest]) -> None:
        """Take the places of pods that are about to be created, and count whom their job overtakes."""
        self._answered([_key(each) for each in self._waiting.start(key)])
        self._ask()
        until = time.monotonic() + _ASSUMED_SECONDS
        for pod in pods:
            load = placement.Load.parse(pod)
            if load is not None:
                self._assumed[key_of(pod)] = until
                self._holdings.put(key_of(pod), load)

    def forget(self, pods: Sequence[Manifest]) -> None:
        """Give back the places of pods that were not created."""
        for pod in pods:
            self._take_back(key_of(pod))
        if pods:
            self._ask()

    def refused(self, job: HorovodJob, group: str, node: str, why: str) -> None:
        """Take note that ``node`` did not take a pod of a group of ``job``."""
        self._refusals.add(_spec_of(job), group, node, why)

    def waiting(self) -> int:
        """Return how many jobs wait for places."""
        return len(self._waiting.gangs)

    def places_held(self) -> int:
        """Return for how many pods of jobs that were overtaken too often places are held, where they fit."""
        gangs = self._waiting.gangs.values()
        return sum(gang.count for gang in gangs if gang.overtaken >= placement.PATIENCE)

    def pause(self, key: str) -> None:
        """Take note that a job does not ask for places now."""
        if self._waiting.pause(key):
            self._ask()

    def leave(self, key: str) -> None:
        """Take note that a job does not wait for places any more: it has them, or is no more."""
        if self._waiting.leave(key):
            self._ask()

    def _ask(self) -> None:
        """Have all who wait planned anew."""
        self._asked.set()

    def _planner_fails(self) -> None:
        """Have all who wait say so."""
        self._answered([_key(each) for each in self._waiting.gangs])

    def _nodes_changed(self) -> None:
        views, self._eligibility = self.nodes.kept.values(), None
        self._states = {view.planned.name: view.state for view in views}
        found = {view.planned.name: view.planned.labels.get(_PRODUCT) for view in views}
        self._gpu_products = {name: product for name, product in found.items() if product}
        self._ask()

    def pods_changed(self) -> None:
        """Have all who wait planned anew: places may have become free."""
        self._ask()

    def hold(self, pod: str, load: placement.Load | None) -> None:
        """Take note of what a pod with this key holds; what was assumed of it ends, as it is counted now."""
        self._assumed.pop(pod, None)
        self._holdings.put(pod, load)

    def _others_hold(self, pod: str, load: placement.Load | None) -> None:
        # A pod that gets a job's label later is shown by both watches for a moment, in either order.
        self._holdings.put(f"others/{pod}", load)

    def _take_back(self, pod: str) -> None:
        """End what was assumed of a pod, if no watch has shown it."""
        if self._assumed.pop(pod, None) is not None:
            self._holdings.put(pod, None)

    def _cluster(self) -> placement.Cluster:
        """Return the cluster as it is now, with what was assumed; good until something is awaited."""
        now = time.monotonic()
        for pod in [pod for pod, until in self._assumed.items() if until <= now]:
            self._take_back(pod)
        return self._holdings.cluster(view.planned for view in self.nodes.kept.values())


def _key(key: str) -> Key:
    namespace, _, name = key.partition("/")
    return namespace, name


def _spec_of(job: HorovodJob) -> str:
    """Return what refusals are remembered by: pods of another spec may well be taken."""
    return f"{job.uid} {resources.origin(job)}"
