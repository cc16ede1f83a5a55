"""One job, looked at and acted on as a whole."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gradsieve_operator import contract, metrics, transitions
from gradsieve_operator.cluster.api import Api, ApiError, path
from gradsieve_operator.cluster.cache import Cache, JobPod
from gradsieve_operator.cluster.events import post_event
from gradsieve_operator.cluster.executor import Executor, JobChanged, job_path, write_status
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.cluster.observer import Observer, Seen
from gradsieve_operator.cluster.planning import Planning
from gradsieve_operator.cluster.queue import Key
from gradsieve_operator.cluster.secrets import PROVEN_SECONDS
from gradsieve_operator.cluster.trouble import in_words, let_go, worth_saying
from gradsieve_operator.decide import Action, Create, Decision, Word, decide
from gradsieve_operator.errors import SpecError
from gradsieve_operator.status import invalid_status, job_status, troubled_status

_AT_ONCE = 20
"""Decisions in a row for one job before the others get their turn."""

_CHANGED_SECONDS = 0.5
"""Pause before a job that changed while it was decided on is looked at again: who changes it may do
so more than once, and each change wakes us."""

_WARNINGS = frozenset(
    {
        ("Admitted", "False"),
        ("Degraded", "True"),
        ("Failed", "True"),
        ("PlanConverged", "False"),
        ("ReconcileError", "True"),
    }
)
_ON_THE_WAY = frozenset({"Binding", "Pending", "Preparing", "Suspended", "Waiting"})
"""Reasons of `Admitted` and `PlanConverged` that every job has on its way, or that its author asked for."""

_QUIET = frozenset({"TelemetryAvailable", "RendezvousReady"})
"""Conditions whose changes are no news."""

_ENDS = frozenset({"Complete", "Failed"})

_log = logging.getLogger(__name__)


class Reconciler:
    """Looks, decides, acts and reports, until there is nothing to do at once.

    Args:
        api: the server.
        cache: has the jobs.
        observer: looks.
        executor: acts.
        planning: told when a job does not wait for places any more; None when the operator does not plan.

    """

    def __init__(
        self, api: Api, cache: Cache, observer: Observer, executor: Executor, planning: Planning | None
    ) -> None:
        self._api, self._cache, self._planning = api, cache, planning
        self._observer, self._executor = observer, executor
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
        for _ in range(_AT_ONCE):
            _, memory = self._memories.get(key, ("", Memory()))
            if (pause := memory.not_before - time.monotonic()) > 0.0:
                return pause
            if memory.unsure or key in self._to_be_read:
                await self._cache.catch_up(key)
                memory.unsure = False
                self._to_be_read.discard(key)
            body = self._cache.job(key)
            if body is None or body["metadata"].get("deletionTimestamp"):
                self._forget(key)
                again = None
            else:
                again = await self._round_unless_changed(key, body)
            if again != 0.0:
                break
        return again

    async def _round_unless_changed(self, key: Key, body: Mapping[str, Any]) -> float | None:
        memory = self._memory(key, body["metadata"]["uid"])
        memory.version = str(body["metadata"].get("resourceVersion", ""))
        try:
            again = await self._round(key, body, memory)
        except JobChanged as error:
            _log.info("%s/%s: %s", *key, error)
            memory.unsure = True
            memory.not_before = time.monotonic() + _CHANGED_SECONDS
            return _CHANGED_SECONDS
        except Exception as error:
            memory.unsure = True
            if worth_saying(error, memory):
                if self._planning is not None:
                    self._planning.pause("/".join(key))
                await self._report_trouble(body, error, memory)
            raise
        memory.troubled_since = None
        return again

    async def _round(self, key: Key, body: Mapping[str, Any], memory: Memory) -> float | None:
        try:
            seen = await self._observer.look(body, memory)
        except SpecError as error:
            if self._planning is not None:
                self._planning.pause("/".join(key))
            return await self._report_invalid(body, error, memory)
        decision = decide(seen.world)
        if decision.wanted is not None and self._planning is not None:
            # Nothing is awaited until what is found here is taken.
            found = self._planning.places(seen.world.job, seen.world.progress, decision.wanted)
            decision = decide(replace(seen.world, places=found))
        if memory.secrets_age >= PROVEN_SECONDS and any(map(_makes_pod, decision.actions)):
            memory.secrets_read_at = None
            return 0.0
        if decision.progress.failures > seen.world.progress.failures:
            # It may be for a certificate: what comes in its place is not made with the same.
            memory.secrets_read_at = None
        done = await self._executor.carry_out(decision.actions, seen, memory)
        if self._planning is not None and decision.progress.waiting_since is None:
            self._planning.leave("/".join(key))
        elif self._planning is not None and (
            seen.world.invalid or decision.progress.retry_at > seen.world.now
        ):
            # Places that fit are kept for those who wait; who cannot start must not keep them from others.
            self._planning.pause("/".join(key))
        if not done:
            return 0.0
        if memory.objection:
            decision = replace(decision, degraded=Word("CoordinatorRefused", memory.objection))
        await self._report(body["metadata"], seen, decision, memory)
        return decision.again

    async def _report(
        self, metadata: Mapping[str, Any], seen: Seen, decision: Decision, memory: Memory
    ) -> None:
        job, products = seen.world.job, self._planning.gpu_products() if self._planning is not None else {}
        if any(action.__class__.__name__ == "DeleteJob" for action in decision.actions):
            return
        status = job_status(seen.world, decision, seen.status, products)
        change = difference(seen.status, status)
        if change:
            await write_status(self._api, self._cache, job_path(job), job.uid, change, memory)
        metrics.started(seen.world.progress, decision.progress)
        await self._tell(metadata, seen.status, status)

    async def _report_invalid(
        self, body: Mapping[str, Any], error: SpecError, memory: Memory
    ) -> float | None:
        metadata, before = body["metadata"], body.get("status") or {}
        status = invalid_status(
            error, before, generation=int(metadata.get("generation", 0)), now=self._api.clock.now()
        )
        change = difference(before, status)
        where = path(contract.API_VERSION, contract.JOB_PLURAL, metadata["namespace"], metadata["name"])
        if change:
            await write_status(self._api, self._cache, where, metadata["uid"], change, memory)
        await self._tell(metadata, before, status)
        if _suspended(body):
            await let_go(self._api, self._cache, metadata)
        return 30.0

    async def _report_trouble(self, body: Mapping[str, Any], error: Exception, memory: Memory) -> None:
        """Say what is wrong, and suspend what shall be suspended; failing at that is no other trouble."""
        metadata, before = body["metadata"], body.get("status") or {}
        status = troubled_status(in_words(error), before, now=self._api.clock.now())
        change = difference(before, status)
        where = path(contract.API_VERSION, contract.JOB_PLURAL, metadata["namespace"], metadata["name"])
        try:
            if _suspended(body):
                await let_go(self._api, self._cache, metadata)
            if change:
                _log.error("%s/%s", metadata["namespace"], metadata["name"], exc_info=error)
                await write_status(self._api, self._cache, where, metadata["uid"], change, memory)
            await self._tell(metadata, before, status)
        except (ApiError, JobChanged) as other:
            _log.warning("%s/%s: not said: %s", metadata["namespace"], metadata["name"], other)

    async def _tell(
        self, metadata: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        """Post an Event for each condition that has changed its status or its reason, the same words once."""
        metrics.JOBS.seen((metadata["namespace"], metadata["name"]), after["conditions"])
        transitions.log(metadata, before, after)
        known = {each["type"]: each for each in before.get("conditions") or ()}
        posted: set[tuple[str, str]] = set()
        for each in after["conditions"]:
            old = known.get(each["type"])
            said = (each["status"], each["reason"])
            if each["type"] in _QUIET or (old is not None and (old["status"], old["reason"]) == said):
                continue
            nothing = each["status"] == "Unknown" or (each["type"] in _ENDS and each["status"] == "False")
            # Every job waits for its first plan, most of them for less than a second.
            news = each["type"] == "Admitted" and each["reason"] != "Waiting"
            if nothing or (old is None and each["status"] == "False" and not news):
                continue
            words = (each["reason"], each["message"])
            if words in posted:
                continue
            posted.add(words)
            _log.info("%s/%s: %s %s: %s", metadata["namespace"], metadata["name"], each["type"], *words)
            warning = (each["type"], each["status"]) in _WARNINGS and each["reason"] not in _ON_THE_WAY
            await post_event(self._api, metadata, warning=warning, reason=words[0], message=words[1])

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


def _suspended(body: Mapping[str, Any]) -> bool:
    """Whether a job of which nothing else may be readable is suspended."""
    spec = body.get("spec")
    return isinstance(spec, Mapping) and spec.get("suspend") is True


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that turns ``before`` into ``after``; in ``after``, null stands for absent."""
    change: dict[str, Any] = {}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, Mapping):
            inner = difference(old if isinstance(old, Mapping) else {}, value)
            if inner or not isinstance(old, Mapping):
                change[name] = inner
        elif value != old:
            change[name] = value
    return change


__all__ = ["ApiError", "Reconciler", "difference"]
