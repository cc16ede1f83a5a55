"""How long payloads take to arrive, measured where training really waits for them.

A payload is submitted while backward goes on, so the time from its submission to its arrival is mostly
computing. What is timed instead is the drain: from the moment when somebody begins to wait (backward has
ended, everything is submitted) until all that had not arrived by then has; and only those bytes are counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from .entries import Ticket
from .transport.horovod_allgather import gather_bytes

_EMPTY_EXCHANGES = 5


class Drain:
    """The waiting of one step."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._seconds: float | None = None
        self._waited_for: set[Ticket] = set()
        self._bytes = 0

    def begin(self, tickets: Iterable[Ticket]) -> None:
        """Somebody waits for these; the first call counts."""
        if self._began is None:
            self._waited_for = {t for t in tickets if t.gather is not None and not t.gather.finished()}
            self._began = time.monotonic()

    def arrived(self, ticket: Ticket, size: int) -> None:
        """A tensor's bytes, those of all ranks, are here."""
        if ticket in self._waited_for:
            self._bytes += size

    def end(self) -> None:
        """Everything has arrived; the first call counts."""
        if self._began is not None and self._seconds is None:
            self._seconds = time.monotonic() - self._began

    def measured(self) -> tuple[float, int] | None:
        """Seconds and bytes; None if nothing had to be waited for."""
        return (self._seconds, self._bytes) if self._seconds is not None and self._bytes else None


def empty_exchange_seconds(process_set: Any, timeout: float) -> float:
    """The shortest of five exchanges of no bytes, which all ranks of the set start together.

    Raises:
        ExchangeError: see `Allgather.wait`.
    """
    seconds = []
    for _ in range(_EMPTY_EXCHANGES):
        began = time.monotonic()
        gather_bytes(b"", "empty", process_set, timeout)
        seconds.append(time.monotonic() - began)
    return min(seconds)
