"""One path between two measurements of the usual one."""

from __future__ import annotations

from collections.abc import Sequence

_REPEATABLE = 0.08
"""Of a step: if steps by the usual path before and after a trial differ by more, the machine was slower for a
while; a path that was slower than both by so much, or faster, is so nevertheless **(r)**."""
_DEVIATIONS = 1.35
"""By so many times what steps scatter by themselves both may differ as well: two standard errors."""
_LOST, _LOST_STEPS = 0.25, 3
"""A trial is lost if its first steps that count were all slower by so much **(r)**."""
_LONGEST = 20
"""Steps of a trial, however much they scatter **(r)**."""
_MOST_TIMES = 2.0
"""Of a usual step: what is longer is a pause, as for an evaluation, and not the path's **(r)**."""


class Trial:
    """A path on trial.

    Args:
        path: its name.
        before: seconds of a step by the usual path, just before.
        scatter: standard deviation of a step, over its mean.

    cost: seconds that its steps took beyond usual ones so far; of all of them, also those that do not count.
    """

    def __init__(self, path: str, before: float, scatter: float) -> None:
        self.path, self.cost = path, 0.0
        self._before, self._repeatable = before, max(_REPEATABLE, _DEVIATIONS * scatter)
        self._during: float | None = None
        self._steps = 0

    @property
    def under_way(self) -> bool:
        """Whether the path is in use."""
        return self._during is None

    def observe(self, seconds: float) -> None:
        """A step was made while it is under way."""
        self._steps += 1
        self.cost += min(seconds, _MOST_TIMES * self._before) - self._before

    def is_over(self, counted: Sequence[float]) -> bool:
        """Whether nothing is to be won any more, or steps scatter too much to tell.

        counted: seconds of those that count.
        """
        lost = len(counted) >= _LOST_STEPS and min(counted) > (1 + _LOST) * self._before
        return lost or self._steps >= _LONGEST

    def end(self, during: float) -> None:
        """The usual path is taken again; during: seconds of a step of the trial."""
        self._during = during

    def beyond(self, after: float) -> float | None:
        """Return by how many seconds its steps were longer than usual ones; None if it tells nothing.

        1. Where the usual path took the same before and after: than the mean of both.
        2. Else, than both, if that is much; whatever the machine did, so much at least is the path's.

        after: seconds of a step by the usual path.
        """
        assert self._during is not None, "it has ended"
        if abs(after - self._before) <= self._repeatable * after:
            return self._during - (self._before + after) / 2
        low, high = sorted((self._before, after))
        nearest = min(max(self._during, low), high)
        apart = self._during - nearest
        return apart if abs(apart) > self._repeatable * nearest else None
