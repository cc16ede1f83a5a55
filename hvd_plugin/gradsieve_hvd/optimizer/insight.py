"""What is known of an optimizer's rounds: what they sent, where time went, and why by which path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsieve_hvd.choice.explanation import Explanation
from gradsieve_hvd.engine.reducer import Reducer

from .buckets import Bucket
from .exchange_thread import Pending
from .path_changes import PathChanges
from .round_clock import RoundClock
from .stats import OptimizerStats, stats_of

_ENERGY_EVERY = 50


class Insight:
    """Looks at every round when it ends.

    Args:
        reducer: of the optimizer.
        exchange: its value.
        why: it was taken.
        clock: of rounds.
        changes: of paths, for exchange="auto"; else None.

    changes: see above.
    """

    def __init__(
        self, reducer: Reducer, exchange: str, why: str, clock: RoundClock, changes: PathChanges | None
    ) -> None:
        self._reducer, self._exchange, self._why = reducer, exchange, why
        self._clock, self.changes = clock, changes
        self._stats = OptimizerStats()
        self._rounds = self._energy_round = 0
        self._energy_wanted = False

    def restart(self) -> None:
        """Begin as in a new process: the ranks may be others than before."""
        if self.changes is not None:
            self.changes.restart()

    def agree(self) -> None:
        """Tell each other what choosing needs, before the first round; all ranks call it.

        Raises:
            ExchangeError: a rank did not tell in time.
        """
        if self.changes is not None:
            self.changes.agree()
        self._clock.started()

    def begin_round(self) -> None:
        """A round begins."""
        self._rounds += 1
        self._reducer.measures_energy = self._energy_wanted and self._rounds >= self._energy_round
        if self._reducer.measures_energy:
            self._energy_round = self._rounds + _ENERGY_EVERY

    def end_round(self, launched: Sequence[tuple[Bucket, Pending[Any]]], *, learns: bool) -> None:
        """All buckets have arrived.

        learns: whether the round tells what one takes.

        Raises:
            ExchangeError: see `PathChanges.end_round`.
        """
        path = self._exchange if self.changes is None else self.changes.path
        self._stats = stats_of(launched, self._reducer.states, self._clock, path, self._reducer.step)
        if self.changes is not None:
            self.changes.end_round(launched, learns=learns)

    def stats(self) -> OptimizerStats:
        """Return those of the last round that was exchanged.

        From the first call on, what selections keep is measured in every 50th round, at first in the next.
        """
        self._energy_wanted = True
        return self._stats

    def explain(self) -> Explanation:
        """Return which path compressed gradients take, and why."""
        if self.changes is not None:
            return self.changes.explain()
        return Explanation(self._exchange, rounds=self._rounds, why=self._why)
