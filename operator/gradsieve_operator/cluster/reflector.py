"""A copy of a collection of the API server that keeps of each object only what is asked for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from gradsieve_operator.cluster.api import Api, ApiError

Kept = TypeVar("Kept")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_log = logging.getLogger(__name__)


class Reflector(Generic[Kept]):
    """Lists page by page, then watches; lists again when the watch has fallen behind.

    Args:
        api: the server.
        where: path of the collection.
        keep: what to keep of an object; None for objects that are of no interest.
        changed: called after each change of what is kept.
        query: selectors.

    Attributes:
        kept: ``namespace/name`` -> what is kept.
        synced: set once the first list is complete.
        heard: when the server was last heard of, of the monotonic clock.
    """

    def __init__(
        self,
        api: Api,
        where: str,
        keep: Callable[[Mapping[str, Any]], Kept | None],
        changed: Callable[[], None],
        **query: str,
    ) -> None:
        self.kept: dict[str, Kept] = {}
        self.synced = asyncio.Event()
        self.heard = time.monotonic()
        self._api, self._where, self._keep, self._changed, self._query = api, where, keep, changed, query

    async def run(self) -> None:
        """Keep the copy up to date until cancelled."""
        pause, version = _FIRST_PAUSE, ""
        while True:
            try:
                version = version or await self._list()
                async for event in self._api.watch(self._where, version, **self._query):
                    version = self._take(event)
                    pause = _FIRST_PAUSE
                # The server ends a watch after a while; one that ends at once must not become a storm.
                await asyncio.sleep(_FIRST_PAUSE)
            except ApiError as error:
                if error.status == 410:
                    version = ""
                    continue
                _log.warning("%s: %s; again in %.1f s", self._where, error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _list(self) -> str:
        found: dict[str, Kept] = {}
        version = ""
        async for page in self._api.pages(self._where, **self._query):
            version = page["metadata"]["resourceVersion"]
            for item in page.get("items") or ():
                kept = self._keep(item)
                if kept is not None:
                    found[key_of(item)] = kept
            self.heard = time.monotonic()
        self.kept = found
        self.synced.set()
        self._changed()
        return version

    def _take(self, event: Mapping[str, Any]) -> str:
        self.heard = time.monotonic()
        item, kind = event["object"], event["type"]
        if kind != "BOOKMARK":
            kept = self._keep(item) if kind != "DELETED" else None
            key = key_of(item)
            if kept != self.kept.get(key):
                if kept is None:
                    self.kept.pop(key, None)
                else:
                    self.kept[key] = kept
                self._changed()
        return str(item["metadata"]["resourceVersion"])


def key_of(item: Mapping[str, Any]) -> str:
    """Return ``namespace/name`` of an object."""
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
