"""Jobs, their policies, pods and other children: one copy of each, from which every look is served."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradsieve_operator import contract
from gradsieve_operator.cluster.api import Api, path
from gradsieve_operator.cluster.children import Children
from gradsieve_operator.cluster.kept_job import KeptJob, trimmed
from gradsieve_operator.cluster.queue import Key
from gradsieve_operator.cluster.reflector import Reflector
from gradsieve_operator.cluster.store import Kept, Raw, key_of
from gradsieve_operator.decide import Pod, read_pod
from gradsieve_operator.errors import ApiError
from gradsieve_operator.placement import Load
from gradsieve_operator.resources import Manifest


@dataclass(frozen=True, slots=True)
class JobPod:
    """A pod that says that it is a job's, by its label.

    Attributes:
        job: namespace and name of that job.
        name: of the pod.
        uid: of the pod.
        deleting: whether its deletion has begun.
        owners: uids of the objects that own it.
        pod: what matters of it; None if its name is not one of the job's.
        load: what it holds of a node; None for nothing.
    """

    job: Key
    name: str
    uid: str
    deleting: bool
    owners: frozenset[str]
    pod: Pod | None
    load: Load | None


@dataclass(frozen=True)
class Told:
    """Who hears of what has changed.

    Attributes:
        job: called with the key of a job that was made, changed or deleted by others, or a child of it that
            is neither Pod nor Secret.
        pod: called with a pod that was, as it is or as it was in the end.
        policy: called with the namespace of a policy that was.
        recovered: called when a watch that had broken off goes on.
        holds: called with the key of a pod with a job's label and what it holds of a node now; None for
            nothing.
    """

    job: Callable[[Key], None]
    pod: Callable[[JobPod], None]
    policy: Callable[[str], None]
    recovered: Callable[[], None] = lambda: None
    holds: Callable[[str, Load | None], None] = lambda _key, _load: None


class Cache:
    """Follows jobs, policies and the jobs' children, and takes in the answers to the operator's own writes.

    A look sees all that the operator itself has done: an answer is taken in before anything else is
    decided, and older events do not undo it. Where no answer came, nobody knows what was done: `catch_up`.

    Args:
        api: the server.
        namespaces: that are followed; empty for all.
        told: who hears of what changes.

    Attributes:
        children: of jobs, but for pods and Secrets.
    """

    def __init__(self, api: Api, namespaces: Sequence[str], told: Told) -> None:
        self._api = api
        self._of_job: defaultdict[Key, set[str]] = defaultdict(set)
        self._deleted: defaultdict[Key, set[str]] = defaultdict(set)
        where: Sequence[str | None] = namespaces or (None,)

        def follow(version: str, plural: str, keep: Callable[[Raw], Any], heard: Any, **query: Any) -> Any:
            return {
                namespace: Reflector(
                    api, path(version, plural, namespace), keep, told=heard, recovered=told.recovered, **query
                )
                for namespace in where
            }

        gradsieve = contract.API_VERSION
        self._jobs: dict[str | None, Reflector[KeptJob]] = follow(
            gradsieve, contract.JOB_PLURAL, KeptJob.keep, lambda job: told.job(job.key), relist=True
        )
        self._policies: dict[str | None, Reflector[Manifest]] = follow(
            gradsieve,
            contract.POLICY_PLURAL,
            trimmed,
            lambda body: told.policy(body["metadata"]["namespace"]),
            relist=True,
        )
        self._pods: dict[str | None, Reflector[JobPod]] = follow(
            *("v1", "pods", self._keep_pod, told.pod),
            note=lambda key, pod: told.holds(key, None if pod is None else pod.load),
            labelSelector=contract.LABEL_JOB,
        )
        self.children = Children(api, where, told.job, told.recovered)

    def reflectors(self) -> list[Reflector[Any]]:
        """Return what follows the server, kind by kind."""
        kinds = (self._jobs, self._policies, self._pods)
        return [*(each for kind in kinds for each in kind.values()), *self.children.reflectors()]

    def ages(self, now: float) -> dict[str, float]:
        """Return for how many seconds nothing was heard of each kind, at ``now`` of the monotonic clock."""
        kinds: dict[str, Mapping[str | None, Reflector[Any]]]
        kinds = {"jobs": self._jobs, "policies": self._policies, "jobs' pods": self._pods}
        ages = {
            f"watch of {kind}": max(now - each.heard for each in found.values())
            for kind, found in kinds.items()
        }
        return {
            **ages,
            "watch of jobs' other children": max(now - each.heard for each in self.children.reflectors()),
        }

    def job(self, key: Key) -> Manifest | None:
        """Return a job; None if there is none.

        Raises:
            ApiError: there is no watch, so that it may have changed unnoticed.
        """
        found = _current(_in(self._jobs, key[0]), "jobs").get("/".join(key))
        return None if found is None else found.read()

    def unanswered(self, key: Key) -> bool:
        """Whether a job was made, or its spec changed, since its status was last written."""
        found = _in(self._jobs, key[0]).kept.get("/".join(key))
        return found is not None and found.unanswered

    def jobs(self, namespace: str | None = None) -> list[Key]:
        """Return all jobs, or those of one namespace."""
        found = [job.key for each in self._jobs.values() for job in each.kept.values()]
        return [key for key in found if namespace in (None, key[0])]

    def bodies(self) -> Iterator[Manifest]:
        """Go through all jobs as they were last known, one after the other: objects take much more memory."""
        for kept in [job for each in self._jobs.values() for job in each.kept.values()]:
            yield kept.read()

    def count(self) -> int:
        """Return how many jobs there are."""
        return sum(len(each.kept) for each in self._jobs.values())

    def policy(self, namespace: str, name: str) -> Manifest | None:
        """Return a policy; None if there is none."""
        return _in(self._policies, namespace).kept.get(f"{namespace}/{name}")

    def pods(self, key: Key, uid: str) -> list[Pod]:
        """Return the pods of the job with ``uid`` whose names are the operator's.

        Raises:
            ApiError: as `owned`.
        """
        found = ((each.pod, each.deleting) for each in self.owned(key, uid))
        return [
            pod if pod.deleting == deleting else replace(pod, deleting=deleting)
            for pod, deleting in found
            if pod is not None
        ]

    def owned(self, key: Key, uid: str) -> list[JobPod]:
        """Return all pods of the job with ``uid``; those of an earlier one of its name are somebody else's.

        Raises:
            ApiError: there is no watch, so that they may have changed unnoticed.
        """
        kept = _current(_in(self._pods, key[0]), "the jobs' pods")
        found = [kept[name] for name in self._named(key) if uid in kept[name].owners]
        deleted = self._deleted[key] = self._deleted[key] & {pod.uid for pod in found}
        return [replace(pod, deleting=True) if pod.uid in deleted else pod for pod in found]

    def owner_of_pod(self, manifest: Manifest) -> str:
        """Return kind and name of the job whose pod has the name of ``manifest``; empty for no job."""
        namespace = manifest["metadata"]["namespace"]
        found = _in(self._pods, namespace).kept.get(key_of(manifest))
        return "" if found is None else f"{contract.JOB_KIND} {found.job[1]}"

    def written_job(self, body: Raw) -> None:
        """Take in the answer to a write of a job."""
        _in(self._jobs, body["metadata"]["namespace"]).store.put(body)

    def written_pod(self, raw: Raw) -> None:
        """Take in the answer to a write of a pod."""
        _in(self._pods, raw["metadata"]["namespace"]).store.put(raw)

    def deleted_pod(self, job: Key, uid: str) -> None:
        """Take note that the deletion of a pod of ``job`` was taken: the answer may not show that."""
        self._deleted[job].add(uid)

    def forget(self, job: Key) -> None:
        """Take note that there is no such job any more; pods that bear its name may still be there."""
        self._deleted.pop(job, None)
        self.children.forget(job)
        if not self._named(job):
            self._of_job.pop(job, None)

    async def catch_up(self, key: Key) -> None:
        """Read a job and its pods: what was written of them may have been done, although no answer came.

        Raises:
            ApiError: the server did not answer.
        """
        namespace, name = key
        named = {"fieldSelector": f"metadata.name={name}"}
        for body in await self._list(contract.API_VERSION, contract.JOB_PLURAL, namespace, **named):
            self.written_job(body)
        labelled = {"labelSelector": f"{contract.LABEL_JOB}={name}"}
        for raw in await self._list("v1", "pods", namespace, **labelled):
            self.written_pod(raw)

    async def _list(self, version: str, plural: str, namespace: str, **query: Any) -> list[Manifest]:
        pages = self._api.pages(path(version, plural, namespace), **query)
        return [item async for page in pages for item in page.get("items") or ()]

    def _named(self, job: Key) -> list[str]:
        """Return the keys of the pods that bear the name of a job."""
        kept = _in(self._pods, job[0]).kept
        self._of_job[job] = {name for name in self._of_job[job] if name in kept}
        return sorted(self._of_job[job])

    def _keep_pod(self, raw: Raw) -> JobPod | None:
        metadata = raw["metadata"]
        label = (metadata.get("labels") or {}).get(contract.LABEL_JOB)
        if label is None:
            return None
        job = metadata.get("namespace", ""), label
        self._of_job[job].add(key_of(raw))
        owners = frozenset(owner.get("uid", "") for owner in metadata.get("ownerReferences") or ())
        uid, deleting = metadata.get("uid", ""), "deletionTimestamp" in metadata
        return JobPod(job, metadata["name"], uid, deleting, owners, read_pod(raw, label), Load.parse(raw))


def _current(reflector: Reflector[Kept], what: str) -> dict[str, Kept]:
    """Return what is kept, if it is being kept up to date."""
    if reflector.broken:
        raise ApiError(0, "Unreachable", f"the watch of {what} has broken off")
    return reflector.kept


def _in(found: Mapping[str | None, Reflector[Kept]], namespace: str) -> Reflector[Kept]:
    """Return what follows a kind in ``namespace``."""
    return found[namespace] if namespace in found else found[None]
