"""Carrying out a decision, action by action, in its order."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from gradsieve_operator import contract, resources
from gradsieve_operator.cluster.api import Api, path
from gradsieve_operator.cluster.cache import Cache
from gradsieve_operator.cluster.certifying import Certifier, NotKept
from gradsieve_operator.cluster.coordinator import Coordinator, CoordinatorError, CoordinatorRefused
from gradsieve_operator.cluster.heard import Heard
from gradsieve_operator.cluster.making import Maker, NotOurs
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.cluster.observer import Observation
from gradsieve_operator.cluster.planning import Planning
from gradsieve_operator.cluster.recording import JobChanged
from gradsieve_operator.decide import (
    Action,
    AvoidNode,
    Create,
    DeleteJob,
    DeletePod,
    IssueCertificates,
    MarkPod,
    PutPlan,
    PutRoster,
    Record,
    RenewCertificates,
    Stop,
)
from gradsieve_operator.errors import ApiError
from gradsieve_operator.spec import HorovodJob

_FAILING_SECONDS = 10.0
"""An error that lasts for so long is a refusal too: a webhook that cannot be reached is an internal error of
the server's, one that can may choose its status, and meanwhile a half-made gang would hold its places."""

_log = logging.getLogger(__name__)


class Executor:
    """Turns actions into calls.

    Args:
        api: the server.
        cache: takes in its answers.
        planning: told of places that are taken; None when the operator does not plan.
    """

    def __init__(self, api: Api, cache: Cache, planning: Planning | None) -> None:
        self._api, self._cache, self._planning = api, cache, planning
        self._maker = Maker(api, cache)
        self._certifier = Certifier(api, self._maker)

    async def carry_out(
        self,
        actions: Sequence[Action],
        seen: Observation,
        memory: Memory,
        write: Callable[[], Awaitable[object]],
    ) -> bool:
        """Do ``actions`` in their order; returns whether all of them were done.

        ``write`` writes the job's status, where an action says so.

        The first one that is refused, or that the server has failed to do for a while, ends the round:
        ``memory.refused`` then says why, and the next decision starts from what stands. Calls that the
        coordinator does not take end nothing: they are made again until it has what it shall have, and
        ``memory.objection`` says what it has against them.

        Raises:
            ApiError: the server failed or did not answer; what was done stands, and is seen the next time.
            JobChanged: likewise.
        """
        job = seen.state.job
        pods = [
            each.manifest for each in actions if isinstance(each, Create) and each.manifest["kind"] == "Pod"
        ]
        makes = any(isinstance(each, Create | IssueCertificates | RenewCertificates) for each in actions)
        memory.refused = memory.objection = ""
        if actions:
            memory.heard = _as_of_now(memory.heard, actions)
        if self._planning is not None and pods:
            # Before anything is awaited: no other job may plan with the same places.
            self._planning.assume(f"{job.namespace}/{job.name}", pods)
        try:
            for deletes, group in itertools.groupby(actions, lambda each: isinstance(each, DeletePod)):
                if deletes:
                    await _all(self._do(action, seen, memory, write) for action in group)
                    continue
                for action in group:
                    await self._do(action, seen, memory, write)
        except (ApiError, NotOurs, NotKept, JobChanged) as error:
            if self._planning is not None:
                self._planning.forget(pods)
            memory.unsure = isinstance(error, ApiError) and not error.refusal
            failed = isinstance(error, ApiError) and not (makes and self._final(error, seen, memory))
            if failed or isinstance(error, JobChanged):
                raise
            memory.refused = memory.withheld = str(error)
            return False
        if makes:
            memory.failing_since, memory.withheld = None, ""
        return True

    async def _do(
        self, action: Action, seen: Observation, memory: Memory, write: Callable[[], Awaitable[object]]
    ) -> None:
        job = seen.state.job
        match action:
            case Create(manifest):
                await self._maker.make(manifest, job)
            case DeletePod() | MarkPod():
                await self._change_pod(action, job)
            case AvoidNode(group, node, why):
                if self._planning is not None:
                    self._planning.refused(job, group, node, why)
            case IssueCertificates() | RenewCertificates():
                await self._certifier.certify(action, job, memory)
            case Record():
                await write()
            case DeleteJob():
                where = path(contract.API_VERSION, contract.JOB_PLURAL, job.namespace, job.name)
                await self._api.delete(where, uid=job.uid)
            case PutRoster() | PutPlan() | Stop() if seen.coordinator is not None:
                await _tell(seen.coordinator, action, job, memory)

    async def _change_pod(self, action: DeletePod | MarkPod, job: HorovodJob) -> None:
        where = path("v1", "pods", job.namespace, action.name)
        if isinstance(action, DeletePod):
            await self._api.delete(where, uid=action.uid, grace=action.grace)
            self._cache.deleted_pod((job.namespace, job.name), action.uid)
        else:
            notes = {resources.TRUST_ANNOTATION: action.trust}
            try:
                marked = await self._api.annotate(where, uid=action.uid, annotations=notes)
                if marked is not None:
                    self._cache.written_pod(marked)
            except ApiError as error:
                if not error.refusal:
                    raise
                # A hint that saves a minute, which must not keep everything else from being done.
                _log.warning("%s/%s: not marked: %s", job.namespace, action.name, error)

    def _final(self, error: ApiError, seen: Observation, memory: Memory) -> bool:
        """Whether it makes no sense, or has made none for a while, to try again at once."""
        at_once = error.refusal and not error.passing
        if not at_once and memory.failing_since is None:
            memory.failing_since = seen.state.now
        now, since = self._api.clock.now(), memory.failing_since
        return at_once or (since is not None and now - since >= _FAILING_SECONDS)


def _as_of_now(heard: Heard | None, actions: Iterable[Action]) -> Heard | None:
    """Return what a coordinator said, as of now that something is done; None when it is told something."""
    if heard is None or any(isinstance(each, PutRoster | PutPlan | Stop) for each in actions):
        return None
    return replace(heard, acted=True)


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Do all at the same time; what fails keeps none of the others from being done."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _tell(
    coordinator: Coordinator, action: PutRoster | PutPlan | Stop, job: HorovodJob, memory: Memory
) -> None:
    try:
        match action:
            case PutRoster(roster):
                await coordinator.put_roster(roster)
            case PutPlan(plan):
                await coordinator.put_plan(plan)
            case Stop(reason):
                with suppress(CoordinatorError):
                    await coordinator.stop(reason)
    except CoordinatorError as error:
        _log.info("%s/%s: %s", job.namespace, job.name, error)
        if isinstance(error, CoordinatorRefused):
            memory.objection = memory.objection or str(error)
