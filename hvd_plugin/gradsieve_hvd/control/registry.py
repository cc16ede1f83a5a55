"""Which incarnation of a host may take part, and which has had its time: pure, no network."""

from __future__ import annotations

import time
from collections.abc import Callable

from gradsieve_hvd.control.fields import Refused
from gradsieve_hvd.control.messages import Incarnation, Registration, Roster

_MOST_PER_HOST = 4
"""Incarnations of one host that may be connected at a time: an old one, its successor, and some haste."""


class Fenced(Refused):
    """An incarnation whose place another has taken: it must end its ranks and never come back."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 409)


class Registry:
    """The incarnations that have registered, and the one per host that the roster admits.

    An incarnation is *admitted* if the roster names its UID, or if it was the first to register for a host
    whose UID the roster leaves open. Others wait (the next roster may name them), unless the roster names a
    newer one for their host or they were admitted once and are no longer: those are fenced.

    Args:
        clock: seconds; tells for how long hosts are missing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.connected: dict[Incarnation, Registration] = {}
        self._clock = clock
        self._missed_since: dict[Incarnation, float] = {}
        self._roster: Roster | None = None
        self._admitted: dict[str, str] = {}
        self._had_its_time: set[Incarnation] = set()

    def register(self, registration: Registration) -> None:
        """Take note that an agent has connected.

        Raises:
            Fenced: it belongs to an incarnation that must not take part any more.
            Refused: it offers fewer slots than the roster asks of it.
        """
        incarnation = registration.incarnation
        reason = self._reason_to_fence(registration)
        if reason:
            raise Fenced(f"host {incarnation.host}: {reason}")
        wanted = self._slots(incarnation.host)
        may_be_admitted = self._admitted.get(incarnation.host, incarnation.uid) == incarnation.uid
        if may_be_admitted and registration.slots < wanted:
            raise Refused(
                f"host {incarnation.host} offers {registration.slots} slots, the roster wants {wanted}: "
                "start its agent with --slots accordingly"
            )
        others = sum(who.host == incarnation.host and who != incarnation for who in self.connected)
        if others >= _MOST_PER_HOST:
            raise Refused(f"host {incarnation.host}: {others} agents wait for this host already", 409)
        self.connected[incarnation] = registration
        if wanted:
            self._admitted.setdefault(incarnation.host, incarnation.uid)
        self._note_missing()

    def disconnect(self, incarnation: Incarnation) -> None:
        """Take note that an agent's connection has gone for good."""
        self.connected.pop(incarnation, None)
        self._note_missing()

    def adopt(self, roster: Roster) -> list[Incarnation]:
        """Let ``roster`` decide from now on; returns the connected incarnations that it fences.

        1. A host with a UID admits that incarnation, one without the one that it had if that is connected,
           else another that is connected, else the first that will register.
        2. Whoever was admitted and is not any more has had its time.
        """
        before = {Incarnation(host, uid) for host, uid in self._admitted.items()}
        self._roster = roster
        chosen = {place.host: place.uid or self._first(place.host) for place in roster.hosts}
        self._admitted = {host: uid for host, uid in chosen.items() if uid}
        now = {Incarnation(host, uid) for host, uid in self._admitted.items()}
        self._had_its_time = (self._had_its_time | before) - now
        fenced = [who for who, how in self.connected.items() if self._reason_to_fence(how)]
        for who in fenced:
            del self.connected[who]
        self._note_missing()
        return fenced

    def admitted(self, host: str) -> Incarnation | None:
        """The incarnation that may take part for ``host`` and is connected."""
        incarnation = Incarnation(host, self._admitted.get(host, ""))
        return incarnation if incarnation in self.connected else None

    def is_admitted(self, incarnation: Incarnation) -> bool:
        """Whether this is the incarnation that may take part for its host, connected or not."""
        return self._admitted.get(incarnation.host) == incarnation.uid

    def uid(self, host: str) -> str:
        """UID of the incarnation that may take part for ``host``; empty while that is open."""
        return self._admitted.get(host, "")

    def machines(self) -> dict[str, str]:
        """Machine names of the roster's hosts whose admitted incarnation is connected."""
        places = () if self._roster is None else self._roster.hosts
        admitted = (self.admitted(place.host) for place in places)
        return {who.host: self.connected[who].machine for who in admitted if who is not None}

    def missing(self) -> list[str]:
        """Hosts of the roster whose admitted incarnation is not connected, in the roster's order."""
        places = () if self._roster is None else self._roster.hosts
        return [place.host for place in places if self.admitted(place.host) is None]

    def missing_seconds(self) -> dict[str, float]:
        """For how long each missing host's incarnation has been missed; a successor is missed anew."""
        now = self._clock()
        return {who.host: now - since for who, since in self._missed_since.items()}

    def _note_missing(self) -> None:
        now = self._clock()
        missing = [Incarnation(host, self.uid(host)) for host in self.missing()]
        self._missed_since = {who: self._missed_since.get(who, now) for who in missing}

    def _slots(self, host: str) -> int:
        places = () if self._roster is None else self._roster.hosts
        return next((place.slots for place in places if place.host == host), 0)

    def _first(self, host: str) -> str:
        if self.admitted(host) is not None:
            return self._admitted[host]
        return next((who.uid for who in self.connected if who.host == host), "")

    def _reason_to_fence(self, registration: Registration) -> str:
        incarnation, roster = registration.incarnation, self._roster
        if incarnation in self._had_its_time:
            return "another incarnation has taken this one's place"
        if roster is None or self.is_admitted(incarnation):
            return ""
        replaced = self.uid(incarnation.host) and registration.generation < roster.generation
        if replaced and roster.names_incarnations:
            return (
                f"this incarnation of generation {registration.generation} "
                f"is not in the roster of generation {roster.generation}"
            )
        if not roster.names_incarnations and self.admitted(incarnation.host) is not None:
            return "another agent has registered for this host"
        return ""
