"""The API server: raw JSON in, raw JSON out, every call with a deadline."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp

from gradsieve_operator import metrics
from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.fence import Fence
from gradsieve_operator.cluster.server_clock import ServerClock
from gradsieve_operator.errors import ApiError
from gradsieve_operator.foreign_text import one_line
from gradsieve_operator.resources import Manifest

FIELD_MANAGER = "gradsieve-operator"
PAGE = 200
"""Objects per page of a list: the server's memory and ours stay small in large clusters, and what was
read is seven times as large as what was sent."""

_CALL_SECONDS = 30.0
WATCH_SECONDS = 300
"""After which the server ends a watch, as it is asked to."""
_SILENCE_SECONDS = 90.0
"""A watch that brings not even a bookmark, which comes every minute, is dead."""

_PLURALS = {
    "ConfigMap": "configmaps",
    "CustomResourceDefinition": "customresourcedefinitions",
    "Lease": "leases",
    "NetworkPolicy": "networkpolicies",
    "Node": "nodes",
    "Pod": "pods",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
}
_BUSY, _BUSY_TRIES, _BUSY_SECONDS = 429, 5, 1.0
"""A server that has no time for a call has done nothing of it, and mostly has the time a second later."""

_JSON, _METADATA = "application/json", "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"


def path(api_version: str, plural: str, namespace: str | None = None, name: str | None = None) -> str:
    """Return the path of a collection, or of one object."""
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    place = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{place}/{plural}" + (f"/{name}" if name else "")


def path_of(manifest: Mapping[str, Any]) -> str:
    """Return the path of one of our children, or of a CustomResourceDefinition."""
    return f"{collection_of(manifest)}/{manifest['metadata']['name']}"


def collection_of(manifest: Mapping[str, Any]) -> str:
    """Return the path of what one of our children, or a CustomResourceDefinition, is created in."""
    plural = _PLURALS[manifest["kind"]]
    return path(manifest["apiVersion"], plural, manifest["metadata"].get("namespace"))


class Api:
    """A client of the API server; use as an asynchronous context manager.

    Args:
        access: to the server.
        fence: asked before each write; None for programs that need no Lease.

    Attributes:
        clock: the server's.
    """

    def __init__(self, access: Access, fence: Fence | None = None) -> None:
        self._access, self._fence = access, fence or Fence()
        self.clock = ServerClock()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._access.tls or True, limit=64)
        timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            request_class=self._fence.request_class(),
            trace_configs=[metrics.counted_requests()],
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, where: str, *, accept: str = _JSON, **query: str) -> Manifest:
        """Return an object, or a list that fits into one page."""
        return await self._call("GET", where, query=query, accept=accept)

    async def find(self, where: str) -> Manifest | None:
        """Return an object, None if it is not there."""
        try:
            return await self.get(where)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def pages(
        self, where: str, *, metadata_only: bool = False, **query: str
    ) -> AsyncIterator[Manifest]:
        """Yield a list page by page, each as the server sends it; of the objects their metadata, if asked."""
        more, accept = "", _METADATA.format("List") if metadata_only else _JSON
        while True:
            following = {"continue": more} if more else {}
            page = await self.get(where, accept=accept, limit=str(PAGE), **query, **following)
            yield page
            more = page["metadata"].get("continue", "")
            if not more:
                return

    async def watch(
        self,
        where: str,
        version: str,
        *,
        opened: Callable[[], None] = lambda: None,
        metadata_only: bool = False,
        **query: str,
    ) -> AsyncIterator[Manifest]:
        """Yield what changes in a collection after ``version``, bookmarks included, until the server ends it.

        Args:
            where: path of the collection.
            version: of a list, or of the last event.
            opened: called once the server has taken the watch.
            metadata_only: of the objects, nothing else is sent.
            query: selectors.

        Raises:
            ApiError: with status 410, ``version`` is too old: list again.
        """
        asked = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=_SILENCE_SECONDS)
        try:
            async with self._started().get(
                self._access.url + where,
                params={**asked, **query},
                headers={
                    **self._access.headers(),
                    "Accept": _METADATA.format("") if metadata_only else _JSON,
                },
                timeout=timeout,
            ) as answer:
                await _check(answer)
                opened()
                async for event in _lines(answer.content):
                    if event["type"] == "ERROR":
                        raise _error(int(event["object"].get("code", 500)), event["object"])
                    yield event
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(
                0, "Unreachable", f"watch of {where}: {str(error) or type(error).__name__}"
            ) from error

    async def apply(self, manifest: Manifest) -> Manifest:
        """Make or change an object by server-side apply, as our field manager."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._call("PATCH", path_of(manifest), manifest, query, "application/apply-patch+yaml")

    async def merge(self, where: str, change: Mapping[str, Any]) -> Manifest:
        """Merge ``change`` into an object or one of its subresources."""
        return await self._call("PATCH", where, change, {}, "application/merge-patch+json")

    async def annotate(self, where: str, *, uid: str, annotations: Mapping[str, str]) -> Manifest | None:
        """Add annotations to an object; returns it, None if it no longer is the one with ``uid``."""
        try:
            return await self.merge(where, {"metadata": {"uid": uid, "annotations": dict(annotations)}})
        except ApiError as error:
            # Gone, or another object has taken the name: either way there is nothing to annotate.
            if error.status not in (404, 409):
                raise
            return None

    async def create(self, where: str, manifest: Mapping[str, Any]) -> Manifest:
        """Create an object in the collection at ``where``, as our field manager."""
        return await self._call("POST", where, manifest, {"fieldManager": FIELD_MANAGER})

    async def replace(self, where: str, manifest: Mapping[str, Any]) -> Manifest:
        """Replace an object, if its resourceVersion is still that of ``manifest``."""
        return await self._call("PUT", where, manifest)

    async def delete(self, where: str, *, uid: str, grace: int | None = None) -> None:
        """Delete an object if it still is the one with ``uid``; what it owns goes in the background."""
        options: dict[str, Any] = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            await self._call("DELETE", where, options)
        except ApiError as error:
            # Gone, or another object has taken the name: either way that one is no more.
            if error.status not in (404, 409):
                raise

    async def _call(
        self,
        method: str,
        where: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        kind: str = _JSON,
        accept: str = _JSON,
    ) -> Manifest:
        """Make a call; one that the server had no time for again, instead of all that was done before it."""
        for _ in range(_BUSY_TRIES - 1):
            try:
                return await self._attempt(method, where, body, query, kind, accept)
            except ApiError as error:
                if error.status != _BUSY:
                    raise
            await asyncio.sleep(_BUSY_SECONDS)
        return await self._attempt(method, where, body, query, kind, accept)

    async def _attempt(
        self,
        method: str,
        where: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        kind: str,
        accept: str,
    ) -> Manifest:
        headers = {**self._access.headers(), "Content-Type": kind, "Accept": accept}
        data, began = None if body is None else json.dumps(body).encode(), time.monotonic()
        try:
            async with self._started().request(
                method, self._access.url + where, params=query, data=data, headers=headers
            ) as answer:
                self.clock.told(answer.headers.get("Date"), time.monotonic() - began)
                await _check(answer)
                found: Manifest = json.loads(await answer.read())
                return found
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(
                0, "Unreachable", f"{method} {where}: {str(error) or type(error).__name__}"
            ) from error

    def _started(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use the client as a context manager"
        return self._session


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[Manifest]:
    """Yield a stream's JSON objects; a line may be longer than the reader's buffer."""
    rest = bytearray()
    async for chunk in content.iter_any():
        rest += chunk
        while (end := rest.find(b"\n")) >= 0:
            line = bytes(rest[:end])
            del rest[: end + 1]
            if line.strip():
                yield json.loads(line)


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status < 400:
        return
    text = await answer.text()
    try:
        found = json.loads(text)
    except ValueError:
        found = {"message": text[:500]}
    raise _error(answer.status, found if isinstance(found, dict) else {})


def _error(status: int, found: Mapping[str, Any]) -> ApiError:
    message = one_line(found.get("message", f"status {status}"))
    return ApiError(status, str(found.get("reason", "")), message)
