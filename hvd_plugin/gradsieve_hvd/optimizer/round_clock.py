"""Where the time from the end of one round to the end of the next goes, on this rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundSeconds:
    """In seconds. total: from the end of the round before to this one's. selection: of entries, with momentum
    and residuals. encoding: of what leaves at once, and handing it to the system. exposed: waiting, when
    backward had ended and all was sent.
    """

    total: float = 0.0
    selection: float = 0.0
    encoding: float = 0.0
    exposed: float = 0.0

    @property
    def computing(self) -> float:
        """All the rest: forward, backward, the update, data."""
        return max(self.total - self.selection - self.encoding - self.exposed, 0.0)


class RoundClock:
    """Times rounds. A round ends when its last message has arrived, which is on all ranks at about the same
    time; so times since then can be compared between ranks.

    Args:
        clock: in seconds.

    last: the last whole round. began: when it did, by the clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._ended = clock, clock()
        self.began = self._ended
        self.last = RoundSeconds()
        self._restart()

    def _restart(self) -> None:
        self._selection = self._encoding = 0.0
        self._waits_since: float | None = None

    def started(self) -> None:
        """Ranks meet for the first time, within their first round."""
        self._ended = self._clock()
        self._restart()

    @property
    def ready_seconds(self) -> float:
        """How long the round has lasted."""
        return self._clock() - self._ended

    @property
    def exchanging_seconds(self) -> float:
        """What of this round went into selecting and encoding so far, whatever the batch's size."""
        return self._selection + self._encoding

    def selected(self, seconds: float) -> None:
        """So long it took to select the entries of a tensor."""
        self._selection += seconds

    @contextmanager
    def encoding(self) -> Iterator[None]:
        """Within, messages are made."""
        began = self._clock()
        yield
        self._encoding += self._clock() - began

    def waits(self) -> None:
        """All that this rank has to give was sent."""
        self._waits_since = self._clock()

    def ended(self, moment: float) -> None:
        """The last message has arrived, at a moment of the clock."""
        exposed = 0.0 if self._waits_since is None else max(moment - self._waits_since, 0.0)
        self.last = RoundSeconds(moment - self._ended, self._selection, self._encoding, exposed)
        self.began, self._ended = self._ended, moment
        self._restart()

    def broken_off(self) -> None:
        """The round failed: what was timed says nothing."""
        self._restart()
