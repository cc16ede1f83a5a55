"""Looking at a job: everything that a decision depends on, as it is now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.cache import Cache
from gradsieve_operator.cluster.calls import Calls
from gradsieve_operator.cluster.coordinator import Coordinator, CoordinatorError, CoordinatorSilent
from gradsieve_operator.cluster.heard import Heard
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.cluster.planning import Planning
from gradsieve_operator.cluster.secrets import (
    PROVEN_SECONDS,
    certificates_delivered,
    operator_context,
    read_secrets,
)
from gradsieve_operator.cluster.silence_tracker import SilenceTracker
from gradsieve_operator.decide import (
    Node,
    ObservedState,
    Pace,
    Pod,
    Progress,
    part_surplus,
)
from gradsieve_operator.errors import RecordError, SpecError
from gradsieve_operator.resources import Neighbours
from gradsieve_operator.spec import AllowedAccounts, Compression, CompressionPolicy, HorovodJob, Steering
from gradsieve_operator.status import not_later, recall

_NOT_PLANNED = (
    "spec.scheduling.gang is Planned, and this operator may not read nodes (GRADSIEVE_PLAN_NODES=false): "
    "say gang: None, or name a queue"
)


@dataclass(frozen=True)
class Observation:
    """A job as it was found.

    Attributes:
        state: for the decision.
        status: the job's status before.
        coordinator: to talk to; None when it has no address yet.
    """

    state: ObservedState
    status: Mapping[str, Any]
    coordinator: Coordinator | None


class Observer:
    """Reads the API server and the coordinator.

    Args:
        api: the server, for Secrets.
        cache: jobs, policies and pods.
        calls: to coordinators.
        planning: nodes and places; None when the operator may not see nodes.
        neighbours: who besides a job's own pods may reach them.
        accounts: which ServiceAccounts jobs may use.
        pace: how often coordinators are asked.
        busy: whether more jobs are due than are looked at.
        signals: returns what a Prometheus has to say of nodes.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        calls: Calls,
        planning: Planning | None,
        neighbours: Neighbours,
        accounts: AllowedAccounts,
        pace: Pace,
        busy: Callable[[], bool],
        signals: Callable[[], Mapping[str, tuple[str, ...]]] = dict,
    ) -> None:
        self._api, self._cache, self._calls = api, cache, calls
        self._planning, self._neighbours = planning, neighbours
        self._accounts, self._pace, self._busy = accounts, pace, busy
        self._silences, self._signals = SilenceTracker(), signals

    async def look(self, body: Mapping[str, Any], memory: Memory, *, at_once: bool = False) -> Observation:
        """Return the job in ``body`` and all around it.

        Args:
            body: of the job.
            memory: what is remembered of it.
            at_once: whether it was looked at, and acted on, a moment ago.

        Raises:
            SpecError: of the job, not even its outline can be read.
            RecordError: somebody has changed what the operator has recorded of it.
            ApiError: the server did not answer.
        """
        (job, invalid), status = self._parse(body), body.get("status") or {}
        progress = self._progress(job, status, memory)
        # What is seen is judged by the time at which it was seen: asking a coordinator may take a while.
        found, now = self._cache.pods((job.namespace, job.name), job.uid), self._api.clock.now()
        departed = memory.last_seen.listed(found)
        pods, surplus = part_surplus(found, progress)
        if (progress.generation or memory.secrets) and memory.secrets_age >= self._pace.secrets:
            # Before pods are begun there are none yet; what an operator has left that was killed is replaced.
            await read_secrets(self._api, job, memory)
        held, leader = memory.held, _leader(pods) if _speaks(job, progress) else None
        # Mostly it is only asked how it goes; where it is told something, there is another connection.
        seen = job.generation == status.get("observedGeneration")
        settled = memory.unwritten is None or memory.unwritten.patient
        quiet = progress.running and seen and settled
        coordinator = self._coordinator(job, leader, memory, quiet=quiet)
        nodes = self._planning.states() if self._planning is not None else None
        try:
            compression, steering, unresolved = self._resolved(job, progress)
        except SpecError as error:
            compression, steering, unresolved, invalid = None, Steering(), "", str(error)
        # A change of the spec does not wait for news of ranks that were well a moment ago.
        changed = progress.running and not seen
        heard = self._heard(leader, memory, changed=changed, at_once=at_once)
        if heard is None:
            known = certificates_delivered(job, memory, now)
            heard = memory.heard = await self._ask(leader, coordinator, nodes, known=known)
        if heard.silence and memory.secrets_age >= PROVEN_SECONDS:
            # Its certificate may be damaged, or ours.
            memory.secrets_read_at = None
        if self._planning is None and job.scheduling.planned:
            invalid = invalid or _NOT_PLANNED
        observed = ObservedState(
            job=job,
            progress=progress,
            pods=pods,
            children=self._cache.children.standing((job.namespace, job.name), job.uid),
            authority=held.authority,
            certified=held.certified,
            nodes=nodes,
            signals=self._signals(),
            coordinator=heard.by(time.monotonic()),
            compression=compression,
            planned=self._planning is not None and job.scheduling.planned,
            neighbours=self._neighbours,
            refused=memory.refused,
            withheld=memory.withheld,
            now=now,
            invalid=invalid,
            unresolved=unresolved,
            silence=heard.silence,
            unanswered=heard.unanswered,
            surplus=surplus,
            departed=departed,
            lost=held.lost,
            trust=held.trust,
            pace=self._pace.among(self._cache.count(), busy=self._busy()),
            steering=steering,
        )
        return Observation(observed, status, coordinator)

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

    def _progress(self, job: HorovodJob, status: Mapping[str, Any], memory: Memory) -> Progress:
        """Return what is recorded, or held back to be, and what was counted since."""
        unwritten = memory.unwritten
        if unwritten is not None and unwritten.record == status.get("record"):
            progress = unwritten.progress
        else:
            progress = _recorded(job, status, self._api.clock.now())
        if self._planning is None or progress.waiting_since is None:
            return progress
        counted = self._planning.overtaken(f"{job.namespace}/{job.name}")
        return replace(progress, overtaken=max(progress.overtaken, counted))

    def _coordinator(
        self, job: HorovodJob, leader: Pod | None, memory: Memory, *, quiet: bool
    ) -> Coordinator | None:
        context = operator_context(job, memory)
        if leader is None or context is None:
            return None
        silent = self._silences.silent(leader.uid)
        return Coordinator(self._calls, leader.ip, context, silent=silent, quiet=quiet)

    async def _ask(
        self,
        leader: Pod | None,
        coordinator: Coordinator | None,
        nodes: Mapping[str, Node] | None,
        *,
        known: bool,
    ) -> Heard:
        """Return what the coordinator says, or its silence."""
        if leader is None or coordinator is None:
            return Heard("", None, time.monotonic())
        try:
            status = await coordinator.status()
        except CoordinatorError as error:
            # A node that is not ready has a time limit of its own.
            node = None if nodes is None else nodes.get(leader.node, Node(ready=False, since=0.0))
            runs = leader.phase == "Running" and not leader.reason and (node is None or node.ready)
            # Nor can it know a certificate whose authority its node has not told it of yet.
            silent = isinstance(error, CoordinatorSilent) and known
            silence, unanswered = self._silences.missed(leader.uid, could_answer=runs and silent)
            return Heard(leader.uid, None, time.monotonic(), silence, unanswered)
        self._silences.answered(leader.uid)
        return Heard(leader.uid, status, time.monotonic())

    def _heard(self, leader: Pod | None, memory: Memory, *, changed: bool, at_once: bool) -> Heard | None:
        """Return what was heard of the coordinator a moment ago, None if it is to be asked."""
        heard, now = memory.heard, time.monotonic()
        if leader is None or heard is None:
            return None
        if at_once and heard.is_news(leader, now):
            return heard
        well = changed and not self._silences.silent(leader.uid)
        return heard if well and heard.will_do(leader, now) else None

    def _resolved(self, job: HorovodJob, progress: Progress) -> tuple[Compression | None, Steering, str]:
        """Return what the job asks for, or why that cannot be told of a job that has something to go by."""
        if job.compression is None:
            return None, job.steering.over(None), ""
        try:
            policy = self._policy(job)
            if policy is None:
                return job.compression.resolve(None), job.steering.over(None), ""
            compression = job.compression.resolve(policy.compression, adapted=policy.steering.adapts)
            return compression, job.steering.over(policy.steering), ""
        except SpecError as error:
            if progress.compression is None:
                raise
            return None, job.steering.over(None), str(error)

    def _policy(self, job: HorovodJob) -> CompressionPolicy | None:
        if job.compression is None or job.compression.policy is None:
            return None
        name = job.compression.policy
        found = self._cache.policy(job.namespace, name)
        if found is None:
            raise SpecError("spec.compression.policyRef", f"there is no CompressionPolicy {name!r} here")
        return CompressionPolicy.parse(found)


def _recorded(job: HorovodJob, status: Mapping[str, Any], now: float) -> Progress:
    """Return what is recorded of ``job``; a new record for one that lets go of all of its pods.

    Raises:
        RecordError: it cannot be what the operator has written, and the job is not suspended.
    """
    try:
        return not_later(recall(status), now)
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
