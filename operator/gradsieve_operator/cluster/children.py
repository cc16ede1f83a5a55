"""What jobs have besides pods and Secrets, known by its metadata alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradsieve_operator import contract
from gradsieve_operator.cluster.api import Api, path
from gradsieve_operator.cluster.queue import Key
from gradsieve_operator.cluster.reflector import Reflector
from gradsieve_operator.cluster.store import Raw

_COLLECTIONS = {
    "ServiceAccount": ("v1", "serviceaccounts"),
    "ConfigMap": ("v1", "configmaps"),
    "Service": ("v1", "services"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
}
"""Kinds of which a job has one, with its own name."""

_AGAIN_SECONDS = 10.0
"""Who changes a child again and again has it put right so often, and not each time."""


@dataclass(frozen=True)
class Child:
    """A child as its metadata shows it.

    Attributes:
        key: namespace and name, of the child and of its job.
        uid: of the child.
        version: its ``resourceVersion``: another one means that somebody has changed something.
        owners: uids of the objects that own it.
    """

    key: Key
    uid: str
    version: str
    owners: frozenset[str]


class Children:
    """Follows children of jobs, and remembers in which state they were applied.

    Args:
        api: the server.
        namespaces: that are followed; None for all.
        told: called with the key of a job of which a child was made, changed or deleted by others.
        recovered: called when a watch that had broken off goes on.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        api: Api,
        namespaces: Sequence[str | None],
        told: Callable[[Key], None],
        recovered: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._applied: dict[tuple[str, str], tuple[str, float]] = {}
        self._kinds = {
            kind: {
                namespace: Reflector(
                    api,
                    path(version, plural, namespace),
                    _keep,
                    told=lambda child: told(child.key),
                    recovered=recovered,
                    metadata_only=True,
                    labelSelector=contract.LABEL_JOB,
                )
                for namespace in namespaces
            }
            for kind, (version, plural) in _COLLECTIONS.items()
        }

    def reflectors(self) -> list[Reflector[Child]]:
        """Return what follows them."""
        return [each for places in self._kinds.values() for each in places.values()]

    def standing(self, job: Key, uid: str) -> frozenset[tuple[str, str]]:
        """Return kind and name of the children of the job with ``uid`` that are as they were applied.

        Those that this process has not applied yet are not among them: another version may have made them.
        """
        return frozenset((kind, job[1]) for kind in self._kinds if self._stands(kind, job, uid))

    def uid(self, kind: str, job: Key, owner: str) -> str | None:
        """Return the uid of a child of the job with uid ``owner``; None if it is not known to have it."""
        found = self._find(kind, job)
        return found.uid if found is not None and owner in found.owners else None

    def written(self, raw: Raw) -> None:
        """Take in the answer to a write of a child."""
        child = _keep(raw)
        self._in(raw["kind"], child.key[0]).store.put(raw)
        self._applied[raw["kind"], "/".join(child.key)] = child.version, self._clock()

    def forget(self, job: Key) -> None:
        """Take note that there is no such job any more."""
        for kind in self._kinds:
            self._applied.pop((kind, "/".join(job)), None)

    def _stands(self, kind: str, job: Key, uid: str) -> bool:
        found = self._find(kind, job)
        version, at = self._applied.get((kind, "/".join(job)), ("", 0.0))
        if found is None or uid not in found.owners or not version:
            return False
        return found.version == version or self._clock() - at < _AGAIN_SECONDS

    def _find(self, kind: str, job: Key) -> Child | None:
        return self._in(kind, job[0]).kept.get("/".join(job))

    def _in(self, kind: str, namespace: str) -> Reflector[Child]:
        places = self._kinds[kind]
        return places[namespace] if namespace in places else places[None]


def _keep(raw: Raw) -> Child:
    metadata = raw["metadata"]
    return Child(
        key=(metadata.get("namespace", ""), metadata["name"]),
        uid=metadata.get("uid", ""),
        version=str(metadata.get("resourceVersion", "")),
        owners=frozenset(owner.get("uid", "") for owner in metadata.get("ownerReferences") or ()),
    )
