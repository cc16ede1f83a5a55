"""A copy of a collection of the API server that keeps of each object only what is asked for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from gradsieve_operator.cluster.api import WATCH_SECONDS, Api
from gradsieve_operator.cluster.store import Store, key_of
from gradsieve_operator.errors import ApiError

Kept = TypeVar("Kept")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_CAUGHT_UP_SECONDS = 0.2
"""A watch that goes on brings what it has missed by then, or the word that it has missed too much."""

_LISTED_SECONDS = 3600.0
"""A schema that changes in the moment between two watches is noticed after so long."""
_log = logging.getLogger(__name__)


class Reflector(Generic[Kept]):
    """Lists page by page, then watches; lists again when the watch has fallen behind.

    Args:
        api: the server.
        where: path of the collection.
        keep: what to keep of an object; None for objects that are of no interest.
        changed: called after each change of what is kept.
        note: called with the key and what is kept of an object, whenever that has changed.
        told: called with each object that the first list did not show as it is now, or was when it went.
        recovered: called when what had broken off goes on.
        relist: list again whenever a watch has ended before its time, as it does when the kind gets another
            schema: there is no event of what that fills in.
        metadata_only: ask for nothing else of the objects.
        query: selectors.

    Attributes:
        store: what is kept, to which answers to writes are added, too.
        synced: set once the first list is complete.
        heard: when the server was last heard of, of the monotonic clock.
        broken: whether there is no watch, so that what is kept may be old.
    """

    def __init__(
        self,
        api: Api,
        where: str,
        keep: Callable[[Mapping[str, Any]], Kept | None],
        changed: Callable[[], None] = lambda: None,
        told: Callable[[Kept], None] = lambda _: None,
        *,
        note: Callable[[str, Kept | None], None] = lambda _key, _kept: None,
        recovered: Callable[[], None] = lambda: None,
        relist: bool = False,
        metadata_only: bool = False,
        **query: str,
    ) -> None:
        self.store = Store(keep, note=note)
        self.synced = asyncio.Event()
        self.heard = time.monotonic()
        self.broken = True
        self._api, self._where, self._keep, self._query = api, where, keep, query
        self._changed, self._told, self._recovered = changed, told, recovered
        self._relist, self._metadata_only = relist, metadata_only
        self._version, self._listed = "", 0.0
        self._catching_up: asyncio.TimerHandle | None = None

    @property
    def kept(self) -> dict[str, Kept]:
        """Return ``namespace/name`` -> what is kept."""
        return self.store.kept

    async def load(self) -> None:
        """Read the whole collection, as it is when this is called or later; the first time nobody is told.

        Raises:
            ApiError: the server did not answer.
        """
        found: set[str] = set()
        version, news, first = "0", [], not self.synced.is_set()
        began = time.monotonic()
        pages = self._api.pages(self._where, metadata_only=self._metadata_only, **self._query)
        async for page in pages:
            version = page["metadata"]["resourceVersion"]
            for item in page.get("items") or ():
                found.add(key_of(item))
                kept = self.store.kept.get(key_of(item)) if self.store.put(item) else None
                news += [] if kept is None else [kept]
            self.heard = time.monotonic()
        news += self.store.sweep(found, int(version))
        self._version, self._listed = version, began
        self.synced.set()
        self._changed()
        for kept in () if first else news:
            self._told(kept)
        self._current()

    async def run(self) -> None:
        """Keep the copy up to date until cancelled."""
        try:
            await self._follow()
        finally:
            self._fall_behind()

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                if not self._version:
                    await self.load()
                began = time.monotonic()
                events = self._api.watch(
                    self._where,
                    self._version,
                    opened=self._catch_up,
                    metadata_only=self._metadata_only,
                    **self._query,
                )
                async for event in events:
                    self._version = self._take(event)
                    pause = _FIRST_PAUSE
                now = time.monotonic()
                early, old = now - began < WATCH_SECONDS, now - self._listed >= _LISTED_SECONDS
                if early:  # and again and again, perhaps, which must not become a storm
                    await asyncio.sleep(_FIRST_PAUSE)
                if self._relist and (early or old):
                    self._version = ""
            except ApiError as error:
                self._fall_behind()
                if error.status == 410 or self._relist:
                    self._version = ""
                if error.status == 410:
                    continue
                _log.warning("%s: %s; again in %.1f s", self._where, error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _catch_up(self) -> None:
        """A watch has begun, which brings what has changed since the last event."""
        if self.broken:
            self._catching_up = asyncio.get_running_loop().call_later(_CAUGHT_UP_SECONDS, self._current)

    def _fall_behind(self) -> None:
        """There is no watch any more."""
        self.broken = True
        if self._catching_up is not None:
            self._catching_up.cancel()

    def _current(self) -> None:
        """A list is complete, or a watch has caught up."""
        if self.broken:
            self.broken = False
            self._recovered()

    def _take(self, event: Mapping[str, Any]) -> str:
        self.heard = time.monotonic()
        item, kind = event["object"], event["type"]
        if kind != "BOOKMARK":
            before = self.kept.get(key_of(item))
            news = self.store.remove(item) if kind == "DELETED" else self.store.put(item)
            if before != self.kept.get(key_of(item)):
                self._changed()
            kept = self._keep(item) if kind == "DELETED" else self.kept.get(key_of(item))
            if news and kept is not None and (kind == "DELETED" or kept != before):
                self._told(kept)
        return str(item["metadata"]["resourceVersion"])
