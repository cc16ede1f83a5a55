"""What steps by each path take beyond their predictions."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

_WINDOW = 5
_FIRST = 2
"""Steps after a change that do not count: the first by a path makes buffers, and allocates."""
SETTLED = _FIRST + _WINDOW
_STEADY = 1.15
_ALIKE = 0.2
"""Of the prediction: steps that differ by more tell that something has just changed **(r)**."""
_LEAST_SHARE, _MOST_SHARE = -0.5, 1.0


class Surplus:
    """What a model of steps lacks, by path, in seconds: hooks, caches, cores that are shared.

    1. It is the median over five steps of what they took less what was predicted of them, once both stand
       still: where a link has just changed, predictions lag behind.
    2. When the path changes, what both have in common cancels: as much as the old path's surplus has drifted
       since it was noted is taken off the new one's. So a machine that became slower meanwhile, for all
       paths, makes none look worse than another.

    path: in use.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._noted: dict[str, float] = {}
        self._measures_anew = True
        self._steps: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self._to_skip = 0
        self._drift = 0.0

    @property
    def settled(self) -> bool:
        """Whether the path in use has been measured since it was taken up, and nothing has just changed."""
        if self._to_skip or len(self._steps) < _WINDOW:
            return False
        surpluses = sorted(seconds - predicted for predicted, seconds in self._steps)
        return surpluses[-2] - surpluses[1] <= _ALIKE * self._steps[-1][0]

    def knows(self, path: str) -> bool:
        """Whether a path was ever measured."""
        return path in self._noted

    def observe(self, predicted: float, seconds: float) -> None:
        """A step by the path in use took so long, and was predicted to take so long."""
        if self._to_skip:
            self._to_skip -= 1
            return
        known = [each for each, _ in self._steps]
        if known and not 1 / _STEADY < predicted / median(known) < _STEADY:
            self._steps.clear()
        self._steps.append((predicted, seconds))
        if not self.settled:
            return
        now = median(seconds - predicted for predicted, seconds in self._steps)
        if self._measures_anew:
            self._noted[self._path], self._measures_anew = now - self._drift, False
        elif abs(now - self._noted[self._path]) <= _ALIKE * predicted:
            self._drift = now - self._noted[self._path]

    def change(self, path: str) -> None:
        """Another path is taken from the next step on."""
        self._path, self._to_skip, self._measures_anew = path, _FIRST, True
        self._steps.clear()

    def added(self, predicted: Mapping[str, float]) -> dict[str, float]:
        """Return what is expected by each path: what is predicted, and its surplus as it is now."""
        usual = self._noted.get(self._path, 0.0)
        return {
            path: _within(seconds, self._noted.get(path, usual) + self._drift)
            for path, seconds in predicted.items()
        }


def _within(predicted: float, surplus: float) -> float:
    return predicted + min(max(surplus, _LEAST_SHARE * predicted), _MOST_SHARE * predicted)
