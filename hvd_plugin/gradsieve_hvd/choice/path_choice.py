"""Which path to take next: predicted, put right by what steps really took, without going back and forth."""

from __future__ import annotations

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


class PathChoice:
    """The path of an optimizer's compressed gradients; rank 0 keeps it, and the others follow.

    1. What a step takes by a path is its prediction and a surplus: what steps by it have taken beyond; as
       long as none were made, what those by the path in use have.
    2. A change needs a path that is expected to be better than the one in use by `MARGIN`, the same one, for
       `PATIENCE` steps in a row. So what differs little or briefly changes nothing.
    3. Between two that have been measured `MEASURED_MARGIN` and `MEASURED_PATIENCE` are enough.
    4. A path that was never measured, and is expected to be hardly slower, is tried, once, when what that may
       cost is at most a hundredth of the time so far: predictions may be wrong, steps are not.

    path: in use. epoch: how often it has changed. trying: whether it is in use to be measured.
    """

    def __init__(self, path: str) -> None:
        self.path, self.epoch, self.trying = path, 0, False
        self._surplus = Surplus(path)
        self._candidate, self._times = path, 0
        self._may_cost = 0.0

    def expected(self, predicted: Mapping[str, float]) -> dict[str, float]:
        """Return what is expected of each path, in seconds, from what is predicted of it."""
        return self._surplus.added(predicted)

    def decide(self, predicted: Mapping[str, float], seconds: float | None = None) -> str:
        """Return the path of the next step.

        predicted: seconds of a step by path, of those that are allowed; the one in use is among them.
        seconds: that the last step took, by the path in use; None if that was not measured.
        """
        if seconds is not None:
            self._surplus.observe(predicted[self.path], seconds)
            self._may_cost += _TRYING_SHARE * seconds
        expected = self.expected(predicted)
        best = min(expected, key=lambda path: expected[path])
        needed = self._patience(best, expected)
        self._times = self._times + 1 if best == self._candidate else 1
        self._candidate = best
        if needed is not None and self._times >= needed:
            self._change(best, trying=False)
        elif needed is None and (untried := self._worth_trying(expected)) is not None:
            self._change(untried, trying=True)
        return self.path

    def _patience(self, best: str, expected: Mapping[str, float]) -> int | None:
        """Return for how many steps the best path must have been that; None if it is not worth a change."""
        if self.trying and not self._surplus.settled:
            return None
        gain = 1 - expected[best] / expected[self.path]
        if gain > MARGIN:
            return PATIENCE
        measured = self._surplus.knows(best) and self._surplus.knows(self.path)
        return MEASURED_PATIENCE if measured and gain > MEASURED_MARGIN else None

    def _worth_trying(self, expected: Mapping[str, float]) -> str | None:
        """Return the best path that was never measured, if it may be tried now."""
        if not self._surplus.settled:
            return None
        now = expected[self.path]
        unknown = [path for path in expected if path != self.path and not self._surplus.knows(path)]
        near = [path for path in unknown if expected[path] <= (1 + _WORTH_TRYING) * now]
        if not near:
            return None
        next_best = min(near, key=lambda path: expected[path])
        cost = SETTLED * max(expected[next_best] - now, MARGIN * now)
        if cost > self._may_cost:
            return None
        self._may_cost -= cost
        return next_best

    def _change(self, path: str, *, trying: bool) -> None:
        self._times = 0
        if path != self.path:
            self._surplus.change(path)
            self.path, self.trying = path, trying
            self.epoch += 1
