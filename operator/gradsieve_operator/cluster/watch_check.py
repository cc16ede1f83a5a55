"""Noticing a watch that has died silently: pure, no network."""

from __future__ import annotations

from collections.abc import Mapping

from gradsieve_operator.cluster.queue import Key


class WatchCheck:
    """Compares what a watch tells with what lists show: what a list shows must have come as an event, or must
    come soon.
    """

    def __init__(self) -> None:
        self._told: dict[Key, str] = {}
        self._owed: dict[Key, float] = {}

    def event(self, key: Key, version: str) -> None:
        """The watch has told of an object; whatever else it owed of that comes later, or is in this event."""
        self._told[key] = version
        self._owed.pop(key, None)

    def listed(self, versions: Mapping[Key, str], now: float) -> None:
        """A complete list has shown these objects, by their ``resourceVersion``."""
        behind = {key for key, version in versions.items() if self._told.get(key) != version}
        self._owed = {key: self._owed.get(key, now) for key in behind}
        self._told = {key: version for key, version in self._told.items() if key in versions}

    def behind(self, now: float) -> float:
        """Return for how many seconds the watch has owed what it owes; 0 when it owes nothing."""
        return max((now - since for since in self._owed.values()), default=0.0)
