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
_NEAR = 1.1
"""How far bounds may lie apart for their mean to count as measured **(r)**: it is off by less than 5 %."""
_SILENT = 8
_MOST_SKEW = 2.0
"""Skew may be so many times what is left without it **(r)**: clocks that differ by 2 % cost 4 % then."""
_FEW = 0.25
"""Of the largest exchange: what is smaller, and follows others, tells neither start-up nor bandwidth **(r)**:
its own start-up is over, and what it takes is the time until a rank gets a core to look for it."""
_EMPTY_BYTES = 5000
"""A few packets, which take a start-up and hardly more **(r)**."""
SMALLEST_PROBE = 1000
"""Bytes."""
_PROBE_START_UPS = 10
_MOST_SAVED_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Timing:
    """One exchange, as one rank saw it.

    sent_bytes: by this rank. seconds: from when this rank could begin until it found that everything had
    arrived. rounds: of messages that wait for those before. ready_seconds: when each rank could begin, from
    the beginning of its round, by rank; empty if that is not known. waited_seconds: of ``seconds``; None for
    all of them. In the others it worked, and messages may have travelled meanwhile or not.
    travelled_seconds: from when it had left; more than ``seconds`` where it had to let others pass, so that
    these may lack its start-up. None for ``seconds``.
    """

    rank: int
    sent_bytes: int
    seconds: float
    rounds: int = 1
    ready_seconds: Mapping[int, float] | None = None
    waited_seconds: float | None = None
    travelled_seconds: float | None = None

    @property
    def queued(self) -> bool:
        """Whether it had to let others pass."""
        return self.travelled_seconds is not None and self.travelled_seconds > self.seconds

    @property
    def skew_seconds(self) -> float:
        """How long this rank waited for the last one's bucket to be ready."""
        ready = self.ready_seconds or {}
        own = ready.get(self.rank)
        return 0.0 if own is None else max(max(ready.values()) - own, 0.0)

    @property
    def wire_seconds(self) -> float | None:
        """At most, without the skew; None if so little is left that errors of the clocks would decide."""
        skew = self.skew_seconds
        left = self.seconds - skew
        return left if left > 0 and skew <= _MOST_SKEW * left else None

    @property
    def least_wire_seconds(self) -> float:
        """At least: waiting for messages, without the skew."""
        waited = self.seconds if self.waited_seconds is None else min(self.waited_seconds, self.seconds)
        return max(waited - self.skew_seconds, 0.0)


@dataclass(frozen=True, slots=True)
class _Seen:
    """An exchange that counts. sent, rounds: see `Point`. least, most: seconds on the wire; equal if that is
    sure.
    """

    sent: int
    rounds: int
    least: float
    most: float

    @property
    def sure(self) -> bool:
        return self.least == self.most

    def nearest(self, fit: LinkFit) -> Point:
        """Return what comes nearest to a fit, of all that it may have taken."""
        expected = fit.seconds(Point(self.sent, self.rounds, self.most))
        return Point(self.sent, self.rounds, min(max(expected, self.least), self.most))


class LinkEstimate:
    """A link's start-up time, bandwidth and burst, followed exchange by exchange.

    1. Take the wait for the last rank out of a measurement, and leave out one that is mostly that.
    2. Fit the last 24, see `fitted`; leave out small ones that follow others.
    3. Where a rank worked while messages travelled, or sent one behind another, it knows bounds of what they
       took. Fit what is sure alone; if that lies outside of some bounds, fit again with the nearest that is
       within them. So they correct an estimate, and never support one.
    4. If three in a row of about this size or larger were all slower, or all faster, than the fit says, the
       link has changed: forget what came before them, but for messages of half their size and less; and
       for those of more than twice their size, where these were faster, as they may fit into a burst.

    first: what is assumed before anything was measured.
    """

    def __init__(self, first: Link) -> None:
        self._seen: deque[_Seen] = deque(maxlen=_WINDOW)
        self._fit = LinkFit(first.start_up_seconds, 1 / first.bytes_per_second)
        self._silent, self._since_empty, self._empty = 0, 0, 0.0

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
        return max((seen.sent for seen in self._seen), default=0)

    @property
    def told_lately(self) -> bool:
        """Whether one of the last eight exchanges surely took time for its bytes, rather than for its
        start-up.
        """
        return self._silent < _SILENT

    @property
    def start_up_known(self) -> bool:
        """Whether one of the last exchanges was of few bytes, and surely took about so long; what larger ones
        took may have been their bytes' time.
        """
        return self._fit.start_up <= _SURPRISE * self._empty and self._since_empty < _WINDOW

    def observe(self, timing: Timing) -> None:
        """Take one exchange into account."""
        self._silent += 1
        self._since_empty += 1
        seen = self._bounded(timing)
        if seen is None:
            return
        self._seen.append(seen)
        if seen.sure and seen.sent <= _EMPTY_BYTES:
            self._empty, self._since_empty = seen.most / seen.rounds, 0
        self._forget_if_changed()
        self._fit = self._fitted()
        if seen.sure and self._fit.moving(seen.nearest(self._fit)) >= 1:
            self._silent = 0

    def _bounded(self, timing: Timing) -> _Seen | None:
        most, least = timing.wire_seconds, timing.least_wire_seconds
        if most is None or (timing.queued and timing.sent_bytes < _FEW * self.largest_bytes):
            return None
        if timing.travelled_seconds is not None:
            most = max(most, min(most + self._fit.start_up, timing.travelled_seconds - timing.skew_seconds))
        if most <= _NEAR * least:
            least = most = math.sqrt(least * most)
        return _Seen(timing.sent_bytes, max(timing.rounds, 1), least, most)

    def _fitted(self) -> LinkFit:
        sure = [seen.nearest(self._fit) for seen in self._seen if seen.sure]
        fit = fitted(sure, self._fit) if sure else self._fit
        bounded = [seen.nearest(fit) for seen in self._seen if not seen.sure]
        if all(point.seconds == fit.seconds(point) for point in bounded):
            return fit
        return fitted([*sure, *bounded], fit)

    def _forget_if_changed(self) -> None:
        least = self._seen[-1].sent / 2
        alike = [seen for seen in self._seen if seen.sent > least][-_SURPRISES:]
        points = [seen.nearest(self._fit) for seen in alike]
        off = [math.log(point.seconds / self._fit.seconds(point)) for point in points]
        if len(off) < _SURPRISES:
            return
        slower, faster = min(off) > math.log(_SURPRISE), max(off) < -math.log(_SURPRISE)
        if slower or faster:
            largest = max(seen.sent for seen in alike)
            kept = [seen for seen in self._seen if seen.sent <= least or (faster and seen.sent > 2 * largest)]
            self._seen = deque([*kept, *alike], maxlen=_WINDOW)


class ProbeBudget:
    """When, and with how many bytes, a link may be probed whose usual exchanges fit into a burst.

    A probe is an exchange of known size that is made to be timed, when nothing else travels. Each gives back
    what it took less than was allowed, so that a surprise is soon confirmed.

    share: of the time that probes may take, but for the last one, which is not known before.
    """

    def __init__(self, share: float = 0.01) -> None:
        self._share, self._allowed = share, 0.0
        self._most_saved = _MOST_SAVED_SECONDS

    def passed(self, seconds: float) -> None:
        """So much time of training has gone by."""
        self._allowed = min(self._allowed + self._share * seconds, self._most_saved)

    def probe_bytes(self, estimate: LinkEstimate) -> int:
        """Return how large a probe may be now; 0 for none, where exchanges tell enough.

        1. It is to take ten start-ups, so that they hide nothing of the rest, and is at most twice the
           largest exchange so far: a link that is slower than believed does not hold training up for long.
        2. Where that is more than can be saved, and no message of few bytes bears such a start-up out, it is
           one of these first: a start-up that is believed to be too long would put off all probes.
        """
        link = estimate.link
        needed = _PROBE_START_UPS * link.start_up_seconds
        self._most_saved = max(needed, _MOST_SAVED_SECONDS)
        if needed > _MOST_SAVED_SECONDS and not estimate.start_up_known:
            return SMALLEST_PROBE if self._allowed >= link.start_up_seconds else 0
        if estimate.told_lately or self._allowed < needed:
            return 0
        fits = (_PROBE_START_UPS - 1) * link.start_up_seconds * link.bytes_per_second
        return round(min(estimate.burst_bytes + fits, 2 * estimate.largest_bytes))

    def spent(self, seconds: float) -> None:
        """A probe took so long."""
        self._allowed -= seconds
