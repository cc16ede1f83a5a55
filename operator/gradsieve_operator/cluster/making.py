"""A job's children are made, or brought up to date, if they are its own."""

from __future__ import annotations

from gradsieve_operator import resources
from gradsieve_operator.cluster.api import Api, collection_of, path_of
from gradsieve_operator.cluster.cache import Cache
from gradsieve_operator.errors import ApiError, OperatorError
from gradsieve_operator.resources import Manifest
from gradsieve_operator.spec import HorovodJob


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


class Maker:
    """Makes children.

    Args:
        api: the server.
        cache: takes in its answers.
    """

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api, self._cache = api, cache

    async def make(self, manifest: Manifest, job: HorovodJob) -> None:
        """Make a child, or bring it up to date. A pod is made only: its name was never used for another."""
        if manifest["kind"] == "Pod":
            made = await self._create(manifest)
            if made is None:
                raise NotOurs(manifest, self._cache.owner_of_pod(manifest))
            self._cache.written_pod(made)
        else:
            uid = self._cache.children.uid(manifest["kind"], (job.namespace, job.name), job.uid)
            self._cache.children.written(await self.apply(manifest, job, uid))

    async def apply(self, manifest: Manifest, job: HorovodJob, uid: str | None) -> Manifest:
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


def _owner(found: Manifest) -> str:
    """Return kind and name of an object's controller; empty for none."""
    owners = found["metadata"].get("ownerReferences") or ()
    return next((f"{each['kind']} {each['name']}" for each in owners if each.get("controller")), "")
