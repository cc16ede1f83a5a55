"""Rank 0's choice of a path for compressed gradients, from what it sees of every round."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .costs import Link, Load, WorkRates, predict
from .explanation import Explanation
from .link_estimate import LinkEstimate, ProbeBudget, Timing
from .path_choice import PathChoice
from .schedule import step_time

_FIRST_LINK = Link(5e-4, 1.25e8)
_STEPS = 32
_FEW = 5
_LONGEST_ROUND = 2.0
"""Of usual ones: what is longer is a pause, as for an evaluation, of which no part belongs to probes."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of an optimizer, as a rank saw it.

    timings: of its exchanges, in their order; the last one of what is not compressed. loads: of its
    compressed buckets. compute_seconds: of what is neither selecting, encoding nor waiting. seconds: from the
    end of the round before to its own, without the wait for the last rank's gradients.
    """

    timings: Sequence[Timing]
    loads: Sequence[Load]
    compute_seconds: float
    seconds: float


class PathChooser:
    """Predicts a step by each path that is allowed, and keeps the one to take.

    1. Two exchanges of each round tell of the link, the last and another one in turn; see `LinkEstimate`.
    2. Computing is the median of the last 32 steps', whatever path they took: so what a path makes slower
       without showing counts as its own; see `gradsieve_hvd.choice.surplus`.
    3. A step is predicted by each path, all compressed buckets alike.
    4. `PathChoice` decides.

    Args:
        allowed: paths, of `gradsieve_hvd.choice.costs.PATHS`; the first is taken first.
        ranks: that exchange.
        rates: of this machine.
    """

    def __init__(self, allowed: Sequence[str], ranks: int, rates: WorkRates) -> None:
        self._allowed, self._ranks, self._rates = tuple(allowed), ranks, rates
        self._choice = PathChoice(self._allowed[0])
        self._link, self._budget = LinkEstimate(_FIRST_LINK), ProbeBudget()
        self._computing: deque[float] = deque(maxlen=_STEPS)
        self._steps: deque[float] = deque(maxlen=_FEW)
        self._predicted: dict[str, float] = {}
        self._rounds = 0

    @property
    def path(self) -> str:
        """To be taken next."""
        return self._choice.path

    @property
    def probe_bytes(self) -> int:
        """How many bytes a rank may send now to find out what the link is worth; 0 for none."""
        return self._budget.probe_bytes(self._link)

    def observe(self, seen: Round) -> Explanation | None:
        """Take a round into account; return why, if the path changes.

        Rounds without compressed gradients tell nothing.
        """
        self._rounds += 1
        for timing in self._telling(seen.timings):
            self._link.observe(timing)
        usual = median(self._steps) if self._steps else seen.seconds
        self._budget.passed(min(seen.seconds, _LONGEST_ROUND * usual))
        if not seen.loads:
            return None
        self._computing.append(seen.compute_seconds)
        self._steps.append(seen.seconds)
        self._predicted = self._predict(seen.loads)
        before = self.explain()
        if self._choice.decide(self._predicted, seen.seconds) == before.path:
            return None
        self._steps.clear()
        return before.changed_to(self.path, self._choice.epoch, trying=self._choice.trying)

    def _telling(self, timings: Sequence[Timing]) -> list[Timing]:
        others = timings[:-1]
        return [*([others[self._rounds % len(others)]] if others else []), *timings[-1:]]

    def probed(self, timing: Timing) -> None:
        """A probe was made."""
        self._link.observe(timing)
        self._budget.spent(timing.seconds)

    def explain(self) -> Explanation:
        """Return what is known now."""
        link = self._link.link
        return Explanation(
            path=self.path,
            epoch=self._choice.epoch,
            trying=self._choice.trying,
            predicted=dict(self._predicted),
            expected=self._choice.expected(self._predicted),
            measured_seconds=median(self._steps) if self._steps else None,
            compute_seconds=median(self._computing) if self._computing else None,
            start_up_seconds=link.start_up_seconds,
            bytes_per_second=link.bytes_per_second,
        )

    def _predict(self, loads: Sequence[Load]) -> dict[str, float]:
        usual = _mean(loads)
        computing = median(self._computing)
        predicted = {}
        for path in self._allowed:
            cost = predict(path, usual, self._ranks, self._link.link, self._rates)
            predicted[path] = step_time(computing, [cost] * len(loads)).seconds
        return predicted


def _mean(loads: Sequence[Load]) -> Load:
    """Return the load of a bucket like the mean of these."""
    number = len(loads)
    return Load(
        elements=max(round(sum(load.elements for load in loads) / number), 1),
        entries=sum(load.entries for load in loads) / number,
        value_dtype=loads[0].value_dtype,
        hot=sum(load.hot for load in loads) / number,
        tensors=sum(load.tensors for load in loads) / number,
        ranks_per_core=loads[0].ranks_per_core,
    )
