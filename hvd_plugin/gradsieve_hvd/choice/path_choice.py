"""Which path to take next: predicted, put right by what steps really took, without going back and forth."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .surplus import SETTLED, Surplus

MARGIN = 0.10
"""How much sooner another path must be predicted to be done **(r)**: predictions scatter by less."""
PATIENCE = 3
"""For so many steps in a row."""
MEASURED_MARGIN, MEASURED_PATIENCE = 0.03, 10
"""The same, where both paths have been measured, which is surer than a prediction."""
_WORTH_TRYING = 0.25
_TRYING_SHARE = 0.01
_AGAIN_STEPS, _ANEW_STEPS = 50, 300
"""After so many steps for each of its trials a path that is less than `_DOUBTFUL` slower may be tried once
more, as trials may be wrong; and any that is nearly as fast after so many, as machines and links change."""
_DOUBTFUL, _DEVIATIONS = 0.05, 1.2
"""After one trial, or so many times what steps scatter by: two standard errors of a trial; trials follow one
another so much sooner then. The mean of n is off by less, by the root of n."""
_REST_STEPS, _LONGEST_REST = 15, 75
"""Between two trials, of whatever path: so many for each one so far, and at most so many **(r)**."""
_WON = 0.01
"""How much sooner a path must have been in its trials: compared side by side, little is enough **(r)**."""
_LEAST_TRIALS, _SURE_TRIALS = 2, 3
"""Of which a path must have been sooner in the middle to stay; one alone may be of a machine that was slower
before and after it **(r)**."""
_SURE_DEVIATIONS = 1.2
"""In less than `_SURE_TRIALS` it must have been so in all, and by so many times what steps scatter by: two
standard errors of a trial."""
_CHANGED = 2.0
"""If one path is predicted to take so many times as long as another, a link has changed in mid-trial."""


class PathChoice:
    """The path of an optimizer's compressed gradients; rank 0 keeps it, and the others follow.

    1. What a step takes by a path is its prediction and a surplus: what steps by it have taken beyond; as
       long as none were made, what those by the path in use have.
    2. A change needs a path that is expected to be better than the one in use by `MARGIN`, the same one, for
       `PATIENCE` steps in a row. So what differs little or briefly changes nothing.
    3. Between two that have been measured `MEASURED_MARGIN` and `MEASURED_PATIENCE` are enough.
    4. A path that was not measured lately, and is expected to be hardly slower, is tried between two
       measurements of the one in use, when what that may cost is at most a hundredth of the time so far:
       predictions may be wrong, steps are not. What a trial has cost beyond what was expected puts the next
       ones off.
    5. A path that was sooner in its last trial, or in the middle of them, is tried again at once; it stays if
       it was so in both of two, or in the middle of three or more.

    path: in use. epoch: how often it has changed. trying: whether it is in use to be measured only.
    """

    def __init__(self, path: str) -> None:
        self.path, self.epoch = path, 0
        self._usual = path
        self._surplus = Surplus(path)
        self._candidate, self._times = path, 0
        self._may_cost = self._reserved = 0.0
        self._steps, self._tried_at = 0, dict[str, int]()
        self._trials, self._last_trial = 0, 0
        self._promising: str | None = None

    @property
    def trying(self) -> bool:
        """See `PathChoice`."""
        return self.path != self._usual

    def expected(self, predicted: Mapping[str, float]) -> dict[str, float]:
        """Return what is expected of each path, in seconds, from what is predicted of it."""
        return self._surplus.added(predicted)

    def decide(self, predicted: Mapping[str, float], seconds: float | None = None) -> str:
        """Return the path of the next step.

        predicted: seconds of a step by path, of those that are allowed; the one in use is among them.
        seconds: that the last step took, by the path in use; None if that was not measured.
        """
        self._steps += 1
        tried = self._surplus.on_trial
        if seconds is not None:
            self._surplus.observe(predicted, seconds)
            self._may_cost += _TRYING_SHARE * seconds
        if self.trying:
            self._end_trial(predicted)
            return self.path
        expected = self.expected(predicted)
        if tried is not None and self._surplus.on_trial is None:
            if self._won(tried, expected):
                self._change(tried, compared=True)
                return self.path
            if self._surplus.last_beyond is not None:
                least = min(self._surplus.last_beyond, expected[tried] - expected[self.path])
                self._promising = tried if least < -_WON * expected[self.path] else None
        best = min(expected, key=lambda path: expected[path])
        needed = self._patience(best, expected)
        self._times = self._times + 1 if best == self._candidate else 1
        self._candidate = best
        if needed is not None and self._times >= needed:
            self._change(best)
        elif needed is None and (near := self._worth_trying(expected)) is not None:
            self._surplus.begin_trial(near)
            self._tried_at[near] = self._last_trial = self._steps
            self._trials += 1
            self._take(near)
        return self.path

    def _won(self, tried: str, expected: Mapping[str, float]) -> bool:
        """Whether a path that was tried is to be taken, by all of its trials that are remembered."""
        trials, now = self._surplus.compared(tried), expected[self.path]
        if trials < _LEAST_TRIALS:
            return False
        sooner, needed = 1 - expected[tried] / now, _WON
        if trials < _SURE_TRIALS:
            scatter = _SURE_DEVIATIONS * self._surplus.scatter / math.sqrt(trials)
            needed = max(needed, scatter, self._surplus.doubt(tried) / now)
        return sooner > needed

    def _patience(self, best: str, expected: Mapping[str, float]) -> int | None:
        """Return for how many steps the best path must have been that; None if it is not worth a change."""
        gain = 1 - expected[best] / expected[self.path]
        if best == self._promising and gain < _WORTH_TRYING:
            return None
        if gain > MARGIN:
            return PATIENCE
        measured = self._surplus.knows(best) and self._surplus.knows(self.path)
        return MEASURED_PATIENCE if measured and gain > MEASURED_MARGIN else None

    def _worth_trying(self, expected: Mapping[str, float]) -> str | None:
        """Return the best path that was not measured lately, if it may be tried now."""
        if not self._surplus.settled or self._surplus.on_trial is not None:
            return None
        if self._promising in expected and self._may_cost >= 0:
            self._reserved = 0.0
            return self._promising
        if self._steps - self._last_trial < min(_REST_STEPS * self._trials, _LONGEST_REST):
            return None
        now = expected[self.path]
        near = [path for path in expected if path != self.path and expected[path] <= self._near(path) * now]
        near = [path for path in near if not self._tried_lately(path, expected[path] / now - 1)]
        if not near:
            return None
        # The one of which least is known, as the others were compared at least once.
        next_best = min(near, key=lambda path: (self._surplus.knows(path), expected[path]))
        least = MEASURED_MARGIN if self._surplus.knows(next_best) else MARGIN
        cost = SETTLED * max(expected[next_best] - now, least * now)
        if cost > self._may_cost:
            return None
        self._may_cost, self._reserved = self._may_cost - cost, cost
        return next_best

    def _end_trial(self, predicted: Mapping[str, float]) -> None:
        """Go back when the trial is over; or to the faster one, if these paths are no longer alike."""
        times = predicted[self.path] / predicted[self._usual]
        if times < 1 / _CHANGED:
            self._make_usual(self.path)
        elif times > _CHANGED:
            self._surplus.change(self._usual)
            self._take(self._usual)
        elif self._surplus.trial_is_over:
            self._may_cost -= max(self._surplus.end_trial(self._usual) - self._reserved, 0.0)
            self._take(self._usual)

    def _near(self, path: str) -> float:
        return 1 + (MARGIN if self._surplus.knows(path) else _WORTH_TRYING)

    def _tried_lately(self, path: str, slower: float) -> bool:
        trials = max(self._surplus.compared(path), 1)
        off = max(_DOUBTFUL, _DEVIATIONS * self._surplus.scatter)
        doubtful = not self._surplus.knows(path) or slower < off / math.sqrt(trials)
        again = _AGAIN_STEPS * max(trials * _DOUBTFUL / off, 1.0)
        wait = min(again, _ANEW_STEPS) if doubtful else _ANEW_STEPS
        return path in self._tried_at and self._steps - self._tried_at[path] < wait

    def _change(self, path: str, *, compared: bool = False) -> None:
        self._make_usual(path, compared=compared)
        self._take(path)

    def _make_usual(self, path: str, *, compared: bool = False) -> None:
        self._tried_at[self._usual] = self._steps  # it was measured until now
        self._surplus.change(path, compared=compared)
        self._usual, self._promising = path, None

    def _take(self, path: str) -> None:
        self.path, self._times = path, 0
        self.epoch += 1
