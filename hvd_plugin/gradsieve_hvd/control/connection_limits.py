"""How many connections may be open, whose are dropped for others, and for how long each may idle: pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)


class Strangers(Generic[Connection]):
    """Connections of which nobody knows yet whose they are: few, and the newest ones.

    Who is in earnest shows a certificate at once, who only holds a place does not. So a newcomer is always
    let in, and one that has had its time makes room: holding connections keeps nobody out, wherever from.

    Args:
        most: open at a time.
        most_per_address: of these, from one address.
    """

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most, self._most_per_address = most, most_per_address
        # Dictionaries keep the order in which connections came.
        self._addresses: dict[str, dict[Connection, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, connection: Connection, address: str) -> Connection | None:
        """Take note of a new one; returns which other is to be dropped for it, if any.

        1. Where its own address has too many, the oldest of these.
        2. Where there are too many in all, the oldest of the address that has most.
        """
        self._addresses.setdefault(address, {})[connection] = None
        self._count += 1
        if len(self._addresses[address]) <= self._most_per_address:
            if self._count <= self._most:
                return None
            address = max(self._addresses, key=lambda each: len(self._addresses[each]))
        oldest = next(iter(self._addresses[address]))
        self.leave(oldest, address)
        return oldest

    def leave(self, connection: Connection, address: str) -> None:
        """It is no longer a stranger's, or no longer open; twice is as once."""
        theirs = self._addresses.get(address, {})
        if connection in theirs:
            del theirs[connection]
            self._count -= 1
            if not theirs:
                del self._addresses[address]


class Owners(Generic[Connection]):
    """Connections whose owners have shown who they are: a few for each.

    Args:
        most: of one owner.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._theirs: dict[str, set[Connection]] = {}

    def enter(self, connection: Connection, owner: str) -> bool:
        """Take note of a new one; returns whether its owner may have it."""
        theirs = self._theirs.setdefault(owner, set())
        if len(theirs) < self._most:
            theirs.add(connection)
        return connection in theirs

    def leave(self, connection: Connection, owner: str) -> None:
        """It is no longer open; twice is as once."""
        theirs = self._theirs.get(owner, set())
        theirs.discard(connection)
        if not theirs:
            self._theirs.pop(owner, None)


class Waits(Generic[Connection]):
    """For how long connections have been without a request.

    Args:
        first_seconds: how long a connection may be, before its first one has arrived as a whole.
        idle_seconds: how long it may be later.
    """

    def __init__(self, first_seconds: float, idle_seconds: float) -> None:
        self._first, self._idle = first_seconds, idle_seconds
        self._due: dict[Connection, float] = {}

    def opened(self, connection: Connection, now: float) -> None:
        """It is open."""
        self._due[connection] = now + self._first

    def asked(self, connection: Connection) -> None:
        """A request has arrived, which has deadlines of its own."""
        self._due.pop(connection, None)

    def answered(self, connection: Connection, now: float) -> None:
        """That request has its answer."""
        self._due[connection] = now + self._idle

    def closed(self, connection: Connection) -> None:
        """It is no longer open; twice is as once."""
        self._due.pop(connection, None)

    def overdue(self, now: float) -> list[Connection]:
        """Return those that have been without a request for too long."""
        return [connection for connection, due in self._due.items() if due <= now]
