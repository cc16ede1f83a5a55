"""The run: fill the cluster, leave it alone, change jobs, lead lives of jobs, kill the leader."""

from __future__ import annotations

import asyncio
import datetime as dt
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cluster.simulated import SimulatedCluster
from scale import audited, coordinators, manifests
from scale.changes import Changer
from scale.client import client, each
from scale.manifests import Manifest
from scale.operators import ACCOUNT, Memory, Operators
from scale.planning_times import planning_times
from scale.processors import Processors
from scale.report import Facts
from scale.sizes import NAMESPACES, OTHERS, Sizes
from scale.witness import Key, Witness

from gradsieve_operator import contract
from gradsieve_operator.cluster.api import Api, path

_REPLICAS = ("operator-1", "operator-2")
_REPLACEMENT = "operator-3"
_FILLED_SECONDS = 1200.0
_SETTLED_SECONDS = 20.0
_FIRST_PLANS_SECONDS = 120.0
"""In which jobs that adapt get their first plans, and these prove themselves: no steady state before."""

_LIFE_SECONDS = 40.0
_CLEANED_SECONDS = 45.0
"""A coordinator that has ended stays for 30 s."""

_JOBS = path(contract.API_VERSION, contract.JOB_PLURAL)
_BENCHMARKS = Path(__file__).resolve().parents[1]


def measure(sizes: Sizes) -> Facts:
    """Run everything.

    Raises:
        TimeoutError: the cluster was not filled in time.
        ClusterError: a part of the control plane, or the operator, has ended.
    """
    with SimulatedCluster.start(audit=audited.rules(ACCOUNT)) as cluster:
        return asyncio.run(_run(sizes, cluster))


async def _run(sizes: Sizes, cluster: SimulatedCluster) -> Facts:
    # With what they stand for known to the API server, there is something to watch.
    operators = await asyncio.to_thread(Operators, cluster)
    async with _client(cluster) as api, _witness(cluster, api) as witness:
        return await _Scenario(sizes, cluster, api, witness, operators).run()


class _Scenario:
    def __init__(
        self, sizes: Sizes, cluster: SimulatedCluster, api: Api, witness: Witness, operators: Operators
    ) -> None:
        self._sizes, self._cluster, self._api, self._witness = sizes, cluster, api, witness
        self._operators = operators
        self._running = [manifests.running_job(index, adapted=sizes.adapted) for index in range(sizes.jobs)]
        self._waiting = [manifests.waiting_job(index, sizes) for index in range(sizes.waiting)]
        self._successor = manifests.small_job("after", 0)
        self._processors = Processors(cluster)

    async def run(self) -> Facts:
        await self._make_nodes()
        for name in _REPLICAS:
            self._operators.start(name)
        memory = Memory(self._operators)
        changer = Changer(self._api, self._witness)
        sizes = self._sizes
        try:
            await asyncio.to_thread(self._operators.leader)
            await self._phase("fill", self._fill())
            steady = await self._phase("steady", self._stay(sizes.steady_minutes * 60))
            began = time.time()
            await self._phase("changes", changer.run(self._running, sizes.rate, sizes.minutes))
            changed = began, time.time()
            await self._phase("lives", self._lives())
            led_until = time.time()
            expiry = await self._phase("failover", self._fail_over())
        finally:
            memory.stop()
        return Facts(
            sizes=sizes,
            seconds=changer.seconds,
            lost=changer.lost,
            requests=list(audited.read(self._cluster.control_plane.audit_log)),
            steady=steady,
            changed=changed,
            led_until=led_until,
            expiry=expiry,
            successor=self._successor["metadata"]["name"],
            peak=memory.peak,
            peaks=memory.peaks,
            planned=await self._plan(),
            processors=self._processors.used,
            modes=self._witness.modes,
        )

    async def _make_nodes(self) -> None:
        namespaces = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            for name in (*NAMESPACES, OTHERS)
        ]
        await each(namespaces, lambda one: self._api.create("/api/v1/namespaces", one))
        for name in (*NAMESPACES, OTHERS):
            await asyncio.to_thread(self._cluster.wait_for_service_account, name)
        await each(manifests.nodes(self._sizes), self._make_node)
        pods = path("v1", "pods", OTHERS)
        await each(manifests.foreign_pods(self._sizes), lambda pod: self._api.create(pods, pod))

    async def _make_node(self, node: Manifest) -> None:
        await self._api.create("/api/v1/nodes", node)
        # New nodes are tainted until a controller finds them ready, which does not run here.
        await self._api.merge(f"/api/v1/nodes/{node['metadata']['name']}", {"spec": {"taints": None}})

    async def _fill(self) -> None:
        """Make all jobs; returns when those that fit run and of the others it is known that they do not."""
        async with asyncio.timeout(_FILLED_SECONDS):
            await each(self._running, self._create)
            for job in self._running:
                await self._witness.wait(key_of(job), lambda seen: seen.holds("Running"))
            await each(self._waiting, self._create)
            for job in self._waiting:
                await self._witness.wait(key_of(job), lambda seen: seen.holds("Admitted", "False", "NoPlace"))
        await asyncio.sleep(_SETTLED_SECONDS)
        if self._sizes.adapted:
            await asyncio.sleep(_FIRST_PLANS_SECONDS)

    async def _stay(self, seconds: float) -> tuple[float, float]:
        began = time.time()
        await asyncio.sleep(seconds)
        return began, time.time()

    async def _lives(self) -> None:
        """Lead some jobs from their creation to their end."""
        jobs = [manifests.small_job("life", index) for index in range(self._sizes.lives)]
        await asyncio.gather(*map(self._live, jobs))
        await asyncio.sleep(_CLEANED_SECONDS)

    async def _live(self, job: Manifest) -> None:
        key = key_of(job)
        await self._create(job)
        await self._witness.wait(key, lambda seen: seen.holds("Running"))
        await asyncio.sleep(_LIFE_SECONDS)
        pod = path("v1", "pods", key[0], self._witness.jobs[key].coordinator)
        # As a coordinator does: it says so first, is not ready any more, and ends once it was asked.
        await self._api.merge(pod, {"metadata": {"annotations": {coordinators.END: "true"}}})
        await self._api.merge(
            f"{pod}/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        )
        await self._witness.wait(key, lambda seen: seen.holds("Complete"))
        await self._api.merge(f"{pod}/status", {"status": {"phase": "Succeeded"}})

    async def _fail_over(self) -> float:
        """Kill the leader; returns when its Lease expired, at which moment a job is made."""
        leader = await asyncio.to_thread(self._operators.leader)
        self._operators.kill(leader)
        lease = await asyncio.to_thread(self._operators.lease)
        renewed = dt.datetime.fromisoformat(lease["renewTime"]).timestamp()
        expiry = renewed + float(lease["leaseDurationSeconds"])
        # As its Deployment would: the new one's lists count for the memory, too.
        self._operators.start(_REPLACEMENT)
        await asyncio.sleep(expiry - time.time())
        await self._create(self._successor)
        async with asyncio.timeout(_FILLED_SECONDS):
            await self._witness.wait(key_of(self._successor), lambda seen: bool(seen.made))
        await asyncio.sleep(_SETTLED_SECONDS)
        return expiry

    async def _plan(self) -> dict[str, float]:
        unfinished = "status.phase!=Succeeded,status.phase!=Failed"
        found = {
            "nodes": [each async for page in self._api.pages("/api/v1/nodes") for each in page["items"]],
            "pods": [
                each
                async for page in self._api.pages("/api/v1/pods", fieldSelector=unfinished)
                for each in page["items"]
            ],
            "jobs": [
                each
                async for page in self._api.pages(_JOBS)
                for each in page["items"]
                if each["metadata"]["name"].startswith("wait-")
            ],
        }
        return await asyncio.to_thread(planning_times, **found)

    async def _create(self, job: Manifest) -> None:
        await self._api.create(
            path(contract.API_VERSION, contract.JOB_PLURAL, job["metadata"]["namespace"]), job
        )

    async def _phase(self, name: str, work: Awaitable[Any]) -> Any:
        print(f"{time.strftime('%H:%M:%S')} {name}", file=sys.stderr, flush=True)
        with self._processors.during(name):
            found = await work
        self._cluster.require_all()
        return found


def key_of(job: Manifest) -> Key:
    """Return namespace and name of a job."""
    return job["metadata"]["namespace"], job["metadata"]["name"]


def _client(cluster: SimulatedCluster) -> Api:
    control_plane = cluster.control_plane
    pair = control_plane.identity
    return client(control_plane.server, control_plane.authority.ca, pair.certificate, pair.key)


@asynccontextmanager
async def _witness(cluster: SimulatedCluster, api: Api) -> AsyncIterator[Witness]:
    """Start what stands in for coordinators, and look on."""
    witness, told = Witness(api), cluster.state / "plans"
    pair, control_plane = cluster.control_plane.identity, cluster.control_plane
    async with await asyncio.start_unix_server(witness.hear, told):
        cluster.hub.start(
            "coordinators",
            *(sys.executable, "-m", "scale.coordinators", control_plane.server, control_plane.authority.ca),
            *(pair.certificate, pair.key, told),
            environment={"PYTHONPATH": f"{_BENCHMARKS}:{':'.join(sys.path)}"},
        )
        # A watch that fails ends the run.
        async with asyncio.TaskGroup() as group:
            watches = [group.create_task(work) for work in (witness.watch_jobs(), witness.watch_pods())]
            yield witness
            for watch in watches:
                watch.cancel()
