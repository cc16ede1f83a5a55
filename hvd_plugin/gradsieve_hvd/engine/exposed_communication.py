"""How long payloads take to arrive, measured where training really waits for them.

A payload is submitted while backward goes on, so the time from its submission to its arrival is mostly
computing. What is timed instead is the exposed communication: from the moment when somebody begins to wait
(backward has ended, everything is submitted) until all that had not arrived by then has; and only those
bytes are counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from gradsieve_hvd.transport.messages import Messages

from .observer import SilentObserver

_EMPTY_EXCHANGES = 5


class ExposedCommunication(SilentObserver):
    """The waiting of one step; ``tell`` is given seconds and bytes of each that is taken and had to wait."""

    def __init__(self, tell: Callable[[float, int], None]) -> None:
        self._tell = tell
        self._restart()

    def _restart(self) -> None:
        self._began: float | None = None
        self._seconds: float | None = None
        self._waited_for: frozenset[str] = frozenset()
        self._bytes = 0

    def waits_for(self, names: Collection[str]) -> None:
        """Somebody waits for these; the first call counts."""
        if self._began is None:
            self._waited_for = frozenset(names)
            self._began = time.monotonic()

    def arrived(self, name: str, size: int) -> None:
        """A tensor's bytes, those of all ranks, are here."""
        if name in self._waited_for:
            self._bytes += size

    def all_arrived(self) -> None:
        """Everything is here; the first call counts."""
        if self._began is not None and self._seconds is None:
            self._seconds = time.monotonic() - self._began

    def committed(self) -> None:
        """Tell what was measured, if anything had to be waited for."""
        if self._seconds is not None and self._bytes:
            self._tell(self._seconds, self._bytes)
        self._restart()

    def rolled_back(self) -> None:
        """Forget it."""
        self._restart()


def empty_exchange_seconds(messages: Messages) -> float:
    """The shortest of five exchanges of no bytes, which all ranks start together.

    Raises:
        ExchangeError: a rank did not answer in time.
    """
    seconds = []
    for _ in range(_EMPTY_EXCHANGES):
        began = time.monotonic()
        messages.tell(b"", "empty").wait()
        seconds.append(time.monotonic() - began)
    return min(seconds)
