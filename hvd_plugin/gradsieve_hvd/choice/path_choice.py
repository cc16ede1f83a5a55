"""Which path to take next, without going back and forth."""

from __future__ import annotations

from collections.abc import Mapping

MARGIN = 0.10
"""How much sooner another path must be predicted to be done **(r)**: predictions scatter by less."""
PATIENCE = 3
"""For so many steps in a row."""


class PathChoice:
    """The path of one bucket; rank 0 keeps it, and the others follow.

    A change needs a path that is predicted to be better than the one in use by `MARGIN`, the same one, for
    `PATIENCE` steps in a row. So what differs little or briefly changes nothing.

    path: in use. epoch: how often it has changed.
    """

    def __init__(self, path: str) -> None:
        self.path, self.epoch = path, 0
        self._candidate, self._times = path, 0

    def decide(self, predicted: Mapping[str, float]) -> str:
        """Return the path of the next step.

        predicted: seconds by path, of those that are allowed; the one in use is among them.
        """
        best = min(predicted, key=lambda path: predicted[path])
        if predicted[best] >= (1 - MARGIN) * predicted[self.path]:
            self._candidate, self._times = self.path, 0
            return self.path
        self._times = self._times + 1 if best == self._candidate else 1
        self._candidate = best
        if self._times >= PATIENCE:
            self.path, self._times = best, 0
            self.epoch += 1
        return self.path
