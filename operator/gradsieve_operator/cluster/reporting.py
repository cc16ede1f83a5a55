"""What is said of a job: its status, Events, and lines of the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gradsieve_operator import contract, metrics, transitions
from gradsieve_operator.cluster.api import Api, path
from gradsieve_operator.cluster.cache import Cache
from gradsieve_operator.cluster.events import Events
from gradsieve_operator.cluster.memory import Memory, Unwritten
from gradsieve_operator.cluster.recording import write_status
from gradsieve_operator.decide import Pace, Progress
from gradsieve_operator.status import recall

_WARNINGS = frozenset(
    {
        ("AdaptationHeld", "True"),
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

_NO_NEWS_BUT = {"AdaptationHeld": "ProgramCannot"}
"""Conditions of which one reason alone is news: that the job asks for what it does not get."""

_ENDS = frozenset({"Complete", "Failed"})
_DETAILED = frozenset({"conditions", "ready", "workerGroups"})

_log = logging.getLogger(__name__)


class Statement:
    """What is to be said of one job after one look at it: written, and then told.

    Args:
        api: the server.
        cache: takes in what is written.
        events: to post.
        body: the job as it was looked at.
        memory: of it.

    Attributes:
        status: as it is to be.
        written: as it is in the cluster.
    """

    def __init__(
        self, api: Api, cache: Cache, events: Events, body: Mapping[str, Any], memory: Memory
    ) -> None:
        self._api, self._cache, self._events, self._memory = api, cache, events, memory
        self._metadata: Mapping[str, Any] = body["metadata"]
        self._told: Mapping[str, Any] = body.get("status") or {}
        self.written = self._told
        self.status: Mapping[str, Any] = {}

    async def write(self) -> bool:
        """Write what has changed, if anything has, and tell of it; returns whether there was anything.

        Raises:
            JobChanged: the job is not as it was when it was looked at.
            ApiError: the server did not take it, or did not answer.
        """
        metadata, change = self._metadata, difference(self.written, self.status)
        if change:
            where = path(contract.API_VERSION, contract.JOB_PLURAL, metadata["namespace"], metadata["name"])
            await write_status(self._api, self._cache, where, metadata["uid"], change, self._memory)
            self.written = self.status
        self._memory.unwritten = None
        self._tell()
        return bool(change)

    async def write_in_turn(self, pace: Pace, progress: Progress, *, done: bool) -> float | None:
        """Write as `write` does, but not everything at once: each write costs the API server several
        milliseconds of a processor.

        1. What are details only is written ``pace.details`` after the last write at the earliest: while pods
           come and go one by one, each of them changes a count or a message.
        2. After a look at which nothing was ``done``, everything is held back until what was first held back
           is ``pace.settling`` old, and what `can_wait` until it is ``pace.patience`` old. ``progress`` is
           remembered meanwhile.

        Returns:
            After how many seconds to look again for what is held back; None when nothing is. What can wait
            does so for a look that is made anyway.

        Raises:
            JobChanged, ApiError: as `write`.
        """
        memory, now = self._memory, time.monotonic()
        change = difference(self.written, self.status)
        since = now if memory.unwritten is None else memory.unwritten.since
        left = 0.0 if done else since + pace.settling - now
        if details_only(self.written, change):
            left = max(left, memory.written_at + pace.details - now)
        patience = since + pace.patience - now
        patient = not done and patience > max(left, 0.0) and can_wait(self.written, change, progress)
        if change and (patient or left > 0):
            memory.unwritten = Unwritten(since, self.written.get("record"), progress, patient)
            return patience + pace.adapted if patient else left
        await self.write()
        return None

    def _tell(self) -> None:
        """Post an Event for each condition that says something new, the same words once."""
        metadata, before, after = self._metadata, self._told, self.status
        self._told = after
        metrics.JOBS.seen((metadata["namespace"], metadata["name"]), after["conditions"])
        transitions.log(metadata, before, after)
        posted: set[tuple[str, str]] = set()
        for old, each in transitions.changed(before, after):
            if _is_no_news(each):
                continue
            nothing = each["status"] == "Unknown" or (each["type"] in _ENDS and each["status"] == "False")
            # Every job waits for its first plan, most of them for less than a second.
            news = each["type"] == "Admitted" and each["reason"] != "Waiting"
            if nothing or (not old and each["status"] == "False" and not news):
                continue
            words = (each["reason"], each["message"])
            if words in posted:
                continue
            posted.add(words)
            _log.info("%s/%s: %s %s: %s", metadata["namespace"], metadata["name"], each["type"], *words)
            warning = (each["type"], each["status"]) in _WARNINGS and each["reason"] not in _ON_THE_WAY
            self._events.post(metadata, warning=warning, reason=words[0], message=words[1])


def _is_no_news(condition: Mapping[str, Any]) -> bool:
    """Whether nobody wants to be told of a condition's change, or is told by another one."""
    kind, reason = condition["type"], condition["reason"]
    # That ranks follow a new plan, and that all pods of a suspended job are gone, is the news.
    on_the_way = (kind, reason) in {("PlanConverged", "Pending"), ("Suspended", "Suspending")}
    told_elsewhere = reason == "Suspended" and kind != "Suspended"
    other = _NO_NEWS_BUT.get(kind, reason) != reason
    return kind in _QUIET or on_the_way or told_elsewhere or other


def details_only(before: Mapping[str, Any], change: Mapping[str, Any]) -> bool:
    """Whether ``change`` of the status ``before`` is of nothing but counts of pods and words of messages."""

    def essence(status: Mapping[str, Any]) -> list[Any]:
        said = [{**each, "message": ""} for each in status.get("conditions") or ()]
        return [said, [(each["name"], each["desired"]) for each in status.get("workerGroups") or ()]]

    return change.keys() <= _DETAILED and essence({**before, **change}) == essence(before)


def can_wait(before: Mapping[str, Any], change: Mapping[str, Any], progress: Progress) -> bool:
    """Whether ``change`` of the status ``before`` tells only what an operator that does not know it finds out
    again: why adaptation holds the plan, what it would change next, that the last change has proved itself.
    That a program cannot do what it is asked for is told at once.

    Args:
        before: as it is in the cluster.
        change: what would be written.
        progress: that ``change`` records.
    """

    def others(status: Mapping[str, Any]) -> list[Any]:
        said = status.get("conditions") or ()
        return [each["type"] if _waits_with_others(each) else each for each in said]

    if not change.keys() <= {"conditions", "record"} or others({**before, **change}) != others(before):
        return False
    return "record" not in change or _lasting(recall(before)) == _lasting(progress)


def _waits_with_others(condition: Mapping[str, Any]) -> bool:
    news = _NO_NEWS_BUT.get(condition["type"])
    return news is not None and condition["reason"] != news


def _lasting(progress: Progress) -> Progress:
    memory = progress.adaptation
    if memory is None:
        return progress
    return replace(progress, adaptation=replace(memory, candidate="", candidate_since=0.0, trial=None))


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
