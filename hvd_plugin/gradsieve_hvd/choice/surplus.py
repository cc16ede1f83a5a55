"""What steps by each path take beyond their predictions."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from functools import partial
from statistics import mean, median

from .trial import Trial

_WINDOW = 5
_FIRST = 2
"""Steps after a change that do not count: the first by a path makes buffers, and allocates."""
SETTLED = _FIRST + _WINDOW
_STEADY = 1.15
_ALIKE, _ALIKE_DEVIATIONS = 0.2, 2.0
"""Of the prediction, or of what steps scatter by themselves: steps that differ by more tell that something
has just changed **(r)**."""
_CHANGES = 40
"""From one step to the next, of which scatter is known."""
_DEVIATION = 0.95
"""The median of such changes, of steps that scatter by a standard deviation of 1."""
_MOST_SCATTER = 0.2
"""Where it is more, as steps of two kinds take turns, trials tell no more than here."""
_LEAST_SHARE, _MOST_SHARE = -0.5, 1.0
_REMEMBERED = 6
"""Trials of a path of which the mean counts; of more, the last ones."""


class Surplus:
    """What a model of steps lacks, by path, in seconds: hooks, caches, cores that are shared.

    1. It is the median over five steps of what they took less what was predicted of them, once both stand
       still: where a link has just changed, predictions lag behind.
    2. When the path changes, what both have in common cancels: as much as the old path's surplus has drifted
       since it was noted is taken off the new one's. So a machine that became slower meanwhile, for all
       paths, makes none look worse than another.
    3. A trial is a path between two measurements of the usual one; see `Trial`. One that tells nothing counts
       for nothing.
    4. What trials of a path have found is averaged, without the least and the most of three or more, as one
       of five steps may well be wrong where steps scatter or a machine is slower for a while. It stays known
       when that path becomes the usual one, and says as much of the one before.

    path: in use.
    last_beyond: by how many seconds steps of the last trial were longer than usual ones; None if it told
    nothing.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.last_beyond: float | None = None
        self._noted: dict[str, float] = {}
        self._found = defaultdict[str, deque[float]](partial(deque, maxlen=_REMEMBERED))
        self._measures_anew = True
        self._trial: Trial | None = None
        self._steps: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self._to_skip = 0
        self._drift = 0.0
        self._changes: deque[float] = deque(maxlen=_CHANGES)

    @property
    def settled(self) -> bool:
        """Whether the path in use has been measured since it was taken up, and nothing has just changed."""
        if self._to_skip or len(self._steps) < _WINDOW:
            return False
        surpluses = sorted(seconds - predicted for predicted, seconds in self._steps)
        alike = max(_ALIKE, _ALIKE_DEVIATIONS * self.scatter) * self._steps[-1][0]
        return surpluses[-2] - surpluses[1] <= alike

    @property
    def scatter(self) -> float:
        """Standard deviation of a step, over its mean; a machine that is slower for a while is not in it."""
        return min(median(self._changes) / _DEVIATION, _MOST_SCATTER) if self._changes else 0.0

    @property
    def on_trial(self) -> str | None:
        """The path that is being compared with another one; None if there is none."""
        return None if self._trial is None else self._trial.path

    def compared(self, path: str) -> int:
        """Return how many trials of a path are remembered."""
        return len(self._found[path])

    def doubt(self, path: str) -> float:
        """Return half of what a path's trials differ by, in seconds: two that find it sooner by more in their
        mean do so both.
        """
        found = self._found[path]
        return (max(found) - min(found)) / 2 if found else 0.0

    def knows(self, path: str) -> bool:
        """Whether a path was ever measured."""
        return path in self._noted

    def observe(self, predicted: Mapping[str, float], seconds: float) -> None:
        """A step by the path in use took so long, and so long was predicted of each path."""
        trial = self._trial
        if trial is not None and trial.under_way:
            trial.observe(seconds)
        if self._to_skip:
            self._to_skip -= 1
            return
        own = predicted[self._path]
        known = [each for each, _ in self._steps]
        if known and not 1 / _STEADY < own / median(known) < _STEADY:
            self._steps.clear()
        if self._steps and self._steps[-1][1] > 0:
            self._changes.append(abs(seconds / self._steps[-1][1] - 1))
        self._steps.append((own, seconds))
        if not self.settled:
            return
        now = median(seconds - predicted for predicted, seconds in self._steps)
        if trial is not None and trial.under_way:
            return  # `end_trial` looks at it
        if self._measures_anew:
            self._noted[self._path], self._measures_anew = now - self._drift, False
        elif abs(now - self._noted[self._path]) <= _ALIKE * own:
            self._drift = now - self._noted[self._path]
        if trial is not None:
            self._compare(trial, predicted)

    def change(self, path: str, *, compared: bool = False) -> None:
        """Another path is taken from the next step on.

        compared: whether a trial has just shown what it takes, which is surer than what steps take at another
            time, and tells as much of the path before; else it is measured anew, as a link may have changed.
        """
        if compared:
            both = self._noted[self._path] + self._noted[path]
            self._found[self._path].clear()
            self._found[self._path].extend(both - found for found in self._found[path])
        else:
            self._found[path].clear()
        self._take(path)
        self._measures_anew, self._trial = not compared, None

    def begin_trial(self, path: str) -> None:
        """A path is tried from the next step on; the usual one is measured."""
        self._trial = Trial(path, self._usual_seconds(), self.scatter)
        self._take(path)

    @property
    def trial_is_over(self) -> bool:
        """Whether a trial that is under way has told what it can."""
        assert self._trial is not None, "there is one"
        return self.settled or self._trial.is_over([seconds for _, seconds in self._steps])

    def end_trial(self, usual: str) -> float:
        """The usual path is taken again; return how many seconds the trial has cost."""
        trial = self._trial
        assert trial is not None, "there is one to end"
        if self._steps:
            trial.end(self._usual_seconds())
        else:  # predictions have changed all the time
            self._trial = None
        self._take(usual)
        return trial.cost

    def _take(self, path: str) -> None:
        self._path, self._to_skip = path, _FIRST
        self._steps.clear()

    def _usual_seconds(self) -> float:
        return _middle(seconds for _, seconds in self._steps)

    def _compare(self, trial: Trial, predicted: Mapping[str, float]) -> None:
        self._trial = None
        beyond = self.last_beyond = trial.beyond(self._usual_seconds())
        if beyond is None:
            return
        usual = predicted[self._path] + self._noted[self._path]
        found = self._found[trial.path]
        found.append(usual + beyond - predicted[trial.path])
        self._noted[trial.path] = _middle(found)

    def added(self, predicted: Mapping[str, float]) -> dict[str, float]:
        """Return what is expected by each path: what is predicted, and its surplus as it is now."""
        usual = self._noted.get(self._path, 0.0)
        return {
            path: _within(seconds, self._noted.get(path, usual) + self._drift)
            for path, seconds in predicted.items()
        }


def _middle(seconds: Iterable[float]) -> float:
    """Return the mean without the least and the most: it scatters less than the median."""
    all_of_them = sorted(seconds)
    return mean(all_of_them[1:-1] or all_of_them)


def _within(predicted: float, surplus: float) -> float:
    return predicted + min(max(surplus, _LEAST_SHARE * predicted), _MOST_SHARE * predicted)
