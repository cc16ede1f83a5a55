"""Small messages that every rank tells every other: settings, norms, hashes, who had NaN."""

from __future__ import annotations

from typing import Protocol


class Replies(Protocol):
    """What all ranks told, under way."""

    def wait(self) -> list[bytes]:
        """Return all ranks' messages, by rank.

        Raises:
            ExchangeError: a rank did not tell in time.
        """
        ...


class Messages(Protocol):
    """The ranks that tell each other something. All tell the same things, in the same order.

    rank: this one's number. size: how many there are.
    """

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def tell(self, content: bytes, name: str) -> Replies:
        """Begin to tell all ranks ``content``; ``name`` is the same on all, and appears in errors."""
        ...
