"""What is known of the objects of one kind, whichever way it came: pure, no network."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from typing import Any, Generic, TypeVar

Kept = TypeVar("Kept")
Raw = Mapping[str, Any]

_GONE_SECONDS = 120.0
"""The answer to a write comes sooner than so long after anything that it could bring back."""


class Store(Generic[Kept]):
    """Of each object the newest state that a list, an event, or the answer to a write has shown.

    These three overtake each other: the answer to a write comes before its event, and after events of
    earlier writes; a list may be older than both. What is older than what is known is passed over, and what
    has gone does not come back by it. Which of two states is older is told by their ``resourceVersion``,
    whole numbers that grow with each write: that has always been so with etcd, and is promised since
    Kubernetes 1.35.

    Args:
        keep: what to keep of an object; None for objects that are of no interest.
        clock: seconds that only grow.
        note: called with the key and what is kept, whenever that has changed; None for nothing any more.

    Attributes:
        kept: ``namespace/name`` -> what is kept.
    """

    def __init__(
        self,
        keep: Callable[[Raw], Kept | None],
        clock: Callable[[], float] = time.monotonic,
        note: Callable[[str, Kept | None], None] = lambda _key, _kept: None,
    ) -> None:
        self.kept: dict[str, Kept] = {}
        self._keep, self._clock, self._note = keep, clock, note
        # Of objects that are of no interest, too, and of those that have gone.
        self._versions: dict[str, int] = {}
        self._gone: dict[str, tuple[int, float]] = {}

    def put(self, item: Raw) -> bool:
        """Take an object as it is now, or was a moment ago; returns whether that was news.

        What has been stored once may be shown in another way later: a new schema fills in new defaults.
        """
        key, version = key_of(item), version_of(item)
        gone, _ = self._gone.get(key, (-1, 0.0))
        known = self._versions.get(key, -1)
        if version < known or version <= gone:
            return False
        kept = self._keep(item)
        if version == known and kept == self.kept.get(key):
            return False
        self._gone.pop(key, None)
        self._versions[key] = version
        if kept is None:
            self.kept.pop(key, None)
        else:
            self.kept[key] = kept
        self._note(key, kept)
        return True

    def remove(self, item: Raw) -> bool:
        """Take note that an object has gone, last as it is in ``item``; returns whether it was here.

        An event's version is that of the deletion.
        """
        key, version = key_of(item), version_of(item)
        if version < self._versions.get(key, -1):
            return False
        there = self._versions.pop(key, None) is not None
        self.kept.pop(key, None)
        self._note(key, None)
        self._gone[key] = version, self._clock()
        return there

    def sweep(self, found: Container[str], version: int) -> list[Kept]:
        """Take note that a list of that version has shown all there was: these keys, and what came later.

        Returns:
            What has gone, and nobody had told of.
        """
        lost = [key for key, known in self._versions.items() if key not in found and known <= version]
        now = self._clock()
        self._gone = {key: gone for key, gone in self._gone.items() if gone[1] > now - _GONE_SECONDS}
        for key in lost:
            del self._versions[key]
            # The answer to a question that was asked before the list may come after it.
            self._gone[key] = version, now
            self._note(key, None)
        return [self.kept.pop(key) for key in lost if key in self.kept]


def key_of(item: Raw) -> str:
    """Return ``namespace/name`` of an object."""
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


def version_of(item: Raw) -> int:
    """Return the version of an object or a list; 0 where it has none."""
    return int(item["metadata"].get("resourceVersion") or 0)
