"""One job, looked at and acted on as a whole."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gradsieve_operator import metrics
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.cache import Cache, JobPod
from gradsieve_operator.cluster.events import Events
from gradsieve_operator.cluster.executor import Executor
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.cluster.observer import Observation, Observer
from gradsieve_operator.cluster.planning import Planning
from gradsieve_operator.cluster.queue import Key
from gradsieve_operator.cluster.recording import JobChanged
from gradsieve_operator.cluster.reporting import Statement
from gradsieve_operator.cluster.secrets import PROVEN_SECONDS
from gradsieve_operator.cluster.trouble import in_words, let_go, worth_saying
from gradsieve_operator.decide import Action, Create, Decision, DeleteJob, PutPlan, Reason, decide
from gradsieve_operator.errors import ApiError, SpecError
from gradsieve_operator.status import invalid_status, job_status, troubled_status

_AT_ONCE = 20
"""Decisions in a row for one job before the others get their turn."""

_CHANGED_SECONDS, _MOST_CHANGED_SECONDS = 0.5, 5.0
"""Pause before a job that changed again while it was decided on is looked at once more, longer each time: who
changes it that often may go on doing so, and each change wakes us."""

_log = logging.getLogger(__name__)


class Reconciler:
    """Looks, decides, acts and reports, until there is nothing to do at once.

    Args:
        api: the server.
        cache: has the jobs.
        observer: looks.
        executor: acts.
        events: to post.
        planning: told when a job does not wait for places any more; None when the operator does not plan.

    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        observer: Observer,
        executor: Executor,
        events: Events,
        planning: Planning | None,
    ) -> None:
        self._api, self._cache, self._planning = api, cache, planning
        self._observer, self._executor, self._events = observer, executor, events
        self._memories: dict[Key, tuple[str, Memory]] = {}
        self._to_be_read: set[Key] = set()

    def read_again(self, jobs: Iterable[Key]) -> None:
        """Have jobs read before they are first looked at.

        An earlier leader may have written to them a moment ago, and events may be late.
        """
        self._to_be_read = set(jobs)

    async def reconcile(self, key: Key) -> float | None:
        """Bring one job closer to what its author wants; returns after how many seconds to look again.

        Raises:
            Exception: it failed; look again after a pause. What does not pass by itself is said in the job's
                status, and a job that is suspended loses its pods all the same.
        """
        again: float | None = 0.0
        for turn in range(_AT_ONCE):
            _, memory = self._memories.get(key, ("", Memory()))
            if (pause := memory.not_before - time.monotonic()) > 0.0:
                return pause
            body = self._cache.job(key)
            # Mostly the change by which a write failed has been heard of meanwhile.
            unheard = body is not None and _version(body) == memory.outdated
            if memory.unsure or unheard or key in self._to_be_read:
                await self._cache.catch_up(key)
                memory.unsure = False
                self._to_be_read.discard(key)
                body = self._cache.job(key)
            if body is None or body["metadata"].get("deletionTimestamp"):
                self._forget(key)
                again = None
            else:
                again = await self._round_unless_changed(key, body, at_once=turn > 0)
            if again != 0.0:
                break
        return again

    async def _round_unless_changed(
        self, key: Key, body: Mapping[str, Any], *, at_once: bool
    ) -> float | None:
        memory = self._memory(key, body["metadata"]["uid"])
        memory.version = version = _version(body)
        statement = Statement(self._api, self._cache, self._events, body, memory)
        try:
            again = await self._round(key, body, memory, statement, at_once=at_once)
        except JobChanged as error:
            _log.info("%s/%s: %s", *key, error)
            memory.outdated = version
            pause = min(_CHANGED_SECONDS * memory.conflicts, _MOST_CHANGED_SECONDS)
            memory.not_before, memory.conflicts = time.monotonic() + pause, memory.conflicts + 1
            return pause
        except Exception as error:
            memory.unsure = True
            if worth_saying(error, memory):
                if self._planning is not None:
                    self._planning.pause("/".join(key))
                await self._report_trouble(body, error, statement)
            raise
        memory.troubled_since = None
        if memory.unwritten is None:
            memory.conflicts = 0
        return again

    async def _round(
        self, key: Key, body: Mapping[str, Any], memory: Memory, statement: Statement, *, at_once: bool
    ) -> float | None:
        try:
            seen = await self._observer.look(body, memory, at_once=at_once)
        except SpecError as error:
            if self._planning is not None:
                self._planning.pause("/".join(key))
            return await self._report_invalid(body, error, statement)
        decision = decide(seen.state)
        if decision.wanted is not None and self._planning is not None:
            # Nothing is awaited until what is found here is taken.
            found = self._planning.places(seen.state.job, seen.state.progress, decision.wanted)
            decision = decide(replace(seen.state, places=found))
        if memory.secrets_age >= PROVEN_SECONDS and any(map(_makes_pod, decision.actions)):
            memory.secrets_read_at = None
            return 0.0
        if decision.progress.failures > seen.state.progress.failures:
            # It may be for a certificate: what comes in its place is not made with the same.
            memory.secrets_read_at = None
        statement.status = self._status(seen, decision)
        done = await self._executor.carry_out(decision.actions, seen, memory, statement.write)
        self._keep_place_in_line(key, seen, decision)
        if not done:
            return 0.0
        if DeleteJob() in decision.actions:
            return decision.requeue_after
        if memory.objection:
            decision = replace(decision, degraded=Reason("CoordinatorRefused", memory.objection))
            statement.status = self._status(seen, decision)
        # What is said of an action, or of the end, is said once. A plan speaks for itself, and mostly ranks
        # follow it in a moment.
        only_plans = all(isinstance(each, PutPlan) for each in decision.actions)
        pace = seen.state.pace
        if decision.actions and only_plans and not memory.objection:
            pace = replace(pace, settling=max(pace.settling, pace.following))
        done = decision.ended is not None or not only_plans
        left = await statement.write_in_turn(pace, decision.progress, done=done)
        metrics.started(seen.state.progress, decision.progress)
        return min((each for each in (left, decision.requeue_after) if each is not None), default=None)

    def _keep_place_in_line(self, key: Key, seen: Observation, decision: Decision) -> None:
        """Tell the planner whether the job still waits for places."""
        if self._planning is None:
            return
        if decision.progress.waiting_since is None:
            self._planning.leave("/".join(key))
        elif seen.state.invalid or decision.progress.retry_at > seen.state.now:
            # Places that fit are kept for those who wait; who cannot start must not keep them from others.
            self._planning.pause("/".join(key))

    def _status(self, seen: Observation, decision: Decision) -> dict[str, Any]:
        products = self._planning.gpu_products() if self._planning is not None else {}
        return job_status(seen.state, decision, seen.status, products)

    async def _report_invalid(
        self, body: Mapping[str, Any], error: SpecError, statement: Statement
    ) -> float | None:
        generation, before = int(body["metadata"].get("generation", 0)), body.get("status") or {}
        statement.status = invalid_status(error, before, generation=generation, now=self._api.clock.now())
        await statement.write()
        if _suspended(body):
            await let_go(self._api, self._cache, body["metadata"])
        return 30.0

    async def _report_trouble(self, body: Mapping[str, Any], error: Exception, statement: Statement) -> None:
        """Say what is wrong, and suspend what shall be suspended; failing at that is no other trouble."""
        metadata = body["metadata"]
        statement.status = troubled_status(in_words(error), statement.written, now=self._api.clock.now())
        try:
            if _suspended(body):
                await let_go(self._api, self._cache, metadata)
            if await statement.write():
                _log.error("%s/%s", metadata["namespace"], metadata["name"], exc_info=error)
        except (ApiError, JobChanged) as other:
            _log.warning("%s/%s: not said: %s", metadata["namespace"], metadata["name"], other)

    def pod_seen(self, seen: JobPod) -> None:
        """Take note of how a pod is, or was when it went, that bears the name of a job."""
        uid, memory = self._memories.get(seen.job, ("", Memory()))
        if seen.pod is not None and uid in seen.owners:
            memory.last_seen.told(seen.pod)

    def _memory(self, key: Key, uid: str) -> Memory:
        """Return what is remembered of a job; nothing of an earlier one of its name."""
        known, memory = self._memories.get(key, ("", Memory()))
        if known != uid:
            self._forget(key)
            memory = Memory()
            self._memories[key] = (uid, memory)
        return memory

    def _forget(self, key: Key) -> None:
        if self._planning is not None:
            self._planning.leave("/".join(key))
        self._memories.pop(key, None)
        metrics.JOBS.forget(key)
        self._cache.forget(key)


def _makes_pod(action: Action) -> bool:
    """Whether an action makes what cannot start without the job's Secrets."""
    return isinstance(action, Create) and action.manifest["kind"] == "Pod"


def _version(body: Mapping[str, Any]) -> str:
    return str(body["metadata"].get("resourceVersion", ""))


def _suspended(body: Mapping[str, Any]) -> bool:
    """Whether a job of which nothing else may be readable is suspended."""
    spec = body.get("spec")
    return isinstance(spec, Mapping) and spec.get("suspend") is True
