"""What a link is worth now, from the exchanges that training makes anyway, and when to probe it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from .costs import Link
from .link_fit import LinkFit, Point, fitted

_WINDOW = 24
_SURPRISE = 1.4
"""How far an exchange must be off to speak for a change **(r)**: twice what jitter does to good links."""
_SURPRISES = 3
_SILENT = 8
_MOST_SKEW = 2.0
"""Skew may be so many times what is left without it **(r)**: clocks that differ by 2 % cost 4 % then."""
_PROBE_START_UPS = 10
_MOST_SAVED_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    """One exchange, as one rank saw it.

    sent_bytes: by this rank. seconds: from when this rank's bucket was ready until everything had arrived.
    rounds: of messages that wait for those before. ready_seconds: when each rank's bucket was ready, from
    the beginning of its round, by rank; empty if that is not known.
    """

    rank: int
    sent_bytes: int
    seconds: float
    rounds: int = 1
    ready_seconds: Mapping[int, float] | None = None

    @property
    def skew_seconds(self) -> float:
        """How long this rank waited for the last one's bucket to be ready."""
        ready = self.ready_seconds or {}
        own = ready.get(self.rank)
        return 0.0 if own is None else max(max(ready.values()) - own, 0.0)

    @property
    def wire_seconds(self) -> float | None:
        """Without the skew; None if so little is left that errors of the clocks would decide."""
        skew = self.skew_seconds
        left = self.seconds - skew
        return left if left > 0 and skew <= _MOST_SKEW * left else None


class LinkEstimate:
    """A link's start-up time, bandwidth and burst, followed exchange by exchange.

    1. Take the wait for the last rank out of a measurement, and leave out one that is mostly that.
    2. Fit the last 24, see `fitted`.
    3. If three in a row of about this size or larger were all slower, or all faster, than the fit says, the
       link has changed: forget what came before them, but for messages of half their size and less.

    first: what is assumed before anything was measured.
    """

    def __init__(self, first: Link) -> None:
        self._points: deque[Point] = deque(maxlen=_WINDOW)
        self._fit = LinkFit(first.start_up_seconds, 1 / first.bytes_per_second)
        self._silent = 0

    @property
    def link(self) -> Link:
        """What is known now."""
        return Link(self._fit.start_up, 1 / self._fit.per_byte)

    @property
    def burst_bytes(self) -> float:
        """How much passes before bandwidth counts; a path's prediction does not take it off, as all buckets
        of a step share it.
        """
        return self._fit.burst

    @property
    def largest_bytes(self) -> float:
        """Of the exchanges that count; 0 before the first."""
        return max((point.sent for point in self._points), default=0.0)

    @property
    def told_lately(self) -> bool:
        """Whether one of the last eight exchanges took time for its bytes, rather than for its start-up."""
        return self._silent < _SILENT

    def observe(self, timing: Timing) -> None:
        """Take one exchange into account."""
        self._silent += 1
        seconds = timing.wire_seconds
        if seconds is None:
            return
        self._points.append(Point(timing.sent_bytes, max(timing.rounds, 1), seconds))
        self._forget_if_changed()
        self._fit = fitted(self._points, self._fit)
        if self._fit.moving(self._points[-1]) >= 1:
            self._silent = 0

    def _forget_if_changed(self) -> None:
        least = self._points[-1].sent / 2
        alike = [point for point in self._points if point.sent > least][-_SURPRISES:]
        off = [math.log(point.seconds / self._fit.seconds(point)) for point in alike]
        if len(off) == _SURPRISES and (min(off) > math.log(_SURPRISE) or max(off) < -math.log(_SURPRISE)):
            smaller = [point for point in self._points if point.sent <= least]
            self._points = deque([*smaller, *alike], maxlen=_WINDOW)


class ProbeBudget:
    """When, and with how many bytes, a link may be probed whose usual exchanges fit into a burst.

    A probe is an exchange of known size that is made to be timed, when nothing else travels. Each gives back
    what it took less than was allowed, so that a surprise is soon confirmed.

    share: of the time that probes may take, but for the last one, which is not known before.
    """

    def __init__(self, share: float = 0.01) -> None:
        self._share, self._allowed = share, 0.0

    def passed(self, seconds: float) -> None:
        """So much time of training has gone by."""
        self._allowed = min(self._allowed + self._share * seconds, _MOST_SAVED_SECONDS)

    def probe_bytes(self, estimate: LinkEstimate) -> int:
        """Return how large a probe may be now; 0 for none, as long as usual exchanges tell enough.

        It is to take ten start-ups, so that they hide nothing of the rest, and is at most twice the largest
        exchange so far: a link that is slower than believed does not hold training up for long.
        """
        link = estimate.link
        if estimate.told_lately or self._allowed < _PROBE_START_UPS * link.start_up_seconds:
            return 0
        fits = (_PROBE_START_UPS - 1) * link.start_up_seconds * link.bytes_per_second
        return round(min(estimate.burst_bytes + fits, 2 * estimate.largest_bytes))

    def spent(self, seconds: float) -> None:
        """A probe took so long."""
        self._allowed -= seconds
