"""Looking at a job: everything that a decision depends on, as it is now."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from gradsieve_operator import contract, resources
from gradsieve_operator.cluster.api import Api, path
from gradsieve_operator.cluster.coordinator import (
    Coordinator,
    CoordinatorError,
    CoordinatorSilent,
    Parked,
    context_of,
)
from gradsieve_operator.cluster.hearing import Hearing
from gradsieve_operator.cluster.last_seen import LastSeen
from gradsieve_operator.cluster.planning import Planning
from gradsieve_operator.decide import (
    CoordinatorStatus,
    Node,
    Placer,
    Pod,
    Progress,
    World,
    part_surplus,
    read_pod,
)
from gradsieve_operator.errors import RecordError, SpecError
from gradsieve_operator.resources import Manifest, Neighbours
from gradsieve_operator.spec import AllowedAccounts, Compression, CompressionPolicy, HorovodJob
from gradsieve_operator.status import not_later, recall

_TRUST_SECONDS = 60.0
"""For how long a running job's Secrets, and its other children, are taken to be as they were."""

_NOT_PLANNED = (
    "spec.scheduling.gang is Planned, and this operator may not read nodes (GRADSIEVE_PLAN_NODES=false): "
    "say gang: None, or name a queue"
)


@dataclass
class Memory:
    """What need not be asked for each time; losing it costs calls and nothing else.

    Attributes:
        version: the job's ``resourceVersion`` when it was last looked at, or written by us.
        until: when the following is forgotten, of the monotonic clock.
        secrets: name -> Secret.
        context: of TLS, made from them.
        children: kind and name of what was applied.
        refused: why the API server refused a child in the last round.
        objection: why the coordinator refused a roster or a plan in the last round.
        failing_since: when it began to fail to make children, seconds since the epoch; None when it does not.
        troubled_since: when the operator began to fail to work on the job, of the monotonic clock; None when
            it does not.
        last_seen: its pods, those that are gone among them.
    """

    version: str = ""
    until: float = 0.0
    secrets: dict[str, Manifest] = field(default_factory=dict)
    context: ssl.SSLContext | None = None
    children: set[tuple[str, str]] = field(default_factory=set)
    refused: str = ""
    objection: str = ""
    failing_since: float | None = None
    troubled_since: float | None = None
    last_seen: LastSeen = field(default_factory=LastSeen)

    def expire(self) -> None:
        """Forget what is too old."""
        if time.monotonic() >= self.until:
            self.secrets, self.context, self.children = {}, None, set()
            self.until = time.monotonic() + _TRUST_SECONDS


@dataclass(frozen=True)
class Seen:
    """A job as it was found.

    Attributes:
        world: for the decision.
        status: the job's status before.
        coordinator: to talk to; None when it has no address yet.
    """

    world: World
    status: Mapping[str, Any]
    coordinator: Coordinator | None


class Observer:
    """Reads the API server and the coordinator.

    Args:
        api: the server.
        session: for calls to coordinators.
        planning: nodes and places; None when the operator may not see nodes.
        neighbours: who besides a job's own pods may reach them.
        parked: entered while a coordinator is called.
        accounts: which ServiceAccounts jobs may use.
    """

    def __init__(
        self,
        api: Api,
        session: aiohttp.ClientSession,
        planning: Planning | None,
        neighbours: Neighbours,
        parked: Parked,
        accounts: AllowedAccounts,
    ) -> None:
        self._api, self._session, self._planning, self._neighbours = api, session, planning, neighbours
        self._parked, self._accounts = parked, accounts
        self._hearing = Hearing()

    async def look(self, body: Mapping[str, Any], memory: Memory) -> Seen:
        """Return the world around the job in ``body``.

        Raises:
            SpecError: of the job, not even its outline can be read.
            RecordError: somebody has changed what the operator has recorded of it.
            ApiError: the server did not answer.
        """
        memory.expire()
        (job, invalid), status = self._parse(body), body.get("status") or {}
        progress = self._progress(job, status)
        found = await self._pods(job)
        departed = memory.last_seen.listed(found)
        pods, surplus = part_surplus(found, progress)
        if progress.started is None or not memory.secrets:
            await self._read_secrets(job, memory)
        authority = resources.common_authority(job, memory.secrets, ())
        leader = _leader(pods) if authority is not None and _speaks(job, progress) else None
        coordinator = None if leader is None else self._coordinator(job, leader, memory)
        nodes = self._planning.states() if self._planning is not None else None
        answer, silence, unanswered = await self._ask(leader, coordinator, nodes)
        unresolved = ""
        try:
            compression, unresolved = await self._compression(job, progress)
        except SpecError as error:
            compression, invalid = None, str(error)
        if self._planning is None and job.scheduling.planned:
            invalid = invalid or _NOT_PLANNED
        world = World(
            job=job,
            progress=progress,
            pods=pods,
            children=frozenset(memory.children),
            authority=authority,
            certified=_certified(memory.secrets.get(contract.workers_secret(job.name))),
            nodes=nodes,
            coordinator=answer,
            compression=compression,
            place=self._placer(job, progress),
            neighbours=self._neighbours,
            refused=memory.refused,
            now=time.time(),
            invalid=invalid,
            unresolved=unresolved,
            silence=silence,
            unanswered=unanswered,
            surplus=surplus,
            departed=departed,
        )
        return Seen(world, status, coordinator)

    def _parse(self, body: Mapping[str, Any]) -> tuple[HorovodJob, str]:
        """Return the job; where it is not as it must be, its outline and what is wrong."""
        try:
            job = HorovodJob.parse(body)
        except SpecError as error:
            return HorovodJob.outline(body), str(error)
        try:
            self._accounts.check(job)
        except SpecError as error:
            return job, str(error)
        return job, ""

    def _progress(self, job: HorovodJob, status: Mapping[str, Any]) -> Progress:
        """Return what is recorded, and what was counted since."""
        progress = _recorded(job, status)
        if self._planning is None or progress.waiting_since is None:
            return progress
        counted = self._planning.overtaken(f"{job.namespace}/{job.name}")
        return replace(progress, overtaken=max(progress.overtaken, counted))

    async def _pods(self, job: HorovodJob) -> tuple[Pod, ...]:
        selector = f"{contract.LABEL_JOB}={job.name}"
        found = await self._api.get(path("v1", "pods", job.namespace), labelSelector=selector)
        # Pods of a deleted job of the same name are somebody else's: the garbage collector's.
        raw = (each for each in found.get("items") or () if owned(each, job.uid))
        return tuple(pod for each in raw if (pod := read_pod(each, job.name)) is not None)

    async def _read_secrets(self, job: HorovodJob, memory: Memory) -> None:
        memory.secrets, memory.context = {}, None
        for name in resources.secret_names(job):
            found = await self._api.find(path("v1", "secrets", job.namespace, name))
            if found is not None and owned(found, job.uid):
                memory.secrets[name] = found

    def _coordinator(self, job: HorovodJob, leader: Pod, memory: Memory) -> Coordinator:
        if memory.context is None:
            memory.context = context_of(memory.secrets[contract.operator_secret(job.name)])
        return Coordinator(self._session, leader.ip, memory.context, self._parked)

    async def _ask(
        self, leader: Pod | None, coordinator: Coordinator | None, nodes: Mapping[str, Node] | None
    ) -> tuple[CoordinatorStatus | None, float, float]:
        """Return what the coordinator says, and its silence; see `World`."""
        if leader is None or coordinator is None:
            return None, 0.0, 0.0
        try:
            status = await coordinator.status()
        except CoordinatorError as error:
            # A node that is not ready has a time limit of its own.
            node = None if nodes is None else nodes.get(leader.node, Node(ready=False, since=0.0))
            runs = leader.phase == "Running" and not leader.reason and (node is None or node.ready)
            silent = isinstance(error, CoordinatorSilent)
            return None, *self._hearing.missed(leader.uid, could_answer=runs and silent)
        self._hearing.answered(leader.uid)
        return status, 0.0, 0.0

    async def _compression(self, job: HorovodJob, progress: Progress) -> tuple[Compression | None, str]:
        """Return what the job asks for, or why that cannot be told of a job that has something to go by."""
        if job.compression is None:
            return None, ""
        try:
            return job.compression.resolve(await self._policy(job)), ""
        except SpecError as error:
            if progress.compression is None:
                raise
            return None, str(error)

    async def _policy(self, job: HorovodJob) -> Compression | None:
        if job.compression is None or job.compression.policy is None:
            return None
        name = job.compression.policy
        found = await self._api.find(path(contract.API_VERSION, contract.POLICY_PLURAL, job.namespace, name))
        if found is None:
            raise SpecError("spec.compression.policyRef", f"there is no CompressionPolicy {name!r} here")
        return CompressionPolicy.parse(found).compression

    def _placer(self, job: HorovodJob, progress: Progress) -> Placer | None:
        if self._planning is None or not job.scheduling.planned:
            return None
        return self._planning.placer(job, progress)


def _recorded(job: HorovodJob, status: Mapping[str, Any]) -> Progress:
    """Return what is recorded of ``job``; a new record for one that lets go of all of its pods.

    Raises:
        RecordError: it cannot be what the operator has written, and the job is not suspended.
    """
    try:
        return not_later(recall(status), time.time())
    except RecordError:
        if not job.suspend:
            raise
        return Progress()


def _speaks(job: HorovodJob, progress: Progress) -> bool:
    """Whether it matters what the coordinator says: not while a job waits for its places, as many may do."""
    return progress.started is not None or progress.finished is not None or job.suspend


def _leader(pods: Iterable[Pod]) -> Pod | None:
    """Return the pod of the coordinator that is to be asked."""
    candidates = [pod for pod in pods if pod.role == contract.ROLE_COORDINATOR and pod.alive and pod.ip]
    return max(candidates, key=lambda pod: pod.generation, default=None)


def owned(raw: Mapping[str, Any], uid: str) -> bool:
    """Whether an object of the API server's is a child of the job with ``uid``."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def _certified(secret: Mapping[str, Any] | None) -> frozenset[str]:
    data = (secret or {}).get("data") or {}
    return frozenset(key.removesuffix(".key") for key in data if key.endswith(".key"))
