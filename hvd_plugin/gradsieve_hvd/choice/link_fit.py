"""A link's start-up time, bandwidth and burst, fitted to exchanges of several sizes.

::

    seconds = rounds * start_up + max(bytes - burst, 0) / bandwidth
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

_ALIKE = 1.2
_APART = 1.5
_LEAST_SECONDS = 1e-9
_LEAST_PER_BYTE = 1e-12
_FLAT = 0.3
"""What adds less than this to start-ups says nothing of the bandwidth **(r)**: more than jitter does."""
_MOST_OF = 0.95
_CAUTION = 0.2
"""Weight of what differs from the fit before, against relative errors **(r)**: jitter of 10 % must not make a
link that one large size tells of another one, with another burst."""


@dataclass(frozen=True, slots=True)
class Point:
    """One exchange: bytes sent, rounds of messages that wait for those before, and seconds on the wire."""

    sent: float
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LinkFit:
    """start_up: seconds of each round. per_byte: seconds. burst: bytes that pass at no cost."""

    start_up: float
    per_byte: float
    burst: float = 0.0

    def seconds(self, point: Point) -> float:
        """Return what an exchange like this one should take."""
        moving = self.per_byte * max(point.sent - self.burst, 0.0)
        return max(point.rounds * self.start_up + moving, _LEAST_SECONDS)

    def moving(self, point: Point) -> float:
        """Return the time that bandwidth costs, as a multiple of the start-ups'."""
        start_ups = max(point.rounds * self.start_up, _LEAST_SECONDS)
        return self.per_byte * max(point.sent - self.burst, 0.0) / start_ups


def fitted(points: Iterable[Point], before: LinkFit) -> LinkFit:
    """Return what explains the points best; what they do not tell stays as it was ``before``.

    1. Points of about the same size and as many rounds count as one, their median: so outliers do not count.
    2. For every size, suppose that what is no larger passed within a burst: it tells the start-up time, as
       do exchanges without a byte in any case.
    3. A line through what is larger tells the bandwidth, the median of slopes between sizes that lie apart
       (Theil and Sen's), and where it begins the burst. Sizes that do not lie apart leave the burst alone.
    4. What takes hardly longer than an empty message bounds the bandwidth from below. No start-up is longer
       than what any size took.
    5. Take the supposition with the least sum of relative errors; of about equals, the nearest to ``before``.
    """
    sizes = _medians(points)
    before = replace(before, start_up=min(before.start_up, *(each.seconds / each.rounds for each in sizes)))
    empty = sum(point.sent <= 0 for point in sizes)
    numbers = range(empty, len(sizes) + 1)
    suppositions = [_supposing(sizes[:number], sizes[number:], before) for number in numbers]
    largest = max(sizes[-1].sent, 1.0)
    return min(suppositions, key=lambda fit: _error(fit, sizes) + _CAUTION * _distance(fit, before, largest))


def _medians(points: Iterable[Point]) -> list[Point]:
    """Return a point for each size and number of rounds, by size."""
    alike: dict[tuple[int, int], list[Point]] = {}
    for point in points:
        size = round(math.log(max(point.sent, 1.0), _ALIKE))
        alike.setdefault((size, point.rounds), []).append(point)
    medians = [
        Point(median(each.sent for each in group), group[0].rounds, median(each.seconds for each in group))
        for group in alike.values()
    ]
    return sorted(medians, key=lambda point: (point.sent, point.rounds))


def _supposing(within: Sequence[Point], above: Sequence[Point], before: LinkFit) -> LinkFit:
    """Return the fit if a burst lets the former through, and not the latter."""
    start_up = before.start_up
    if within:
        start_up = median(point.seconds / point.rounds for point in within)
    if above:
        fit = _line(start_up, within[-1].sent if within else 0.0, above, before.burst)
        if fit is not None and fit.moving(above[-1]) >= _FLAT:
            return fit
    fit = replace(before, start_up=start_up)
    largest = [*within, *above][-1]
    if fit.moving(largest) <= _FLAT:
        return fit
    # It took no longer than an empty one: the link is at least so fast that this cannot be told.
    unseen = _FLAT * largest.rounds * start_up / (largest.sent - fit.burst)
    return replace(fit, per_byte=max(unseen, _LEAST_PER_BYTE))


def _line(start_up: float, lowest: float, above: Sequence[Point], burst: float) -> LinkFit | None:
    """Return the fit through what is larger than a burst of at least ``lowest`` bytes, if there is one."""
    highest = above[0].sent
    moving = [(point.sent, point.seconds - point.rounds * start_up) for point in above]
    slopes = [
        (later - sooner) / (large - small)
        for (small, sooner), (large, later) in combinations(moving, 2)
        if large >= _APART * small
    ]
    if slopes and (slope := median(slopes)) > 0:
        begins = median(sent - seconds / slope for sent, seconds in moving)
        return LinkFit(start_up, slope, min(max(begins, lowest), highest))
    known = max(burst, lowest)
    if known > _MOST_OF * highest:  # a burst of that size would have let more of it through
        known = min(max(highest / 2, lowest), _MOST_OF * highest)
    slope = median(seconds / (sent - known) for sent, seconds in moving)
    return LinkFit(start_up, slope, known) if slope > 0 else None


def _error(fit: LinkFit, points: Sequence[Point]) -> float:
    return sum(abs(math.log(max(point.seconds, _LEAST_SECONDS) / fit.seconds(point))) for point in points)


def _distance(fit: LinkFit, before: LinkFit, largest: float) -> float:
    burst = abs(min(fit.burst, largest) - min(before.burst, largest)) / largest
    start_up = abs(math.log(max(fit.start_up, _LEAST_SECONDS) / max(before.start_up, _LEAST_SECONDS)))
    return abs(math.log(fit.per_byte / before.per_byte)) + start_up + burst
