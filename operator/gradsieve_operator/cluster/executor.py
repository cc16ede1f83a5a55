"""Carrying out a decision, action by action, in its order."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gradsieve_operator import contract, resources
from gradsieve_operator.certificates import issue
from gradsieve_operator.cluster.api import Api, ApiError, collection_of, path, path_of
from gradsieve_operator.cluster.cache import Cache
from gradsieve_operator.cluster.coordinator import Coordinator, CoordinatorError, CoordinatorRefused
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.cluster.observer import Seen
from gradsieve_operator.cluster.planning import Planning
from gradsieve_operator.cluster.secrets import note_secrets, whole_secrets
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
from gradsieve_operator.errors import OperatorError
from gradsieve_operator.resources import Manifest
from gradsieve_operator.spec import HorovodJob

_FAILING_SECONDS = 10.0
"""An error that lasts for so long is a refusal too: a webhook that cannot be reached is an internal error of
the server's, one that can may choose its status, and meanwhile a half-made gang would hold its places."""

_log = logging.getLogger(__name__)


class NotOurs(OperatorError):
    """The name of a child is taken by an object that does not belong to the job.

    Args:
        manifest: of the child.
        owner: kind and name of what that object belongs to; empty for nothing.
    """

    def __init__(self, manifest: Manifest, owner: str) -> None:
        super().__init__(
            f"{manifest['kind']} {manifest['metadata']['name']} is there already and does not belong to this "
            f"job{owner and ' but to ' + owner}: wait for its end, remove it, or give the job another name"
        )


class NotKept(OperatorError):
    """What was written is not what the server keeps: to write it again would change nothing.

    Args:
        names: of the Secrets.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(
            f"Secret {', '.join(names)} is damaged as soon as it is written: find out which webhook or "
            f"controller changes it, and exempt Secrets with the label {contract.LABEL_JOB}"
        )


class JobChanged(OperatorError):
    """The job has changed since it was looked at, or another has its name: look and decide anew."""


class Executor:
    """Turns actions into calls.

    Args:
        api: the server.
        cache: takes in its answers.
        planning: told of places that are taken; None when the operator does not plan.
    """

    def __init__(self, api: Api, cache: Cache, planning: Planning | None) -> None:
        self._api, self._cache, self._planning = api, cache, planning

    async def carry_out(
        self, actions: Sequence[Action], seen: Seen, memory: Memory, write: Callable[[], Awaitable[object]]
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
        job = seen.world.job
        pods = [
            each.manifest for each in actions if isinstance(each, Create) and each.manifest["kind"] == "Pod"
        ]
        makes = any(isinstance(each, Create | IssueCertificates | RenewCertificates) for each in actions)
        memory.refused = memory.objection = ""
        if self._planning is not None and pods:
            # Before anything is awaited: no other job may plan with the same places.
            self._planning.promise(f"{job.namespace}/{job.name}", pods)
        try:
            for deletes, group in itertools.groupby(actions, lambda each: isinstance(each, DeletePod)):
                if deletes:
                    await _all(self._do(action, seen, memory, write) for action in group)
                    continue
                for action in group:
                    await self._do(action, seen, memory, write)
        except (ApiError, NotOurs, NotKept, JobChanged) as error:
            if self._planning is not None:
                self._planning.withdraw(pods)
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
        self, action: Action, seen: Seen, memory: Memory, write: Callable[[], Awaitable[object]]
    ) -> None:
        job = seen.world.job
        match action:
            case Create(manifest):
                await self._make(manifest, job)
            case DeletePod() | MarkPod():
                await self._change_pod(action, job)
            case AvoidNode(group, node, why):
                if self._planning is not None:
                    self._planning.refused(job, group, node, why)
            case IssueCertificates() | RenewCertificates():
                await self._certify(action, job, memory)
            case Record():
                await write()
            case DeleteJob():
                await self._api.delete(job_path(job), uid=job.uid)
            case PutRoster() | PutPlan() | Stop() if seen.coordinator is not None:
                await _tell(seen.coordinator, action, job, memory)

    async def _make(self, manifest: Manifest, job: HorovodJob) -> None:
        """Make a child, or bring it up to date. A pod is made only: its name was never used for another."""
        if manifest["kind"] == "Pod":
            made = await self._create(manifest)
            if made is None:
                raise NotOurs(manifest, self._cache.owner_of_pod(manifest))
            self._cache.written_pod(made)
        else:
            uid = self._cache.children.uid(manifest["kind"], (job.namespace, job.name), job.uid)
            self._cache.children.written(await self._apply(manifest, job, uid))

    async def _apply(self, manifest: Manifest, job: HorovodJob, uid: str | None) -> Manifest:
        """Bring a child up to date; make it where the job is not known to have it, that is, without ``uid``.

        The server itself refuses when another object has taken its name since.
        """
        if uid is None:
            made = await self._create(manifest)
            if made is not None:
                return made
            uid = (await self._find(manifest, job))["metadata"]["uid"]
        return await self._api.apply({**manifest, "metadata": {**manifest["metadata"], "uid": uid}})

    async def _create(self, manifest: Manifest) -> Manifest | None:
        """Make a child; None if there is an object of its name already."""
        try:
            return await self._api.create(collection_of(manifest), manifest)
        except ApiError as error:
            if not error.taken:
                raise
            return None

    async def _find(self, manifest: Manifest, job: HorovodJob) -> Manifest:
        """Return the child that has a manifest's name.

        Raises:
            NotOurs: it is not the job's: it is not touched.
        """
        found = await self._api.get(path_of(manifest))
        if not resources.owned(found, job.uid):
            raise NotOurs(manifest, _owner(found))
        return found

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

    async def _certify(
        self, action: IssueCertificates | RenewCertificates, job: HorovodJob, memory: Memory
    ) -> None:
        now, lost = dt.datetime.fromtimestamp(self._api.clock.now(), dt.UTC), memory.held.lost
        renews = isinstance(action, RenewCertificates)
        hosts = () if renews and contract.workers_secret(job.name) not in lost else action.hosts
        # Hundreds of keys take a noticeable time, which the other jobs should not wait for.
        made = await asyncio.to_thread(issue, job.name, job.namespace, hosts, now)
        if renews:
            _log.info("%s/%s: lost or damaged, made again: %s", job.namespace, job.name, ", ".join(lost))
            made = replace(made, authority=memory.held.bundle + made.authority)
            whole = await whole_secrets(self._api, job, memory)
            secrets = resources.renewed_secrets(job, whole, lost, made, now)
        else:
            secrets = resources.certificate_secrets(job, made)
        # Should a write fail, what is there is read before the next one.
        written, memory.secrets_read_at = {}, None
        for secret in secrets:
            name = secret["metadata"]["name"]
            known = memory.secrets.get(name)
            uid = None if known is None else known["metadata"]["uid"]
            written[name] = await self._only(secret, await self._apply(secret, job, uid))
        await note_secrets(job, memory, written)
        if memory.held.lost:
            raise NotKept(memory.held.lost)

    async def _only(self, secret: Manifest, made: Manifest) -> Manifest:
        """Take from a Secret what others have added, which applying leaves there; returns what is left.

        It may be what has damaged the Secret.
        """
        added = (made.get("data") or {}).keys() - secret["data"].keys()
        if not added:
            return made
        change = {"metadata": {"uid": made["metadata"]["uid"]}, "data": dict.fromkeys(added)}
        return await self._api.merge(path_of(secret), change)

    def _final(self, error: ApiError, seen: Seen, memory: Memory) -> bool:
        """Whether it makes no sense, or has made none for a while, to try again at once."""
        at_once = error.refusal and not error.passing
        if not at_once and memory.failing_since is None:
            memory.failing_since = seen.world.now
        now, since = self._api.clock.now(), memory.failing_since
        return at_once or (since is not None and now - since >= _FAILING_SECONDS)


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Do all at the same time; what fails keeps none of the others from being done."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _owner(found: Manifest) -> str:
    """Return kind and name of an object's controller; empty for none."""
    owners = found["metadata"].get("ownerReferences") or ()
    return next((f"{each['kind']} {each['name']}" for each in owners if each.get("controller")), "")


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


def job_path(job: HorovodJob) -> str:
    """Return the path of a job."""
    return path(contract.API_VERSION, contract.JOB_PLURAL, job.namespace, job.name)


async def write_status(
    api: Api, cache: Cache, where: str, uid: str, change: Mapping[str, Any], memory: Memory
) -> None:
    """Merge ``change`` into the status of the job at ``where``, if it is as it was when it was looked at.

    What was decided by an operator that has stood still, or been cut off, must not undo what its successor
    has recorded meanwhile. An earlier version's record goes once the answer shows that there is a new one.

    Raises:
        JobChanged: it is not.
        OperatorError: the server drops the record; without one, a job would be begun again and again.
    """
    body = {"metadata": {"uid": uid, "resourceVersion": memory.version}, "status": dict(change)}
    try:
        written = await api.merge(f"{where}/status", body)
    except ApiError as error:
        if error.status == 409:
            raise JobChanged(str(error)) from error
        raise
    cache.written_job(written)
    memory.written_at = time.monotonic()
    memory.version, status = str(written["metadata"]["resourceVersion"]), written.get("status") or {}
    if "record" not in change:
        return
    if status.get("record") != change["record"]:
        raise OperatorError(
            "the API server does not keep status.record: apply the CustomResourceDefinitions of this version"
        )
    if "progress" in status:
        await write_status(api, cache, where, uid, {"progress": None}, memory)
